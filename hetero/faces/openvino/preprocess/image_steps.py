"""Preprocessing steps of images: resizing and color conversion."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

import numpy as np

from hetero.devices.errors import ArgumentError
from hetero.devices.model.tensor_spec import Dimension
from hetero.faces.openvino.preprocess.color_format import PLANES, ColorFormat
from hetero.faces.openvino.preprocess.emitter import Emitter, Flow
from hetero.faces.openvino.preprocess.layout import axis_of
from hetero.faces.openvino.preprocess.tensor_steps import as_float, require_one_plane, with_last


class ResizeAlgorithm(Enum):
    """Interpolation of a resized image; pixel values are at the pixels' centers.

    Pillow's algorithms antialias when they shrink an image, and need operator set 18.
    """

    RESIZE_LINEAR = "linear"
    RESIZE_CUBIC = "cubic"
    RESIZE_NEAREST = "nearest"
    RESIZE_BILINEAR_PILLOW = "linear, blurred"
    RESIZE_BICUBIC_PILLOW = "cubic, blurred"


def resize(
    flow: Flow,
    emit: Emitter,
    algorithm: ResizeAlgorithm,
    height: Dimension = None,
    width: Dimension = None,
) -> Flow:
    """Resize height and width, by default to those of the model.

    Emits a Resize. Integers are converted to floats first, except for RESIZE_NEAREST.
    """
    label = f"{flow.label}: resize"
    shape, layout = flow.model
    if height is None and shape is not None:
        height, width = (shape[axis_of(letter, layout, label)] for letter in "HW")
    sizes = {axis_of("H", flow.layout, label): height, axis_of("W", flow.layout, label): width}
    if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
        raise ArgumentError(
            f"{label}: expected a size, got {height} by {width}; the model's size is dynamic, so "
            "set one: resize(ResizeAlgorithm.RESIZE_LINEAR, 224, 224)."
        )
    if all((flow.shape or ())[axis] == size for axis, size in sizes.items()):
        return flow

    def write(tensor: Flow) -> Flow:
        target_shape = list(tensor.shape or ())
        for letter, size in (("H", height), ("W", width)):
            target_shape[tensor.layout.index(letter)] = size
        # Before opset 13 these inputs are required.
        empty = emit.constant([], np.float32) if emit.opset < 13 else ""
        mode, _, antialias = algorithm.value.partition(", ")
        # Pillow's cubic interpolation uses Catmull-Rom splines.
        pillow = {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}
        cubic_options = pillow if antialias else {"cubic_coeff_a": -0.75}
        value = emit.node(
            "Resize",
            tensor.value,
            empty,
            empty,
            _sizes(tensor, target_shape, emit),
            since=18 if antialias else 11,
            mode=mode,
            coordinate_transformation_mode="half_pixel",
            nearest_mode="round_prefer_floor",
            **cubic_options,
        )
        return replace(tensor, values=(value,), shape=tuple(target_shape))

    if algorithm is ResizeAlgorithm.RESIZE_NEAREST:
        return write(require_one_plane(flow))

    def compute(tensor: Flow) -> Flow:
        # Runtimes implement cubic resizing only for height and width as the last dimensions.
        if algorithm is ResizeAlgorithm.RESIZE_LINEAR:
            return write(tensor)
        return with_last(tensor, "HW", emit, write, "resize")

    return as_float(require_one_plane(flow), emit, compute)


def _sizes(flow: Flow, shape: list[Dimension], emit: Emitter) -> str:
    """Return a tensor of all sizes; open ones are read from the tensor at run time."""
    if all(isinstance(size, int) for size in shape):
        return emit.constant(shape)
    whole = emit.node("Shape", flow.value)
    parts = [
        emit.constant([size]) if isinstance(size, int) else emit.gather(whole, 0, [axis])
        for axis, size in enumerate(shape)
    ]
    return emit.node("Concat", *parts, since=4, axis=0)


#: Matrix from (Y - 16, U - 128, V - 128) to red, green and blue, one row each.
_RGB_FROM_YUV: Final = ((1.164, 0.0, 1.596), (1.164, -0.391, -0.813), (1.164, 2.018, 0.0))
#: Weights of red, green and blue in gray.
_GRAY_WEIGHTS: Final = (0.299, 0.587, 0.114)
#: Format -> positions of red, green and blue among its channels.
_RGB: Final = {
    ColorFormat.RGB: (0, 1, 2),
    ColorFormat.RGBX: (0, 1, 2),
    ColorFormat.BGR: (2, 1, 0),
    ColorFormat.BGRX: (2, 1, 0),
}
_TARGETS: Final = (ColorFormat.RGB, ColorFormat.BGR, ColorFormat.GRAY)


def convert_color(flow: Flow, emit: Emitter, color: ColorFormat) -> Flow:
    """Convert an image's colors: by a Gather for channel orders, otherwise by weighted sums."""
    if flow.color is color:
        return flow
    gray = color is ColorFormat.GRAY
    if color not in _TARGETS or flow.color in (ColorFormat.UNDEFINED, ColorFormat.GRAY):
        raise ArgumentError(
            f"{flow.label}: cannot convert {flow.color.name} to {color.name}. Set the tensor's "
            "format with .tensor().set_color_format(ColorFormat.BGR); color images can be "
            f"converted to {', '.join(target.name for target in _TARGETS)}."
        )
    if flow.color not in _RGB:
        planes = _planes(flow, emit)
        converted = planes[0] if gray else _rgb_from_planes(flow, planes, emit, color)
    elif gray:
        weights = np.zeros((PLANES[flow.color][0][0], 1), np.float32)
        weights[list(_RGB[flow.color]), 0] = _GRAY_WEIGHTS
        converted = _weighted_sums(flow, weights, emit)
    else:
        axis = flow.layout.index("C")
        order = [_RGB[flow.color][i] for i in _RGB[color]]
        value = emit.gather(flow.value, axis, order)
        converted = replace(flow, values=(value,), shape=_resized_shape(flow, axis, len(order)))
    return replace(converted, color=color)


def _rgb_from_planes(flow: Flow, planes: list[Flow], emit: Emitter, color: ColorFormat) -> Flow:
    """Return RGB channels from planes of Y, U and V, or of Y and interleaved UV."""
    scales = np.ones(len(flow.layout), np.float32)
    scales[[flow.layout.index(letter) for letter in "HW"]] = 2

    def write(whole: Flow) -> Flow:
        y, *chroma = whole.values
        empty = emit.constant([], np.float32) if emit.opset < 13 else ""
        # Each color sample belongs to 2 by 2 pixels.
        upsampled = [
            emit.node(
                "Resize",
                value,
                empty,
                emit.constant(scales, np.float32),
                since=11,
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
            for value in chroma
        ]
        channels = flow.layout.index("C")
        yuv = emit.node("Concat", y, *upsampled, since=4, axis=channels)
        start = np.reshape([16, 128, 128], [-1] + [1] * (len(flow.layout) - channels - 1))
        centred = emit.node("Sub", yuv, emit.constant(start, whole.dtype), since=7)
        tensor = replace(whole, values=(centred,), shape=_resized_shape(planes[0], channels, 3))
        colours = _weighted_sums(tensor, np.transpose(_RGB_FROM_YUV)[:, list(_RGB[color])], emit)
        bounds = (emit.constant(limit, whole.dtype) for limit in (0, 255))
        return replace(colours, values=(emit.node("Clip", colours.value, *bounds, since=11),))

    return as_float(replace(flow, values=tuple(p.value for p in planes)), emit, write)


def _weighted_sums(flow: Flow, weights: np.ndarray, emit: Emitter) -> Flow:
    """Emit weighted sums of the channels, one for each column of `weights`."""

    def write(last: Flow) -> Flow:
        value = emit.node("MatMul", last.value, emit.constant(weights, last.dtype))
        return replace(last, values=(value,), shape=_resized_shape(last, -1, weights.shape[1]))

    def compute(floats: Flow) -> Flow:
        return with_last(floats, "C", emit, write, "convert_color")

    return as_float(flow, emit, compute)


def _planes(flow: Flow, emit: Emitter) -> list[Flow]:
    """Return the planes of a YUV image, split if they are stored one below the other."""
    height = flow.layout.index("H")
    shape = flow.shape or ()
    if len(flow.values) > 1:
        return [replace(flow, values=(value,)) for value in flow.values]
    rows = shape[height]
    sizes = list(shape)
    if isinstance(rows, int):
        split = emit.constant([rows * 2 // 3])
        sizes[height] = rows * 2 // 3
    else:
        whole = emit.gather(emit.node("Shape", flow.value), 0, [height])
        third = emit.node("Div", whole, emit.constant([3]), since=7)
        split = emit.node("Mul", third, emit.constant([2]), since=7)
        sizes[height] = None
    axis = emit.constant([height])
    first = emit.node("Slice", flow.value, emit.constant([0]), split, axis, since=10)
    end = emit.constant([np.iinfo(np.int64).max])
    rest = emit.node("Slice", flow.value, split, end, axis, since=10)
    # Below the Y plane are pairs of U and V, or all of U and then all of V.
    letters = "HWC" if flow.color is ColorFormat.NV12_SINGLE_PLANE else "CHW"
    halves = {"H": 0, "W": -1, "C": 2}  # by Reshape's rules: 0 keeps a size, -1 infers it
    order = [i for i, letter in enumerate(flow.layout) if letter not in letters]
    batch_sizes = [0] * len(order)
    order += [flow.layout.index(letter) for letter in letters]
    below = emit.transpose(rest, order)
    inner = emit.constant([*batch_sizes, *(halves[letter] for letter in letters)])
    second = emit.transpose(
        emit.node("Reshape", below, inner, since=5), [order.index(i) for i in range(len(order))]
    )
    return [replace(flow, values=(value,), shape=tuple(sizes)) for value in (first, second)]


def _resized_shape(flow: Flow, axis: int, size: int) -> tuple[Dimension, ...]:
    shape = list(flow.shape or ())
    shape[axis] = size
    return tuple(shape)
