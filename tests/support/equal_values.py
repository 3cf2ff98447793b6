"""Values of every element type, and when two are equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.model.element_type import DTYPES

ELEMENT_TYPES = sorted({d for d in DTYPES.values() if d.kind != "O"}, key=str)


def check_equal(got: Any, want: Any) -> None:
    if isinstance(want, np.ndarray):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert got.tolist() == want.tolist() if want.dtype == object else _same(got, want)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            check_equal(got[key], want[key])
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check_equal(one, other)
    elif isinstance(want, np.generic):
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()
    else:
        assert type(got) is type(want)
        assert got == want


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    return got.tobytes() == np.ascontiguousarray(want).tobytes()
