"""GridSample: an image read at the points of a grid."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from hetero.devices.kernels.element_types import Array, Xp, in_float32, to_integers, zeros
from hetero.devices.kernels.registry import op, taking
from hetero.devices.kernels.resize import cubic_filter, linear_filter

_PADDINGS = {"padding_mode": ("zeros", "border", "reflection")}


@op("GridSample", since=20, choices={"mode": ("linear", "nearest", "cubic")} | _PADDINGS)
@in_float32
def grid_sample_20(
    xp: Xp,
    x: Array,
    grid: Array,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
) -> Array:
    """Read images (N, C, D1, ..., Dr) at the grid's points (N, D1', ..., Dr', r).

    A point's coordinates run from -1 to 1, the last axis first.
    """
    rank = x.ndim - 2
    if grid.ndim != x.ndim or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
        raise ValueError(f"a grid of shape {grid.shape} does not fit images of shape {x.shape}")
    n, c, *dims = x.shape
    if 0 in dims and grid.size:
        raise ValueError(f"images of shape {x.shape} have no pixels to read")
    whole = x.dtype.kind in "iu"
    if x.dtype.kind not in "f" and not (whole or mode == "nearest"):
        raise TypeError(f"{x.dtype} has no values between two pixels; mode 'nearest' reads it")
    points = grid.reshape(n, -1, rank).astype(x.dtype if x.dtype.kind == "f" else xp.float64)
    axes = [
        _axis_taps(xp, points[..., rank - 1 - i], size, mode, padding_mode, bool(align_corners))
        for i, size in enumerate(dims)
    ]
    # Pixels as rows of channels, so that one take reads all channels of a point.
    pixels = xp.ascontiguousarray(xp.moveaxis(x, 1, -1)).reshape(-1, c)
    image = xp.arange(n)[:, None] * math.prod(dims)
    y = 0
    for corner in product(*axes):
        row, weight, outside = 0, xp.ones((), dtype=points.dtype), xp.asarray(False)
        for (index, factor), size in zip(corner, dims, strict=True):
            row = row * size + index
            weight = weight * factor
            outside = outside | (index < 0)
        read = xp.take(pixels, image + xp.where(outside, 0, row), axis=0)
        if padding_mode == "zeros":
            read = xp.where(outside[..., None], zeros(xp, 1, x.dtype), read)
        y = read if mode == "nearest" else y + read * weight[..., None]
    if whole:
        y = to_integers(xp, y, x.dtype)
    return xp.moveaxis(y, -1, 1).reshape(n, c, *grid.shape[1:-1])


@op("GridSample", since=16, choices={"mode": ("bilinear", "nearest", "bicubic")} | _PADDINGS)
@in_float32
@taking(grid_sample_20)
def grid_sample_16(
    xp: Xp, x: Array, grid: Array, *, mode: str = "bilinear", **outside: Any
) -> Array:
    """Read images (N, C, H, W) at the grid's points (N, H', W', 2)."""
    names = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    if x.ndim != 4:
        raise ValueError(f"images of shape {x.shape} are not (N, C, H, W)")
    return grid_sample_20(xp, x, grid, mode=names[mode], **outside)


Taps = list[tuple[Array, Array]]


def _axis_taps(
    xp: Xp, point: Array, size: int, mode: str, padding_mode: str, align_corners: bool
) -> Taps:
    """Return the pixels on one axis that each point reads (-1: none), with their weights."""
    place = (point + 1) / 2 * (size - 1) if align_corners else ((point + 1) * size - 1) / 2
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    if mode == "nearest":
        place = xp.rint(place)
    # Cubic's four pixels are clamped one by one, as the frameworks that export it do.
    if padding_mode == "border" and mode != "cubic":
        place = xp.where((place < low) | (place > high), xp.clip(place, 0, size - 1), place)
    elif padding_mode == "reflection":
        place = _reflect(xp, place, low, high)
    # A point that is not a number, or far away, still needs some index; its weight stays NaN or 0.
    place = xp.clip(place, -4, size + 4)
    result = []
    for position, weight in _taps(xp, place, mode):
        within = (position >= 0) & (position <= size - 1)
        if padding_mode == "reflection":
            position = _reflect(xp, position, low, high)
        index = xp.clip(xp.nan_to_num(position), 0, size - 1).astype(xp.int64)
        if padding_mode == "zeros":
            index = xp.where(within, index, -1)
            weight = xp.where(within, weight, 0).astype(place.dtype)
        result.append((index, weight))
    return result


def _reflect(xp: Xp, place: Array, low: float, high: float) -> Array:
    """Fold places into low..high by reflecting at both ends."""
    extent = high - low
    if extent == 0:
        return xp.full(place.shape, low, dtype=place.dtype)
    return low + extent - xp.abs((place - low) % (2 * extent) - extent)


def _taps(xp: Xp, place: Array, mode: str) -> Taps:
    """Return the positions next to each place, and their weights."""
    if mode == "nearest":
        return [(xp.rint(place), xp.ones_like(place))]
    first = xp.floor(place)
    if mode == "linear":
        return [(first + i, linear_filter(xp, place - first - i)) for i in (0, 1)]
    return [(first + i, cubic_filter(xp, place - first - i)) for i in (-1, 0, 1, 2)]
