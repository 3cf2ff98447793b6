"""Where values lie in one piece of memory: those that are not needed at once share theirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from hetero.devices.interpreter.calls import ALIGNMENT

#: Tasks whose buffers are looked through together.
_ROW: Final = 16


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
    #: Some tasks in a row -> (offset, end, first and last task) of what is placed for any of them.
    placed: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for buffer, (first, last, nbytes) in sorted(spans.items(), key=lambda item: -item[1].nbytes):
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        rows = range(first // _ROW, last // _ROW + 1)
        offset = 0
        for start, end, begin, until in sorted({place for row in rows for place in placed[row]}):
            if begin <= last and until >= first:
                if start - offset >= size:
                    break
                if end > offset:
                    offset = end
        for row in rows:
            placed[row].append((offset, offset + size, first, last))
        offsets[buffer] = offset
        extent = max(extent, offset + size)
    return offsets, extent
