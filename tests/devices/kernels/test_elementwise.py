"""Element-wise arithmetic against ONNX Runtime, at each opset where an operator changed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.comparison import assert_close
from tests.support.kernel_oracle import NARROW, check, refuses, run_kernel
from tests.support.rows import for_each_row

RNG = np.random.default_rng(20)
SPECIAL = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, -7.25, np.inf, -np.inf, np.nan], np.float32
)


def floats(shape: tuple[int, ...], low: float = -4, high: float = 4) -> Any:
    return np.asarray(RNG.uniform(low, high, shape), np.float32)


@pytest.mark.parametrize("op_type", ["Abs", "Neg", "Sqrt", "Exp", "Floor", "Round", "Reciprocal"])
def test_unary_double(op_type):
    check(op_type, [floats((5,), 0.5, 4).astype(np.float64)], opset=13, rtol=1e-14, atol=0)


@for_each_row("dtype", [np.int32, np.int64, np.int8, np.uint8])
@for_each_row("op_type", ["Add", "Sub", "Mul", "Div"])
def test_binary_integer(op_type, dtype):
    a = np.array([7, 0, 100, 3], dtype)
    b = np.array([2, 5, 3, 3], dtype)
    inputs = [a, b]
    if np.issubdtype(dtype, np.signedinteger):
        inputs = [np.array([7, -7, 7, -7, -6, 0], dtype), np.array([2, 2, -2, -2, 3, -1], dtype)]
    check(op_type, inputs, opset=14)


@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_integer_division_by_zero_is_refused(op_type):
    with pytest.raises(ValueError, match="by zero"):
        run_kernel(op_type, [np.array([1, 2], np.int32), np.array([1, 0], np.int32)], opset=14)


def test_types_do_not_mix():
    refuses(TypeError, "float32, float64", "Add", [floats((2,)), floats((2,)).astype(np.float64)])


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float32])
def test_mod(fmod, dtype):
    a, b = np.array([7, 250, 7, 6, 5], dtype), np.array([3, 7, 4, 3, 5], dtype)
    if dtype in (np.int32, np.int64) or (dtype is np.float32 and fmod):
        a = a * np.array([1, -1, 1, -1, 1], dtype)
        b = b * np.array([1, 1, -1, -1, -1], dtype)
    if dtype is np.float32 and not fmod:
        refuses(ValueError, "fmod: expected 1", "Mod", [a, b], opset=13)
        return
    for opset in (10, 13):
        check("Mod", [a, b], {"fmod": fmod}, opset)


def test_mod_of_floats_floors_from_opset_28():
    a = np.array([5.5, -5.5, 5.5, 1.0, -1.0, np.inf, 1.0], np.float32)
    b = np.array([2.0, 2.0, -2.0, np.inf, np.inf, 2.0, 0.0], np.float32)
    expected = np.array([1.5, 0.5, -0.5, 1.0, np.inf, np.nan, np.nan], np.float32)
    check("Mod", [a, b], {"fmod": 0}, 28, expected=[expected])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -2.5])
def test_pow_by_a_constant(exponent):
    check("Pow", [SPECIAL, np.float32(exponent)], opset=13)
    check("Pow", [floats((3, 2), 0.1), np.full((1, 1), exponent, np.float32)], opset=7)


@for_each_row("base", [np.float32, np.float64, np.int32, np.int64])
@for_each_row("exponent", [np.float32, np.float64, np.int32, np.int64])
def test_pow_has_the_type_of_its_base(base, exponent):
    check("Pow", [np.array([1, 2, 3, 4], base), np.array([3, 2, 0, 1], exponent)], opset=13)


def test_pow_of_integers_to_negative_powers():
    x = np.array([1, -1, -1, 2, -3], np.int32)
    y = np.array([-2, -3, -2, -1, -2], np.int32)
    check("Pow", [x, y], opset=13, expected=[np.array([1, -1, 1, 0, 0], np.int32)])
    refuses(ValueError, "negative power", "Pow", [np.array([0, 1]), np.array([-1, -1])])


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_extremes_of_integers_and_nan(op_type):
    a, b = np.array([1, -5, 7], np.int64), np.array([3, -9, 7], np.int64)
    check(op_type, [a, b], opset=12)
    check(op_type, [SPECIAL, SPECIAL[::-1].copy()], opset=13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64])
def test_clip_by_inputs(dtype):
    x = np.array([-3, -1, 0, 2, 9], dtype)
    low, high = np.array(-1, dtype), np.array(4, dtype)
    for opset in (11, 12, 13) if dtype is np.float32 else (12, 13):
        for inputs in ([x], [x, low], [x, None, high], [x, low, high], [x, high, low]):
            if inputs[-1] is low and len(inputs) == 3:
                # The greater limit as minimum: every element becomes the maximum.
                check("Clip", inputs, opset=opset, expected=[np.full(5, -1, dtype)])
            else:
                check("Clip", inputs, opset=opset)
    refuses(ValueError, "scalar", "Clip", [x, np.array([1, 2], dtype)], opset=13)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_bit_shift(direction, dtype):
    x, y = np.array([1, 200, 37], dtype), np.array([[0], [3]], dtype)
    check("BitShift", [x, y], {"direction": direction}, 11)


@pytest.mark.parametrize(
    ("direction", "expected"), [("LEFT", [2, -4, 0, 0, 0, 0]), ("RIGHT", [0, -1, 0, -1, 0, -1])]
)
def test_signed_bit_shift(direction, expected):
    x = np.array([1, -2, 1, -2, 1, -2], np.int8)
    y = np.array([1, 1, 8, 9, -1, -1], np.int8)
    check("BitShift", [x, y], {"direction": direction}, 28, expected=[np.array(expected, np.int8)])


@pytest.mark.parametrize(
    ("dtype", "error", "tiny"),
    [(np.float32, 3e-7, 0), (np.float64, 5e-16, 0), (np.float16, 1e-3, 6e-8)],
)
def test_erf_is_as_exact_as_its_type(dtype, error, tiny):
    x = np.concatenate([np.linspace(-7, 7, 20001), [1e-30, -1e-6, np.inf, -np.inf]]).astype(dtype)
    expected = np.array([math.erf(value) for value in x.astype(np.float64)])
    actual = run_kernel("Erf", [x], opset=13)[0]
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=error, atol=tiny)
    assert np.abs(actual).max() == 1


def test_erf_of_integers_is_truncated():
    expected = np.array([0, 0, 1, -1], np.int32)
    check("Erf", [np.array([0, 1, 9, -9], np.int32)], opset=9, expected=[expected])


@pytest.mark.parametrize("op_type", ["Add", "Mul", "Exp", "Tanh", "Sum", "Mean", "Erf", "Sqrt"])
def test_bfloat16_is_float32_rounded_once(op_type):
    x = floats((3, 4), 0.1, 2).astype(NARROW["bfloat16"])
    inputs = [x, x] if op_type in ("Add", "Mul", "Sum", "Mean") else [x]
    wide = run_kernel(op_type, [value.astype(np.float32) for value in inputs], opset=14)[0]
    actual = run_kernel(op_type, inputs, opset=14)[0]
    assert_close(actual, wide.astype(NARROW["bfloat16"]), 0, 0, op_type)


@pytest.mark.parametrize(
    ("b", "attributes"),
    [
        ((2, 3, 4), {}),
        ((4,), {"broadcast": 1}),
        ((3,), {"broadcast": 1, "axis": 1}),
        ((2, 3), {"broadcast": 1, "axis": 0}),
        ((1,), {"broadcast": 1}),
        ((), {"broadcast": 1}),
    ],
)
def test_broadcast_by_axis_at_opset_6(b, attributes):
    x, y = floats((2, 3, 4)), floats(b)
    start = attributes.get("axis", 3 - len(b))
    aligned = y.reshape(b + (1,) * (3 - start - len(b))) if y.size > 1 else y.reshape(())
    check("Sub", [x, y], attributes, 6, expected=[x - aligned])
    refuses(
        ValueError, "expected (equal shapes|the shape of)", "Sub", [x, floats((5,))], attributes, 6
    )
