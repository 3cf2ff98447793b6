"""Patterns of state variables: the same matches as a greedy regular expression, in linear time."""

from __future__ import annotations

import re
import time

import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hetero.devices import read_model
from hetero.devices.errors import (
    ArgumentError,
    HeteroError,
    ModelError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.devices.model import variables
from hetero.devices.model.model import Model
from hetero.devices.model.variables import STATES, variables_of, visible_ports, with_states


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
@example("ab*b*c", "abxc")  # the b before the first star is not the one after it
@example("a*b*bc", "axbc")
def test_stars_match_like_a_greedy_regular_expression(pattern, name):
    match = re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), name)
    expected = None if match is None else list(match.groups())
    assert variables._starred_texts(pattern, name) == expected


def model(states: str, name: str = "x"):
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float[2] {name}) => (float[2] y) '
        f"{{ y = Neg({name}) }}"
    )
    proto.metadata_props.add(key=STATES, value=states)
    return read_model(proto)


def test_many_stars_take_no_time():
    start_s = time.process_time()
    with pytest.raises(HeteroError, match="no input matches"):
        variables_of(model(f'{{"{"*a" * 25}z": "y"}}', "a" * 2000))
    assert time.process_time() - start_s < 5  # a regular expression takes longer than the universe


@pytest.mark.parametrize("text", ["{", "[1]", '{"x": 1}', "[" * 10**5, "9" * 5000])
def test_damaged_metadata_raises(text):
    with pytest.raises(ModelError, match=STATES):
        variables_of(model(text))


def states_model() -> Model:
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto
    inputs = ["past.0.key", "past.1.key", "past.1.value", "x"]
    outputs = ["present.0.key", "present.1.key", "present.1.value", "y"]
    nodes = [onnx.helper.make_node("Neg", [i], [o]) for i, o in zip(inputs, outputs, strict=True)]
    nodes += [onnx.helper.make_node("Identity", [i], [o]) for i, o in (("n", "m"), ("w", "z"))]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [
            *(value(name, kind.FLOAT, ["N", 4]) for name in inputs),
            value("n", kind.INT64, [2]),
            value("w", kind.FLOAT, [3, 5]),
        ],
        [
            *(value(name, kind.FLOAT, ["N", 4]) for name in outputs),
            value("m", kind.INT64, [2]),
            value("z", kind.FLOAT, [3, 5]),
        ],
    )
    return read_model(onnx.helper.make_model(graph))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"past.*": "present.*"}, ["0.key", "1.key", "1.value"]),
        ({"past.*.key": "present.*.key"}, ["0.key", "1.key"]),
        ({"past.1.*": "present.1.*"}, ["1.key", "1.value"]),
        ({"past.*.*": "present.*.*"}, ["0.key", "1.key", "1.value"]),
        ({"past.0.key": "present.0.key"}, ["0.key"]),
    ],
)
def test_patterns_pair_inputs_with_outputs(states, expected):
    model = with_states(states_model(), states)
    variables = variables_of(model)
    assert [(v.name, v.output.name) for v in variables] == [
        (f"past.{name}", f"present.{name}") for name in expected
    ]
    inputs, outputs = visible_ports(model.inputs, model.outputs, variables)
    assert {port.name for port in inputs} == {p.name for p in model.inputs} - {
        v.name for v in variables
    }
    assert len(outputs) == len(model.outputs) - len(expected)
    again = with_states(model, {"x": "y"})
    assert [v.name for v in variables_of(again)] == ["x"]
    assert variables_of(states_model()) == ()


@pytest.mark.parametrize(
    ("states", "kind", "text"),
    [
        ({"missing.*": "present.*"}, TensorNameError, r"no input matches state 'missing\.\*'"),
        ({"past.0.key": "missing"}, TensorNameError, "no output is named 'missing'"),
        ({"past.0.*": "present.*.*"}, ArgumentError, "at most as many"),
        ({"x": "m"}, TensorTypeError, "expected tensors of the same type"),
        ({"x": "z"}, TensorShapeError, "expected compatible shapes"),
        ({"n": "y"}, TensorTypeError, "expected tensors of the same type"),
        ([("x", "y")], ArgumentError, "expected a dict"),
    ],
)
def test_states_that_do_not_fit_raise(states, kind, text):
    with pytest.raises(kind, match=text):
        with_states(states_model(), states)
