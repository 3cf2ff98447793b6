"""Where values lie in one piece of memory: those that are not needed at once share theirs."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Final, NamedTuple

#: Bytes that a place starts at a multiple of: a line of the cache, and the widest vector.
_ALIGNMENT: Final = 64


class Span(NamedTuple):
    """A buffer: the first and the last task that need it, and its size."""

    first: int
    last: int
    nbytes: int


def lay_out(spans: Mapping[int, Span]) -> tuple[dict[int, int], int]:
    """Return each buffer's offset, and the bytes that all need.

    The largest first, each in the lowest hole that fits it.
    """
    offsets: dict[int, int] = {}
    extent = 0
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first and last task; by offset
    for buffer, (first, last, nbytes) in sorted(spans.items(), key=lambda item: -item[1].nbytes):
        size = -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        offset = 0
        for start, end, begin, until in placed:
            if begin <= last and until >= first:
                if start - offset >= size:
                    break
                if end > offset:
                    offset = end
        insort(placed, (offset, offset + size, first, last))
        offsets[buffer] = offset
        extent = max(extent, offset + size)
    return offsets, extent
