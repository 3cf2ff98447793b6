"""Shuffling the channels of groups, which channels last can do without leaving their order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from devices.cpu.fast.channels_last import is_last, pixels, planes
from devices.cpu.fast.fast_kernels import FAST
from devices.interpreter.calls import Call, Scratch, makes_calls
from devices.kernels.registry import op


@op("ChannelShuffle", since=1, domain="hetero", registry=FAST)
def channel_shuffle_1(xp: object, x: np.ndarray, *, group: int) -> np.ndarray:
    """Return x (N, C, H, W) with the first channel of each group first, then the second ones."""
    n, c, h, w = x.shape
    if not is_last(x):
        return x.reshape(n, group, -1, h, w).swapaxes(1, 2).reshape(x.shape)
    source, each = pixels(x), c // group
    y = np.empty_like(source)
    for i in range(group):
        y[..., i::group] = source[..., i * each : (i + 1) * each]
    return planes(y)


@makes_calls("ChannelShuffle", 1, domain="hetero", registry=FAST, any_order=True)
def channel_shuffle_calls(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, group: int
) -> Sequence[Call]:
    """Bind a copy for each group."""
    each = x.shape[1] // group
    return [
        partial(np.copyto, y[:, i::group], x[:, i * each : (i + 1) * each]) for i in range(group)
    ]
