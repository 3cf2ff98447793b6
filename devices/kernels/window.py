"""The geometry of sliding windows for convolution and pooling, computed from shapes only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product


@dataclass(frozen=True, slots=True)
class Window:
    """A kernel that slides over spatial axes, one entry per axis in each field."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    #: Padding before and after, from `pads` or `auto_pad`.
    begin: tuple[int, ...]
    end: tuple[int, ...]
    #: Size of the input and of the output.
    input: tuple[int, ...]
    output: tuple[int, ...]

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Yield the kernel's elements in row-major order."""
        return product(*map(range, self.kernel))

    def slices(self, position: Sequence[int]) -> tuple[slice, ...]:
        """Return the positions that one kernel element reads in the padded input."""
        return tuple(
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, s, n in zip(position, self.dilations, self.strides, self.output, strict=True)
        )

    def valid(self, axis: int, k: int) -> tuple[slice, slice]:
        """Return the outputs that read the unpadded input, and the input positions that they read.

        `k` is the number of the kernel element along that axis.
        """
        stride, size = self.strides[axis], self.input[axis]
        shift = k * self.dilations[axis] - self.begin[axis]
        first = max(0, -(shift // stride))
        last = max(first, min(self.output[axis], (size - 1 - shift) // stride + 1))
        start = first * stride + shift
        end = start + max(0, (last - first - 1) * stride + 1)
        return slice(first, last), slice(start, end, stride)


def per_axis(
    value: Sequence[int] | None, rank: int, name: str, default: int = 1
) -> tuple[int, ...]:
    """Return an attribute that has `rank` numbers; with a positive default they are positive."""
    if value is None or len(value) == 0:
        return (default,) * rank
    if len(value) != rank:
        raise ValueError(f"{name}: expected {rank} numbers, got {tuple(value)}")
    if default > 0 and min(value) < 1:
        raise ValueError(f"{name}: expected positive numbers, got {tuple(value)}")
    return tuple(int(v) for v in value)


@lru_cache(maxsize=1024)  # nodes call it in every run, and it takes as long as a small convolution
def sliding_window(
    spatial: Sequence[int],
    kernel: Sequence[int],
    ceil_mode: int | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Window:
    """Compute padding and output size as the convolution and pooling operators define them.

    `strides` and `dilations` are 1 if absent, `pads` (all begins, then all ends) 0. `ceil_mode` is
    None for convolution; for pooling it rounds the output size up, without windows that would start
    in the end padding. A pooling window that is too large by less than a stride gives one output,
    because ONNX Runtime and ONNX's shape inference divide towards zero.
    ValueError: an attribute has a wrong length or value, or the kernel does not fit.
    """
    rank = len(spatial)
    kernel = per_axis(kernel, rank, "kernel_shape")
    step = per_axis(strides, rank, "strides")
    dilation = per_axis(dilations, rank, "dilations")
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output = tuple(-(-n // s) for n, s in zip(spatial, step, strict=True))
        sizes = zip(output, step, extent, spatial, strict=True)
        total = tuple(max((o - 1) * s + e - n, 0) for o, s, e, n in sizes)
        begin = tuple((t + (auto_pad == "SAME_LOWER")) // 2 for t in total)
        end = tuple(t - b for t, b in zip(total, begin, strict=True))
    else:
        both = per_axis(None if auto_pad == "VALID" else pads, 2 * rank, "pads", default=0)
        begin, end = both[:rank], both[rank:]
        output = tuple(
            _output_size(n, b + e, w, s, b, ceil_mode)
            for n, b, e, w, s in zip(spatial, begin, end, extent, step, strict=True)
        )
    if output and min(output) < 1:
        raise ValueError(
            f"kernel_shape: expected a window that fits into spatial size {tuple(spatial)} with "
            f"padding {begin} and {end}, got extent {extent}"
        )
    return Window(kernel, step, dilation, begin, end, tuple(spatial), output)


def _output_size(
    size: int, padding: int, extent: int, stride: int, begin: int, ceil: int | None
) -> int:
    room = size + padding - extent
    if room < 0:
        return int(ceil is not None and -room < stride)
    count = (room + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (count - 1) * stride >= size + begin:
        count -= 1
    return count
