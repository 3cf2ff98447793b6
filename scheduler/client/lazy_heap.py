"""A heap whose entries may go out of date: those that have are not found, and do not pile up."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound="tuple[object, ...]")

#: So few entries are never looked through.
_FEW: Final = 64


class LazyHeap(Generic[T]):
    """Entries that come out in ascending order.

    `is_current`: whether an entry still counts; once it does not, it never will again.
    """

    def __init__(self, is_current: Callable[[T], bool]) -> None:
        self._is_current = is_current
        #: As a heap, those that no longer count among them: the first is the least of all.
        self.entries: list[T] = []
        self._sweep_at = _FEW

    def push(self, entry: T) -> None:
        """Put an entry in."""
        heapq.heappush(self.entries, entry)
        if len(self.entries) >= self._sweep_at:
            self.entries = [kept for kept in self.entries if self._is_current(kept)]
            heapq.heapify(self.entries)
            self._sweep_at = max(_FEW, 2 * len(self.entries))

    def first(self) -> T | None:
        """Return the least entry that counts."""
        while self.entries and not self._is_current(self.entries[0]):
            heapq.heappop(self.entries)
        return self.entries[0] if self.entries else None

    def pop(self) -> None:
        """Take out the entry that `first` returned."""
        heapq.heappop(self.entries)
