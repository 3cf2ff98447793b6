"""Shuffling the channels of groups, which channels last can do without leaving their order."""

from __future__ import annotations

from functools import partial

import numpy as np

from devices.cpu.fast.channels_last import is_last, pixels, planes
from devices.cpu.fast.fast_kernels import fast_op
from devices.interpreter.calls import Call, Scratch


@fast_op("ChannelShuffle", any_order=True)
def channel_shuffle(
    scratch: Scratch, y: np.ndarray | None, x: np.ndarray, *, group: int
) -> tuple[np.ndarray, list[Call]]:
    """Return x (N, C, H, W) with the first channel of each group first, then the second ones."""
    if y is None:
        y = planes(np.empty_like(pixels(x))) if is_last(x) else np.empty_like(x)
    each = x.shape[1] // group
    return y, [
        partial(np.copyto, y[:, i::group], x[:, i * each : (i + 1) * each]) for i in range(group)
    ]
