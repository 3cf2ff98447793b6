"""Range analysis: proves the minimum and maximum of a model's integer values from its graph.

A runtime that computes 64-bit integers in 32 bits is correct if the values fit into 32 bits. Two
passes over the graph bound the values. The *forward* pass uses interval arithmetic; it starts from
constants, axis lengths, element types, and the positions that some operators return. The *backward*
pass uses the readers of a value: an index, shape or repeat count is bounded by the longest axis, or
else the run fails. The bound also holds for values that are only moved or shifted before such use.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from hetero.devices.errors import ModelError
from hetero.devices.file_reader import parse_json
from hetero.devices.model.tensor_spec import TensorSpec

#: `Model` and `Node` of `hetero.devices.model.model`, which imports this module.
Model = Any
Node = Any
#: Minimum and maximum, both inclusive.
Range = tuple[int, int]
#: Computes the range of an operator's first output from the operator and the ranges of its inputs.
Rule = Callable[..., Range]

#: Assumed maximum length of a dynamic axis.
LONGEST_DYNAMIC_AXIS: Final = 2**22
#: Metadata key under which a submodel stores ranges of its inputs and outputs, proven for the
#: complete model.
RANGES: Final = "hetero.integer_ranges"

#: The range of each integer type; bool counts as 0 and 1.
_TYPES: Final[Mapping[str, Range]] = {
    "bool": (0, 1),
    **{f"int{b}": (-(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in (4, 8, 16, 32, 64)},
    **{f"uint{b}": (0, 2**b - 1) for b in (4, 8, 16, 32, 64)},
}
#: Types whose ranges decide whether a device computes exactly: those of 32 and 64 bits.
_WIDE_TYPES: Final = frozenset({"int32", "int64", "uint32", "uint64"})
#: The largest index and the largest axis length of a tensor that fits into memory.
_LARGEST_INDEX: Final = 2**30
T = TypeVar("T")


def by_operator(rows: Mapping[str, T]) -> Mapping[str, T]:
    """Expand a table whose keys each list several operators, separated by blanks."""
    return {name: value for names, value in rows.items() for name in names.split()}


#: Operators that move elements -> the positions of the inputs whose elements they move.
_MOVED_INPUTS: Final = by_operator(
    {
        "Cast Compress DepthToSpace Expand Flatten Gather GatherElements GatherND Identity "
        "ReduceMax ReduceMin Reshape ReverseSequence Slice SpaceToDepth Split Squeeze Tile "
        "Transpose Unsqueeze": (0,),
        "OneHot": (2,),
        "Scatter ScatterElements ScatterND": (0, 2),
        "Where": (1, 2),
    }
)
#: Operators -> the positions of inputs that are indices, lengths or counts. Values out of bounds
#: make the run fail.
_INDEX_INPUTS: Final = by_operator(
    {
        "ConstantOfShape": (0,),
        "Expand Gather GatherElements GatherND Reshape Scatter ScatterElements ScatterND "
        "Split Squeeze Tile Unsqueeze": (1,),
        "Resize": (3,),
    }
)
#: Operators -> the index of the output that contains positions or lengths.
_POSITION_OUTPUTS: Final = by_operator({"ArgMax ArgMin NonZero Shape Size": 0, "MaxPool TopK": 1})


def value_ranges(
    model: Model, longest: int = LONGEST_DYNAMIC_AXIS, hints: Mapping[str, Range] | None = None
) -> Mapping[str, Range]:
    """Return the range of each value of an integer type.

    `longest` is the maximum length of a dynamic axis; `hints` are additional ranges of inputs.
    """
    bounds = _stored_ranges(model) | dict(hints or {})
    forward = _forward(model, bounds, longest)
    bounds = _backward(model, forward, bounds)
    return _forward(model, bounds, longest)


def _stored_ranges(model: Model) -> dict[str, Range]:
    """Return the ranges that a stage has from the complete model."""
    text = model.metadata.get(RANGES, "{}")
    try:
        return {name: (int(low), int(high)) for name, (low, high) in parse_json(text).items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            f"model {model.name!r}: metadata {RANGES}: {error}; expected the ranges that hetero "
            "writes. Compile the model again."
        ) from error


def boundary_ranges(model: Model, values: Mapping[str, TensorSpec]) -> str | None:
    """Return the proven ranges of a submodel's inputs and outputs as JSON, or None."""
    names = [name for name, spec in values.items() if spec.element_type in _WIDE_TYPES]
    if not names:
        return None
    ranges = model.integer_ranges
    proven_ranges = {
        n: ranges[n] for n in names if n in ranges and ranges[n] != _type_range(model, n)
    }
    return json.dumps(proven_ranges, sort_keys=True) if proven_ranges else None


def _type_range(model: Model, value: str) -> Range | None:
    return _TYPES.get(model.spec(value).element_type)


def _forward(model: Model, bounds: Mapping[str, Range], longest: int) -> dict[str, Range]:
    """Return the ranges that follow from the inputs; `bounds` are ranges that hold anyway."""
    ranges: dict[str, Range] = {}

    def set_range(value: str, proven_range: Range | None) -> None:
        type_range = _type_range(model, value)
        if type_range is None:
            return
        low, high = proven_range or type_range
        if low < type_range[0] or high > type_range[1]:  # the computation may overflow
            low, high = type_range
        bound = bounds.get(value, type_range)
        ranges[value] = max(low, bound[0]), min(high, bound[1])

    for name, constant in model.constants.items():
        set_range(name, _of_array(constant.array))
    for port in model.inputs:
        set_range(port.name, None)
    for node in model.nodes:
        shapes = [model.spec(v).shape if v else None for v in node.inputs]
        step = _Step(node, [ranges.get(value) for value in node.inputs], shapes, longest)
        for i, value in enumerate(node.outputs):
            if value:
                set_range(value, step.output(i))
    return ranges


@dataclass(frozen=True, slots=True)
class _Step:
    """One operator in interval arithmetic: computes the ranges of its outputs from the inputs."""

    node: Node
    inputs: Sequence[Range | None]
    shapes: Sequence[tuple[Any, ...] | None]
    longest: int

    def output(self, index: int) -> Range | None:
        """Return the range of output `index`, or None if it is unknown."""
        node = self.node
        if node.domain:
            return None
        if node.op_type == "Constant":
            return _of_array(np.asarray(next(iter(node.attributes.values()))))
        if node.op_type == "ConstantOfShape":
            return _of_array(np.asarray(node.attributes.get("value", 0)))
        if node.op_type in _POSITION_OUTPUTS:
            return self._position(index)
        all_positions = tuple(range(len(node.inputs))) if node.op_type == "Concat" else None
        positions = _MOVED_INPUTS.get(node.op_type, all_positions)
        if positions is not None:
            # A node of a damaged model may have too few inputs.
            inputs = [self.inputs[i] if i < len(self.inputs) else None for i in positions]
            return None if None in inputs else _hull(*inputs)
        rule = _RULES.get(node.op_type)
        present = (bounds for value, bounds in zip(node.inputs, self.inputs, strict=True) if value)
        return None if rule is None or index or None in present else rule(self, *self.inputs)

    def _position(self, index: int) -> Range | None:
        if index != _POSITION_OUTPUTS[self.node.op_type] or not self.shapes:
            return None
        lengths = [self.longest] if self.shapes[0] is None else self._lengths(self.shapes[0])
        if self.node.op_type in ("Size", "MaxPool"):
            return 0, math.prod(lengths)
        return 0, max(lengths, default=1)

    def _lengths(self, shape: tuple[Any, ...]) -> list[int]:
        return [axis if isinstance(axis, int) else self.longest for axis in shape]

    def max_summands(self) -> int:
        """Return the maximum number of elements of the first input in one sum."""
        shape = self.shapes[0]
        if shape is None:
            return _LARGEST_INDEX
        lengths = self._lengths(shape)
        if (axes := self._axes()) is not None and all(-len(shape) <= a < len(shape) for a in axes):
            lengths = [lengths[axis] for axis in axes]
        return math.prod(lengths)

    def _axes(self) -> Sequence[int] | None:
        """Return the axes of the sum, or None if they are unknown."""
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


def _extremes_rule(function: Callable[[int, int], int]) -> Rule:
    """Return the rule of a function whose extremes are at the ends of the input ranges."""

    def rule(step: _Step, a: Range, b: Range) -> Range:
        ends = [function(x, y) for x in a for y in b]
        return min(ends), max(ends)

    return rule


def _within_rule(position: int) -> Rule:
    """Return the rule of a result that is not larger in magnitude than one of the two inputs."""

    def rule(step: _Step, *inputs: Range) -> Range:
        bound = max(map(abs, inputs[position]))
        return (0 if min(*inputs[0], *inputs[1]) >= 0 else -bound), bound

    return rule


def _sum(step: _Step, x: Range, axes: Range | None = None) -> Range:
    count = step.max_summands()
    low, high = x
    return min(low * count, low, 0), max(high * count, high, 0)


def _clip(
    step: _Step, x: Range, minimum: Range | None = None, maximum: Range | None = None
) -> Range:
    low, high = x
    if minimum:
        low, high = max(low, minimum[0]), max(high, minimum[1])
    if maximum:
        low, high = min(low, maximum[0]), min(high, maximum[1])
    return low, high


#: Operator -> rule for the range of its first output; absent inputs are None.
_RULES: Final[Mapping[str, Rule]] = {
    "Abs": lambda step, x: (0, max(map(abs, x))),
    "Add": _extremes_rule(operator.add),
    "Clip": _clip,
    "CumSum": _sum,
    "Div": _within_rule(0),
    "Max": lambda step, *xs: (max(low for low, _ in xs), max(high for _, high in xs)),
    "Min": lambda step, *xs: (min(low for low, _ in xs), min(high for _, high in xs)),
    "Mod": _within_rule(1),
    "Mul": _extremes_rule(operator.mul),
    "Neg": lambda step, x: (-x[1], -x[0]),
    "Pad": lambda step, x, pads=None, value=None, axes=None: _hull(x, value or (0, 0)),
    "Range": lambda step, start, limit, delta: _hull(start, limit),
    "ReduceSum": _sum,
    "Sign": lambda step, x: (-1, 1),
    "Sub": _extremes_rule(operator.sub),
    "Trilu": lambda step, x, k=None: _hull(x, (0, 0)),
}


def _backward(
    model: Model, forward: Mapping[str, Range], bounds: Mapping[str, Range]
) -> dict[str, Range]:
    """Return `bounds` and the ranges that follow from the readers of values."""
    ranges = dict(bounds)
    unbounded_outputs = {port.name for port in model.outputs} - bounds.keys()

    def node_limits(node: Node, value: str) -> list[int | None]:
        """Return the magnitude limit that each use of a value by a node proves, or None."""
        if node.domain or value in node.captures:
            return [None]
        return [use_limit(node, p) for p, name in enumerate(node.inputs) if name == value]

    def use_limit(node: Node, position: int) -> int | None:
        if position in _INDEX_INPUTS.get(node.op_type, ()):
            return _LARGEST_INDEX
        result = ranges.get(node.outputs[0]) if node.outputs else None
        if result is None:
            return None
        limit = max(abs(end) for end in result)
        if position in _MOVED_INPUTS.get(node.op_type, ()) or node.op_type == "Concat":
            return limit if node.op_type in _ELEMENT_PRESERVING else None
        if node.op_type in ("Add", "Sub") and len(node.inputs) == 2:
            other = forward.get(node.inputs[1 - position])
            return None if other is None else limit + max(abs(end) for end in other)
        return None

    values = [value for node in reversed(model.nodes) for value in node.outputs if value]
    for value in (*values, *(port.name for port in model.inputs)):
        type_range, readers = _type_range(model, value), model.consumers.get(value, ())
        if type_range is None or not readers or value in unbounded_outputs or value in ranges:
            continue
        limits = [limit for i in readers for limit in node_limits(model.nodes[i], value)]
        proven_limits = [limit for limit in limits if limit is not None]
        if len(proven_limits) == len(limits):
            ranges[value] = (
                max(type_range[0], -max(proven_limits)),
                min(type_range[1], max(proven_limits)),
            )
    return ranges


#: Operators that return elements unchanged: a bound of the output is a bound of those elements.
_ELEMENT_PRESERVING: Final = frozenset(_MOVED_INPUTS) - {"OneHot", "ReduceMax", "ReduceMin"} | {
    "Concat"
}
