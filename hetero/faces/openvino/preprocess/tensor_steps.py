"""Preprocessing steps of tensors: each emits ONNX nodes and returns the resulting `Flow`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from hetero.devices.errors import ArgumentError
from hetero.devices.model.tensor_spec import Dimension
from hetero.faces.openvino.preprocess.emitter import Emitter, Flow
from hetero.faces.openvino.preprocess.layout import Layout, axis_of, permutation

Step = Callable[[Flow, Emitter], Flow]


class PaddingMode(Enum):
    """Contents of an image's border, with OpenVINO's names."""

    CONSTANT = 0
    EDGE = 1
    REFLECT = 2
    SYMMETRIC = 3


@dataclass(frozen=True)
class Order:
    """Step that permutes the dimensions to a layout, or to an order of positions.

    Dimensions of the layout that the tensor lacks are added with size 1.
    """

    target: Layout | tuple[int, ...]

    def __call__(self, flow: Flow, emit: Emitter) -> Flow:
        """Emit an Unsqueeze for missing dimensions, and a Transpose."""
        rank = _rank(flow)
        if not isinstance(self.target, Layout):
            check_order(self.target, rank, flow.label)
            return permuted(require_one_plane(flow), self.target, emit)
        if not flow.layout:
            side = ".model()" if flow.is_output else ".tensor()"
            raise ArgumentError(
                f"{flow.label}: convert_layout({str(self.target)!r}) needs the tensor's layout; "
                f"set it with {side}.set_layout('NHWC'), or pass dimensions, as in "
                "convert_layout([0, 3, 1, 2])."
            )
        letters = len(self.target.replace("...", ""))
        return to_layout(
            require_one_plane(flow), self.target.of_rank(max(rank, letters), flow.label), emit
        )


def convert_element_type(flow: Flow, emit: Emitter, element_type: str) -> Flow:
    """Convert the elements by a Cast for each plane."""
    if flow.element_type == element_type:
        return flow
    values = tuple(emit.cast(value, element_type) for value in flow.values)
    return replace(flow, values=values, element_type=element_type)


def arithmetic(flow: Flow, emit: Emitter, op_type: str, numbers: Sequence[float]) -> Flow:
    """Subtract (`Sub`) or divide by (`Div`) a number, or one for each channel."""
    step = "mean" if op_type == "Sub" else "scale"
    if flow.element_type not in ("float", "double", "float16", "bfloat16"):
        raise ArgumentError(
            f"{flow.label}: {step}: expected floats, got {flow.element_type}; add "
            f"convert_element_type('f32') before {step}."
        )
    constant = np.array(numbers[0])
    if len(numbers) > 1:
        axis = axis_of("C", flow.layout, f"{flow.label}: {step} of each channel")
        channels = (flow.shape or ())[axis]
        if isinstance(channels, int) and channels != len(numbers):
            raise ArgumentError(
                f"{flow.label}: {step}: expected 1 or {channels} numbers, one for each channel; "
                f"got {len(numbers)}."
            )
        constant = np.reshape(numbers, [-1] + [1] * (len(flow.layout) - axis - 1))
    other = emit.constant(constant, flow.dtype)
    return replace(
        flow, values=(emit.node(op_type, require_one_plane(flow).value, other, since=7),)
    )


def reverse_channels(flow: Flow, emit: Emitter) -> Flow:
    """Reverse the order of the channels by a Gather."""
    axis = axis_of("C", flow.layout, f"{flow.label}: reverse_channels")
    channels = (flow.shape or ())[axis]
    if not isinstance(channels, int):
        raise ArgumentError(
            f"{flow.label}: reverse_channels needs a known number of channels; set the shape "
            "with .tensor().set_shape([...])."
        )
    return replace(
        flow, values=(emit.gather(require_one_plane(flow).value, axis, range(channels)[::-1]),)
    )


def crop(flow: Flow, emit: Emitter, begin: Sequence[int], end: Sequence[int]) -> Flow:
    """Crop each dimension to ``[begin, end)`` by a Slice; negative numbers count from its end."""
    sizes: list[Dimension] = []
    for size, first, last in _sides(flow, "crop", begin, end):
        size_after = (
            len(range(*slice(first, last).indices(size))) if isinstance(size, int) else None
        )
        if size_after == 0:
            raise ArgumentError(
                f"{flow.label}: crop [{first}, {last}) of {size} is empty; ends are exclusive."
            )
        sizes.append(size_after)
    bounds = (emit.constant(x) for x in (begin, end, range(len(sizes))))
    value = emit.node("Slice", require_one_plane(flow).value, *bounds, since=10)
    return replace(flow, values=(value,), shape=tuple(sizes))


def pad(
    flow: Flow,
    emit: Emitter,
    begin: Sequence[int],
    end: Sequence[int],
    number: float,
    mode: PaddingMode,
) -> Flow:
    """Pad each dimension before and after; negative numbers crop it.

    Emits a Pad, or for SYMMETRIC, which ONNX lacks, a Gather for each dimension.
    """
    sides = _sides(flow, "pad", begin, end)
    sizes = [
        size + first + last if isinstance(size, int) else None if first or last else size
        for size, first, last in sides
    ]
    value = require_one_plane(flow).value
    if mode is PaddingMode.SYMMETRIC:
        for axis, (size, first, last) in enumerate(sides):
            if first or last:
                value = emit.gather(value, axis, _mirrored_positions(size, first, last, flow.label))
    else:
        operands = [emit.constant([*begin, *end])]
        if mode is PaddingMode.CONSTANT:
            operands.append(emit.constant(number, flow.dtype))
        value = emit.node("Pad", value, *operands, since=11, mode=mode.name.lower())
    return replace(flow, values=(value,), shape=tuple(sizes))


def require_one_plane(flow: Flow) -> Flow:
    """Return the flow; ArgumentError if it has several planes."""
    if len(flow.values) > 1:
        raise ArgumentError(
            f"{flow.label}: a {flow.color.name} image has {len(flow.values)} planes; add "
            "convert_color(ColorFormat.RGB) first. Only convert_element_type may precede it."
        )
    return flow


def permuted(flow: Flow, order: Sequence[int], emit: Emitter) -> Flow:
    """Permute the dimensions."""
    return replace(
        flow,
        values=(emit.transpose(flow.value, order),),
        shape=tuple((flow.shape or ())[i] for i in order),
        layout="".join(flow.layout[i] for i in order) if flow.layout else "",
    )


def to_layout(flow: Flow, target: str, emit: Emitter) -> Flow:
    """Permute the dimensions to the layout `target`, which may have additional ones."""
    missing = [x for x in target if x != "?" and x not in flow.layout]
    for letter in missing[: max(len(target) - len(flow.layout), 0)]:
        if emit.opset < 13:
            value = emit.node("Unsqueeze", flow.value, axes=[0])
        else:
            value = emit.node("Unsqueeze", flow.value, emit.constant([0]), since=13)
        shape = (1, *(flow.shape or ()))
        flow = replace(flow, values=(value,), shape=shape, layout=letter + flow.layout)
    if len(target) != len(flow.layout):
        raise ArgumentError(
            f"{flow.label}: cannot convert layout {flow.layout} to {target}, which has other "
            "dimensions."
        )
    order = permutation(flow.layout, target, flow.label)
    return replace(permuted(flow, order, emit), layout=target)


def with_last(
    flow: Flow, letters: str, emit: Emitter, write: Callable[[Flow], Flow], step: str
) -> Flow:
    """Call `write` with some dimensions moved to the end, then restore the order."""
    axes = [axis_of(letter, flow.layout, f"{flow.label}: {step}") for letter in letters]
    order = [i for i in range(len(flow.layout)) if i not in axes] + axes
    back = [order.index(i) for i in range(len(order))]
    return permuted(write(permuted(flow, order, emit)), back, emit)


def as_float(flow: Flow, emit: Emitter, write: Callable[[Flow], Flow]) -> Flow:
    """Call `write` on floats; round the result back if the tensor has integers."""
    if flow.dtype.kind not in "iu":
        return write(flow)
    values = tuple(emit.cast(value, "float") for value in flow.values)
    result = write(replace(flow, values=values, element_type="float"))
    padded = tuple(emit.round_to_integer(value, flow.element_type) for value in result.values)
    return replace(result, values=padded, element_type=flow.element_type)


def check_order(order: Sequence[int], rank: int, label: str) -> None:
    """Raise ArgumentError if an order is not a permutation of `rank` dimensions."""
    if sorted(order) != list(range(rank)):
        raise ArgumentError(
            f"{label}: convert_layout({list(order)}): expected each of the dimensions 0 to "
            f"{rank - 1} once, as in {[0, 3, 1, 2] if rank == 4 else list(range(rank))[::-1]}."
        )


def _rank(flow: Flow) -> int:
    if flow.shape is None:
        raise ArgumentError(
            f"{flow.label}: its rank is unknown; set the shape with .tensor().set_shape([...])."
        )
    return len(flow.shape)


def _sides(
    flow: Flow, step: str, begin: Sequence[int], end: Sequence[int]
) -> list[tuple[Dimension, int, int]]:
    """Return each dimension's size with its numbers in `begin` and `end`."""
    rank = _rank(flow)
    if len(begin) != rank or len(end) != rank:
        raise ArgumentError(
            f"{flow.label}: {step}: expected {rank} numbers for begin and end, one for each "
            f"dimension; got {len(begin)} and {len(end)}."
        )
    return list(zip(flow.shape or (), begin, end, strict=True))


def _mirrored_positions(size: Dimension, begin: int, end: int, label: str) -> Sequence[int]:
    if not isinstance(size, int):
        raise ArgumentError(
            f"{label}: pad with SYMMETRIC needs a static size; set it with "
            ".tensor().set_shape([...]), or use REFLECT."
        )
    positions = np.arange(max(-begin, 0), size - max(-end, 0))
    padded: list[int] = np.pad(positions, (max(begin, 0), max(end, 0)), "symmetric").tolist()
    return padded
