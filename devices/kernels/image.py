"""Operators on images: crops, columns of blocks, affine grids, regions of interest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from hetero.devices.kernels.axes import are_within, axes_of
from hetero.devices.kernels.convolve import add_windows
from hetero.devices.kernels.element_types import Array, Xp, in_float32, is_string
from hetero.devices.kernels.registry import op, with_attributes_of
from hetero.devices.kernels.slicing import pad
from hetero.devices.kernels.window import sliding_window


@op("CenterCropPad", since=18, host=(1,))
def center_crop_pad(xp: Xp, x: Array, shape: Array, *, axes: Sequence[int] | None = None) -> Array:
    """Crop or pad `axes` evenly at both sides to `shape`; an odd element is at the end."""
    axes = axes_of(range(x.ndim) if axes is None else axes, x.ndim)
    sizes = shape.tolist()
    if len(sizes) != len(axes) or min(sizes, default=0) < 0:
        raise ValueError(f"shape: expected {len(axes)} sizes of 0 or more, got {sizes}")
    total = [size - x.shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    before = [math.trunc(n / 2) for n in total]
    after = [n - m for n, m in zip(total, before, strict=True)]
    return pad(xp, x, before + after, axes=axes)


@op("Col2Im", since=18, host=(1, 2))
@with_attributes_of(sliding_window, exclude=("auto_pad",))
def col2im(xp: Xp, x: Array, image_shape: Array, block_shape: Array, **sliding: Any) -> Array:
    """Add columns of blocks at the blocks' places in an image, (N, C, *image_shape).

    x is (N, C * prod(block_shape), L), with one column for each of L places; both shapes are int64,
    (D,).
    """
    if is_string(x):
        raise TypeError("Col2Im: expected numbers, got strings, which have no sum")
    image, block = tuple(image_shape.tolist()), tuple(block_shape.tolist())
    window = sliding_window(image, block, **sliding)
    size = math.prod(block)
    if x.ndim != 3 or x.shape[1] % size or x.shape[2] != math.prod(window.output):
        raise ValueError(
            f"columns: expected shape (N, C * {size}, {math.prod(window.output)}) for blocks "
            f"{block} of an image {image}, got {x.shape}"
        )
    columns = x.reshape(x.shape[0], x.shape[1] // size, size, *window.output)
    return add_windows(xp, columns, window)


@op("AffineGrid", since=20, host=(1,))
@in_float32
def affine_grid(xp: Xp, theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """Return the pixels' coordinates, from -1 to 1, transformed by affine maps.

    `theta` is (N, 2, 3) or (N, 3, 4), `size` (N, C, H, W) or (N, C, D, H, W); the result is (N, H,
    W, 2) or (N, D, H, W, 3), x first. -1 and 1 are the outer edges of the corner pixels, with
    `align_corners` their centres.
    """
    batch, _, *dims = size.tolist()
    rank = len(dims)
    if theta.shape != (batch, rank, rank + 1) or rank not in (2, 3):
        raise ValueError(
            "theta: expected shape (N, 2, 3) or (N, 3, 4) that fits size "
            f"{size.tolist()}, got {theta.shape}"
        )
    points = xp.ones((*dims, rank + 1), dtype=theta.dtype)
    for axis, n in enumerate(dims):
        line = xp.linspace(-1, 1, n) if align_corners else (2 * xp.arange(n) + 1) / n - 1
        points[..., rank - 1 - axis] = line.reshape([-1] + [1] * (rank - 1 - axis))
    flat = points.reshape(-1, rank + 1) @ theta.transpose(0, 2, 1)
    return flat.reshape(batch, *dims, rank)


_MODES = {"mode": ("avg", "max")}
_COORDINATES = {"coordinate_transformation_mode": ("half_pixel", "output_half_pixel")}


@op("RoiAlign", since=16, choices=_MODES | _COORDINATES)
@in_float32
def roi_align_16(
    xp: Xp,
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """Pool regions of interest at sampled points, (R, C, output_height, output_width).

    x is (N, C, H, W), rois (R, 4) as x1, y1, x2, y2 in image pixels. With half_pixel, coordinates
    are moved by half a pixel to pixel centres.
    """
    half_pixel = coordinate_transformation_mode == "half_pixel"
    pooled = (output_height, output_width)
    if rois.ndim != 2 or rois.shape[1] != 4 or batch_indices.shape != rois.shape[:1]:
        raise ValueError(
            "expected rois of shape (R, 4) and batch_indices of shape (R,), got "
            f"{rois.shape} and {batch_indices.shape}"
        )
    _check_batch(batch_indices, x.shape[0])
    c, *dims = x.shape[1:]
    corners = rois * xp.asarray(spatial_scale, dtype=rois.dtype) - (0.5 if half_pixel else 0)
    # y first, in the order of the image's axes.
    first, extent = corners[:, 1::-1], corners[:, 3:1:-1] - corners[:, 1::-1]
    if not half_pixel:
        extent = xp.maximum(extent, 1)
    bins = extent / xp.asarray(pooled, dtype=x.dtype)
    # One row per pixel, so that one `take` reads all channels of a sample.
    pixels = xp.ascontiguousarray(xp.moveaxis(x, 1, -1)).reshape(-1, c)
    y = xp.zeros((len(rois), *pooled, c), dtype=x.dtype)
    samples = [
        (sampling_ratio, sampling_ratio) if sampling_ratio > 0 else tuple(map(math.ceil, size))
        for size in bins.tolist()
    ]
    for counts in set(samples):
        if min(counts) < 1:
            continue
        regions = [i for i, own in enumerate(samples) if own == counts]
        (rows, row_weights), (columns, column_weights) = (
            _roi_samples(xp, first[regions, i], bins[regions, i], pooled[i], counts[i], dims[i])
            for i in (0, 1)
        )
        for k, i in enumerate(regions):
            row = (batch_indices[i] * dims[0] + rows[k]) * dims[1]
            # Flat pixel indices and weights: (rows of bins, columns of bins, samples of a bin).
            places = row[:, None, :, None] + columns[k][None, :, None, :]
            weights = row_weights[k][:, None, :, None] * column_weights[k][None, :, None, :]
            weights = weights.astype(x.dtype).reshape(*pooled, -1, 1)
            values = xp.take(pixels, places.reshape(*pooled, -1), axis=0)
            if mode == "avg":
                y[i] = (weights.transpose(0, 1, 3, 2) @ values)[:, :, 0] / math.prod(counts)
            else:
                y[i] = xp.max(values * weights, axis=2)
    return xp.moveaxis(y, -1, 1)


@op("RoiAlign", since=10, choices=_MODES)
@with_attributes_of(roi_align_16, exclude=("coordinate_transformation_mode",))
def roi_align_10(xp: Xp, x: Array, rois: Array, batch_indices: Array, **pooling: Any) -> Array:
    """Pool regions of interest at sampled points; pixel centres have integer coordinates."""
    pooling["coordinate_transformation_mode"] = "output_half_pixel"
    return roi_align_16(xp, x, rois, batch_indices, **pooling)


def _roi_samples(
    xp: Xp, first: Array, bin_size: Array, bins: int, samples: int, size: int
) -> tuple[Array, Array]:
    """Return the pixels (R, bins, 2 * samples) around samples on one axis, and their weights."""
    step = xp.arange(bins)[:, None] + (xp.arange(samples) + 0.5) / samples
    place = first[:, None, None] + step.astype(first.dtype) * bin_size[:, None, None]
    outside = (place < -1) | (place > size)  # more than one pixel outside the image
    place = xp.clip(place, 0, size - 1)
    low = xp.floor(place).astype(xp.int64)
    high = xp.minimum(low + 1, size - 1)
    toward_high = place - low
    weights = xp.concatenate([1 - toward_high, toward_high], axis=-1)
    weights = xp.where(xp.concatenate([outside, outside], axis=-1), 0, weights)
    return xp.concatenate([low, high], axis=-1), weights


def _check_batch(entries: Array, size: int) -> None:
    """Raise IndexError unless each batch index is in 0..size-1."""
    if not are_within(entries, 0, size):
        raise IndexError(f"expected batch indices from 0 to {size - 1}")


@op("MaxRoiPool", since=1)
@in_float32
def max_roi_pool(
    xp: Xp, x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Array:
    """Pool the largest value in each bin of each region of interest; an empty bin gives 0.

    x is (N, C, H, W), `rois` (R, 5): batch index, then x1, y1, x2, y2 in image pixels, the end
    included.
    """
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise ValueError(f"rois: expected shape (R, 5), got {rois.shape}")
    _check_batch(rois[:, 0], x.shape[0])
    y = xp.zeros((len(rois), x.shape[1], *pooled_shape), dtype=x.dtype)
    for region, (entry, *corner) in enumerate(rois.tolist()):
        rows, columns = (
            _roi_bins(corner[1 - i], corner[3 - i], spatial_scale, pooled_shape[i], x.shape[2 + i])
            for i in (0, 1)
        )
        for i, j in product(range(len(rows)), range(len(columns))):
            pixels = x[int(entry), :, slice(*rows[i]), slice(*columns[j])]
            if pixels.size:
                y[region, :, i, j] = pixels.max(axis=(1, 2))
    return y


def _roi_bins(
    first: float, last: float, scale: float, bins: int, size: int
) -> list[tuple[int, int]]:
    """Return each bin's pixels on an axis of `size`, as (first, end)."""
    # A half is rounded away from zero.
    scaled = (first * scale, last * scale)
    begin, end = (int(math.copysign(math.floor(abs(x) + 0.5), x)) for x in scaled)
    length = max(end - begin + 1, 1) / bins
    ends = [
        (begin + math.floor(i * length), begin + math.ceil((i + 1) * length)) for i in range(bins)
    ]
    return [(min(max(a, 0), size), min(max(b, 0), size)) for a, b in ends]
