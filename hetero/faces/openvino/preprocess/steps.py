"""Steps: functions that write ONNX nodes behind a tensor and return what the next one finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from hetero.devices.errors import ArgumentError
from hetero.devices.model.tensor_spec import Dimension
from hetero.faces.openvino.preprocess.emit import Emitter, Flow
from hetero.faces.openvino.preprocess.layout import Layout, axis_of, permutation

Step = Callable[[Flow, Emitter], Flow]


class PaddingMode(Enum):
    """What stands in a picture's border; the names are OpenVINO's, and EDGE."""

    CONSTANT = 0
    EDGE = 1
    REFLECT = 2
    SYMMETRIC = 3


@dataclass(frozen=True)
class Order:
    """Put the dimensions into the order of a layout, or of positions.

    Dimensions of a layout that are missing get size 1.
    """

    wanted: Layout | tuple[int, ...]

    def __call__(self, flow: Flow, emit: Emitter) -> Flow:
        """Write an Unsqueeze for missing dimensions, and a Transpose."""
        rank = _rank(flow)
        if not isinstance(self.wanted, Layout):
            check_order(self.wanted, rank, flow.where)
            return permuted(single(flow), self.wanted, emit)
        if not flow.layout:
            side = ".model()" if flow.is_output else ".tensor()"
            raise ArgumentError(
                f"{flow.where}: convert_layout({str(self.wanted)!r}) of a tensor whose layout is "
                f"not known; say it with {side}.set_layout('NHWC'), or give the dimensions, as "
                "convert_layout([0, 3, 1, 2])."
            )
        letters = len(self.wanted.replace("...", ""))
        return to_layout(single(flow), self.wanted.of_rank(max(rank, letters), flow.where), emit)


def convert_element_type(flow: Flow, emit: Emitter, element_type: str) -> Flow:
    """Convert the elements: a Cast for each plane."""
    if flow.element_type == element_type:
        return flow
    values = tuple(emit.cast(value, element_type) for value in flow.values)
    return replace(flow, values=values, element_type=element_type)


def arithmetic(flow: Flow, emit: Emitter, op_type: str, numbers: Sequence[float]) -> Flow:
    """Subtract (`Sub`) or divide by (`Div`) a number, or one for each channel."""
    step = "mean" if op_type == "Sub" else "scale"
    if flow.element_type not in ("float", "double", "float16", "bfloat16"):
        raise ArgumentError(
            f"{flow.where}: {step} computes with floats, not with {flow.element_type}; write "
            f"convert_element_type('f32') before {step}."
        )
    constant = np.array(numbers[0])
    if len(numbers) > 1:
        axis = axis_of("C", flow.layout, f"{flow.where}: {step} of each channel")
        channels = (flow.shape or ())[axis]
        if isinstance(channels, int) and channels != len(numbers):
            raise ArgumentError(
                f"{flow.where}: {step} of {len(numbers)} channels; the tensor has {channels}. "
                "Give one number, or one for each channel."
            )
        constant = np.reshape(numbers, [-1] + [1] * (len(flow.layout) - axis - 1))
    other = emit.constant(constant, flow.dtype)
    return replace(flow, values=(emit.node(op_type, single(flow).value, other, since=7),))


def reverse_channels(flow: Flow, emit: Emitter) -> Flow:
    """Turn the order of the channels round: a Gather."""
    axis = axis_of("C", flow.layout, f"{flow.where}: reverse_channels")
    channels = (flow.shape or ())[axis]
    if not isinstance(channels, int):
        raise ArgumentError(
            f"{flow.where}: reverse_channels needs to know how many there are; say the shape with "
            ".tensor().set_shape([...])."
        )
    return replace(flow, values=(emit.pick(single(flow).value, axis, range(channels)[::-1]),))


def crop(flow: Flow, emit: Emitter, begin: Sequence[int], end: Sequence[int]) -> Flow:
    """Take ``[begin, end)`` of each dimension, counted from its end where negative: a Slice."""
    sizes: list[Dimension] = []
    for size, first, last in _sides(flow, "crop", begin, end):
        taken = len(range(*slice(first, last).indices(size))) if isinstance(size, int) else None
        if taken == 0:
            raise ArgumentError(
                f"{flow.where}: crop takes [{first}, {last}) of {size}: nothing. Ends are "
                "exclusive."
            )
        sizes.append(taken)
    bounds = (emit.constant(x) for x in (begin, end, range(len(sizes))))
    value = emit.node("Slice", single(flow).value, *bounds, since=10)
    return replace(flow, values=(value,), shape=tuple(sizes))


def pad(
    flow: Flow,
    emit: Emitter,
    begin: Sequence[int],
    end: Sequence[int],
    number: float,
    mode: PaddingMode,
) -> Flow:
    """Add elements before and after each dimension, or take them away where negative.

    A Pad, or a Gather for each dimension of a mirror that ONNX lacks.
    """
    sides = _sides(flow, "pad", begin, end)
    sizes = [
        size + first + last if isinstance(size, int) else None if first or last else size
        for size, first, last in sides
    ]
    value = single(flow).value
    if mode is PaddingMode.SYMMETRIC:
        for axis, (size, first, last) in enumerate(sides):
            if first or last:
                value = emit.pick(value, axis, _mirrored(size, first, last, flow.where))
    else:
        more = [emit.constant([*begin, *end])]
        if mode is PaddingMode.CONSTANT:
            more.append(emit.constant(number, flow.dtype))
        value = emit.node("Pad", value, *more, since=11, mode=mode.name.lower())
    return replace(flow, values=(value,), shape=tuple(sizes))


def single(flow: Flow) -> Flow:
    """Return the flow, of one plane; ArgumentError for several."""
    if len(flow.values) > 1:
        raise ArgumentError(
            f"{flow.where}: a {flow.color.name} picture is in {len(flow.values)} planes; write "
            "convert_color(ColorFormat.RGB) first; convert_element_type alone may stand before it."
        )
    return flow


def permuted(flow: Flow, order: Sequence[int], emit: Emitter) -> Flow:
    """Put the dimensions into another order."""
    return replace(
        flow,
        values=(emit.transpose(flow.value, order),),
        shape=tuple((flow.shape or ())[i] for i in order),
        layout="".join(flow.layout[i] for i in order) if flow.layout else "",
    )


def to_layout(flow: Flow, wanted: str, emit: Emitter) -> Flow:
    """Put the dimensions into the order of `wanted`, which may have more of them."""
    missing = [x for x in wanted if x != "?" and x not in flow.layout]
    for letter in missing[: max(len(wanted) - len(flow.layout), 0)]:
        if emit.opset < 13:
            value = emit.node("Unsqueeze", flow.value, axes=[0])
        else:
            value = emit.node("Unsqueeze", flow.value, emit.constant([0]), since=13)
        shape = (1, *(flow.shape or ()))
        flow = replace(flow, values=(value,), shape=shape, layout=letter + flow.layout)
    if len(wanted) != len(flow.layout):
        raise ArgumentError(
            f"{flow.where}: layout {flow.layout} cannot become {wanted}: it has other dimensions."
        )
    order = permutation(flow.layout, wanted, flow.where)
    return replace(permuted(flow, order, emit), layout=wanted)


def with_last(
    flow: Flow, letters: str, emit: Emitter, write: Callable[[Flow], Flow], step: str
) -> Flow:
    """Let `write` find some dimensions at the end, and put all back where they were."""
    axes = [axis_of(letter, flow.layout, f"{flow.where}: {step}") for letter in letters]
    order = [i for i in range(len(flow.layout)) if i not in axes] + axes
    back = [order.index(i) for i in range(len(order))]
    return permuted(write(permuted(flow, order, emit)), back, emit)


def as_float(flow: Flow, emit: Emitter, write: Callable[[Flow], Flow]) -> Flow:
    """Let `write` compute on floats; integers are rounded back to what they were."""
    if flow.dtype.kind not in "iu":
        return write(flow)
    values = tuple(emit.cast(value, "float") for value in flow.values)
    made = write(replace(flow, values=values, element_type="float"))
    whole = tuple(emit.rounded(value, flow.element_type) for value in made.values)
    return replace(made, values=whole, element_type=flow.element_type)


def check_order(order: Sequence[int], rank: int, where: str) -> None:
    """Raise ArgumentError if an order is none of `rank` dimensions."""
    if sorted(order) != list(range(rank)):
        raise ArgumentError(
            f"{where}: convert_layout({list(order)}): wanted each of the dimensions 0 to "
            f"{rank - 1} once, as {[0, 3, 1, 2] if rank == 4 else list(range(rank))[::-1]}."
        )


def _rank(flow: Flow) -> int:
    if flow.shape is None:
        raise ArgumentError(
            f"{flow.where}: nothing is known of its dimensions; say them with "
            ".tensor().set_shape([...])."
        )
    return len(flow.shape)


def _sides(
    flow: Flow, step: str, begin: Sequence[int], end: Sequence[int]
) -> list[tuple[Dimension, int, int]]:
    """Return each dimension's size with what is said of its beginning and its end."""
    rank = _rank(flow)
    if len(begin) != rank or len(end) != rank:
        raise ArgumentError(
            f"{flow.where}: {step} got {len(begin)} and {len(end)} numbers; wanted one for each of "
            f"the tensor's {rank} dimensions."
        )
    return list(zip(flow.shape or (), begin, end, strict=True))


def _mirrored(size: Dimension, begin: int, end: int, where: str) -> Sequence[int]:
    if not isinstance(size, int):
        raise ArgumentError(
            f"{where}: pad with SYMMETRIC needs a size that is known; say it with "
            ".tensor().set_shape([...]), or use REFLECT."
        )
    kept = np.arange(max(-begin, 0), size - max(-end, 0))
    whole: list[int] = np.pad(kept, (max(begin, 0), max(end, 0)), "symmetric").tolist()
    return whole
