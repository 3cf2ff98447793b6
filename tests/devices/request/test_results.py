"""Results as a mapping, a text and a table."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hetero.devices.errors import TensorNameError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.request.results import Results

Y, T = TensorSpec("y", "tensor(float)", (8,)), TensorSpec("t", "tensor(string)", (1,))
VALUES = {
    "y": np.arange(8, dtype=np.float32) / 3,
    "t": np.array(["ä"], object),
    "s": [np.ones(1)],
    "unlisted": 0,
}
S = TensorSpec("s", "seq(tensor(float))", None)


@pytest.fixture
def results():
    return Results((Y, T, S, Y), VALUES)


def test_keys_are_ports_names_and_positions(results):
    assert results["y"] is results[0] is results[3] is results[Y] is VALUES["y"]
    assert results[-2] is VALUES["s"]
    for key in ("unlisted", 4, TensorSpec("z", "tensor(float)", ())):
        with pytest.raises(TensorNameError):
            results[key]
    assert "y" in results
    assert Y in results
    assert "unlisted" not in results
    assert 0 not in results


def test_values_in_the_order_of_the_ports(results):
    assert list(results) == [Y, T, S]
    assert len(results) == 3
    assert results.names() == ({"y"}, {"t"}, {"s"}, {"y"})
    assert [id(v) for v in results.to_tuple()] == [id(VALUES[n]) for n in ("y", "t", "s", "y")]
    assert list(results.by_name()) == ["y", "t", "s"]
    assert list(results.to_dict()) == [Y, T, S]


def test_text_as_bytes(results):
    encoded = results.with_bytes()
    assert encoded["t"].tolist() == ["ä".encode()]
    assert encoded["y"] is VALUES["y"]
    assert results["t"].tolist() == ["ä"]


def test_texts(results):
    assert repr(results) == "<Results: 'y' float32[8], 't' string[1], 's' list>"
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        for row in results._repr_html_().split("<tr>")[1:]
    ]
    assert rows == [
        ["output", "type", "begins with"],
        ["y", "float32[8]", "0, 0.33333, 0.66667, 1, 1.3333, 1.6667, …"],
        ["t", "string[1]", "ä"],
        ["s", "list", ""],
    ]
    assert "1, 2" in Results((Y,), {"y": np.array([1, 2])})._repr_html_()
    assert "…" not in Results((Y,), {"y": np.arange(6)})._repr_html_()
