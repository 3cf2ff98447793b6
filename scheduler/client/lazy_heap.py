"""Heap with lazy deletion: stale entries are skipped, and swept before they accumulate."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound="tuple[object, ...]")

#: Minimum number of entries for a sweep.
_FEW: Final = 64


class LazyHeap(Generic[T]):
    """Heap of entries in ascending order, without stale ones.

    `is_current`: whether an entry is not stale; a stale entry never becomes current again.
    """

    def __init__(self, is_current: Callable[[T], bool]) -> None:
        self._is_current = is_current
        #: The entries in heap order, including stale ones.
        self.entries: list[T] = []
        self._sweep_at = _FEW

    def push(self, entry: T) -> None:
        """Add an entry."""
        heapq.heappush(self.entries, entry)
        if len(self.entries) >= self._sweep_at:
            self.entries = [one for one in self.entries if self._is_current(one)]
            heapq.heapify(self.entries)
            self._sweep_at = max(_FEW, 2 * len(self.entries))

    def first(self) -> T | None:
        """Return the least current entry, or None."""
        while self.entries and not self._is_current(self.entries[0]):
            heapq.heappop(self.entries)
        return self.entries[0] if self.entries else None

    def pop(self) -> None:
        """Remove the entry that `first` returned."""
        heapq.heappop(self.entries)
