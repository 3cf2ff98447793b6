"""Calls of ScaleShift: rows of channels, repeated where they are short."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from devices.cpu.fast.activation import activation_calls
from devices.interpreter.calls import Call, Scratch, makes_calls

#: Elements of a row of channels that is worth a loop of numpy's.
_ROW = 256
#: Bytes of a piece of an array that several calls work on one after the other.
_BLOCK_NBYTES = 1 << 17


@makes_calls("ScaleShift", 1, domain="hetero", over=(0,), any_order=True)
def scale_shift_calls(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, scale: np.ndarray, shift: np.ndarray, *,
    activation: str = "", activation_params: Sequence[float] = (),
) -> Sequence[Call] | None:  # fmt: skip
    """Bind ``activation(x * scale + shift)`` of channels, be they first or last in memory."""
    if x.dtype != np.float32 or not scale.dtype == shift.dtype == x.dtype or not x.size:
        return None
    if scale.flags.writeable or shift.flags.writeable:
        return None  # rows of them would not change with them
    pixels = [np.moveaxis(a, 1, -1) for a in (x, y)]
    if all(a.flags.c_contiguous for a in pixels):
        x, y = (a.reshape(-1, len(scale)) for a in pixels)
        count = max(1, min(len(x), _ROW // len(scale)))
        if count > 1:
            scale, shift = np.tile(scale, count), np.tile(shift, count)
        whole = len(x) // count * count
        parts = [(a[:whole].reshape(-1, len(scale)), a[whole:]) for a in (x, y)]
        pieces = [*_blocks(*(main for main, _ in parts)), tuple(rest for _, rest in parts)]
    else:
        per_channel = (-1, *(1,) * (x.ndim - 2))
        scale, shift = scale.reshape(per_channel), shift.reshape(per_channel)
        pieces = [(x, y)]
    calls: list[Call] = []
    for at, to in pieces:
        if at.size:
            width = len(scale) if scale.ndim > 1 else at.shape[-1]
            calls.append(partial(np.multiply, at, scale[:width], to))
            calls.append(partial(np.add, to, shift[:width], to))
            calls += activation_calls(to, activation, activation_params)
    return calls


def _blocks(*arrays: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Return pieces of arrays, a number of rows each, that stay in cache from call to call.

    Arrays of which one is not in order are one piece.
    """
    first = arrays[0]
    if first.nbytes <= _BLOCK_NBYTES or not all(a.flags.c_contiguous for a in arrays):
        return [arrays]
    step = max(1, len(first) * _BLOCK_NBYTES // first.nbytes)
    return [tuple(a[i : i + step] for a in arrays) for i in range(0, len(first), step)]
