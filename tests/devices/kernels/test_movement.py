"""Operators that only move elements, for every element type.

Such an operator commutes with a table look-up: moving numbers and then looking up their entries
equals moving the entries. The table of operators tests each operator on numbers; here those results
are the expected values.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tests.support.comparison import assert_close
from tests.support.kernel_oracle import NARROW, ints, run_kernel
from tests.support.operators import OPERATORS
from tests.support.rows import for_each_row

SHAPE = (4, 3, 4)
SIZE = 48

TYPES = {
    **{name: np.dtype(name) for name in ("bool", "uint16", "float16", "complex64", "object")},
    **{
        name: NARROW[name]
        for name in (
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2fnuz",
            "float4_e2m1fn",
            "int4",
            "uint2",
        )
        if name in NARROW
    },
}


DATA = object()  # Stands for the tensor whose elements move.


def moving_cases() -> list[tuple[str, tuple[Any, ...], dict[str, Any], int]]:
    """Return the operators of the table that move elements, and those with unusual results."""
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any], int]] = [
        ("ScatterElements", (DATA, np.zeros(SHAPE, np.int64), DATA), {"axis": 2}, 1),
        ("SplitToSequence", (DATA,), {"keepdims": 0}, 1),
    ]
    for row in OPERATORS:
        if row.moves:
            op_type, opset = list(row.versions())[-1]
            for case in row.cases(op_type, opset):
                inputs = tuple(DATA if x.dtype == np.float32 else x for x in case.inputs)
                assert all(x.shape == SHAPE for x in case.inputs if x.dtype == np.float32)
                cases.append((op_type, inputs, case.attributes, row.num_outputs))
    return cases


@for_each_row(
    "case, name", product(moving_cases(), TYPES), lambda case, name: f"{case[0]}{case[2]} of {name}"
)
def test_moves(case, name):
    op_type, inputs, attributes, n_outputs = case
    table = (np.arange(SIZE) % (4 if "2" in name else 7)).astype(TYPES[name])
    numbers = np.arange(SIZE).reshape(SHAPE)

    def run(data: Any) -> list[Any]:
        real = [data if value is DATA else value for value in inputs]
        return run_kernel(op_type, real, attributes, n_outputs=n_outputs)

    for actual, positions in zip(run(table[numbers]), run(numbers), strict=True):
        looked_up = (
            [table[m] for m in positions] if isinstance(positions, list) else table[positions]
        )
        assert_close(actual, looked_up, 0, 0, f"{op_type} of {name}")


@for_each_row("name", [name for name in TYPES if name != "object"])
def test_fills_with_zero(name):
    x = np.ones((2, 2)).astype(TYPES[name])
    zeroed = np.array([[1, 1], [0, 1]]).astype(TYPES[name])
    assert_close(run_kernel("Trilu", [x])[0], zeroed, 0, 0, "Trilu")
    padded = np.array([[0, 1, 1], [0, 1, 1]]).astype(TYPES[name])
    assert_close(run_kernel("Pad", [x, ints(0, 1, 0, 0)])[0], padded, 0, 0, "Pad")
    assert_close(run_kernel("CenterCropPad", [x, ints(2, 2)])[0], x, 0, 0, "CenterCropPad")
    hot = np.array([[0, 1, 0]]).astype(TYPES[name])
    values = np.array([0, 1]).astype(TYPES[name])
    assert_close(run_kernel("OneHot", [ints(1), np.array(3), values])[0], hot, 0, 0, "OneHot")
    assert run_kernel("NonZero", [zeroed])[0].tolist() == [[0, 0, 1], [0, 1, 1]]
