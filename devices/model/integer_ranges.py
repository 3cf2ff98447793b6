"""Between which limits the integers of a model lie, proven from its graph.

A runtime that computes 64-bit integers in 32 bits is right where their values fit. Two proofs are
made, both by walking the graph once. *Forward*: from constants, lengths of axes, element types and
positions that operators return, by interval arithmetic. *Backward*: a value that is only used as
an index, a shape or a repeat count, or only moved or shifted on the way there, lies within the
longest axis in every run that does not fail.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from hetero.devices.model.tensor_spec import TensorSpec

#: A `hetero.devices.model.model.Model`, and one of its nodes: that file imports this one.
Model = Any
Node = Any
#: Least and greatest value, both included.
Range = tuple[int, int]
#: A step, and what is known of each of its inputs -> the range of its first output.
Rule = Callable[..., Range]

#: An axis whose length the model leaves open is taken to be no longer than this.
LONGEST_OPEN_AXIS: Final = 2**22
#: Under this key a part of a model keeps what was proven of its inputs and outputs in the whole.
RANGES: Final = "hetero.integer_ranges"

#: The range of each integer type; bool counts as 0 and 1.
_TYPES: Final[Mapping[str, Range]] = {
    "bool": (0, 1),
    **{f"int{b}": (-(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in (4, 8, 16, 32, 64)},
    **{f"uint{b}": (0, 2**b - 1) for b in (4, 8, 16, 32, 64)},
}
#: Types whose ranges decide whether a device computes exactly: those of 32 and 64 bits.
_WIDE_TYPES: Final = frozenset({"int32", "int64", "uint32", "uint64"})
#: The largest index into an axis, and the largest length: what a tensor in memory can have.
_LARGEST_INDEX: Final = 2**30
T = TypeVar("T")


def by_operator(rows: Mapping[str, T]) -> Mapping[str, T]:
    """Return a table by operator, of which a row names several."""
    return {name: value for names, value in rows.items() for name in names.split()}


#: Operators that move elements -> the inputs whose elements they move.
_MOVED: Final = by_operator(
    {
        "Cast Compress DepthToSpace Expand Flatten Gather GatherElements GatherND Identity "
        "ReduceMax "
        "ReduceMin Reshape ReverseSequence Slice SpaceToDepth Split Squeeze Tile Transpose "
        "Unsqueeze": (0,),
        "OneHot": (2,),
        "Scatter ScatterElements ScatterND": (0, 2),
        "Where": (1, 2),
    }
)
#: Inputs that are indices, lengths or counts, out of which a run fails.
_INDICES: Final = by_operator(
    {
        "ConstantOfShape": (0,),
        "Expand Gather GatherElements GatherND Reshape Scatter ScatterElements ScatterND "
        "Split Squeeze "
        "Tile Unsqueeze": (1,),
        "Resize": (3,),
    }
)
#: Outputs that are positions or lengths.
_POSITIONS: Final = by_operator({"ArgMax ArgMin NonZero Shape Size": 0, "MaxPool TopK": 1})


def value_ranges(
    model: Model, longest: int = LONGEST_OPEN_AXIS, given: Mapping[str, Range] | None = None
) -> Mapping[str, Range]:
    """Return the range of each value of an integer type.

    `longest`: the length that an open axis has at most; `given`: what is known of inputs besides.
    """
    of_whole = json.loads(model.metadata.get(RANGES, "{}"))
    known = {n: (int(a), int(b)) for n, (a, b) in of_whole.items()} | dict(given or {})
    forward = _forward(model, known, longest)
    known = _backward(model, forward, known)
    return _forward(model, known, longest)


def boundary_ranges(model: Model, values: Mapping[str, TensorSpec]) -> str | None:
    """Return as text what is proven of values between parts of a model; None for nothing."""
    names = [name for name, spec in values.items() if spec.element_type in _WIDE_TYPES]
    if not names:
        return None
    ranges = model.integer_ranges
    proven = {n: ranges[n] for n in names if n in ranges and ranges[n] != _type_range(model, n)}
    return json.dumps(proven, sort_keys=True) if proven else None


def _type_range(model: Model, value: str) -> Range | None:
    return _TYPES.get(model.spec(value).element_type)


def _forward(model: Model, known: Mapping[str, Range], longest: int) -> dict[str, Range]:
    found: dict[str, Range] = {}

    def put(value: str, proven: Range | None) -> None:
        whole = _type_range(model, value)
        if whole is None:
            return
        low, high = proven or whole
        if low < whole[0] or high > whole[1]:  # it may wrap round
            low, high = whole
        hint = known.get(value, whole)
        found[value] = max(low, hint[0]), min(high, hint[1])

    for name, constant in model.constants.items():
        put(name, _of_array(constant.array))
    for port in model.inputs:
        put(port.name, None)
    for node in model.nodes:
        shapes = [model.spec(v).shape if v else None for v in node.inputs]
        step = _Step(node, [found.get(value) for value in node.inputs], shapes, longest)
        for i, value in enumerate(node.outputs):
            if value:
                put(value, step.output(i))
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    """One operator in interval arithmetic: ranges of its inputs -> a range of each output."""

    node: Node
    inputs: Sequence[Range | None]
    shapes: Sequence[tuple[Any, ...] | None]
    longest: int

    def output(self, index: int) -> Range | None:
        """Return the range of output `index`, or None where nothing is proven."""
        node = self.node
        if node.domain:
            return None
        if node.op_type == "Constant":
            return _of_array(np.asarray(next(iter(node.attributes.values()))))
        if node.op_type == "ConstantOfShape":
            return _of_array(np.asarray(node.attributes.get("value", 0)))
        if node.op_type in _POSITIONS:
            return self._position(index)
        every = tuple(range(len(node.inputs))) if node.op_type == "Concat" else None
        moved = _MOVED.get(node.op_type, every)
        if moved is not None:
            # A damaged model's node may have fewer than its operator takes.
            inputs = [self.inputs[i] if i < len(self.inputs) else None for i in moved]
            return None if None in inputs else _hull(*inputs)
        rule = _RULES.get(node.op_type)
        given = (found for value, found in zip(node.inputs, self.inputs, strict=True) if value)
        return None if rule is None or index or None in given else rule(self, *self.inputs)

    def _position(self, index: int) -> Range | None:
        if index != _POSITIONS[self.node.op_type] or not self.shapes:
            return None
        lengths = [self.longest] if self.shapes[0] is None else self._lengths(self.shapes[0])
        if self.node.op_type in ("Size", "MaxPool"):
            return 0, math.prod(lengths)
        return 0, max(lengths, default=1)

    def _lengths(self, shape: tuple[Any, ...]) -> list[int]:
        return [axis if isinstance(axis, int) else self.longest for axis in shape]

    def number_summed(self) -> int:
        """Return how many elements of the first input are summed at most."""
        shape = self.shapes[0]
        if shape is None:
            return _LARGEST_INDEX
        lengths = self._lengths(shape)
        if (axes := self._axes()) is not None and all(-len(shape) <= a < len(shape) for a in axes):
            lengths = [lengths[axis] for axis in axes]
        return math.prod(lengths)

    def _axes(self) -> Sequence[int] | None:
        """Return the axes that are summed over, where they are known."""
        if "axes" in self.node.attributes:
            return list(self.node.attributes["axes"])
        if len(self.inputs) < 2 or self.inputs[1] is None or self.shapes[1] not in ((), (1,)):
            return None
        low, high = self.inputs[1]
        return [low] if low == high else None


def _of_array(array: np.ndarray) -> Range | None:
    if array.dtype.kind not in "iub":
        return None
    return (int(array.min()), int(array.max())) if array.size else (0, 0)


def _hull(*ranges: Any) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _corners(of: Callable[[int, int], int]) -> Rule:
    """Return the rule of an operator whose extremes are at the ends of its inputs' ranges."""

    def rule(step: _Step, a: Range, b: Range) -> Range:
        ends = [of(x, y) for x in a for y in b]
        return min(ends), max(ends)

    return rule


def _within(which: int) -> Rule:
    """Return the rule of a result of no greater magnitude than one of two inputs, and its sign."""

    def rule(step: _Step, *inputs: Range) -> Range:
        bound = max(map(abs, inputs[which]))
        return (0 if min(*inputs[0], *inputs[1]) >= 0 else -bound), bound

    return rule


def _summed(step: _Step, x: Range, axes: Range | None = None) -> Range:
    times = step.number_summed()
    low, high = x
    return min(low * times, low, 0), max(high * times, high, 0)


def _clipped(
    step: _Step, x: Range, least: Range | None = None, greatest: Range | None = None
) -> Range:
    low, high = x
    if least:
        low, high = max(low, least[0]), max(high, least[1])
    if greatest:
        low, high = min(low, greatest[0]), min(high, greatest[1])
    return low, high


#: Operators -> the range of their first output, from those of all inputs; absent ones are None.
_RULES: Final[Mapping[str, Rule]] = {
    "Abs": lambda step, x: (0, max(map(abs, x))),
    "Add": _corners(operator.add),
    "Clip": _clipped,
    "CumSum": _summed,
    "Div": _within(0),
    "Max": lambda step, *of: (max(low for low, _ in of), max(high for _, high in of)),
    "Min": lambda step, *of: (min(low for low, _ in of), min(high for _, high in of)),
    "Mod": _within(1),
    "Mul": _corners(operator.mul),
    "Neg": lambda step, x: (-x[1], -x[0]),
    "Pad": lambda step, x, pads=None, value=None, axes=None: _hull(x, value or (0, 0)),
    "Range": lambda step, start, limit, delta: _hull(start, limit),
    "ReduceSum": _summed,
    "Sign": lambda step, x: (-1, 1),
    "Sub": _corners(operator.sub),
    "Trilu": lambda step, x, k=None: _hull(x, (0, 0)),
}


def _backward(
    model: Model, forward: Mapping[str, Range], known: Mapping[str, Range]
) -> dict[str, Range]:
    """Return what uses prove: value -> range, with what is `known`."""
    found = dict(known)
    given_out = {port.name for port in model.outputs} - known.keys()

    def uses(node: Node, value: str) -> list[int | None]:
        """Return the largest magnitude that each use by a node allows, or None for any."""
        if node.domain or value in node.captures:
            return [None]
        return [use(node, p) for p, read in enumerate(node.inputs) if read == value]

    def use(node: Node, position: int) -> int | None:
        if position in _INDICES.get(node.op_type, ()):
            return _LARGEST_INDEX
        result = found.get(node.outputs[0]) if node.outputs else None
        if result is None:
            return None
        bound = max(abs(end) for end in result)
        if position in _MOVED.get(node.op_type, ()) or node.op_type == "Concat":
            return bound if node.op_type in _KEEPING else None
        if node.op_type in ("Add", "Sub") and len(node.inputs) == 2:
            other = forward.get(node.inputs[1 - position])
            return None if other is None else bound + max(abs(end) for end in other)
        return None

    values = [value for node in reversed(model.nodes) for value in node.outputs if value]
    for value in (*values, *(port.name for port in model.inputs)):
        whole, readers = _type_range(model, value), model.consumers.get(value, ())
        if whole is None or not readers or value in given_out or value in found:
            continue
        bounds = [bound for i in readers for bound in uses(model.nodes[i], value)]
        proven = [bound for bound in bounds if bound is not None]
        if len(proven) == len(bounds):
            found[value] = max(whole[0], -max(proven)), min(whole[1], max(proven))
    return found


#: Moves that pass on the elements that they take: a bound on the result bounds those.
_KEEPING: Final = frozenset(_MOVED) - {"OneHot", "ReduceMax", "ReduceMin"} | {"Concat"}
