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
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Key(NamedTuple):
    """A client's tasks that are ready run in the order of their keys."""

    turn: int
    #: Of greater priorities the smaller number.
    rank: int
    arrival: int


@dataclass(slots=True, eq=False)
class Line(Generic[T]):
    """A client's tasks that wait, as a heap, and how many turns it had."""

    turns: int = 0
    waiting: list[tuple[Key, T]] = field(default_factory=list)


class FairQueue(Generic[T]):
    """Tasks that are ready and wait, of any number of clients."""

    def __init__(self) -> None:
        #: Lines in which tasks wait; empty while none does.
        self.waiting: dict[Line[T], None] = {}
        #: The turns of the client that ran last, before it did: where the device has got to.
        self._now = 0

    def push(self, line: Line[T], key: Key, task: T) -> None:
        """Put in a client's task."""
        if not line.waiting:
            line.turns = max(line.turns, self._now)
            self.waiting[line] = None
        heapq.heappush(line.waiting, (key, task))

    def pop(self) -> tuple[Key, T]:
        """Take out the task that is next; `ran` counts its turn if it runs."""
        line = min(self.waiting, key=_rank)
        first = heapq.heappop(line.waiting)
        if not line.waiting:
            del self.waiting[line]
        return first

    def ran(self, line: Line[T]) -> None:
        """Count a turn of a client, one of whose tasks has begun."""
        self._now = now = max(line.turns, self._now)
        line.turns = now + 1

    def forget(self, line: Line[T]) -> None:
        """Forget the tasks of a client that is gone."""
        self.waiting.pop(line, None)


def _rank(line: Line[Any]) -> tuple[int, int, int]:
    key, _ = line.waiting[0]
    return line.turns, key.rank, key.arrival
