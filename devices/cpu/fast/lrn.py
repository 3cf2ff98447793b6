"""CallMaker of LRN with channels last: sums over channels are sums along memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from devices.cpu.fast.channels_last import is_last
from devices.interpreter.calls import Call, Scratch, makes_calls

#: Bytes of the squares of some pixels, of which sums and roots take as much.
_BLOCK_NBYTES = 1 << 16


@makes_calls("LRN", 1, over=(0,), any_order=True)
def lrn_calls(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *,
    alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the division by sums of squares, in the order that the kernel adds them."""
    if x.dtype != np.float32 or not x.size or not (is_last(x) and is_last(y)):
        return None
    if size < 1 or beta != 0.75:  # the usual power is two square roots, others numpy's
        return None
    channels, before = x.shape[1], (size - 1) // 2
    x, y = (a.transpose(0, 2, 3, 1).reshape(-1, channels) for a in (x, y))
    # Zeros between pixels, so that sums may run over the ends of each.
    wide = channels + size - 1
    count = min(len(x), max(1, _BLOCK_NBYTES // (wide * x.itemsize)))
    squares, sums, roots = (scratch((count * wide + size - 1,), x.dtype) for _ in range(3))
    total, root = (a[: count * wide] for a in (sums, roots))
    of_pixels, divisors = (
        a[start : start + count * wide].reshape(count, wide)[:, :channels]
        for a, start in ((squares, before), (sums, 0))
    )
    factor, offset = (np.asarray(value, x.dtype) for value in (alpha / size, bias))
    reads = [squares[before + s :][: count * wide] for s in range(-before, size - before)]
    middle: list[Call] = [partial(np.copyto, total, reads.pop(before))]
    middle += [partial(np.add, total, read, total) for read in reads]
    middle += [partial(np.multiply, total, factor, total), partial(np.add, total, offset, total)]
    middle += [
        partial(np.sqrt, total, total),
        partial(np.sqrt, total, root),
        partial(np.multiply, total, root, total),
    ]
    calls: list[Call] = [partial(squares.fill, 0)]
    for first in range(0, len(x), count):
        at, to = x[first : first + count], y[first : first + count]
        calls.append(partial(np.multiply, at, at, of_pixels[: len(at)]))
        calls += middle
        calls.append(partial(np.divide, at, divisors[: len(at)], to))
    return calls
