"""Activations applied in place, to a block of a fused operator's output while it is in cache."""

from __future__ import annotations

from devices.kernels.convolve import Activate
from devices.kernels.element_types import Array, Xp


def identity(xp: Xp, y: Array) -> None:
    """Leave the block as it is."""


def _relu(xp: Xp, y: Array) -> None:
    # Three times faster than `maximum` with a scalar.
    xp.clip(y, 0, xp.inf, out=y)


def _clip(xp: Xp, y: Array, low: float = -float("inf"), high: float = float("inf")) -> None:
    xp.clip(y, low, high, out=y)


def _leaky_relu(xp: Xp, y: Array, alpha: float = 0.01) -> None:
    xp.copyto(y, y * alpha, where=y < 0)


def _sigmoid(xp: Xp, y: Array) -> None:
    xp.negative(y, out=y)
    xp.exp(y, out=y)
    y += 1
    xp.reciprocal(y, out=y)


def _hard_sigmoid(xp: Xp, y: Array, alpha: float = 0.2, beta: float = 0.5) -> None:
    y *= alpha
    y += beta
    _clip(xp, y, 0, 1)


def _times(gate: Activate) -> Activate:
    def activate(xp: Xp, y: Array, *params: float) -> None:
        factor = y.copy()
        gate(xp, factor, *params)
        y *= factor

    return activate


def _tanh(xp: Xp, y: Array) -> None:
    xp.tanh(y, out=y)


def _hard_swish_gate(xp: Xp, y: Array) -> None:
    _hard_sigmoid(xp, y, 1 / 6, 0.5)


def _fake_quantize(xp: Xp, y: Array, scale: float, low: float, high: float) -> None:
    y /= y.dtype.type(scale)
    xp.rint(y, out=y)
    _clip(xp, y, low, high)
    y *= y.dtype.type(scale)


#: By ONNX operator name; ``""`` leaves the block as it is.
IN_PLACE: dict[str, Activate] = {
    "": identity,
    "Relu": _relu,
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "Sigmoid": _sigmoid,
    "HardSigmoid": _hard_sigmoid,
    "Tanh": _tanh,
    "FakeQuantize": _fake_quantize,
    "HardSwish": _times(_hard_swish_gate),
    "Swish": _times(_sigmoid),
}
