"""Reductions, arg-reductions and running sums against ONNX Runtime, at each opset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.comparison import assert_close
from tests.support.kernel_oracle import NARROW, check, run_kernel, run_reference
from tests.support.rows import for_each_row

RNG = np.random.default_rng(22)
X = RNG.uniform(0.5, 3, (2, 3, 4)).astype(np.float32)
REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
#: From this opset on, axes are an input.
AXES_INPUT = dict.fromkeys(REDUCTIONS, 18) | {"ReduceSum": 13}


def arguments(op_type: str, opset: int, x: Any, axes: Any) -> tuple[list[Any], dict[str, Any]]:
    if axes is None:
        return [x], {}
    if opset >= AXES_INPUT[op_type]:
        return [x, np.array(axes, np.int64)], {}
    return [x], {"axes": axes}


@pytest.mark.parametrize("length", [0, 1, 100, 5_000_000])
def test_reduce_sum_accuracy_of_rows_of_any_length(length):
    x = np.full((2, length), 0.1, np.float32)
    for rows in (x, x.T.copy().T):
        (y,) = run_kernel("ReduceSum", [rows, np.array([1], np.int64)], {}, 13)
        expected = np.full((2, 1), length * np.float64(x.dtype.type(0.1)))
        # numpy 2.2 is 6e-6 away, and a sum of one element after the other 4e-2.
        np.testing.assert_allclose(y, expected, 1e-5)


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_scalar_and_integers(op_type):
    check(op_type, [np.asarray(np.float32(2.5))], opset=13)
    if op_type not in ("ReduceLogSum", "ReduceLogSumExp"):
        x = np.array([[3, 14], [-7, 5], [-8, -5]], np.int32)
        check(op_type, *arguments(op_type, 13, x, [1]), 13)
        check(op_type, [x], {"keepdims": 0}, 13)


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_noop_with_empty_axes(op_type):
    attributes = {"noop_with_empty_axes": 1}
    for inputs in ([X], [X, np.zeros(0, np.int64)]):
        check(op_type, inputs, attributes, 18, oracle=run_reference)
    everything = run_kernel(op_type, [X, np.zeros(0, np.int64)], {"keepdims": 0}, 18)[0]
    assert everything.shape == ()


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("ReduceL1", 0),
        ("ReduceL2", 0),
        ("ReduceLogSum", -np.inf),
        ("ReduceLogSumExp", -np.inf),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceMean", np.nan),
        ("ReduceProd", 1),
        ("ReduceSum", 0),
        ("ReduceSumSquare", 0),
    ],
)
def test_reduction_of_nothing(op_type, expected):
    x = np.zeros((2, 0, 4), np.float32)
    inputs = [x, np.array([1], np.int64)]
    check(op_type, inputs, opset=18, expected=[np.full((2, 1, 4), expected, np.float32)])
    # The result is empty too.
    inputs = [np.zeros((0, 3), np.float32), np.array([1], np.int64)]
    check(op_type, inputs, {"keepdims": 0}, 18, expected=[np.zeros(0, np.float32)])


def test_integer_extremes_of_nothing():
    x = np.zeros((0,), np.int8)
    check("ReduceMax", [x], {"keepdims": 0}, 18, expected=[np.int8(-128)])
    check("ReduceMin", [x], {"keepdims": 0}, 18, expected=[np.int8(127)])
    x = np.zeros((0,), bool)
    check("ReduceMax", [x], {"keepdims": 0}, 20, expected=[np.bool_(False)])
    check("ReduceMin", [x], {"keepdims": 0}, 20, expected=[np.bool_(True)])
    with pytest.raises(ValueError, match="for the mean of"):
        run_kernel("ReduceMean", [np.zeros(0, np.int32)])


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_boolean_extremes(op_type):
    x = np.array([[True, False], [True, True]])
    check(op_type, [x, np.array([1], np.int64)], opset=20)


def test_log_sum_exp_without_overflow_and_nan():
    x = np.array([[1000, 1000], [-1000, -1000], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    expected = [1000 + np.log(2), -1000 + np.log(2), -np.inf, np.inf]
    inputs = [x, np.array([1], np.int64)]
    check("ReduceLogSumExp", inputs, {"keepdims": 0}, 18, expected=[np.array(expected, np.float32)])


@pytest.mark.parametrize("axes", [[3], [-4], [0, 0], [1, -2]])
def test_bad_axes_are_refused(axes):
    with pytest.raises((ValueError, IndexError), match="rank 3"):
        run_kernel("ReduceSum", [X, np.array(axes, np.int64)], opset=13)
    with pytest.raises((ValueError, IndexError), match="rank 3"):
        run_kernel("ReduceMean", [X], {"axes": axes}, 13)


@for_each_row("name", ["float16", "bfloat16"])
@for_each_row("op_type", REDUCTIONS)
def test_half_width_is_float32_rounded_once(op_type, name):
    x = X.astype(NARROW.get(name, name))
    wide = run_kernel(op_type, [x.astype(np.float32)])[0]
    assert_close(run_kernel(op_type, [x])[0], wide.astype(x.dtype), 0, 0, op_type)


def test_arg_of_nothing_is_refused():
    with pytest.raises(ValueError, match="elements along axis"):
        run_kernel("ArgMax", [np.zeros((2, 0), np.float32)], {"axis": 1})
    with pytest.raises(IndexError, match="rank 2"):
        run_kernel("ArgMax", [np.zeros((2, 3), np.float32)], {"axis": 2})


@for_each_row("reverse", [0, 1])
@for_each_row("exclusive", [0, 1])
@for_each_row("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_cumulative_sum(dtype, exclusive, reverse):
    x = RNG.integers(-5, 5, (2, 3, 4)).astype(dtype)
    attributes = {"exclusive": exclusive, "reverse": reverse}
    for axis in (0, 1, -1):
        for opset in (11, 14):
            check("CumSum", [x, np.array(axis, np.int64)], attributes, opset)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, [1, 2, 6]),
        ({"exclusive": 1}, [1, 1, 2]),
        ({"reverse": 1}, [6, 6, 3]),
        ({"exclusive": 1, "reverse": 1}, [6, 3, 1]),
    ],
)
def test_cumulative_product(attributes, expected):
    for dtype in (np.float32, np.int32, np.uint64):
        inputs = [np.array([1, 2, 3], dtype), np.array(0)]
        check("CumProd", inputs, attributes, 26, expected=[np.array(expected, dtype)])


def test_cumulative_axis_is_checked():
    with pytest.raises(IndexError, match="axis 3"):
        run_kernel("CumSum", [X, np.array(3)])
    with pytest.raises(ValueError, match="scalar"):
        run_kernel("CumSum", [X, np.array([0, 1])])
    check("CumSum", [np.zeros((0, 3), np.float32), np.array(0)], {"exclusive": 1}, 14)
