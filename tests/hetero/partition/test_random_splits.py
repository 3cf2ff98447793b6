"""Models split by random affinities compute the results of one device."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hetero
from hetero.devices.model.model import Model
from tests.support.core_fixtures import core_fixture
from tests.support.graphs import feeds, random_affinity, random_model

DEVICES = ("CPU.0", "CPU.1", "CPU.2", "CPU.3")
NO_TRANSFORMATIONS = {"DISABLE_TRANSFORMATIONS": True}


core = core_fixture("module", devices={"CPU": len(DEVICES)})


def check_split(
    core: hetero.Core,
    model: Model,
    inputs: dict[str, np.ndarray],
    seed: int,
    config: dict[str, bool],
) -> None:
    devices = DEVICES[: 2 + seed % 3]
    with core.compile_model(model, "CPU.0", config) as whole:
        expected = whole(inputs).to_tuple()
    pins = random_affinity(model, devices, seed)
    with core.compile_model(model, f"HETERO:{','.join(devices)}", config, affinity=pins) as split:
        # Literals follow their readers; every other node is on the device of its pin.
        displaced = {n for n in pins if split.affinity[n] != pins[n]}
        assert all(model.nodes[model.index_of[n]].op_type == "Constant" for n in displaced)
        outputs = split(inputs).to_tuple()
    for output, reference in zip(outputs, expected, strict=True):
        assert np.shape(output) == np.shape(reference)
        np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-5, strict=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(30))
def test_split_random_model_matches_one_device(core, seed):
    model = random_model(seed, 4 + seed % 25)
    check_split(core, model, feeds(model, seed), seed, NO_TRANSFORMATIONS if seed % 2 else {})


def layered() -> onnx.ModelProto:
    """Return a model that changes memory layouts: transposes, slices, norms and products."""
    rng = np.random.default_rng(7)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(op: str, *reads: str, **attributes: object) -> str:
        output = f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, reads, [output], output, **attributes))
        return output

    def weight(array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array, f"w{len(weights)}"))
        return weights[-1].name

    def norm(x: str) -> str:
        centred = add("Sub", x, add("ReduceMean", x, axes=[-1]))
        square = add("ReduceMean", add("Mul", centred, centred), axes=[-1])
        return add("Div", centred, add("Sqrt", square))

    def integers(*numbers: int) -> str:
        return weight(np.array(numbers, np.int64))

    value = "x"
    for _ in range(2):
        transposed = add("Transpose", value, perm=[0, 2, 1])
        mixed = add("Add", transposed, weight(rng.standard_normal((1, 40, 48)).astype(np.float32)))
        mixed = add("Tanh", norm(mixed))
        scores = add("MatMul", mixed, add("Transpose", mixed, perm=[0, 2, 1]))
        context = add("MatMul", add("Softmax", scores, axis=-1), transposed)
        left = add("Slice", context, integers(0), integers(48), integers(2), integers(2))
        reduced = add("ReduceSum", add("Mul", add("Tanh", left), left), integers(1), keepdims=1)
        value = add("Add", add("Transpose", norm(context), perm=[0, 2, 1]), value)
        value = add("Mul", value, add("Tanh", add("ReduceMean", reduced, axes=[-1])))
    shape = [1, 48, 40]
    graph = helper.make_graph(
        nodes,
        "layered",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", range(10))
def test_split_layout_changing_model_matches_one_device(core, seed):
    model = core.read_model(layered())
    x = np.random.default_rng(seed).standard_normal((1, 48, 40)).astype(np.float32)
    check_split(core, model, {"x": x}, seed, NO_TRANSFORMATIONS if seed % 2 else {})
