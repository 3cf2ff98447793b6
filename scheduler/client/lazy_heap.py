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
        self._entries: list[T] = []
        self._sweep_at = _FEW

    @property
    def earliest(self) -> T | None:
        """The least entry, whether it counts or not; None where there is none."""
        return self._entries[0] if self._entries else None

    def push(self, entry: T) -> None:
        """Put an entry in."""
        heapq.heappush(self._entries, entry)
        if len(self._entries) >= self._sweep_at:
            self._entries = [kept for kept in self._entries if self._is_current(kept)]
            heapq.heapify(self._entries)
            self._sweep_at = max(_FEW, 2 * len(self._entries))

    def first(self) -> T | None:
        """Return the least entry that counts."""
        while self._entries and not self._is_current(self._entries[0]):
            heapq.heappop(self._entries)
        return self._entries[0] if self._entries else None

    def pop(self) -> None:
        """Take out the entry that `first` returned."""
        heapq.heappop(self._entries)
