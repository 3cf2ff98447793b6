"""Bindings of normalisations by given or by their rows' statistics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from devices.interpreter.binding.elementwise import clipped
from devices.interpreter.binding.quantize import rounding_calls
from devices.interpreter.binding.registry import Call, Scratch, binds, blocks
from devices.kernels.in_place import IN_PLACE

#: Elements of a row of channels that is worth a loop of numpy's.
_ROW = 256


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


@binds("RMSNormalization", 23, over=(0,))
def bind_rms_normalization(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, scale: np.ndarray, *,
    axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the division of float32 by the root mean square over the axes from `axis` on."""
    if x.dtype != np.float32 or scale.dtype != x.dtype or stash_type != 1 or not x.size:
        return None
    if not x.flags.c_contiguous:
        return None
    row = prod(x.shape[axis % x.ndim :])
    at, to = x.reshape(-1, row), y.reshape(-1, row)
    spread = scratch((len(at), 1), x.dtype)
    count, least = np.asarray(row, x.dtype), np.asarray(epsilon, x.dtype)
    return [
        partial(np.matmul, at[:, None, :], at[:, :, None], spread[:, :, None]),
        partial(np.divide, spread, count, spread),
        partial(np.add, spread, least, spread),
        partial(np.sqrt, spread, spread),
        partial(np.divide, at, spread, to),
        partial(np.multiply, y, scale, y),
    ]


@binds("InstanceNormalization", 6, any_order=True)
def bind_instance_normalization(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, scale: np.ndarray, b: np.ndarray, *,
    epsilon: float = 1e-5,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the normalisation of float32 channels, be they first or last in memory."""
    if x.dtype != np.float32 or not x.size or not scale.dtype == b.dtype == x.dtype:
        return None
    first, size = (*x.shape[:2], -1), prod(x.shape[2:])
    count, least = np.asarray(size, x.dtype), np.asarray(epsilon, x.dtype)
    if x.flags.c_contiguous and y.flags.c_contiguous:
        at, to = x.reshape(first), y.reshape(first)
        spread, ones = scratch((*x.shape[:2], 1), x.dtype), np.ones((size, 1), x.dtype)
        scale, b = scale[:, None], b[:, None]
        total: Call = partial(np.matmul, at, ones, spread)
        squares: list[Call] = [
            partial(np.matmul, to[..., None, :], to[..., None], spread[..., None])
        ]
    else:
        pixels = [np.moveaxis(a, 1, -1) for a in (x, y)]
        if not all(a.flags.c_contiguous for a in pixels):
            return None
        at, to = (a.reshape(len(x), -1, x.shape[1]) for a in pixels)
        spread, ones = scratch((len(x), 1, x.shape[1]), x.dtype), np.ones((1, size), x.dtype)
        powers = scratch(to.shape, x.dtype)
        total = partial(np.matmul, ones, at, spread)
        squares = [partial(np.multiply, to, to, powers), partial(np.matmul, ones, powers, spread)]
    return [
        total,
        partial(np.divide, spread, count, spread),
        partial(np.subtract, at, spread, to),
        *squares,
        partial(np.divide, spread, count, spread),
        partial(np.add, spread, least, spread),
        partial(np.sqrt, spread, spread),
        partial(np.divide, scale, spread, spread),
        partial(np.multiply, to, spread, to),
        partial(np.add, to, b, to),
    ]


@binds("ScaleShift", 1, domain="hetero", over=(0,), any_order=True)
def bind_scale_shift(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, scale: np.ndarray, shift: np.ndarray, *,
    activation: str = "", activation_params: Sequence[float] = (),
) -> Sequence[Call] | None:  # fmt: skip
    """Bind ``activation(x * scale + shift)`` of channels, be they first or last in memory."""
    if x.dtype != np.float32 or not scale.dtype == shift.dtype == x.dtype or not x.size:
        return None
    if not _is_constant(scale) or not _is_constant(shift):
        return None  # rows of them would not change with them
    pixels = [np.moveaxis(a, 1, -1) for a in (x, y)]
    if all(a.flags.c_contiguous for a in pixels):
        x, y = (a.reshape(-1, len(scale)) for a in pixels)
        count = max(1, min(len(x), _ROW // len(scale)))
        if count > 1:
            scale, shift = np.tile(scale, count), np.tile(shift, count)
        whole = len(x) // count * count
        parts = [(a[:whole].reshape(-1, len(scale)), a[whole:]) for a in (x, y)]
        pieces = [*blocks(*(main for main, _ in parts)), tuple(rest for _, rest in parts)]
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
            calls += _activated(to, activation, activation_params)
    return calls


def _activated(y: np.ndarray, activation: str, params: Sequence[float]) -> list[Call]:
    """Return the calls that put y's activation in its place."""
    if activation == "Relu":
        return clipped(y, y, 0, np.inf)
    if activation == "Clip":
        return clipped(y, y, *params)
    if activation == "FakeQuantize":
        return list(rounding_calls(y, y, *params))
    return [partial(IN_PLACE[activation], np, y, *params)] if activation else []
