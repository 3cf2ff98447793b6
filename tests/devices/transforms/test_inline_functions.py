"""Inlining of a model's functions: when it applies, names, and equal results."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero.devices.interpreter import block
from hetero.devices.model.reader import read_model
from hetero.devices.transforms import transform
from hetero.devices.transforms.inline_functions import inline_functions
from tests.support.small_models import make_model, run_cpu, run_reference
from tests.support.transform_checks import check, floats, node, operators


def scaled_tanh(opset: int) -> list[onnx.FunctionProto]:
    """Return a function that calls another one and has an attribute and an optional input."""
    inner = helper.make_function(
        "own",
        "Half",
        ["v"],
        ["w"],
        [
            helper.make_node("Constant", [], ["h"], value_float=0.5),
            helper.make_node("Mul", ["v", "h"], ["w"]),
        ],
        [helper.make_opsetid("", opset)],
    )
    factor = helper.make_node("Constant", [], ["f"])
    factor.attribute.add(name="value_float", ref_attr_name="factor", type=1)
    outer = helper.make_function(
        "own",
        "ScaledTanh",
        ["a", "low"],
        ["y"],
        [
            factor,
            helper.make_node("Clip", ["a", "low"], ["c"]),
            helper.make_node("Tanh", ["c"], ["t"]),
            helper.make_node("Mul", ["t", "f"], ["g"]),
            helper.make_node("Half", ["g"], ["y"], domain="own"),
        ],
        [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)],
        ["factor"],
    )
    return [inner, outer]


@pytest.mark.parametrize(("opset", "is_inlined"), [(17, True), (16, False)])
def test_function_of_model_opset_is_inlined(opset, is_inlined):
    x = floats(1, 4, 6, 6) - 1
    nodes = [
        helper.make_node("ScaledTanh", ["x"], ["h"], name="one", domain="own", factor=3.0),
        helper.make_node("ScaledTanh", ["h", "zero"], ["y"], name="two", domain="own", factor=2.0),
    ]
    model = make_model(
        nodes,
        {"x": x},
        ["h", "y"],
        {"zero": np.float32(0)},
        functions=scaled_tanh(opset),
        domains={"own": 1},
    )
    h, y = run_cpu(model, {"x": x})
    np.testing.assert_allclose(h, 1.5 * np.tanh(x), rtol=1e-5)
    np.testing.assert_allclose(y, np.tanh(np.maximum(h, 0)), rtol=1e-5)
    executed = transform(read_model(model)).nodes
    assert ("ScaledTanh" not in [n.op_type for n in executed]) == is_inlined
    assert {name for n in executed for name in n.covers} == {"one", "two"}
    assert len({n.name for n in executed}) == len(executed)


def test_values_of_inlined_function_get_unique_names():
    x = floats(2, 3)
    body = [node("Exp", "a", "t"), node("Neg", "t", "o")]
    function = helper.make_function("own", "F", ["a"], ["o"], body, [helper.make_opsetid("", 17)])
    nodes = [
        node("Abs", "x", "call/t"),
        helper.make_node("F", ["x"], ["y"], "call", domain="own"),
        node("Identity", "call/t", "z"),
    ]
    model = make_model(nodes, {"x": x}, ["y", "z"], functions=[function], domains={"own": 1})
    assert "F" not in operators(model)
    y, z = run_cpu(model, {"x": x})
    np.testing.assert_allclose(y, -np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(z, x)


def test_function_of_one_node_is_inlined():
    x = floats(2, 3)
    function = helper.make_function(
        "own", "F", ["a"], ["o"], [node("Exp", "a", "o")], [helper.make_opsetid("", 17)]
    )
    nodes = [helper.make_node("F", ["x"], ["y"], "call", domain="own")]
    model = make_model(nodes, {"x": x}, ["y"], functions=[function], domains={"own": 1})
    assert operators(model) == ["Exp"]
    check(model, {"x": x})


def test_function_with_duplicate_output_runs():
    x = floats(2, 3)
    function = helper.make_function(
        "own", "F", ["a"], ["o", "o"], [node("Exp", "a", "o")], [helper.make_opsetid("", 17)]
    )
    nodes = [helper.make_node("F", ["x"], ["y", "z"], "call", domain="own")]
    model = make_model(nodes, {"x": x}, ["y", "z"], functions=[function], domains={"own": 1})
    check(model, {"x": x}, run_reference)


def test_nested_functions_are_built_once(
    monkeypatch,
):
    x, opsets = floats(2, 3), [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    bodies = [[node("Neg", "a", "o")]]
    for i in range(12):
        bodies.append(
            [helper.make_node(f"F{i}", [a], [o], domain="own") for a, o in (("a", "t"), ("t", "o"))]
        )
    functions = [
        helper.make_function("own", f"F{i}", ["a"], ["o"], body, opsets)
        for i, body in enumerate(bodies)
    ]
    call = helper.make_node("F12", ["x"], ["y"], domain="own")
    model = make_model([call], {"x": x}, ["y"], functions=functions, domains={"own": 1})
    builds = []
    build = block.build_block
    monkeypatch.setattr(block, "build_block", lambda *a, **k: builds.append(1) or build(*a, **k))
    monkeypatch.setattr(sys.modules[inline_functions.__module__], "_MAX_NEW_NODES", 10)
    np.testing.assert_array_equal(run_cpu(model, {"x": x})[0], x)
    assert len(builds) <= len(functions)
