"""Half-precision models in single precision: results, explicit casts and names."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.reader import read_model
from tests.support.small_models import compile_cpu, make_model, run_cpu, run_onnxruntime

RNG = np.random.default_rng(0)


def halves(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16)


def element_types(model: ModelProto) -> set[str]:
    """Return the element types of the executed nodes' outputs."""
    plugin = CPUPlugin()
    transformed = plugin.transform_model(read_model(model), plugin.effective_config())
    return {transformed.spec(name).element_type for n in transformed.nodes for name in n.writes}


NETWORKS: dict[str, tuple[Sequence[NodeProto], list[str]]] = {
    "convolution": (
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["y"]),
        ],
        ["y"],
    ),
    "inner output": (
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Exp", ["c"], ["y"]),
        ],
        ["y", "c"],
    ),
    "constant of shape": (
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Shape", ["c"], ["s"]),
            helper.make_node(
                "ConstantOfShape",
                ["s"],
                ["k"],
                value=helper.make_tensor("value", TensorProto.FLOAT16, [1], [0.1]),
            ),
            helper.make_node("Mul", ["c", "k"], ["y"]),
        ],
        ["y"],
    ),
    "weights as output": (
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Identity", ["w"], ["y"]),
        ],
        ["y", "c"],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_result_equals_onnxruntime(name):
    nodes, outputs = NETWORKS[name]
    x = halves(2, 4, 6, 5)
    model = make_model(nodes, {"x": x}, outputs, {"w": halves(3, 4, 3, 3)})
    results, references = run_cpu(model, {"x": x}), run_onnxruntime(model, {"x": x})
    assert "float" in element_types(model)
    for result, expected in zip(results, references, strict=True):
        assert result.dtype == np.float16
        np.testing.assert_allclose(result, expected, rtol=4e-3, atol=4e-3)


def test_bfloat16_product_equals_rounded_float_product():
    x, w = (RNG.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((5, 8), (8, 3)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = make_model(nodes, {"x": x}, ["y"], {"w": w})
    (y,) = run_cpu(model, {"x": x})
    assert y.dtype == ml_dtypes.bfloat16
    expected = (x.astype(np.float32) @ w.astype(np.float32)).astype(ml_dtypes.bfloat16)
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), rtol=1e-2)


def test_explicit_cast_rounds_and_overflows():
    x = np.array([[1e6, -1e6, 1 / 3, 70000]], np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["h", "one"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["w", "w"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["z"]),
    ]
    feeds = {"x": x, "v": halves(2, 2)}
    constants = {"one": np.float16(1), "w": halves(2, 2)}
    y, _ = run_cpu(make_model(nodes, feeds, ["y", "z"], constants), feeds)
    with np.errstate(over="ignore"):
        assert np.array_equal(y, x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("Exp", ["x"], ["y"]), "the model has no product"),
        (helper.make_node("Cast", ["c"], ["y"], to=TensorProto.STRING), "text depends on the type"),
    ],
)
def test_other_models_stay_in_half_precision(node, reason):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["c"])] if "c" in node.input else []
    model = make_model([*nodes, node], {"x": halves(2, 3)}, ["y"], {"w": halves(3, 4)})
    assert "float" not in element_types(model), reason


def test_executed_nodes_have_original_names():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Exp", ["c"], ["y"], name="exp"),
    ]
    x = halves(1, 4, 6, 5)
    compiled = compile_cpu(make_model(nodes, {"x": x}, ["y"], {"w": halves(3, 4, 3, 3)}))
    covered = [name for node in compiled.executed_nodes() for name in node.original_names]
    assert set(covered) == {"conv", "exp"}
    names = [node.name for node in compiled.executed_nodes()]
    assert {"conv", "exp"} <= set(names)
    assert len(names) == len(set(names))


def test_pass_avoids_names_in_use():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y/single"]),
        helper.make_node("Add", ["y/single", "x"], ["y"]),
        helper.make_node("Mul", ["y/single", "y"], ["z"]),
    ]
    x = np.ones((2, 2), np.float16)
    model = make_model(nodes, {"x": x}, ["y", "z"], {"w": np.eye(2, dtype=np.float16) * 3})
    for result, expected in zip(
        run_cpu(model, {"x": x}), run_onnxruntime(model, {"x": x}), strict=True
    ):
        assert np.array_equal(result, expected)
