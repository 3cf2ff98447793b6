"""GridSample: images sampled at the points of a grid."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from hetero.devices.kernels.element_types import Array, Xp, in_float32, to_integers, zeros
from hetero.devices.kernels.registry import op, with_attributes_of
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
    """Sample images (N, C, D1, ..., Dr) at the grid's points (N, D1', ..., Dr', r).

    A point's coordinates are from -1 to 1, in the reverse order of the axes.
    """
    rank = x.ndim - 2
    if grid.ndim != x.ndim or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
        raise ValueError(
            f"grid: expected shape ({x.shape[0]}, ..., {rank}) of rank {x.ndim}, got {grid.shape}"
        )
    n, c, *dims = x.shape
    if 0 in dims and grid.size:
        raise ValueError(f"expected images with pixels, got shape {x.shape}")
    is_integer = x.dtype.kind in "iu"
    if x.dtype.kind not in "f" and not (is_integer or mode == "nearest"):
        raise TypeError(f"{x.dtype} cannot be interpolated between two pixels; use mode 'nearest'")
    points = grid.reshape(n, -1, rank).astype(x.dtype if x.dtype.kind == "f" else xp.float64)
    axes = [
        _axis_taps(xp, points[..., rank - 1 - i], size, mode, padding_mode, bool(align_corners))
        for i, size in enumerate(dims)
    ]
    # One row per pixel, so that one `take` reads all channels of a point.
    pixels = xp.ascontiguousarray(xp.moveaxis(x, 1, -1)).reshape(-1, c)
    image = xp.arange(n)[:, None] * math.prod(dims)
    y = 0
    for corner in product(*axes):
        row, weight, outside = 0, xp.ones((), dtype=points.dtype), xp.asarray(False)
        for (index, factor), size in zip(corner, dims, strict=True):
            row = row * size + index
            weight = weight * factor
            outside = outside | (index < 0)
        values = xp.take(pixels, image + xp.where(outside, 0, row), axis=0)
        if padding_mode == "zeros":
            values = xp.where(outside[..., None], zeros(xp, 1, x.dtype), values)
        y = values if mode == "nearest" else y + values * weight[..., None]
    if is_integer:
        y = to_integers(xp, y, x.dtype)
    return xp.moveaxis(y, -1, 1).reshape(n, c, *grid.shape[1:-1])


@op("GridSample", since=16, choices={"mode": ("bilinear", "nearest", "bicubic")} | _PADDINGS)
@in_float32
@with_attributes_of(grid_sample_20)
def grid_sample_16(
    xp: Xp, x: Array, grid: Array, *, mode: str = "bilinear", **attributes: Any
) -> Array:
    """Sample images (N, C, H, W) at the grid's points (N, H', W', 2)."""
    names = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    if x.ndim != 4:
        raise ValueError(f"images: expected shape (N, C, H, W), got {x.shape}")
    return grid_sample_20(xp, x, grid, mode=names[mode], **attributes)


Taps = list[tuple[Array, Array]]


def _axis_taps(
    xp: Xp, point: Array, size: int, mode: str, padding_mode: str, align_corners: bool
) -> Taps:
    """Return the positions of the pixels on one axis around each point (-1: none) and weights."""
    place = (point + 1) / 2 * (size - 1) if align_corners else ((point + 1) * size - 1) / 2
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    if mode == "nearest":
        place = xp.rint(place)
    # The four pixels of cubic are clamped one by one, as in the frameworks that export it.
    if padding_mode == "border" and mode != "cubic":
        place = xp.where((place < low) | (place > high), xp.clip(place, 0, size - 1), place)
    elif padding_mode == "reflection":
        place = _reflect(xp, place, low, high)
    # A distant point or NaN also needs a valid index; its weight remains 0 or NaN.
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
    """Map places into low..high by reflection at both ends."""
    extent = high - low
    if extent == 0:
        return xp.full(place.shape, low, dtype=place.dtype)
    return low + extent - xp.abs((place - low) % (2 * extent) - extent)


def _taps(xp: Xp, place: Array, mode: str) -> Taps:
    """Return the positions around each place, and their weights."""
    if mode == "nearest":
        return [(xp.rint(place), xp.ones_like(place))]
    first = xp.floor(place)
    if mode == "linear":
        return [(first + i, linear_filter(xp, place - first - i)) for i in (0, 1)]
    return [(first + i, cubic_filter(xp, place - first - i)) for i in (-1, 0, 1, 2)]
