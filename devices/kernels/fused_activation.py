"""Activations that end a fused operator: their own kernels, on a block of its output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from devices.kernels.element_types import Array, Kernel, Xp
from devices.kernels.registry import KERNELS

#: By operator: its attributes, in the order of a fused operator's parameters.
PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "Clip": ("min", "max"), "FakeQuantize": ("scale", "low", "high"),
    "HardSigmoid": ("alpha", "beta"), "HardSwish": (), "LeakyRelu": ("alpha",), "Relu": (),
    "Sigmoid": (), "Swish": (), "Tanh": (),
}  # fmt: skip


def activate(xp: Xp, y: Array, activation: str, params: Sequence[float]) -> None:
    """Put an activation of y, by its operator's name, in y's place; ``""`` leaves y as it is."""
    if activation:
        named = dict(zip(PARAMETERS[activation], params, strict=False))
        y[...] = _kernel(activation)(xp, y, **named)


@cache
def _kernel(activation: str) -> Kernel:
    """Return the kernel that takes its parameters as attributes."""
    found = (
        KERNELS.find("hetero", activation, 1)
        or KERNELS.find("", activation, 6)
        or KERNELS.find("", activation, 14)
    )
    assert found is not None, activation
    return found.function
