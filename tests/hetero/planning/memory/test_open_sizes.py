"""Sizes of inputs that a prediction of the memory needs."""

from __future__ import annotations

import pytest
from onnx.parser import parse_model

from hetero.devices.errors import PlanError
from hetero.devices.model.reader import read_model
from hetero.planning.memory.open_sizes import require_sizes

MODEL = read_model(
    parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[N, 3] x, float[N, M] y, float[] z) => (a, b) { a = Add(x, y) b = Neg(z) }"""
    )
)


def test_sizes_of_all_inputs_suffice():
    require_sizes(MODEL, {"x": (2, 3), "y": (2, 3), "z": (4,)})


@pytest.mark.parametrize(
    ("shapes", "open_dimensions"),
    [
        ({}, {"x": ("N",), "y": ("N", "M"), "z": ("all dimensions",)}),
        ({"z": (4,)}, {"x": ("N",), "y": ("N", "M")}),
        # The size of N is known from x.
        ({"x": (2, 3)}, {"y": ("M",), "z": ("all dimensions",)}),
        ({"y": (2, 3)}, {"z": ("all dimensions",)}),
    ],
)
def test_open_dimensions_are_named(shapes, open_dimensions):
    with pytest.raises(PlanError, match="expected the sizes of all inputs") as caught:
        require_sizes(MODEL, shapes)
    assert caught.value.data["open_dimensions"] == open_dimensions
