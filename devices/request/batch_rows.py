"""Assembly of a batch from rows of several tensors, for states of requests that are batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class RowLayout(NamedTuple):
    """Layout of rows in a batch tensor."""

    #: The batch axis.
    axis: int
    #: The axis along which rows may have different lengths; None if all lengths are equal.
    padded_axis: int | None = None
    #: Length of the padded axis in the batch: rows are padded with zeros, or truncated.
    length: int = 0
    #: Whether rows are aligned to the end of the padded axis, as opposed to its beginning.
    at_end: bool = False

    def shape(self, tensor_shape: Sequence[int], num_rows: int) -> tuple[int, ...]:
        """Return the shape of a batch of rows from tensors of `tensor_shape`."""
        shape = list(tensor_shape)
        shape[self.axis] = num_rows
        if self.padded_axis is not None:
            shape[self.padded_axis] = self.length
        return tuple(shape)


def join_rows(parts: Iterable[tuple[np.ndarray, Sequence[int]]], layout: RowLayout) -> np.ndarray:
    """Return a batch of rows; `parts` are arrays with the positions of rows in each."""
    parts = list(parts)
    first, axis = parts[0][0], layout.padded_axis
    batch = np.zeros(layout.shape(first.shape, sum(len(rows) for _, rows in parts)), first.dtype)
    begin = 0
    for array, rows in parts:
        source, destination = [slice(None)] * array.ndim, [slice(None)] * array.ndim
        destination[layout.axis] = slice(begin, begin + len(rows))
        begin += len(rows)
        if axis is not None:
            size = min(array.shape[axis], layout.length)
            for index, length in ((source, array.shape[axis]), (destination, layout.length)):
                index[axis] = slice(length - size, None) if layout.at_end else slice(size)
        batch[tuple(destination)] = array[tuple(source)].take(rows, layout.axis)
    return batch
