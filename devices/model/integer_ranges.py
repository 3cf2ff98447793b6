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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from devices.model.tensor_spec import TensorSpec

#: A `devices.model.model.Model`, and one of its nodes: that file imports this one.
Model = Any
Node = Any
#: Least and greatest value, both included.
Range = tuple[int, int]


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
#: The largest index into an axis, and the largest length: what a tensor in memory can have.
_LARGEST_INDEX: Final = 2**30
#: Operators that move elements -> the inputs whose elements they move.
_MOVED: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(
        (
            "Compress", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements",
            "GatherND", "Identity", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth",
            "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "ReduceMax", "ReduceMin",
        ),
        (0,),
    ),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), (0, 2)),
    "Where": (1, 2),
    "Cast": (0,),
}  # fmt: skip
#: Inputs that are indices, lengths or counts, out of which a run fails.
_INDICES: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(
        (
            "ConstantOfShape", "Expand", "Gather", "GatherElements", "GatherND", "Reshape",
            "Scatter", "ScatterElements", "ScatterND", "Split", "Squeeze", "Tile", "Unsqueeze",
        ),
        (1,),
    ),
    "ConstantOfShape": (0,),
    "Resize": (3,),
}  # fmt: skip


def value_ranges(
    model: Model, longest: int = LONGEST_OPEN_AXIS, given: Mapping[str, Range] | None = None
) -> Mapping[str, Range]:
    """Return the range of each value of an integer type.

    Parameters
    ----------
    model : Model
        The model; types and shapes by its `specs`.
    longest : int
        The length that an open axis has at most.
    given : mapping, optional
        What is known of inputs besides.
    """
    known = _known_of_whole(model) | dict(given or {})
    forward = _forward(model, known, longest)
    known = _backward(model, forward, known)
    return _forward(model, known, longest)


def boundary_ranges(model: Model, values: Mapping[str, TensorSpec]) -> str | None:
    """Return as text what is proven of values between parts of a model; None for nothing."""
    wanted = [name for name, spec in values.items() if spec.element_type in ("int64", "uint64")]
    if not wanted:
        return None
    ranges = model.integer_ranges
    proven = {n: ranges[n] for n in wanted if n in ranges and ranges[n] != _type_range(model, n)}
    return json.dumps(proven, sort_keys=True) if proven else None


def _known_of_whole(model: Model) -> dict[str, Range]:
    text = model.metadata.get(RANGES)
    return {} if text is None else {n: (int(a), int(b)) for n, (a, b) in json.loads(text).items()}


def _type_range(model: Model, value: str) -> Range | None:
    return _TYPES.get(model.spec(value).element_type)


def _length(axis: object, longest: int) -> int:
    return axis if isinstance(axis, int) else longest


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
        array = constant.array
        if array.dtype.kind in "iub":
            put(name, (int(array.min()), int(array.max())) if array.size else (0, 0))
    for port in model.inputs:
        put(port.name, None)
    for node in model.nodes:
        shapes = {v: model.spec(v).shape for v in node.inputs if v}
        step = _Step(node, found, shapes, longest)
        for i, value in enumerate(node.outputs):
            if value:
                put(value, step.output(i))
    return found


class _Step:
    """One operator in interval arithmetic: ranges of its inputs -> a range of each output."""

    def __init__(
        self,
        node: Node,
        found: Mapping[str, Range],
        shapes: Mapping[str, tuple[Any, ...] | None],
        longest: int,
    ) -> None:
        self.node = node
        self.longest = longest
        self.inputs = [found.get(value) for value in node.inputs]
        self.shapes = [shapes.get(value) for value in node.inputs]

    def output(self, index: int) -> Range | None:
        """Return the range of output `index`, or None where nothing is proven."""
        node = self.node
        if node.domain:
            return None
        if node.op_type == "Constant":
            return _of_array(node.attributes)
        if node.op_type in _POSITIONS:
            return self._position(index)
        moved = _MOVED.get(node.op_type)
        if node.op_type == "Concat":
            moved = tuple(range(len(node.inputs)))
        if moved is not None:
            return _hull(*(self.inputs[i] for i in moved))
        rule = _RULES.get(node.op_type)
        if rule is None or index:
            return None
        return rule(self)

    def _position(self, index: int) -> Range | None:
        if index not in _POSITIONS[self.node.op_type]:
            return None
        shape = self.shapes[0]
        lengths = [self.longest] if shape is None else [_length(n, self.longest) for n in shape]
        if self.node.op_type in ("Size", "MaxPool"):
            return 0, math.prod(lengths)
        return 0, max(lengths, default=1)

    def pair(self) -> tuple[Range, Range] | None:
        """Return the ranges of both inputs, or None where one has none."""
        first, second = self.inputs[0], self.inputs[1]
        return None if first is None or second is None else (first, second)

    def number_summed(self) -> int:
        """Return how many elements of the first input are summed at most."""
        shape = self.shapes[0]
        if shape is None:
            return _LARGEST_INDEX
        lengths = [_length(n, self.longest) for n in shape]
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


def _of_array(attributes: Mapping[str, Any]) -> Range | None:
    array = np.asarray(next(iter(attributes.values())))
    if array.dtype.kind not in "iub":
        return None
    return (int(array.min()), int(array.max())) if array.size else (0, 0)


def _hull(*ranges: Range | None) -> Range | None:
    known = [r for r in ranges if r is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _corners(of: Callable[[int, int], int]) -> Callable[[_Step], Range | None]:
    """Return the rule of an operator whose extremes are at the ends of its inputs' ranges."""

    def rule(step: _Step) -> Range | None:
        pair = step.pair()
        if pair is None:
            return None
        ends = [of(a, b) for a in pair[0] for b in pair[1]]
        return min(ends), max(ends)

    return rule


def _divided(step: _Step) -> Range | None:
    pair = step.pair()
    if pair is None:
        return None
    bound = max(abs(end) for end in pair[0])  # the divisor is a whole number, at least one
    return (0 if min(*pair[0], *pair[1]) >= 0 else -bound), bound


def _remainder(step: _Step) -> Range | None:
    pair = step.pair()
    if pair is None:
        return None
    bound = max(abs(end) for end in pair[1])
    return (0 if min(*pair[0], *pair[1]) >= 0 else -bound), bound


def _counted(step: _Step) -> Range | None:
    """Range: from start up to limit, or down to it."""
    if step.pair() is None or step.inputs[2] is None:
        return None
    return _hull(step.inputs[0], step.inputs[1])


def _summed(step: _Step) -> Range | None:
    if step.inputs[0] is None:
        return None
    times = step.number_summed()
    low, high = step.inputs[0]
    return min(low * times, low, 0), max(high * times, high, 0)


def _clipped(step: _Step) -> Range | None:
    if step.inputs[0] is None:
        return None
    low, high = step.inputs[0]
    least, greatest = (*step.inputs[1:], None, None)[:2]
    if least:
        low, high = max(low, least[0]), max(high, least[1])
    if greatest:
        low, high = min(low, greatest[0]), min(high, greatest[1])
    return low, high


def _folded(of: Callable[..., int]) -> Callable[[_Step], Range | None]:
    """Return the rule of Max or Min, over any number of inputs."""

    def rule(step: _Step) -> Range | None:
        known = [r for r in step.inputs if r is not None]
        if not known or len(known) < len(step.inputs):
            return None
        return of(low for low, _ in known), of(high for _, high in known)

    return rule


def _sized(of: Callable[[int, int], Range]) -> Callable[[_Step], Range | None]:
    """Return the rule of an operator with one input."""
    return lambda step: of(*step.inputs[0]) if step.inputs[0] else None


def _filled(step: _Step) -> Range | None:
    value = step.node.attributes.get("value")
    return (0, 0) if value is None else _of_array({"value": value})


#: Operators -> outputs that are positions or lengths.
_POSITIONS: Final[Mapping[str, frozenset[int]]] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "NonZero", "Shape", "Size"), frozenset({0})),
    **dict.fromkeys(("MaxPool", "TopK"), frozenset({1})),
}
_RULES: Final[Mapping[str, Callable[[_Step], Range | None]]] = {
    "Abs": _sized(lambda low, high: (0, max(abs(low), abs(high)))),
    "Add": _corners(lambda a, b: a + b),
    "Clip": _clipped,
    "ConstantOfShape": _filled,
    "CumSum": _summed,
    "Div": _divided,
    "Max": _folded(max),
    "Min": _folded(min),
    "Mod": _remainder,
    "Mul": _corners(lambda a, b: a * b),
    "Neg": _sized(lambda low, high: (-high, -low)),
    "OneHot": lambda step: step.inputs[2],
    "Pad": lambda step: _hull(
        step.inputs[0], step.inputs[2] if len(step.inputs) > 2 and step.node.inputs[2] else (0, 0)
    ),
    "Range": _counted,
    "ReduceSum": _summed,
    "Sign": lambda step: (-1, 1),
    "Sub": _corners(lambda a, b: a - b),
    "Trilu": lambda step: _hull(step.inputs[0], (0, 0)),
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
_KEEPING: Final = frozenset(_MOVED) - {"ReduceMax", "ReduceMin"} | {"Concat"}
