"""Resize and Upsample.

Interpolation is separable: each axis is resampled by itself, as a sum of gathered slices times
weights over a few taps (offsets from the source position). Coordinates are computed in float32, the
type of scales, so that for example 3 / (1/3) is 9. A scale that follows from sizes is their exact
ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Any, NamedTuple

from hetero.devices.kernels.axes import axis_of
from hetero.devices.kernels.element_types import Array, Xp, to_float32, to_integers
from hetero.devices.kernels.registry import as_inputs, op, with_attributes_of

Ints = Sequence[int]


class Rules(NamedTuple):
    """The attributes of Resize that determine how elements are sampled."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic_a: float = -0.75
    exclude_outside: int = 0
    extrapolation: float = 0.0
    antialias: int = 0


_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_COORDINATES = (
    "half_pixel",
    "asymmetric",
    "pytorch_half_pixel",
    "align_corners",
    "tf_crop_and_resize",
)


class Axis(NamedTuple):
    """One axis to resize: its sizes, scale, and region of interest in normalised coordinates."""

    axis: int
    size: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _source(xp: Xp, a: Axis, mode: str) -> Array:
    """Return the coordinate in the input of each output position."""
    is_ratio = bool(a.size) and a.scale == a.output / a.size
    x = xp.arange(a.output, dtype=xp.float64 if is_ratio else xp.float32)
    scale = xp.float32(a.scale)
    if mode == "asymmetric":
        return x * a.size / a.output if is_ratio else x / scale
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and a.output > 1):
        return ((x + 0.5) * a.size / a.output if is_ratio else (x + 0.5) / scale) - 0.5
    if mode == "pytorch_half_pixel":
        return xp.zeros_like(x)
    if mode == "align_corners":
        return x * (a.size - 1) / (a.output - 1) if a.output > 1 else xp.zeros_like(x)
    if mode == "half_pixel_symmetric":
        exact = a.scale * a.size
        return a.size / 2 * (1 - a.output / exact) + (x + 0.5) / scale - 0.5
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    # The remaining mode is tf_crop_and_resize.
    if a.output == 1:
        return xp.full_like(x, 0.5 * (a.start + a.end) * (a.size - 1))
    step = (a.end - a.start) * (a.size - 1) / (a.output - 1)
    return a.start * (a.size - 1) + x * xp.float32(step)


def _nearest_indices(xp: Xp, x: Array, mode: str, scale: float) -> Array:
    """Round coordinates to input indices."""
    if mode == "round_prefer_floor":
        return xp.ceil(x - 0.5)
    if mode == "round_prefer_ceil":
        return xp.floor(x + 0.5)
    if mode == "ceil" or (mode == "by_direction" and scale < 1):
        return xp.ceil(x)
    return xp.floor(x)


def linear_filter(xp: Xp, x: Array) -> Array:
    """Return the weight of a neighbour at distance x in linear interpolation."""
    return xp.maximum(1 - abs(x), 0)


def cubic_filter(xp: Xp, x: Array, a: float = -0.75) -> Array:
    """Return the weight at distance x of Keys' cubic kernel (IEEE TASSP 29(6), 1981, eq. 4)."""
    x = abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return xp.where(x <= 1, near, xp.where(x >= 2, x.dtype.type(0), far))


def _taps(xp: Xp, a: Axis, source: Array, rules: Rules) -> tuple[Array, Array]:
    """Return input indices and weights, each (taps, output), of the sum for each output."""
    shrink = min(a.scale, 1.0) if rules.antialias else 1.0  # the filter is 1 / shrink times wider
    first = floor(-(1 if rules.mode == "linear" else 2) / shrink) + 1
    base = xp.floor(source)
    offsets = xp.arange(first, 2 - first, dtype=xp.float32)[:, None]
    distance = (offsets - (source - base)) * xp.float32(shrink)
    if rules.mode == "linear":
        weights = linear_filter(xp, distance)
    else:
        weights = cubic_filter(xp, distance, rules.cubic_a)
    index = (base + offsets).astype(xp.int64)
    if rules.exclude_outside:
        weights = xp.where((index >= 0) & (index < a.size), weights, weights.dtype.type(0))
    if rules.exclude_outside or rules.antialias:
        weights = weights / xp.sum(weights, axis=0)
    return xp.clip(index, 0, a.size - 1), weights


def _broadcast_along(x: Array, axis: int, values: Array) -> Array:
    """Reshape a vector to broadcast along an axis of x."""
    return values.reshape(-1, *(1,) * (x.ndim - 1 - axis))


def _resample(xp: Xp, x: Array, a: Axis, rules: Rules) -> Array:
    source = _source(xp, a, rules.coordinates)
    if rules.mode == "nearest":
        index = _nearest_indices(xp, source, rules.nearest, a.scale)
        y = xp.take(x, xp.clip(index, 0, a.size - 1).astype(xp.int64), axis=a.axis)
    else:
        index, weights = _taps(xp, a, source, rules)
        weights = weights.astype(x.dtype, copy=False)
        y = xp.take(x, index[0], axis=a.axis)
        y *= _broadcast_along(x, a.axis, weights[0])
        for i, w in zip(index[1:], weights[1:], strict=True):
            part = xp.take(x, i, axis=a.axis)
            part *= _broadcast_along(x, a.axis, w)
            y += part
    if rules.coordinates == "tf_crop_and_resize":
        outside = (source < 0) | (source > a.size - 1)
        y = xp.where(_broadcast_along(x, a.axis, outside), x.dtype.type(rules.extrapolation), y)
    return y


def _resize(xp: Xp, x: Array, axes: list[Axis], rules: Rules) -> Array:
    for a in axes:
        if a.size == 0 and a.output > 0:
            raise ValueError(
                f"expected elements on axis {a.axis} to resize to {a.output}, got none"
            )
    dtype, y = x.dtype, x
    if rules.mode != "nearest":
        (y,) = to_float32(xp, x)
        if y.dtype.kind not in "f":
            y = y.astype(xp.float32 if y.dtype.itemsize < 4 else xp.float64)
    has_region = rules.coordinates == "tf_crop_and_resize"
    # The last axis is first, because gathering along it is the slowest.
    for a in sorted(axes, key=lambda a: -a.axis):
        if has_region or a.size != a.output or a.scale != 1:
            y = _resample(xp, y, a, rules)
    return to_integers(xp, y, dtype) if dtype.kind in "iu" else y.astype(dtype, copy=False)


def _by_scales(xp: Xp, x: Array, scales: Sequence[float], axes: Ints) -> list[Axis]:
    """Return the axes to resize by `scales`; an output size is floor(size * scale)."""
    _check_count("scales", len(scales), len(axes))
    result = []
    for i, axis in enumerate(axes):
        scale, size = xp.float32(scales[i]), x.shape[axis]
        if not scale > 0:
            raise ValueError(f"scales: expected a positive number for axis {axis}, got {scale}")
        # Computed in float32 and without the region of interest, as in shape inference.
        output = floor(xp.float32(size) * scale)
        result.append(Axis(axis, size, output, float(scale)))
    return result


def _by_sizes(x: Array, sizes: Array, axes: Ints, policy: str = "stretch") -> list[Axis]:
    """Return the axes to resize to `sizes`; they have one scale if the policy keeps the aspect."""
    _check_count("sizes", len(sizes), len(axes))
    outputs = [int(n) for n in sizes]
    if min(outputs, default=0) < 0:
        raise ValueError(f"sizes: expected no negative number, got {outputs}")
    scales = [
        n / x.shape[axis] if x.shape[axis] else 1.0 for n, axis in zip(outputs, axes, strict=True)
    ]
    if policy in ("not_larger", "not_smaller"):
        scale = min(scales) if policy == "not_larger" else max(scales)
        scales = [scale] * len(axes)
        outputs = [floor(scale * x.shape[axis] + 0.5) for axis in axes]
    rows = zip(axes, outputs, scales, strict=True)
    return [Axis(axis, x.shape[axis], output, scale) for axis, output, scale in rows]


def _check_count(name: str, count: int, axes: int) -> None:
    if count != axes:
        raise ValueError(f"{name}: expected {axes} entries, got {count}")


@op("Upsample", since=7, choices={"mode": ("nearest", "linear")})
def upsample_7(xp: Xp, x: Array, *, mode: str = "nearest", scales: Sequence[float]) -> Array:
    """Enlarge every axis: `nearest` repeats elements, `linear` interpolates."""
    if any(float(s) < 1 for s in scales):
        raise ValueError(f"scales: expected at least 1, got {[float(s) for s in scales]}")
    return _resize(xp, x, _by_scales(xp, x, scales, range(x.ndim)), Rules(mode))


op("Upsample", since=9, host=(1,), choices={"mode": ("nearest", "linear")})(
    as_inputs(upsample_7, "scales")
)


@op("Resize", since=10, host=(1,), choices={"mode": ("nearest", "linear")})
def resize_10(xp: Xp, x: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """Scale every axis; `nearest` uses the lower neighbour, or the upper one on smaller axes."""
    rules = Rules(mode, nearest="by_direction")
    return _resize(xp, x, _by_scales(xp, x, scales, range(x.ndim)), rules)


_HOST = (1, 2, 3)
_MODES = {"mode": ("nearest", "linear", "cubic"), "nearest_mode": _ROUNDINGS}


def _rules_18(
    xp: Xp,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> tuple[list[Axis], Rules]:
    """Return the axes to resize and the sampling rules, from Resize's inputs and attributes."""
    numbers = range(x.ndim) if axes is None else [axis_of(axis, x.ndim) for axis in axes]
    rules = Rules(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        exclude_outside,
        extrapolation_value,
        antialias,
    )
    has_scales = scales is not None and scales.size > 0
    if has_scales == (sizes is not None and sizes.size > 0) and numbers:
        raise ValueError("expected exactly one of scales and sizes")
    if scales is not None and has_scales:
        rows = _by_scales(xp, x, scales, numbers)
    else:
        rows = _by_sizes(x, sizes, numbers, keep_aspect_ratio_policy)
    if rules.coordinates == "tf_crop_and_resize":
        region = [] if roi is None else roi.tolist()
        _check_count("roi", len(region), 2 * len(numbers))
        ends = zip(rows, region[: len(numbers)], region[len(numbers) :], strict=True)
        rows = [a._replace(start=start, end=end) for a, start, end in ends]
    return rows, rules


@op(
    "Resize",
    since=18,
    host=_HOST,
    choices=_MODES
    | {
        "coordinate_transformation_mode": (*_COORDINATES, "half_pixel_symmetric"),
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    },
)
@with_attributes_of(_rules_18)
def resize_18(
    xp: Xp,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    **rules: Any,
) -> Array:
    """Resample `axes` (all if absent) to `sizes` or by `scales`."""
    return _resize(xp, x, *_rules_18(xp, x, roi, scales, sizes, **rules))


@op(
    "Resize",
    since=11,
    host=_HOST,
    choices=_MODES
    | {
        "coordinate_transformation_mode": (*_COORDINATES, "tf_half_pixel_for_nn"),
    },
)
@with_attributes_of(_rules_18, exclude=("antialias", "axes", "keep_aspect_ratio_policy"))
def resize_11(
    xp: Xp,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    **rules: Any,
) -> Array:
    """Resample every axis to `sizes` or by `scales`."""
    return resize_18(xp, x, roi, scales, sizes, **rules)
