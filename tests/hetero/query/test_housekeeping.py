"""Devices of inputs, weights and outputs, as OpenVINO's query lists them."""

from __future__ import annotations

import pytest
from onnx.parser import parse_model

from hetero.devices.model.reader import read_model
from hetero.devices.plugin.support import Refusal, Support
from hetero.query.housekeeping import with_housekeeping

# The node `c` reads x before `a` does; the input `b` has the name of a node.
MODEL = read_model(
    parse_model(
        """<ir_version: 10, opset_import: ["": 18]>
        g (float[2] x, float[2] u, float[2] b, float[2] unread)
        => (float[2] y, float[2] k, float[2] unread) <float[2] w = {1, 2}, float[2] v = {3, 4}>
        {
            [c] k = Add(x, v)
            [a] h = Add(x, w)
            [b] m = Mul(h, u)
            [d] y = Add(m, b)
        }"""
    )
)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (
            {"a": "A", "b": "B", "d": "D"},
            {"x": "A", "w": "A", "u": "B", "y": "D"},
        ),
        (
            {"c": "C", "d": "D"},
            {"x": "C", "v": "C", "k": "C", "b": "D", "y": "D"},
        ),
        ({}, {}),
    ],
)
def test_port_has_the_device_of_its_first_supported_node(devices, expected):
    refusals = {"c": {"A": Refusal("no_kernel", "no Add")}}
    support = Support(devices, refusals, refusals, {"a": "note"})
    found = with_housekeeping(MODEL, support)
    assert dict(found) == expected | devices
    assert (found.unsupported, found.refusals, found.notes) == (refusals, refusals, {"a": "note"})
