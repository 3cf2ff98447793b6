"""Donation: which dying input's memory a node may write its result into."""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Final

import numpy as np

#: (domain, operator) -> input positions whose memory the kernel may write its result over: it
#: reads no element of them after it wrote the one at the same place.
DONORS: Final[dict[tuple[str, str], tuple[int, ...]]] = {
    **{
        ("", op_type): (0,)
        for op_type in (
            "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh",
            "Exp", "Floor", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sign", "Sin", "Sinh",
            "Softmax", "Sqrt", "Tan", "Tanh",
        )
    },
    **{("", op_type): (0, 1) for op_type in ("Add", "Sub", "Mul", "Div")},
    ("hetero", "ScaleShift"): (0,),
}  # fmt: skip

#: Arrays below this many bytes are not worth the question.
_WORTH_NBYTES: Final = 4096


def donated(inputs: list[Any], donors: tuple[int, ...]) -> np.ndarray | None:
    """Return the input that the result may be written over, or None.

    It must be of the result's shape and type, fill its memory, and have no other owner: one
    reference from its slot, one from `inputs`, none from a view, a caller or an output. `donors`
    are the positions of inputs that die here and that the kernel may overwrite.
    """
    for position in donors:
        if _references(inputs, position) != _SOLE:
            continue
        x = inputs[position]
        if type(x) is not np.ndarray or x.nbytes < _WORTH_NBYTES or not x.flags.writeable:
            continue
        if x.base is not None and (
            type(x.base) is not np.ndarray
            or x.base.base is not None
            or x.base.nbytes != x.nbytes
            or _base_references(x) != _SOLE_BASE
        ):
            continue
        if all(_fits(other, x) for other in inputs):
            return x
    return None


def _references(inputs: list[Any], position: int) -> int:
    """Count who holds an input: its slot, `inputs`, and what the interpreter adds."""
    return getrefcount(inputs[position])


def _base_references(view: np.ndarray) -> int:
    """Count who holds the array that a view looks at."""
    return getrefcount(view.base)


def _sole_counts() -> tuple[int, int]:
    """Return both counts for an array, and a view's base, without other owners.

    How many references a call adds differs between versions of Python.
    """
    slots = [np.empty(4)]
    alone = _references([slots[0]], 0)
    slots[0] = np.empty(4)[:2]
    return alone, _base_references(slots[0])


_SOLE, _SOLE_BASE = _sole_counts()


def _fits(other: Any, x: np.ndarray) -> bool:
    """Tell whether the result of x and `other`, broadcast, has x's shape and type."""
    if other.dtype != x.dtype:
        return False
    shape, mine = other.shape, x.shape
    if shape == mine:
        return True
    rank = len(shape)
    return rank <= len(mine) and all(
        n in (1, m) for n, m in zip(shape, mine[len(mine) - rank :], strict=True)
    )
