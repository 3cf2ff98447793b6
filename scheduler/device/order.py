"""The order of a device's queue: equal turns for clients, a pipeline's order for each. Pure.

A client's tasks run in the order of their requests' numbers plus their stages' levels: old requests
go before new ones, and a request at level k is overtaken by at most k later ones. Of equal keys the
greater priority goes first, then what was ready first.

Of the clients that wait, the one that had the fewest turns goes first. Whoever comes, or comes
back, begins where the device has got to: it has saved up no turns and waits for no other's flood
(start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996, with each task as one unit).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Key(NamedTuple):
    """A client's tasks that are ready run in the order of their keys."""

    turn: int
    #: Of greater priorities the smaller number.
    rank: int
    arrival: int


@dataclass(slots=True)
class _Line(Generic[T]):
    """A client's tasks that wait, as a heap, and how many turns it had."""

    turns: int = 0
    waiting: list[tuple[Key, T]] = field(default_factory=list)


class FairQueue(Generic[T]):
    """Tasks that are ready and wait, of any number of clients."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}
        #: Those in which tasks wait; empty while none does.
        self.waiting: dict[str, _Line[T]] = {}
        #: The turns of the client that ran last, before it did: where the device has got to.
        self._now = 0

    def push(self, client: str, key: Key, task: T) -> None:
        """Put in a client's task."""
        line = self._lines.get(client) or self._line(client)
        if not line.waiting:
            line.turns = max(line.turns, self._now)
            self.waiting[client] = line
        heapq.heappush(line.waiting, (key, task))

    def pop(self) -> tuple[Key, T]:
        """Take out the task that is next; `ran` counts its turn if it runs."""
        client, line = next(iter(self.waiting.items()))
        if len(self.waiting) > 1:
            client, line = min(self.waiting.items(), key=_rank)
        first = heapq.heappop(line.waiting)
        if not line.waiting:
            del self.waiting[client]
        return first

    def ran(self, client: str) -> None:
        """Count a turn of a client, one of whose tasks has begun."""
        line = self._lines.get(client) or self._line(client)
        self._now = now = max(line.turns, self._now)
        line.turns = now + 1

    def forget(self, client: str) -> None:
        """Forget a client that is gone, and its tasks."""
        self._lines.pop(client, None)
        self.waiting.pop(client, None)

    def _line(self, client: str) -> _Line[T]:
        return self._lines.setdefault(client, _Line())


def _rank(item: tuple[str, _Line[T]]) -> tuple[int, int, int]:
    line = item[1]
    key, _ = line.waiting[0]
    return line.turns, key.rank, key.arrival
