"""Products of quantised tensors and constant weights, computed by `fast_integers`.

Sums are exact; scale, bias, limits and rounding are applied while they are in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from devices.cpu.fast.channels_last import copy_pixels, is_last, planes
from devices.cpu.fast.registry import FAST
from devices.cpu.integers import fast_integers
from devices.interpreter.binding.registry import Call, Scratch, binds
from devices.kernels.element_types import element_type
from devices.kernels.registry import op
from devices.kernels.window import Window, sliding_window

Ints = Sequence[int]
Floats = Sequence[float]

#: Columns of a vector, rows of the weights that one instruction adds up, and bytes that it may
#: read behind the last ones.
_COLUMNS: Final = 16
_FOUR: Final = 4
_SLACK: Final = 16
#: Bytes of weights that one instruction reads.
_LINE: Final = _COLUMNS * _FOUR
#: What moves a signed byte up by 128.
_SIGN: Final = np.uint8(128)


def _signed_bytes(w: np.ndarray) -> list[np.ndarray]:
    """Return arrays of int8 that add up to an array of integers."""
    parts: list[np.ndarray] = []
    while not parts or w.any():
        parts.append(np.clip(w, -128, 127).astype(np.int8))
        w = w - parts[-1]
    return parts


def pack(w: np.ndarray) -> np.ndarray:
    """Return integers (group, runs, K, N) as `vnni.product` reads them.

    (group, ceil(N / 16), runs, ceil(K / 4), 64) of int8, zeros where there are none; all the runs
    again for what is beyond int8.
    """
    w = np.concatenate(_signed_bytes(w), 1)
    group, runs, k, n = w.shape
    steps, vectors = -(-k // _FOUR), -(-n // _COLUMNS)
    wide = np.zeros((group, runs, steps * _FOUR, vectors * _COLUMNS), np.int8)
    wide[:, :, :k, :n] = w
    lines = wide.reshape(group, runs, steps, _FOUR, vectors, _COLUMNS)
    return np.ascontiguousarray(lines.transpose(0, 4, 1, 2, 5, 3)).reshape(
        group, vectors, runs, steps, _FOUR * _COLUMNS
    )


def prepare_filters(w: np.ndarray, group: int, dilations: Ints) -> np.ndarray:
    """Return integer filters (M, C/group, kh, kw) as the kernel below takes them.

    One channel a group: (kh * kw, C, padded to whole vectors) of int8, all again for what is beyond
    it; else as `pack` says, with a run for each row of the kernel, or for each of its elements
    where those do not lie together.
    """
    m, c, *kernel = w.shape
    if c == 1 and m == group > 1:
        taps = np.concatenate(_signed_bytes(w.reshape(m, -1).T))
        return np.ascontiguousarray(np.pad(taps, ((0, 0), (0, -m % _COLUMNS))))
    rows = w.reshape(group, m // group, c, *kernel).transpose(0, 3, 4, 2, 1)
    runs = kernel[0] if _is_joined(group, dilations) else prod(kernel)
    return pack(rows.reshape(group, runs, -1, m // group))


def columns(values: np.ndarray, group: int) -> np.ndarray:
    """Return what each column has, (N), by groups and padded to whole vectors."""
    each = values.size // group
    wide = np.zeros((group, -(-each // _COLUMNS) * _COLUMNS), values.dtype)
    wide[:, :each] = values.reshape(group, each)
    return wide


def _is_joined(group: int, dilations: Ints) -> bool:
    return group == 1 and dilations[1] == 1


@op("QuantizedConv", since=1, domain="hetero", registry=FAST)
def quantized_conv(
    xp: object, x: np.ndarray, x_scale: np.ndarray, x_zero: np.ndarray, w: np.ndarray,
    start: np.ndarray, scale: np.ndarray, bias: np.ndarray, *,
    shape: Ints, kernel_shape: Ints, rounding: Floats, to: int, auto_pad: str = "NOTSET",
    dilations: Ints | None = None, group: int = 1, pads: Ints | None = None,
    strides: Ints | None = None,
) -> np.ndarray:  # fmt: skip
    """Return what `QuantizedMatMul` does of a convolution, whose x is padded with its zero point.

    Weights lie as `prepare_filters` says. `shape` counts x's channels and the result's, which has
    them last in memory.
    """
    if x.ndim != 4 or x.shape[1] != shape[0]:
        raise ValueError(f"input has shape {x.shape}; {shape[0]} channels wanted")
    window = sliding_window(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    y = planes(np.empty((x.shape[0], *window.output, shape[1]), element_type(to)))
    last = _Last(x_zero, x_scale, start, scale, bias, rounding)
    for call in _convolution(Scratch(), y, x, w, last, window, group):
        call()
    return y


@binds("QuantizedConv", 1, domain="hetero", registry=FAST, any_order=True)
def bind_quantized_conv(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, x_scale: np.ndarray, x_zero: np.ndarray,
    w: np.ndarray, start: np.ndarray, scale: np.ndarray, bias: np.ndarray, *,
    shape: Ints, kernel_shape: Ints, rounding: Floats, to: int, auto_pad: str = "NOTSET",
    dilations: Ints | None = None, group: int = 1, pads: Ints | None = None,
    strides: Ints | None = None,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the calls that the kernel above makes."""
    if not is_last(y):
        return None
    window = sliding_window(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    last = _Last(x_zero, x_scale, start, scale, bias, rounding)
    return list(_convolution(scratch, y, x, w, last, window, group))


class _Last(NamedTuple):
    """What is done to sums, and from where they count."""

    left_zero: np.ndarray
    left_scale: np.ndarray
    start: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    rounding: Floats

    def of(self, group: int) -> tuple[np.ndarray, ...]:
        """Return what the products of a group take last."""
        one = (self.left_zero.reshape(1), self.left_scale.reshape(1))
        per_column = (array[group] for array in (self.start, self.scale, self.bias))
        return (*one, *per_column, np.array(self.rounding, np.float32))


def _convolution(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, w: np.ndarray, last: _Last, window: Window,
    group: int,
) -> Iterator[Call]:  # fmt: skip
    """Yield the calls that put the convolution into y, whose channels are last."""
    size = [b + n + e for b, n, e in zip(window.begin, window.input, window.end, strict=True)]
    n, channels = x.shape[:2]
    each, by_channel = channels // group, w.ndim == 2
    joined = _is_joined(group, window.dilations)
    run = each * (window.kernel[1] if joined else 1)
    over_reads = channels % _COLUMNS if by_channel else run % _FOUR
    flat, calls = _padded(scratch, x, window.begin, size, last.left_zero, over_reads > 0)
    yield from calls
    pixels = _pixels(n, *size, channels, window.strides, window.output)
    taps = _taps(window.kernel, window.dilations, size[1], channels, joined)
    taps = np.tile(taps, max(1, w.shape[0 if by_channel else 2] // taps.size))
    out = _bytes(y.transpose(0, 2, 3, 1).reshape(-1, y.shape[1]))
    if by_channel:
        _check(w, (len(taps), _whole(channels)), last, 1)
        products, arrays = fast_integers().channel_product, (flat, pixels, w, taps, *last.of(0))
        yield _call(products, out, arrays, len(taps), w.shape[1])
        return
    m = out.shape[1] // group
    _check(w, (group, _whole(m) // _COLUMNS, len(taps), -(-run // _FOUR), _LINE), last, group)
    for g in range(group):
        place, arrays = out[:, g * m : (g + 1) * m], (flat[g * each :], pixels, w[g], taps)
        yield _call(fast_integers().product, place, (*arrays, *last.of(g)), len(taps), w.shape[3])


def _padded(
    scratch: Scratch, x: np.ndarray, before: Ints, size: Ints, fill: np.ndarray, over_reads: bool
) -> tuple[np.ndarray, list[Call]]:
    """Return x as unsigned bytes, channels last, padded to a size, and the calls that do it."""
    last = x.transpose(0, 2, 3, 1)
    (n, h, w, c), (top, left) = last.shape, before
    if x.dtype == np.uint8 and (h, w) == tuple(size) and last.flags.c_contiguous and not over_reads:
        return last.reshape(-1), []
    flat = scratch((n * prod(size) * c + _SLACK,), np.uint8)
    y = flat[:-_SLACK].reshape(n, *size, c)
    rows = y[:, top : top + h]
    rims = (y[:, :top], y[:, top + h :], rows[:, :, :left], rows[:, :, left + w :])
    calls: list[Call] = [partial(np.copyto, rim, fill) for rim in rims if rim.size]
    return flat, [*calls, *_unsigned(rows[:, :, left : left + w], last)]


def _unsigned(y: np.ndarray, x: np.ndarray) -> list[Call]:
    """Return the calls that put integers into y, signed ones moved up by 128."""
    if x.dtype == np.uint8:
        return copy_pixels(y, x) if x.ndim == 4 else [partial(np.copyto, y, x)]
    return [partial(np.bitwise_xor, x.view(np.uint8), _SIGN, y)]


def _bytes(y: np.ndarray) -> np.ndarray:
    """Return integers of either sign as the bytes that they are."""
    return y.view(np.uint8) if y.dtype == np.int8 else y


@lru_cache(maxsize=256)
def _pixels(
    n: int, height: int, width: int, channels: int, strides: Ints, output: Ints
) -> np.ndarray:
    """Return where in an image with channels last what each output reads begins."""
    rows = np.arange(output[0]) * (strides[0] * width * channels)
    places = np.arange(output[1]) * (strides[1] * channels)
    images = np.arange(n) * (height * width * channels)
    return (images[:, None, None] + rows[:, None] + places).reshape(-1)


@lru_cache(maxsize=256)
def _taps(kernel: Ints, dilations: Ints, width: int, channels: int, joined: bool) -> np.ndarray:
    """Return where the runs of memory that a kernel reads begin."""
    rows = np.arange(kernel[0]) * (dilations[0] * width * channels)
    if joined:
        return rows
    return (rows[:, None] + np.arange(kernel[1]) * (dilations[1] * channels)).reshape(-1)


@op("QuantizedMatMul", since=1, domain="hetero", registry=FAST)
def quantized_matmul(
    xp: object, a: np.ndarray, a_scale: np.ndarray, a_zero: np.ndarray, b: np.ndarray,
    start: np.ndarray, scale: np.ndarray, bias: np.ndarray, *,
    shape: Ints, rounding: Floats, to: int,
) -> np.ndarray:  # fmt: skip
    """Return (a @ b + start * a_zero) * (scale * a_scale) + bias, rounded.

    a (..., K) are 8-bit integers, moved up by 128 if they are signed, and so is a_zero. b, of
    `shape` (K, N), lies as `pack` says; `start`, `scale` and `bias` as `columns` says. The result
    is of element type `to`.

    `rounding` is low, high, ratio, low_2, high_2 and zero. Results are clipped to low and high. As
    integers they are rounded, if the ratio is not 0 multiplied by it, clipped by the second limits
    and rounded again, and then shifted by zero; as floats they are rounded and multiplied by the
    ratio if that is not 0.
    """
    if a.shape[-1:] != tuple(shape[:1]):
        raise ValueError(f"a matrix of shape {a.shape} does not multiply one of {tuple(shape)}")
    y = np.empty((*a.shape[:-1], shape[1]), element_type(to))
    last = _Last(a_zero, a_scale, start, scale, bias, rounding)
    for call in _matmul(Scratch(), y, a, b, last):
        call()
    return y


@binds("QuantizedMatMul", 1, domain="hetero", registry=FAST)
def bind_quantized_matmul(
    scratch: Scratch, y: np.ndarray, a: np.ndarray, a_scale: np.ndarray, a_zero: np.ndarray,
    b: np.ndarray, start: np.ndarray, scale: np.ndarray, bias: np.ndarray, *,
    shape: Ints, rounding: Floats, to: int,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the calls that the kernel above makes."""
    return list(_matmul(scratch, y, a, b, _Last(a_zero, a_scale, start, scale, bias, rounding)))


def _matmul(
    scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray, last: _Last
) -> Iterator[Call]:
    """Yield the calls that put the product into y."""
    if not y.size:
        return
    k, columns = a.shape[-1], y.shape[-1]
    steps, runs = -(-k // _FOUR), np.zeros(b.shape[2], np.int64)
    _check(b, (1, _whole(columns) // _COLUMNS, len(runs), steps, _LINE), last, 1)
    if k % _FOUR or not a.flags.c_contiguous or a.dtype != np.uint8:
        wide = scratch((*a.shape[:-1], steps * _FOUR), np.uint8)
        yield from _unsigned(wide[..., :k], a)
        a = wide
    out = _bytes(y.reshape(-1, y.shape[-1]))
    rows = _pixels(1, len(out), 1, steps * _FOUR, (1, 1), (len(out), 1))
    yield _call(fast_integers().product, out, (a, rows, b, runs, *last.of(0)), len(runs), steps)


def _whole(columns: int) -> int:
    """Return a number of columns rounded up to whole vectors."""
    return -(-columns // _COLUMNS) * _COLUMNS


def _check(w: np.ndarray, shape: tuple[int, ...], last: _Last, group: int) -> None:
    """Raise ValueError where arrays are not what a product would read; it reads by address."""
    wanted = (group, shape[1] * (_COLUMNS if len(shape) > 2 else 1))
    found = [(a.dtype.name, a.shape) for a in (w, last.start, last.scale, last.bias)]
    asked = [("int8", shape), ("int32", wanted), ("float32", wanted), ("float32", wanted)]
    one = (last.left_zero.dtype.name, last.left_scale.dtype.name, len(last.rounding))
    if found != asked or one != ("uint8", "float32", 6):
        raise ValueError(f"weights, start, scale, bias and {one} are {found}; {asked} wanted")


def _call(product: Any, y: np.ndarray, arrays: tuple[np.ndarray, ...], *counts: int) -> Call:
    """Return the call of a product that is told where arrays lie, and holds them."""
    arrays = tuple(map(np.ascontiguousarray, arrays))
    rest = (*(array.ctypes.data for array in arrays), *counts)
    return partial(_run, product, y, rest, arrays)


def _run(product: Any, y: np.ndarray, rest: tuple[int, ...], _: tuple[np.ndarray, ...]) -> None:
    product(y, rest)
