"""Patterns: expressions written out in nodes, found in any order of their operands.

A pattern is a tuple of an operator and what makes its inputs, a number (a constant of one element,
about that large), a name (any value; the same one wherever the name stands), or `Either` of some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from devices.model.model import Model
from devices.transforms.rewriting import Rewrite

#: How far a model's rounded constants may be from the exact ones, relatively.
_CLOSE: Final = 1e-6
#: The same for constants of less than 32 bits.
_CLOSE_NARROW: Final = 1e-3
_COMMUTATIVE: Final = frozenset({"Add", "Mul"})


@dataclass(frozen=True, slots=True)
class Match:
    """What the names of a pattern stand for, and the positions of its nodes."""

    values: Mapping[str, str]
    parts: frozenset[int] = frozenset()


class Either(tuple[Any, ...]):
    """Patterns of which one has to fit; the first that does is taken."""

    __slots__ = ()


def has(model: Model, op_type: str) -> bool:
    """Tell whether any node is of an operator: without a pattern's rarest one it is nowhere."""
    return any(node.op_type == op_type for node in model.nodes)


def find(rewrite: Rewrite, root: int, pattern: Any) -> Match | None:
    """Return how a pattern fits the node at `root`, whose other values nothing else may read."""
    output = rewrite.model.nodes[root].outputs[0]
    for match in _fits(rewrite, output, pattern, Match({}), ""):
        if _is_closed(rewrite, match.parts, output):
            return match
    return None


def _fits(rewrite: Rewrite, value: str, pattern: Any, known: Match, beside: str) -> Iterator[Match]:
    """Yield each way in which a pattern fits a value, combined with the one `beside` it."""
    if isinstance(pattern, Either):
        for one in pattern:
            yield from _fits(rewrite, value, one, known, beside)
    elif isinstance(pattern, float):
        if _is_near(rewrite, value, beside, pattern):
            yield known
    elif isinstance(pattern, str):
        if known.values.get(pattern, value) == value:
            yield Match({**known.values, pattern: value}, known.parts)
    else:
        op_type, *operands = pattern
        at = rewrite.producer(value)
        if at is None or not rewrite.is_op(at, op_type):
            return
        inputs = rewrite.model.nodes[at].inputs
        if len(inputs) < len(operands):
            return
        orders = (inputs, inputs[::-1]) if op_type in _COMMUTATIVE else (inputs,)
        for order in orders:
            found = iter((Match(known.values, known.parts | {at}),))
            for place, operand in enumerate(operands):
                other = order[1 - place] if len(order) == 2 else ""
                found = _each(rewrite, order[place], operand, found, other)
            yield from found


def _each(
    rewrite: Rewrite, value: str, pattern: Any, known: Iterator[Match], beside: str
) -> Iterator[Match]:
    for match in known:
        yield from _fits(rewrite, value, pattern, match, beside)


def _is_near(rewrite: Rewrite, value: str, beside: str, number: float) -> bool:
    given, array = rewrite.scalar(value, beside), rewrite.constant(value)
    if given is None or array is None:
        return False
    close = _CLOSE_NARROW if array.dtype.itemsize < 4 else _CLOSE
    return abs(given - number) <= close * abs(number)


def _is_closed(rewrite: Rewrite, parts: frozenset[int], output: str) -> bool:
    """Tell whether nothing outside reads what the parts make, but for `output`."""
    return all(
        value == output or (rewrite.readers(value) and set(rewrite.readers(value)) <= parts)
        for part in parts
        for value in rewrite.model.nodes[part].writes
    )
