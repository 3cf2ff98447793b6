"""Calls that put an activation in the place of a block of a fused operator's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf

import numpy as np

from devices.interpreter.calls import Call
from devices.interpreter.stand_in import CLIP
from devices.kernels.fused_activation import activate


def activation_calls(y: np.ndarray, activation: str, params: Sequence[float]) -> Iterator[Call]:
    """Yield the calls for an activation by its ONNX name; ``""`` is none."""
    if activation in ("Relu", "Clip"):
        yield _clip(y, *(params if activation == "Clip" else (0, inf)))
    elif activation == "FakeQuantize":
        scale, low, high = params
        step = np.asarray(scale, y.dtype)
        yield from (partial(np.divide, y, step, y), partial(np.rint, y, y))
        yield from (_clip(y, low, high), partial(np.multiply, y, step, y))
    elif activation:
        yield partial(activate, np, y, activation, params)


def _clip(y: np.ndarray, low: float = -inf, high: float = inf) -> Call:
    return partial(CLIP, y, np.asarray(low, y.dtype), np.asarray(high, y.dtype), y)
