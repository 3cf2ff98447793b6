"""How checks say what they expected; no test framework is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hetero.devices.plugin.program import Value

E = TypeVar("E", bound=BaseException)


def expect(condition: object, sentence: str) -> None:
    """Fail with `sentence` unless `condition` holds; works under ``python -O`` too."""
    if not condition:
        raise AssertionError(sentence)


def expect_raises(kind: type[E], act: Callable[[], object], sentence: str) -> E:
    """Return the error of `kind` that `act` raises; fail if it raises none or another."""
    try:
        act()
    except kind as error:
        expect(str(error).strip(), f"{sentence}: the {kind.__name__} has no message")
        return error
    except Exception as error:
        raise AssertionError(
            f"{sentence}: wanted {kind.__name__}, got {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"{sentence}: wanted {kind.__name__}, nothing was raised")


def expect_value(got: Value, want: np.ndarray, rtol: float, computes: bool, where: str) -> None:
    """Compare shape, then element type, then contents, the last where the device computes."""
    expect(isinstance(got, np.ndarray), f"{where}: wanted an array, got {type(got).__name__}")
    expect(
        got.dtype == want.dtype or (got.dtype.kind in "OUT" and want.dtype.kind == "O"),
        f"{where}: wanted dtype {want.dtype}, got {got.dtype}",
    )
    if not computes:
        expect(got.ndim == want.ndim, f"{where}: wanted {want.ndim} dimensions, got {got.ndim}")
        return
    expect(got.shape == want.shape, f"{where}: wanted shape {want.shape}, got {got.shape}")
    if want.dtype == np.dtype(object):
        expect(got.tolist() == want.tolist(), f"{where}: wanted {want}, got {got}")
    else:
        close = np.allclose(got, want, rtol=rtol, atol=rtol)
        expect(close, f"{where}: values differ: wanted {want}, got {got}")
