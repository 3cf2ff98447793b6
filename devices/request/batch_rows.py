"""Rows of several tensors as one tensor: what requests that go on together make of their states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class RowLayout(NamedTuple):
    """How rows of tensors lie in one tensor."""

    #: Along which they lie.
    axis: int
    #: The axis of which tensors may have more or less; None where they are alike.
    grows: int | None = None
    #: How much of that axis there is then: zeros are added, or what is too much is left out.
    length: int = 0
    #: Whether a tensor's own lie at that axis' end; else they begin it.
    at_end: bool = False

    def shape(self, first: Sequence[int], num_rows: int) -> tuple[int, ...]:
        """Return the shape of so many rows of tensors of which one has the shape `first`."""
        shape = list(first)
        shape[self.axis] = num_rows
        if self.grows is not None:
            shape[self.grows] = self.length
        return tuple(shape)


def join_rows(parts: Iterable[tuple[np.ndarray, Sequence[int]]], layout: RowLayout) -> np.ndarray:
    """Return some rows of arrays as one array, in order.

    `parts`: arrays, and the positions of rows in each.
    """
    parts = list(parts)
    first = parts[0][0]
    made = np.zeros(layout.shape(first.shape, sum(len(rows) for _, rows in parts)), first.dtype)
    begin = 0
    for array, rows in parts:
        read, written = [slice(None)] * array.ndim, [slice(None)] * array.ndim
        written[layout.axis] = slice(begin, begin + len(rows))
        begin += len(rows)
        if layout.grows is not None:
            size = min(array.shape[layout.grows], layout.length)
            for where, length in ((read, array.shape[layout.grows]), (written, layout.length)):
                where[layout.grows] = slice(length - size, None) if layout.at_end else slice(size)
        made[tuple(written)] = array[tuple(read)].take(rows, layout.axis)
    return made
