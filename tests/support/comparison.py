"""Comparison of values: identical, or with tolerances for floats alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.model.element_type import DTYPES

ELEMENT_TYPES = sorted({d for d in DTYPES.values() if d.kind != "O"}, key=str)

#: Element types that numpy cannot compare -> a type that holds all of their values.
WIDER_TYPES = {
    "bfloat16": np.float32,
    "float8_e4m3fn": np.float32,
    "float8_e4m3fnuz": np.float32,
    "float8_e5m2": np.float32,
    "float8_e5m2fnuz": np.float32,
    "float8_e8m0fnu": np.float32,
    "float4_e2m1fn": np.float32,
    "int4": np.int8,
    "uint4": np.uint8,
    "int2": np.int8,
    "uint2": np.uint8,
}


def assert_identical(actual: Any, expected: Any) -> None:
    """Assert equal types, shapes and bits, also of the elements of lists and dicts."""
    if isinstance(expected, np.ndarray):
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        if expected.dtype == object:
            assert actual.tolist() == expected.tolist()
        else:
            assert actual.tobytes() == np.ascontiguousarray(expected).tobytes()
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_identical(actual[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_identical(one, other)
    elif isinstance(expected, np.generic):
        assert actual.dtype == expected.dtype
        assert actual.tobytes() == expected.tobytes()
    else:
        assert type(actual) is type(expected)
        assert actual == expected


def assert_close(
    actual: Any, expected: Any, rtol: float, atol: float, subject: str = "value"
) -> None:
    """Assert equal shapes, types and values; only floats may differ, within the tolerances.

    Lists are compared element by element. None equals None alone.
    """
    if isinstance(expected, list):
        assert isinstance(actual, list), f"{subject}: expected a list, got {type(actual).__name__}"
        assert len(actual) == len(expected), (
            f"{subject}: expected {len(expected)} elements, got {len(actual)}"
        )
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_close(one, other, rtol, atol, f"{subject}[{i}]")
        return
    if expected is None:
        assert actual is None, f"{subject}: expected None, got {actual!r}"
        return
    expected = np.asarray(expected)
    assert isinstance(actual, np.ndarray | np.generic), (
        f"{subject}: expected an array, got {type(actual).__name__}"
    )
    assert actual.shape == expected.shape, (
        f"{subject}: expected shape {expected.shape}, got {actual.shape}"
    )
    if expected.dtype.kind in "OUS":
        assert np.array_equal(actual.astype(object), expected.astype(object)), (
            f"{subject}: expected {expected.tolist()}, got {actual.tolist()}"
        )
        return
    assert actual.dtype == expected.dtype, (
        f"{subject}: expected dtype {expected.dtype}, got {actual.dtype}"
    )
    if expected.dtype.name in WIDER_TYPES:
        wider = WIDER_TYPES[expected.dtype.name]
        actual, expected = actual.astype(wider), expected.astype(wider)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected, err_msg=subject)
    else:
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=subject)
