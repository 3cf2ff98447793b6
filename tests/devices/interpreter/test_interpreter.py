"""The interpreter: control flow, functions, errors, ownership of memory, export."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hetero.devices.cpu.plugin import CPUPlugin, CPUProgram
from hetero.devices.errors import BlobError, KernelError, ModelError
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import Payload, RunContext
from tests.support.small_models import compile_cpu, make_model, run_cpu, run_reference

RAW = {"DISABLE_TRANSFORMATIONS": True}
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def body(nodes: list[Any], inputs: list[Any], outputs: list[str]) -> Any:
    return helper.make_graph(
        nodes, "body", inputs, [helper.make_empty_tensor_value_info(o) for o in outputs]
    )


@pytest.mark.parametrize("config", [RAW, {}])
@pytest.mark.parametrize("condition", [True, False])
def test_if_bodies_read_outer_values(condition, config):
    then = body([helper.make_node("Add", ["h", "w"], ["t"])], [], ["t"])
    inner = body([helper.make_node("Sub", ["h", "x"], ["i"])], [], ["i"])
    otherwise = body(
        [helper.make_node("If", ["c"], ["e"], then_branch=inner, else_branch=inner)], [], ["e"]
    )
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    feeds = {"x": X, "c": np.array(condition)}
    model = make_model(nodes, feeds, ["y"], {"w": np.float32(3)})
    (actual,), (expected,) = run_cpu(model, feeds, **config), run_reference(model, feeds)
    assert np.array_equal(actual, expected)


def test_loop_with_scan_output_and_capture():
    nodes = [
        helper.make_node("Add", ["state", "x"], ["next"]),
        helper.make_node("Identity", ["next"], ["scanned"]),
        helper.make_node("Identity", ["on"], ["on_out"]),
    ]
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
    ]
    graph = body(nodes, inputs, ["on_out", "next", "scanned"])
    loop = helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=graph)
    feeds = {"x": X, "n": np.array(4)}
    model = make_model([loop], feeds, ["last", "all"])
    last, every = run_cpu(model, feeds)
    assert np.array_equal(last, X * 5)
    assert np.array_equal(every, np.stack([X * k for k in (2, 3, 4, 5)]))


def test_function_attributes_defaults_and_absent_inputs():
    inside = [
        helper.make_node("LeakyRelu", ["a"], ["r"]),
        helper.make_node("Clip", ["r", "low"], ["out"]),
    ]
    reference = inside[0].attribute.add(name="alpha", ref_attr_name="slope")
    reference.type = 1
    function = helper.make_function(
        "own",
        "Leaky",
        ["a", "low"],
        ["out"],
        inside,
        [helper.make_opsetid("", 13)],
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )
    nodes = [
        helper.make_node("Leaky", ["x"], ["half"], domain="own"),
        helper.make_node("Leaky", ["x", "low"], ["tenth"], domain="own", slope=0.1),
    ]
    x = X - 5
    model = make_model(
        nodes,
        {"x": x},
        ["half", "tenth"],
        {"low": np.float32(-0.3)},
        functions=[function],
        domains={"own": 1},
    )
    half, tenth = run_cpu(model, {"x": x})
    np.testing.assert_allclose(half, np.where(x < 0, x * 0.5, x), rtol=1e-6)
    np.testing.assert_allclose(tenth, np.maximum(np.where(x < 0, x * 0.1, x), -0.3), rtol=1e-6)
    (executed, _) = compile_cpu(model).executed_nodes()
    assert executed.implementation == "function:Leaky"


def test_unsupported_operator_inside_a_body_is_named():
    graph = body([helper.make_node("NoSuchOp", ["x"], ["t"], domain="")], [], ["t"])
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=graph, else_branch=graph)
    model = make_model([node], {"x": X, "c": np.array(True)}, ["y"])
    (refusal,) = CPUPlugin().query_model(read_model(model), RAW).unsupported["if"].values()
    assert refusal.code == "no_kernel"
    assert "NoSuchOp" in refusal.message
    assert "_branch of If" in refusal.message


def test_recursive_function_is_refused():
    inner = [helper.make_node("Again", ["a"], ["b"], domain="own")]
    imports = [helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Again", ["a"], ["b"], inner, imports)
    node = helper.make_node("Again", ["x"], ["y"], name="call", domain="own")
    model = make_model([node], {"x": X}, ["y"], functions=[function], domains={"own": 1})
    with pytest.raises(ModelError, match="must not be recursive"):
        CPUPlugin().query_model(read_model(model), RAW)


def test_refusals_by_opset_and_attribute():
    old = make_model([helper.make_node("Gelu", ["x"], ["y"], name="g")], {"x": X}, ["y"], opset=13)
    odd = make_model([helper.make_node("Relu", ["x"], ["y"], name="r", odd=1)], {"x": X}, ["y"])
    for model, code in ((old, "opset"), (odd, "attribute")):
        (reasons,) = CPUPlugin().query_model(read_model(model)).unsupported.values()
        (refusal,) = reasons.values()
        assert refusal.code == code


def test_kernel_errors_name_node_operator_opset_shapes_and_types():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="first"),
        helper.make_node("MatMul", ["r", "w"], ["y"], name="product"),
    ]
    model = make_model(nodes, {"x": X}, ["y"], {"w": np.ones((5, 2), np.float32)})
    compiled = CPUPlugin().compile_model(read_model(model), RAW)
    with pytest.raises(KernelError) as caught:
        compiled.run([X])
    assert (caught.value.node, caught.value.op_type, caught.value.opset) == (
        "product",
        "MatMul",
        17,
    )
    for part in ("'product'", "opset 17", "float32[3, 4]", "float32[5, 2]"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([helper.make_node("Identity", ["x"], ["y"])], ["y"]),
        ([helper.make_node("Reshape", ["x", "shape"], ["y"])], ["y"]),
        ([helper.make_node("Identity", ["w"], ["y"])], ["y"]),
        ([helper.make_node("Relu", ["x"], ["y"])], ["w", "y", "x"]),
        (
            [
                helper.make_node("Neg", ["x"], ["t"]),
                helper.make_node("Identity", ["t"], ["u"]),
                helper.make_node("Flatten", ["t"], ["v"]),
            ],
            ["t", "u", "v", "t"],
        ),
    ],
)
def test_outputs_are_the_callers_own(nodes, outputs):
    weights = np.ones(3, np.float32)
    model = make_model(
        nodes, {"x": X}, outputs, {"w": weights, "shape": np.array([4, 3], np.int64)}
    )
    compiled, x = compile_cpu(model), X.copy()
    first = compiled.run([x])
    copies = [y.copy() for y in first]
    for i, y in enumerate(first):
        y[...] = -1
        for other, before in zip(first[i + 1 :], copies[i + 1 :], strict=True):
            assert np.array_equal(other, before)
    assert np.array_equal(x, X)
    for y, before in zip(compiled.run([x]), copies, strict=True):
        assert np.array_equal(y, before)


#: Operators of one input, a mix of views and copies.
_UNARY = ("Relu", "Neg", "Abs", "Exp", "Tanh", "Identity", "Flatten", "Transpose", "Reshape")
_BINARY = ("Add", "Sub", "Mul")


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[Any], list[str]]:
    """Draw nodes over square values, each reading any earlier ones, and some of them as outputs."""
    values, nodes = ["x", "w"], []
    for i in range(draw(st.integers(2, 12))):
        op_type = draw(st.sampled_from(_UNARY + _BINARY))
        inputs = [draw(st.sampled_from(values)) for _ in range(1 + (op_type in _BINARY))]
        if op_type == "Exp":  # kept small, so that chains of them stay finite
            nodes.append(helper.make_node("Tanh", inputs, [f"t{i}"]))
            inputs = [f"t{i}"]
        if op_type == "Reshape":
            inputs.append("square")
        nodes.append(helper.make_node(op_type, inputs, [f"v{i}"]))
        values.append(f"v{i}")
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    return nodes, outputs


@given(chains(), st.booleans())
def test_memory_is_not_overwritten_while_it_is_read(chain, raw):
    nodes, outputs = chain
    random = np.random.default_rng(0)
    x, w = (random.uniform(-1, 1, (40, 40)).astype(np.float32) for _ in range(2))
    square = np.array([40, 40], np.int64)
    model = make_model(nodes, {"x": x}, outputs, {"w": w, "square": square})
    compiled, given_x = compile_cpu(model, DISABLE_TRANSFORMATIONS=raw), x.copy()
    expected = run_reference(model, {"x": x})
    for _ in range(2):  # a constant written in the first run would show in the second
        for a, b in zip(compiled.run([given_x]), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert np.array_equal(given_x, x)


def test_export_and_load_without_transforming_again():
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"], name="norm"),
        helper.make_node("Relu", ["n"], ["y"], name="relu"),
    ]
    random = np.random.default_rng(0)
    x = random.normal(size=(1, 2, 8, 8)).astype(np.float32)
    kernel = random.normal(size=(3, 2, 3, 3)).astype(np.float32)
    scale = np.ones(3, np.float32)
    compiled = compile_cpu(make_model(nodes, {"x": x}, ["y"], {"k": kernel, "s": scale}))
    payload = compiled.export_model()
    again = CPUProgram.load(payload)
    assert np.array_equal(again.run([x], RunContext())[0], compiled.run([x])[0])
    assert again.executed_nodes() == compiled.executed_nodes()
    assert [n.original_names for n in again.executed_nodes()] == [("conv", "norm"), ("relu",)]
    assert "s" not in payload.tensors, "a weight of the model before its transformation"
    for damaged in (
        Payload({**payload.header, "format": 99}, payload.tensors),
        Payload({**payload.header, "graph": b"\xff\xff"}, payload.tensors),
        Payload(payload.header, {}),
    ):
        with pytest.raises(BlobError):
            CPUProgram.load(damaged)


def test_sparse_and_string_literals():
    values = numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "v")
    flat = numpy_helper.from_array(np.array([1, 4], np.int64), "i")
    sparse = helper.make_sparse_tensor(values, flat, [2, 3])
    nodes = [
        helper.make_node("Constant", [], ["s"], sparse_value=sparse),
        helper.make_node("Constant", [], ["t"], value_strings=["a", "b"]),
        helper.make_node("Add", ["s", "x"], ["y"]),
        helper.make_node("Identity", ["t"], ["z"]),
    ]
    x = np.ones((2, 3), np.float32)
    for config in (RAW, {}):
        y, z = run_cpu(make_model(nodes, {"x": x}, ["y", "z"]), {"x": x}, **config)
        assert np.array_equal(y, [[1, 6, 1], [1, 8, 1]])
        assert z.tolist() == ["a", "b"]
