"""Bindings of operators that move elements: Gather, Concat, and what is not a view of its input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import numpy as np

from devices.cpu.binding.copies import copy_call
from devices.cpu.binding.registry import Call, Scratch, binds


@binds("Gather", 1)
def bind_gather(
    scratch: Scratch, y: np.ndarray, data: np.ndarray, indices: np.ndarray, *, axis: int = 0
) -> Sequence[Call] | None:
    """Bind the taking of slices; numpy itself refuses an index that is out of range."""
    return [partial(data.take, indices, axis, y)] if indices.ndim else None


@binds("Concat", 4, any_order=True)
def bind_concat(
    scratch: Scratch, y: np.ndarray, *inputs: np.ndarray, axis: int
) -> Sequence[Call] | None:
    """Bind a copy of each input to its place."""
    ends = accumulate(x.shape[axis] for x in inputs)
    places = (slice(end - x.shape[axis], end) for x, end in zip(inputs, ends, strict=True))
    whole = np.moveaxis(y, axis, 0)
    return [
        copy_call(whole[place], np.moveaxis(x, axis, 0))
        for x, place in zip(inputs, places, strict=True)
        if x.size
    ]


@binds("Expand", 8, any_order=True)
def bind_expand(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, shape: np.ndarray
) -> Sequence[Call] | None:
    """Bind the repetition along the axes of size 1, where the shape is a constant."""
    return None if shape.flags.writeable else [partial(np.copyto, y, x)]


@binds("Flatten", 1)
def bind_flatten(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, axis: int = 1
) -> Sequence[Call] | None:
    """Bind the copy that an input out of order needs."""
    return [partial(np.copyto, y.reshape(x.shape), x)]


@binds("Reshape", 5)
def bind_reshape(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, shape: np.ndarray, *, allowzero: int = 0
) -> Sequence[Call] | None:
    """Bind the copy that an input out of order needs, where the shape is a constant."""
    return None if shape.flags.writeable else [partial(np.copyto, y.reshape(x.shape), x)]
