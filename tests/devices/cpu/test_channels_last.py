"""Convolutions whose memory runs over channels first, against ONNX Runtime, and what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper

from hetero.devices.cpu.fast import conv as convolution
from hetero.devices.cpu.fast import winograd
from hetero.devices.cpu.fast.bands import BandScratch
from hetero.devices.cpu.fast.winograd import prepare, tile_calls
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.interpreter.calls import Scratch
from hetero.devices.model.reader import read_model
from tests.support.small_models import compile_cpu, make_model, run_cpu, run_onnxruntime

RNG = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def check(
    nodes: Sequence[NodeProto], x: np.ndarray, constants: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """Run the nodes, which end in `y`, here and on ONNX Runtime: as they come, then bound."""
    model = make_model(nodes, {"x": x}, ["y"], constants)
    compiled = compile_cpu(model)
    for given in (x, x / 2, x):
        ours = list(compiled.run([given]))
        for mine, theirs in zip(ours, run_onnxruntime(model, {"x": given}), strict=True):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    return ours


def transformed(nodes: Sequence[NodeProto], x: np.ndarray, constants: dict[str, Any]) -> list[Any]:
    """Return the nodes that the device makes of these."""
    plugin = CPUPlugin()
    model = read_model(make_model(nodes, {"x": x}, ["y"], constants))
    return list(plugin.transform_model(model, plugin.effective_config()).nodes)


def conv(c: int, m: int, kernel: Sequence[int], group: int = 1) -> dict[str, np.ndarray]:
    return {"w": values(m, c // group, *kernel) / np.float32(c), "b": values(m)}


#: Shape of the input, output channels, kernel, other attributes.
CONVOLUTIONS: list[tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = [
    ((1, 5, 9, 7), 6, (1, 1), {}),
    ((3, 5, 9, 7), 6, (1, 1), {"strides": [2, 3]}),
    ((1, 5, 9, 7), 6, (1, 1), {"pads": [1, 0, 2, 1]}),
    ((2, 3, 11, 8), 4, (3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 3, 31, 29), 8, (7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    ((1, 4, 12, 13), 6, (3, 2), {"pads": [0, 2, 1, 0], "strides": [2, 1]}),
    ((1, 4, 12, 13), 6, (2, 3), {"dilations": [2, 3]}),
    ((1, 4, 12, 13), 6, (3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((2, 6, 9, 9), 4, (1, 1), {"group": 2}),
    ((2, 6, 9, 9), 9, (3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ((2, 6, 9, 9), 6, (3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ((2, 6, 9, 9), 6, (3, 5), {"group": 6, "strides": [2, 2]}),
    ((2, 6, 9, 9), 6, (3, 3), {"group": 6, "dilations": [2, 2]}),
    ((2, 6, 9, 9), 12, (3, 3), {"group": 6}),
    ((2, 5, 9), 6, (1,), {}),
    ((2, 5, 30), 6, (3,), {"pads": [4, 0], "dilations": [2], "strides": [3]}),
    ((1, 6, 30), 4, (5,), {"auto_pad": "SAME_UPPER", "group": 2}),
    ((3, 6, 30), 6, (4,), {"group": 6, "pads": [3, 3]}),
    ((1, 64, 70, 90), 32, (3, 3), {"strides": [2, 2]}),
    ((40, 8, 5, 5), 16, (3, 3), {}),
]


@pytest.mark.parametrize(("shape", "m", "kernel", "attributes"), CONVOLUTIONS)
def test_a_convolution_gives_what_onnx_runtime_gives(
    shape: tuple[int, ...], m: int, kernel: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)]
    check(nodes, values(*shape), conv(shape[1], m, kernel, attributes.get("group", 1)))


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_residual_block_along_one_axis_gives_what_onnx_runtime_gives(kernel: int) -> None:
    pads = [kernel // 2] * 2
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=pads),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w", "b"], ["d"], pads=pads),
        helper.make_node("Add", ["d", "x"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    x, constants = values(2, 6, 40), conv(6, 6, (kernel,))
    check(nodes, x, constants)


@pytest.mark.parametrize(
    ("shape", "m", "kernel", "attributes"),
    [
        *CONVOLUTIONS[:-2],
        ((2, 4, 8, 5), 6, (3, 1), {"pads": [1, 0, 2, 0]}),
        ((1, 4, 3, 5), 6, (3, 3), {"pads": [4, 1, 5, 1]}),
        ((2, 32, 15, 41), 24, (3, 3), {"pads": [1, 1, 1, 1]}),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_rows_computed_a_few_at_a_time_are_the_same(
    shape: tuple[int, ...],
    m: int,
    kernel: tuple[int, ...],
    attributes: dict[str, Any],
    last: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name in product((convolution, winograd), ("_BLOCK_BYTES", "_MOST_BLOCK_BYTES")):
        monkeypatch.setattr(module, name, 1, raising=False)
    for name in ("_LEAST_BLOCK_BYTES", "_FEWEST_PIXELS"):
        monkeypatch.setattr(convolution, name, 1)
    c, group = shape[1], attributes.get("group", 1)
    nodes = [
        helper.make_node("Conv" if last else "Neg", ["x", "v"] if last else ["x"], ["a"]),
        helper.make_node("Conv", ["a", "w", "b"], ["c"], **attributes),
        helper.make_node("Abs", ["c"], ["d"]),
        helper.make_node("Conv", ["a", "w", "b"], ["e"], **attributes),
        helper.make_node("Add", ["d", "e"], ["f"]),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    check(
        nodes, values(*shape), {"v": values(c, c, *[1] * len(kernel))} | conv(c, m, kernel, group)
    )


@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
@pytest.mark.parametrize("group", [1, 6])
def test_prepared_weights_lie_in_order(strides: list[int], group: int) -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], group=group, strides=strides)]
    plugin = CPUPlugin()
    model = read_model(
        make_model(nodes, {"x": values(1, 6, 9, 9)}, ["y"], conv(6, 6, (3, 3), group))
    )
    constants = plugin.transform_model(model, plugin.effective_config()).constants.values()
    assert all(constant.array.flags.c_contiguous for constant in constants)


@pytest.mark.parametrize("size", [1, 5, 41])
@pytest.mark.parametrize("attributes", [{}, {"beta": 0.5}, {"alpha": 0.3, "bias": 2.0}])
def test_responses_are_normalised_across_channels(size: int, attributes: dict[str, float]) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["c"]),
        helper.make_node("LRN", ["c"], ["y"], size=size, **attributes),
    ]
    check(nodes, values(2, 6, 5, 7), {"v": values(6, 6, 1, 1)})


@pytest.mark.parametrize("size", [(13, 15), (14, 14), (28, 28), (29, 41)])
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 2, 1, 0]])
@pytest.mark.parametrize("n", [1, 3])
def test_a_convolution_by_winograd_gives_what_onnx_runtime_gives(
    size: tuple[int, int], pads: list[int], n: int
) -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=pads)]
    x, constants = values(n, 32, *size), conv(32, 24, (3, 3))
    (node,) = transformed(nodes, x, constants)
    assert node.attributes["winograd"] in (2, 4)
    check(nodes, x, constants)


@pytest.mark.parametrize("tile", [2, 4])
def test_winograd_is_as_exact_as_its_type_allows(tile: int) -> None:
    x, w = RNG.standard_normal((11, 9, 40)), RNG.standard_normal((30, 40, 3, 3))
    y = np.empty((11, 9, 30))
    around = np.pad(x, ((1, 2), (1, 4), (0, 0)))[: 12 + 2]  # whole tiles
    whole = around[None, :, : 2 - 9 // -tile * tile].copy()
    for call in tile_calls(BandScratch(Scratch()), prepare(w, tile), tile, whole, y[None]):
        call()
    around = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    reads = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (0, 1))
    np.testing.assert_allclose(y, np.einsum("hwcij,mcij->hwm", reads, w), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "activation",
    [("Relu", {}), ("Clip", {}), ("Sigmoid", {}), ("LeakyRelu", {"alpha": 0.2}), ("HardSwish", {})],
)
@pytest.mark.parametrize("residual", [False, True])
def test_residual_and_activation_are_applied_to_each_block(
    activation: tuple[str, dict[str, float]], residual: bool
) -> None:
    name, attributes = activation
    bounds = ["low", "high"] if name == "Clip" else []
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["z"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Add", ["c", "z"], ["s"]),
        helper.make_node(name, ["s" if residual else "c", *bounds], ["y"], **attributes),
    ]
    constants = conv(5, 7, (1, 1)) | {"v": values(7, 5, 3, 3)}
    constants |= {"low": np.float32(-0.5), "high": np.float32(0.7)}
    nodes = nodes if residual else [nodes[1], nodes[3]]
    check(nodes, values(2, 5, 60, 61), constants)


READERS = {
    "pooled": [helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[3, 3], strides=[2, 2])],
    "padded pool": [
        helper.make_node(
            "MaxPool", ["c"], ["y"], kernel_shape=[3, 2], pads=[1, 1, 1, 0], dilations=[2, 1]
        )
    ],
    "means": [
        helper.make_node("AveragePool", ["c"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    ],
    "one element": [helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[1, 1], strides=[2, 2])],
    "global mean": [helper.make_node("GlobalAveragePool", ["c"], ["y"])],
    "mean": [helper.make_node("ReduceMean", ["c"], ["y"], axes=[2, 3], keepdims=0)],
    "framed": [helper.make_node("Pad", ["c", "pads"], ["y"], mode="constant")],
    "mirrored": [helper.make_node("Pad", ["c", "pads"], ["y"], mode="reflect")],
    "joined": [helper.make_node("Concat", ["c", "x", "c"], ["y"], axis=1)],
    "flat": [helper.make_node("Flatten", ["c"], ["y"])],
    "softmax": [helper.make_node("Softmax", ["c"], ["y"], axis=1)],
    "transposed": [helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1])],
    "mixed": [helper.make_node("Add", ["c", "x"], ["y"])],
    "instances": [helper.make_node("InstanceNormalization", ["c", "b", "b"], ["y"])],
    "normalised": [helper.make_node("LRN", ["c"], ["y"], size=3)],
    "upsampled": [helper.make_node("Resize", ["c", "", "scales"], ["y"], mode="linear")],
    "repeated": [helper.make_node("Resize", ["c", "", "scales"], ["y"], mode="nearest")],
    "sized": [helper.make_node("Resize", ["c", "", "", "sizes"], ["y"], mode="cubic")],
    "transposed convolution": [helper.make_node("ConvTranspose", ["c", "v"], ["y"])],
}


@pytest.mark.parametrize("reader", READERS)
def test_other_operators_read_what_a_convolution_made(reader: str) -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"]), *READERS[reader]]
    constants = conv(6, 6, (1, 1)) | {"v": values(6, 4, 2, 2)}
    constants["scales"] = np.array([1, 1, 2, 2], np.float32)
    constants["sizes"] = np.array([2, 6, 5, 12])
    constants["pads"] = np.array([0, 0, 2, 1, 0, 0, 0, 3])
    (y,) = check(nodes, values(2, 6, 9, 8), constants)
    assert y.flags.writeable


def test_pools_and_sums_keep_channels_last() -> None:
    x = np.moveaxis(values(1, 8, 9, 5), 3, 1)
    pool: dict[str, Any] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    for name in ("MaxPool", "AveragePool", "LpPool"):
        kernel = CPUPlugin.backend.find_kernel("", name, 22)
        assert kernel is not None
        assert kernel.function(np, x, **pool).strides == x.strides


@pytest.mark.parametrize("read", ["weights", "bias"])
def test_what_is_not_known_beforehand_stays_as_it_is(read: str) -> None:
    given = "w" if read == "weights" else "b"
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"])]
    constants = conv(3, 4, (3, 3))
    feeds = {"x": values(1, 3, 6, 6), given: constants.pop(given)}
    model = make_model(nodes, feeds, ["y"], constants)
    (wanted,) = run_onnxruntime(model, feeds)
    np.testing.assert_allclose(run_cpu(model, feeds)[0], wanted, rtol=1e-4, atol=1e-5)


def test_a_convolution_of_wrong_channels_says_what_it_wants() -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"])]
    model = make_model(nodes, {"x": values(1, 3, 6, 6)}, ["y"], conv(3, 4, (3, 3)))
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.ClearField("value")
    with pytest.raises(ValueError, match="1 groups of 3 channels wanted"):
        run_cpu(model, {"x": values(1, 5, 6, 6)})


def test_accuracy_leaves_convolutions_as_they_are_written() -> None:
    x, constants = values(1, 32, 28, 28), conv(32, 24, (3, 3))
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])]
    compiled = compile_cpu(
        make_model(nodes, {"x": x}, ["y"], constants), EXECUTION_MODE_HINT="accuracy"
    )
    assert [node.layer_type for node in compiled.executed_nodes()] == ["Conv"]
    wanted = run_cpu(make_model(nodes, {"x": x}, ["y"], constants), {"x": x})
    np.testing.assert_allclose(compiled.run([x])[0], wanted[0], rtol=1e-4, atol=1e-4)
