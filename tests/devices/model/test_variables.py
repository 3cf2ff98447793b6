"""Patterns of state variables: the same matches as a greedy regular expression, in linear time."""

from __future__ import annotations

import re
import time

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices import read_model
from hetero.devices.errors import HeteroError, ModelError
from hetero.devices.model import variables
from hetero.devices.model.variables import STATES, variables_of


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_stars_match_like_a_greedy_regular_expression(pattern: str, name: str) -> None:
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


def test_many_stars_take_no_time() -> None:
    start_s = time.process_time()
    with pytest.raises(HeteroError, match="no input matches"):
        variables_of(model(f'{{"{"*a" * 25}z": "y"}}', "a" * 2000))
    assert time.process_time() - start_s < 5  # a regular expression takes longer than the universe


@pytest.mark.parametrize("text", ["{", "[1]", '{"x": 1}', "[" * 10**5, "9" * 5000])
def test_damaged_metadata_raises(text: str) -> None:
    with pytest.raises(ModelError, match=STATES):
        variables_of(model(text))
