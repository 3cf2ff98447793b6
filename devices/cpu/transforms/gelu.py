"""Pass: Gelu written out becomes one operator, ``hetero::Gelu``.

1. By erf, the sum divided or the argument multiplied: ``0.5 * x * (1 + Erf(x / sqrt(2)))``, the
   three factors in any order.
2. By tanh: ``0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``, the cube as a power or
   as products.
"""

from __future__ import annotations

import math

from devices.cpu.transforms.rewriting import Rewrite, fused_node
from devices.model.model import Model

#: How far a model's rounded constants may be from the exact ones, relatively.
_CLOSE = 1e-6
#: The same for constants of less than 32 bits.
_CLOSE_NARROW = 1e-3


def fuse_gelu(model: Model) -> Model:
    """Return the model with Gelu patterns replaced."""
    rewrite = Rewrite(model)
    for i in range(len(model.nodes)):
        for inner, approximate in (("Erf", "none"), ("Tanh", "tanh")):
            if rewrite.is_op(i, inner):
                found = _match(rewrite, i, approximate)
                if found:
                    x, parts, output = found
                    covered = [model.nodes[p] for p in sorted(parts)]
                    fused = fused_node("Gelu", [x], [output], covered, {"approximate": approximate})
                    rewrite.replace(parts, fused)
    return rewrite.apply()


def _match(rewrite: Rewrite, inner: int, approximate: str) -> tuple[str, set[int], str] | None:
    """Return x, the pattern's positions and its output; `inner` is its Erf or Tanh."""
    nodes = rewrite.model.nodes
    argument = rewrite.producer(nodes[inner].inputs[0])
    if argument is None or rewrite.sole_reader(nodes[inner].inputs[0]) is None:
        return None
    before = (_erf_argument if approximate == "none" else _tanh_argument)(rewrite, argument)
    if before is None:
        return None
    x, parts = before
    plus = rewrite.sole_reader(nodes[inner].outputs[0])
    if plus is None or not _with_number(rewrite, plus, "Add", 1.0):
        return None
    parts |= {inner, plus}
    # The rest is a product of (1 + ...), x and one half, in one of three orders.
    seen_x = seen_half = False
    value = nodes[plus].outputs[0]
    while not (seen_x and seen_half):
        at = rewrite.sole_reader(value)
        if at is None or not rewrite.is_op(at, "Mul"):
            return None
        (other,) = (name for name in nodes[at].inputs if name != value)
        half = rewrite.producer(other)
        if other == x and not seen_x:
            seen_x = True
        elif _is_near(rewrite, other, value, 0.5) and not seen_half:
            seen_half = True
        elif (
            half is not None
            and not (seen_x or seen_half)
            and x in nodes[half].inputs
            and rewrite.sole_reader(other) == at
            and (_with_number(rewrite, half, "Mul", 0.5) or _with_number(rewrite, half, "Div", 2.0))
        ):
            seen_x = seen_half = True
            parts.add(half)
        else:
            return None
        parts.add(at)
        value = nodes[at].outputs[0]
    return x, parts, value


def _erf_argument(rewrite: Rewrite, at: int) -> tuple[str, set[int]] | None:
    divided = _with_number(rewrite, at, "Div", math.sqrt(2))
    x = divided or _with_number(rewrite, at, "Mul", math.sqrt(0.5))
    return (x, {at}) if x else None


def _tanh_argument(rewrite: Rewrite, at: int) -> tuple[str, set[int]] | None:
    nodes = rewrite.model.nodes
    total = _with_number(rewrite, at, "Mul", math.sqrt(2 / math.pi))
    plus = rewrite.producer(total) if total else None
    if total is None or plus is None or not rewrite.is_op(plus, "Add"):
        return None
    if rewrite.sole_reader(total) != at:
        return None
    for x, term in (nodes[plus].inputs, nodes[plus].inputs[::-1]):
        cube = _scaled_cube(rewrite, term, x)
        if cube is not None and rewrite.sole_reader(term) == plus:
            return x, cube | {at, plus}
    return None


def _scaled_cube(rewrite: Rewrite, value: str, x: str) -> set[int] | None:
    """Return the positions that make ``0.044715 * x ** 3``, or None."""
    nodes = rewrite.model.nodes
    at = rewrite.producer(value)
    if at is None:
        return None
    cube = _with_number(rewrite, at, "Mul", 0.044715)
    power = rewrite.producer(cube) if cube else None
    if cube is None or power is None or rewrite.sole_reader(cube) != at:
        return None
    if rewrite.is_op(power, "Pow") and nodes[power].inputs[0] == x:
        exponent = rewrite.scalar(nodes[power].inputs[1], beside=x)
        return {at, power} if exponent == 3.0 else None
    if rewrite.is_op(power, "Mul") and x in nodes[power].inputs:
        left, right = nodes[power].inputs
        square = right if left == x else left
        squared = rewrite.producer(square)
        if (
            squared is not None
            and rewrite.is_op(squared, "Mul")
            and nodes[squared].inputs == (x, x)
            and rewrite.sole_reader(square) == power
        ):
            return {at, power, squared}
    return None


def _with_number(rewrite: Rewrite, at: int, op_type: str, number: float) -> str | None:
    """Return the other operand where the node combines it with about `number`, or None."""
    if not rewrite.is_op(at, op_type):
        return None
    left, right = rewrite.model.nodes[at].inputs
    if _is_near(rewrite, right, left, number):
        return left
    if op_type != "Div" and _is_near(rewrite, left, right, number):
        return right
    return None


def _is_near(rewrite: Rewrite, value: str, beside: str, number: float) -> bool:
    given, array = rewrite.scalar(value, beside), rewrite.constant(value)
    if given is None or array is None:
        return False
    close = _CLOSE_NARROW if array.dtype.itemsize < 4 else _CLOSE
    return abs(given - number) <= close * abs(number)
