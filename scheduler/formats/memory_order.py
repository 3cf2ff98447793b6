"""The memory order of tensors, kept from device to device.

BLAS and numpy's reductions add in the order in which memory lies, so an array that arrives in
another order than it left in gives other last bits: a cut model would not equal the whole one.
msgpack keeps no order; so an array travels as a contiguous one, with the axes that it is a view of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def axis_order(array: np.ndarray) -> tuple[int, ...]:
    """Return an array's axes by their steps in memory, longest first; empty for C's own order."""
    if array.ndim < 2 or array.flags.c_contiguous or not array.size:
        return ()
    steps = array.strides
    # An axis of one element takes no steps; in front it is out of the others' way.
    axes = sorted(range(array.ndim), key=lambda i: abs(steps[i]) if array.shape[i] > 1 else 2**63,
                  reverse=True)  # fmt: skip
    wide = [axis for axis in axes if array.shape[axis] > 1]
    return () if wide == sorted(wide) else tuple(axes)


def in_memory_order(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return an array's contents C-contiguous, axes as in `order`; no copy where they lie so."""
    return np.ascontiguousarray(array.transpose(order) if order else array)


def as_before(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return the view with the original's axes: the inverse of `in_memory_order`."""
    return array.transpose(np.argsort(order)) if order else array
