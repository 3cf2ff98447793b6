"""Transposed convolution with channels last: one product, its parts added where they belong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from devices.cpu.fast.bands import BandScratch
from devices.cpu.fast.channels_last import is_last, pixel_calls, planar, planes, row_calls
from devices.cpu.fast.fast_kernels import fast_op
from devices.interpreter.calls import Call, Scratch
from devices.interpreter.copies import copy_call
from devices.kernels.conv import transposed_window
from devices.kernels.registry import taking
from devices.kernels.window import Window

Ints = Sequence[int]


def prepare_transposed(w: np.ndarray) -> np.ndarray:
    """Return weights (C, M, kh, kw) as the kernel below takes them: (C, kh * kw * M)."""
    return np.ascontiguousarray(w.transpose(0, 2, 3, 1)).reshape(len(w), -1)


@fast_op("ChannelsLastConvTranspose", any_order=True)
@taking(transposed_window)
def channels_last_conv_transpose(
    scratch: Scratch, y: np.ndarray | None, x: np.ndarray, w: np.ndarray,
    b: np.ndarray | None = None, *, kernel_shape: Ints, **sliding: Any,
) -> tuple[np.ndarray, Iterator[Call]] | None:  # fmt: skip
    """Return ConvTranspose of one group; the result's channels are last in memory.

    Weights lie as `prepare_transposed` says, the bias b as `bias_row` does. x of (N, C, W) is taken
    as of a height of 1.
    """
    is_line, x, y = x.ndim == 3, planar(x), planar(y)
    if x.ndim != 4 or x.shape[1] != len(w):
        raise ValueError(f"input has shape {x.shape}; (N, {len(w)}, H, W) wanted")
    window = transposed_window(x.shape[2:], kernel_shape, **sliding)
    if y is None:
        y = planes(np.empty((len(x), *window.input, w.shape[1] // prod(kernel_shape)), x.dtype))
    elif not is_last(y):
        return None
    return y[:, :, 0] if is_line else y, _calls(scratch, y, x, w, b, window)


def _calls(
    scratch: Scratch,
    y: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None,
    window: Window,
) -> Iterator[Call]:
    pixels, calls = pixel_calls(BandScratch(scratch), x)
    yield from calls
    n, height, width, c = pixels.shape
    products = scratch((n * height * width, w.shape[1]), x.dtype)
    yield partial(np.matmul, pixels.reshape(-1, c), w, products)
    taps = products.reshape(n, height, width, *window.kernel, y.shape[1])
    last = y.transpose(0, 2, 3, 1)
    side_by_side = (height * window.kernel[0], width * window.kernel[1])
    is_plain = {*window.dilations} == {1} and not any(window.begin)
    if is_plain and window.strides == window.kernel and window.input == side_by_side:
        blocks = taps.transpose(0, 1, 3, 2, 4, 5)
        yield copy_call(last.reshape(blocks.shape), blocks)
        yield from () if b is None else row_calls(np.add, last, b)
        return
    yield partial(np.copyto, last, np.zeros((), x.dtype) if b is None else b[: y.shape[1]])
    for i in range(window.kernel[0]):
        rows, to_rows = _reach(window, 0, i)
        for j in range(window.kernel[1]):
            columns, to_columns = _reach(window, 1, j)
            to = last[:, to_rows, to_columns]
            if to.size:
                yield partial(np.add, to, taps[:, rows, columns, i, j], to)


def _reach(window: Window, axis: int, tap: int) -> tuple[slice, slice]:
    """Return which of the input's places along an axis a tap adds to the output, and where."""
    stride = window.strides[axis]
    at = tap * window.dilations[axis] - window.begin[axis]
    first = max(0, -(at // stride))
    end = max(first, min(window.output[axis], (window.input[axis] - 1 - at) // stride + 1))
    start = first * stride + at
    return slice(first, end), slice(start, start + (end - first - 1) * stride + 1, stride)
