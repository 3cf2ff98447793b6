"""Assertions of the checks, without a test framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hetero.devices.plugin.program import Value

E = TypeVar("E", bound=BaseException)


def expect(condition: object, message: str) -> None:
    """Raise AssertionError with `message` unless `condition` holds, also under ``python -O``."""
    if not condition:
        raise AssertionError(message)


def expect_raises(kind: type[E], action: Callable[[], object], subject: str) -> E:
    """Return the error of type `kind` that `action` raises; fail if it raises none or another."""
    try:
        action()
    except kind as error:
        expect(str(error).strip(), f"{subject}: the {kind.__name__} has no message")
        return error
    except Exception as error:
        raise AssertionError(
            f"{subject}: expected {kind.__name__}, got {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"{subject}: expected {kind.__name__}, got no error")


def expect_value(
    actual: Value, expected: np.ndarray, rtol: float, computes: bool, subject: str
) -> None:
    """Compare type, shape and, if the device computes, elements; only floats may differ."""
    expect(
        isinstance(actual, np.ndarray), f"{subject}: expected an array, got {type(actual).__name__}"
    )
    expect(
        actual.dtype == expected.dtype
        or (actual.dtype.kind in "OUT" and expected.dtype.kind == "O"),
        f"{subject}: expected dtype {expected.dtype}, got {actual.dtype}",
    )
    if not computes:
        expect(
            actual.ndim == expected.ndim,
            f"{subject}: expected {expected.ndim} dimensions, got {actual.ndim}",
        )
        return
    expect(
        actual.shape == expected.shape,
        f"{subject}: expected shape {expected.shape}, got {actual.shape}",
    )
    if expected.dtype == np.dtype(object):
        agrees = actual.tolist() == expected.tolist()
    elif expected.dtype.kind in "biu":
        agrees = np.array_equal(actual, expected)
    else:
        agrees = np.allclose(actual, expected, rtol=rtol, atol=rtol)
    expect(agrees, f"{subject}: expected {expected}, got {actual}")
