"""Transposed convolution with channels last, of kernels that lie side by side in the output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from devices.cpu.binding.copies import copy_call
from devices.cpu.binding.registry import Call, Scratch, binds
from devices.cpu.fast.bands import BandScratch
from devices.cpu.fast.channels_last import is_last, pixel_calls, planes, row_calls
from devices.cpu.fast.registry import FAST
from devices.kernels.registry import op


def prepare_transposed(w: np.ndarray) -> np.ndarray:
    """Return weights (C, M, kh, kw) as the kernel below takes them: (C, kh * kw * M)."""
    return np.ascontiguousarray(w.transpose(0, 2, 3, 1)).reshape(len(w), -1)


@op("ChannelsLastConvTranspose", since=1, domain="hetero", registry=FAST)
def channels_last_conv_transpose_1(
    xp: object,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    kernel_shape: Sequence[int],
) -> np.ndarray:
    """Return ConvTranspose with strides as large as the kernel and no pads; channels are last.

    Weights lie as `prepare_transposed` says, the bias b as `bias_row` does.
    """
    if x.ndim != 4 or x.shape[1] != len(w):
        raise ValueError(f"input has shape {x.shape}; (N, {len(w)}, H, W) wanted")
    (n, _, *spatial), m = x.shape, w.shape[1] // prod(kernel_shape)
    size = (size * k for size, k in zip(spatial, kernel_shape, strict=True))
    y = planes(np.empty((n, *size, m), x.dtype))
    for call in _calls(Scratch(), y, x, w, b, kernel_shape):
        call()
    return y


@binds("ChannelsLastConvTranspose", 1, domain="hetero", registry=FAST, any_order=True)
def bind_channels_last_conv_transpose(
    scratch: Scratch,
    y: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    kernel_shape: Sequence[int],
) -> Sequence[Call] | None:
    """Bind the calls that the kernel above makes."""
    return _calls(scratch, y, x, w, b, kernel_shape) if is_last(y) else None


def _calls(
    scratch: Scratch,
    y: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None,
    kernel: Sequence[int],
) -> list[Call]:
    pixels, calls = pixel_calls(BandScratch(scratch), x)
    n, height, width, c = pixels.shape
    products = scratch((n * height * width, w.shape[1]), x.dtype)
    calls.append(partial(np.matmul, pixels.reshape(-1, c), w, products))
    blocks = products.reshape(n, height, width, *kernel, y.shape[1])
    blocks = blocks.transpose(0, 1, 3, 2, 4, 5)
    last = y.transpose(0, 2, 3, 1)
    calls.append(copy_call(last.reshape(blocks.shape), blocks))
    return calls if b is None else [*calls, *row_calls(np.add, last, b)]
