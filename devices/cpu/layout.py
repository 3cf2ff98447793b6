"""Where values lie in one piece of memory: those that are not needed at once share theirs."""

from __future__ import annotations

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
    """Return each buffer's offset, and the bytes that all need: the lowest hole that fits each."""
    offsets: dict[int, int] = {}
    extent = 0
    living: list[tuple[int, int, int]] = []  # offset, end, last task; by offset
    for buffer, span in sorted(spans.items(), key=lambda item: item[1].first):
        living = [place for place in living if place[2] >= span.first]
        size = -(-max(span.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        offset, index = 0, 0
        for index, (start, end, _) in enumerate((*living, (extent + size, 0, 0))):  # noqa: B007
            if start - offset >= size:
                break
            offset = max(offset, end)
        living.insert(index, (offset, offset + size, span.last))
        offsets[buffer] = offset
        extent = max(extent, offset + size)
    return offsets, extent
