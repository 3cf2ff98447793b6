"""Any affinity gives the answer of one device: random models, and what turns memory around."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hetero
from hetero.devices.model.model import Model
from tests.support.graphs import feeds, random_affinity, random_model

DEVICES = ("CPU.0", "CPU.1", "CPU.2", "CPU.3")
AS_WRITTEN = {"DISABLE_TRANSFORMATIONS": True}


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", devices={"CPU": len(DEVICES)}) as core:
        yield core


def check_split(
    core: hetero.Core,
    model: Model,
    given: dict[str, np.ndarray],
    seed: int,
    config: dict[str, bool],
) -> None:
    devices = DEVICES[: 2 + seed % 3]
    with core.compile_model(model, "CPU.0", config) as whole:
        want = whole(given).to_tuple()
    pins = random_affinity(model, devices, seed)
    with core.compile_model(model, f"HETERO:{','.join(devices)}", config, affinity=pins) as split:
        # A literal goes to whoever reads it; every other node is where it was pinned.
        moved = {n for n in pins if split.affinity[n] != pins[n]}
        assert all(model.nodes[model.index_of[n]].op_type == "Constant" for n in moved)
        got = split(given).to_tuple()
    for one, other in zip(got, want, strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, strict=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(30))
def test_random_models(core: hetero.Core, seed: int) -> None:
    model = random_model(seed, 4 + seed % 25)
    check_split(core, model, feeds(model, seed), seed, AS_WRITTEN if seed % 2 else {})


def layered() -> onnx.ModelProto:
    """Return what turns memory around: transposes, slices, norms, products in every order."""
    rng = np.random.default_rng(7)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(op: str, *reads: str, **attributes: object) -> str:
        made = f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, reads, [made], made, **attributes))
        return made

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
        turned = add("Transpose", value, perm=[0, 2, 1])
        mixed = add("Add", turned, weight(rng.standard_normal((1, 40, 48)).astype(np.float32)))
        mixed = add("Tanh", norm(mixed))
        scores = add("MatMul", mixed, add("Transpose", mixed, perm=[0, 2, 1]))
        context = add("MatMul", add("Softmax", scores, axis=-1), turned)
        left = add("Slice", context, integers(0), integers(48), integers(2), integers(2))
        kept = add("ReduceSum", add("Mul", add("Tanh", left), left), integers(1), keepdims=1)
        value = add("Add", add("Transpose", norm(context), perm=[0, 2, 1]), value)
        value = add("Mul", value, add("Tanh", add("ReduceMean", kept, axes=[-1])))
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
def test_what_turns_memory_around(core: hetero.Core, seed: int) -> None:
    model = core.read_model(layered())
    x = np.random.default_rng(seed).standard_normal((1, 48, 40)).astype(np.float32)
    check_split(core, model, {"x": x}, seed, AS_WRITTEN if seed % 2 else {})
