"""Steps of pictures: resizing, and converting colours."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

import numpy as np

from hetero.devices.errors import ArgumentError
from hetero.devices.model.tensor_spec import Dimension
from hetero.faces.openvino.preprocess.colors import PLANES, ColorFormat
from hetero.faces.openvino.preprocess.emit import Emitter, Flow
from hetero.faces.openvino.preprocess.layout import axis_of
from hetero.faces.openvino.preprocess.steps import as_float, single, with_last


class ResizeAlgorithm(Enum):
    """How a picture is resized; pixels have their values at their centres.

    Pillow's blur what gets smaller, as ONNX's antialias does; they need operator set 18.
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
    """Resize height and width, to those that the model takes where none are given.

    A Resize; of integers on floats, unless it only picks pixels.
    """
    where = f"{flow.where}: resize"
    shape, layout = flow.model
    if height is None and shape is not None:
        height, width = (shape[axis_of(letter, layout, where)] for letter in "HW")
    sizes = {axis_of("H", flow.layout, where): height, axis_of("W", flow.layout, where): width}
    if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
        raise ArgumentError(
            f"{where} to {height} by {width}; the model leaves its size open, so give one: "
            "resize(ResizeAlgorithm.RESIZE_LINEAR, 224, 224)."
        )
    if all((flow.shape or ())[axis] == size for axis, size in sizes.items()):
        return flow

    def write(found: Flow) -> Flow:
        wanted = list(found.shape or ())
        for letter, size in (("H", height), ("W", width)):
            wanted[found.layout.index(letter)] = size
        # Before opset 13 these inputs are not optional.
        empty = emit.constant([], np.float32) if emit.opset < 13 else ""
        mode, _, blurred = algorithm.value.partition(", ")
        # Pillow's cubics are Catmull and Rom's.
        pillow = {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}
        how = pillow if blurred else {"cubic_coeff_a": -0.75}
        value = emit.node(
            "Resize",
            found.value,
            empty,
            empty,
            _sizes(found, wanted, emit),
            since=18 if blurred else 11,
            mode=mode,
            coordinate_transformation_mode="half_pixel",
            nearest_mode="round_prefer_floor",
            **how,
        )
        return replace(found, values=(value,), shape=tuple(wanted))

    if algorithm is ResizeAlgorithm.RESIZE_NEAREST:
        return write(single(flow))

    def compute(found: Flow) -> Flow:
        # Runtimes resize by cubics only where height and width are last.
        if algorithm is ResizeAlgorithm.RESIZE_LINEAR:
            return write(found)
        return with_last(found, "HW", emit, write, "resize")

    return as_float(single(flow), emit, compute)


def _sizes(flow: Flow, shape: list[Dimension], emit: Emitter) -> str:
    """Return the value that holds all sizes; those that are open come from the tensor itself."""
    if all(isinstance(size, int) for size in shape):
        return emit.constant(shape)
    whole = emit.node("Shape", flow.value)
    parts = [
        emit.constant([size]) if isinstance(size, int) else emit.pick(whole, 0, [axis])
        for axis, size in enumerate(shape)
    ]
    return emit.node("Concat", *parts, since=4, axis=0)


#: Red, green and blue of Y - 16, U - 128 and V - 128, a row each.
_OF_YUV: Final = ((1.164, 0.0, 1.596), (1.164, -0.391, -0.813), (1.164, 2.018, 0.0))
#: Grey of red, green and blue.
_GRAY: Final = (0.299, 0.587, 0.114)
#: Format -> positions of red, green and blue among its channels.
_RGB: Final = {
    ColorFormat.RGB: (0, 1, 2),
    ColorFormat.RGBX: (0, 1, 2),
    ColorFormat.BGR: (2, 1, 0),
    ColorFormat.BGRX: (2, 1, 0),
}
_TARGETS: Final = (ColorFormat.RGB, ColorFormat.BGR, ColorFormat.GRAY)


def convert_color(flow: Flow, emit: Emitter, color: ColorFormat) -> Flow:
    """Convert a picture's colours: a Gather between orders of channels, else sums of channels."""
    if flow.color is color:
        return flow
    gray = color is ColorFormat.GRAY
    if color not in _TARGETS or flow.color in (ColorFormat.UNDEFINED, ColorFormat.GRAY):
        raise ArgumentError(
            f"{flow.where}: {flow.color.name} cannot become {color.name}. Say what the tensor "
            "holds with .tensor().set_color_format(ColorFormat.BGR); pictures in colour can become "
            f"{', '.join(target.name for target in _TARGETS)}."
        )
    if flow.color not in _RGB:
        planes = _planes(flow, emit)
        made = planes[0] if gray else _of_planes(flow, planes, emit, color)
    elif gray:
        weights = np.zeros((PLANES[flow.color][0][0], 1), np.float32)
        weights[list(_RGB[flow.color]), 0] = _GRAY
        made = _summed(flow, weights, emit)
    else:
        axis = flow.layout.index("C")
        order = [_RGB[flow.color][i] for i in _RGB[color]]
        value = emit.pick(flow.value, axis, order)
        made = replace(flow, values=(value,), shape=_with(flow, axis, len(order)))
    return replace(made, color=color)


def _of_planes(flow: Flow, planes: list[Flow], emit: Emitter, color: ColorFormat) -> Flow:
    """Return the colours of planes of Y, U and V (or of U and V in one)."""
    scales = np.ones(len(flow.layout), np.float32)
    scales[[flow.layout.index(letter) for letter in "HW"]] = 2

    def write(whole: Flow) -> Flow:
        y, *rest = whole.values
        empty = emit.constant([], np.float32) if emit.opset < 13 else ""
        # Four pixels share a colour.
        spread = [
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
            for value in rest
        ]
        channels = flow.layout.index("C")
        joined = emit.node("Concat", y, *spread, since=4, axis=channels)
        start = np.reshape([16, 128, 128], [-1] + [1] * (len(flow.layout) - channels - 1))
        centred = emit.node("Sub", joined, emit.constant(start, whole.dtype), since=7)
        found = replace(whole, values=(centred,), shape=_with(planes[0], channels, 3))
        colours = _summed(found, np.transpose(_OF_YUV)[:, list(_RGB[color])], emit)
        bounds = (emit.constant(limit, whole.dtype) for limit in (0, 255))
        return replace(colours, values=(emit.node("Clip", colours.value, *bounds, since=11),))

    return as_float(replace(flow, values=tuple(p.value for p in planes)), emit, write)


def _summed(flow: Flow, weights: np.ndarray, emit: Emitter) -> Flow:
    """Return weighted sums of the channels, one for each column of `weights`."""

    def write(last: Flow) -> Flow:
        value = emit.node("MatMul", last.value, emit.constant(weights, last.dtype))
        return replace(last, values=(value,), shape=_with(last, -1, weights.shape[1]))

    def compute(floats: Flow) -> Flow:
        return with_last(floats, "C", emit, write, "convert_color")

    return as_float(flow, emit, compute)


def _planes(flow: Flow, emit: Emitter) -> list[Flow]:
    """Return the planes of a YUV picture, taken apart where they stand one under the other."""
    height, width = (flow.layout.index(letter) for letter in "HW")
    shape = flow.shape or ()
    if len(flow.values) > 1:
        return [replace(flow, values=(value,)) for value in flow.values]
    rows, columns = shape[height], shape[width]
    if not (isinstance(rows, int) and isinstance(columns, int)):
        raise ArgumentError(
            f"{flow.where}: convert_color of {flow.color.name} needs to know the size; write "
            ".tensor().set_spatial_static_shape(height, width), or give the planes as inputs of "
            "their own: NV12_TWO_PLANES, I420_THREE_PLANES."
        )
    sizes = list(shape)
    sizes[height] = rows * 2 // 3
    first = emit.slice(flow.value, height, 0, rows * 2 // 3)
    # Below it are pairs of U and V, or all of U and then all of V.
    letters = "HWC" if flow.color is ColorFormat.NV12_SINGLE_PLANE else "CHW"
    halves = {"H": rows // 3, "W": columns // 2, "C": 2}
    order = [i for i, letter in enumerate(flow.layout) if letter not in letters]
    kept = [0] * len(order)
    order += [flow.layout.index(letter) for letter in letters]
    below = emit.transpose(emit.slice(flow.value, height, rows * 2 // 3, rows), order)
    inner = emit.constant([*kept, *(halves[letter] for letter in letters)])
    second = emit.transpose(
        emit.node("Reshape", below, inner, since=5), [order.index(i) for i in range(len(order))]
    )
    return [replace(flow, values=(value,), shape=tuple(sizes)) for value in (first, second)]


def _with(flow: Flow, axis: int, size: int) -> tuple[Dimension, ...]:
    shape = list(flow.shape or ())
    shape[axis] = size
    return tuple(shape)
