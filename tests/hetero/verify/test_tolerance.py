"""Which differences from the reference are noise."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

from hetero.devices.model.reader import read_model
from hetero.verify.tolerance import beyond_noise, rounded_values

SINGLE = 2.0**-23
VALUES = np.array([1.0, -2.0, 0.001, 100.0], np.float32)


def is_noise(
    expected: np.ndarray,
    actual: np.ndarray,
    shaken: np.ndarray | None = None,
    *,
    unit: float = SINGLE,
    rounds: bool = False,
) -> bool:
    return not beyond_noise("v", expected, shaken, actual, unit=unit, rounds=rounds)


def test_rounding_is_noise_and_a_percent_is_not():
    assert is_noise(VALUES, VALUES * np.float32(1 + 1e-6))
    assert not is_noise(VALUES, VALUES * np.float32(1.02))


def test_noise_of_the_model_widens_the_tolerance():
    wrong = VALUES + np.float32(1)
    assert not is_noise(VALUES, wrong)
    assert is_noise(VALUES, wrong, VALUES + np.float32(0.1))


def test_nan_is_wrong_only_where_the_reference_is_finite():
    with_nan = np.where(VALUES < 0, np.float32(np.nan), VALUES)
    assert not is_noise(VALUES, with_nan)
    assert is_noise(with_nan, VALUES)


def test_one_value_that_noise_makes_nan_hides_no_others():
    shaken = np.where(VALUES < 0, np.float32(np.nan), VALUES)
    assert not is_noise(VALUES, VALUES + np.float32(1), shaken)
    assert is_noise(VALUES, np.where(VALUES < 0, np.float32(5), VALUES), shaken)


@pytest.mark.parametrize("filling", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_mask_values_widen_no_tolerance(filling):
    values = np.array([1.0, -2.0, 0.5, filling, filling], np.float32)
    off = values + np.array([0.1, 0, 0, 0, 0], np.float32)
    assert not is_noise(values, off)
    assert is_noise(values, values * np.float32(1 - 1e-6), values * np.float32(1 - 1e-7))


def test_large_computed_values_widen_the_tolerance():
    """Small results may be differences of terms as large as the largest result."""
    values = np.array([1.0, -2.0, 0.5, 3e5, 2e5], np.float32)
    assert is_noise(values, values + np.array([0.1, 0, 0, 0, 0], np.float32))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("i = Cast<to = 7>(x) y = ArgMax(z)", {"i"}),
        ("i = Round(x) a = Add(i, z) y = Abs(a)", {"i", "a", "y"}),
        ("i = Cast<to = 1>(n) y = Mul(i, x)", set()),
        ("i = Cast<to = 6>(n) y = Add(i, i)", set()),
        ("i = Cast<to = 11>(x) y = Abs(i)", set()),
        ("i = QuantizeLinear(x, s) y = Abs(i)", {"i", "y"}),
    ],
)
def test_values_that_depend_on_rounded_floats(nodes, expected):
    model = read_model(
        parse_model(
            f"""<ir_version: 9, opset_import: ["": 19]>
            g (float[4] x, float[4] z, int64[4] n, float s) => (y) {{ {nodes} }}"""
        )
    )
    assert rounded_values(model) == expected


def test_lower_precision_is_judged_by_its_unit():
    half = VALUES.astype(np.float16).astype(np.float32) * np.float32(1.003)
    assert not is_noise(VALUES, half)
    assert is_noise(VALUES, half, unit=2.0**-10)


@pytest.mark.parametrize(
    ("dtype", "rounds", "number", "expected"),
    [
        (np.int8, True, 1, True),
        (np.int8, False, 1, False),
        (np.int8, True, 2, True),
        (np.int8, True, 3, False),
        (np.int8, True, 5, False),
        (np.int32, True, 2, True),
        (np.int32, True, 3, False),
    ],
)
def test_few_integers_next_to_a_tie_are_noise(dtype, rounds, number, expected):
    values = np.arange(100, dtype=dtype)
    off = values.copy()
    off[:number] += 1
    assert is_noise(values, off, rounds=rounds) == expected


def test_another_shape_is_wrong_unless_noise_changes_it():
    assert not is_noise(VALUES, VALUES[:2])
    assert is_noise(VALUES, VALUES[:2], VALUES[:3])


def test_another_type_is_wrong():
    assert not is_noise(VALUES, VALUES.astype(np.float64))
