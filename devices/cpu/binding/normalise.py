"""Bindings of normalisations by given or by their rows' statistics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from devices.cpu.binding.registry import Call, Scratch, binds, blocks


def _is_constant(array: np.ndarray) -> bool:
    return not array.flags.writeable


@binds("LayerNormalization", 17, over=(0,))
def bind_layer_normalization(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, scale: np.ndarray,
    b: np.ndarray | None = None, *,
    axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, n_outputs: int = 1,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the normalisation of float32 over the axes from `axis` on."""
    if x.dtype != np.float32 or stash_type != 1 or not x.size or not x.flags.c_contiguous:
        return None
    if not _is_constant(scale) or not (b is None or _is_constant(b)):
        return None  # a copy of them, which reshaping may make, would not change with them
    row = prod(x.shape[axis % x.ndim :])
    pieces = blocks(x.reshape(-1, row), y.reshape(-1, row))
    mean = scratch((len(pieces[0][0]), 1), x.dtype)
    sums = np.ones((row, 1), x.dtype)
    one, count, least = (np.asarray(value, x.dtype) for value in (1, row, epsilon))
    scale = np.broadcast_to(scale, x.shape[axis % x.ndim :]).reshape(row)
    if b is not None:
        b = np.broadcast_to(b, x.shape[axis % x.ndim :]).reshape(row)
    calls: list[Call] = []
    for at, to in pieces:
        of = mean[: len(at)]
        calls += [
            partial(np.matmul, at, sums, of),
            partial(np.divide, of, count, of),
            partial(np.subtract, at, of, to),
            partial(np.matmul, to[:, None, :], to[:, :, None], of[:, :, None]),
            partial(np.divide, of, count, of),
            partial(np.add, of, least, of),
            partial(np.sqrt, of, of),
            partial(np.divide, one, of, of),
            partial(np.multiply, to, of, to),
            partial(np.multiply, to, scale, to),
        ]
        if b is not None:
            calls.append(partial(np.add, to, b, to))
    return calls
