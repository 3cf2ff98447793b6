"""Queue of a device: fair between clients, in pipeline order within a client. No I/O.

A client's tasks are ordered by request number plus stage level: old requests precede new ones, and
at most k later requests overtake a request at level k. Ties are resolved by priority, then by
arrival.

Clients are served by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with each task
as one unit: the client with the fewest turns is next. A client that arrives or returns starts at
the device's virtual time, so it has accumulated no turns and does not wait for others' backlogs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Key(NamedTuple):
    """Sort key of a ready task within its client's queue."""

    turn: int
    #: Negative priority.
    rank: int
    arrival: int


@dataclass(slots=True, eq=False)
class ClientQueue(Generic[T]):
    """Queue of one client: a heap of waiting tasks, and the number of turns taken."""

    turns: int = 0
    waiting: list[tuple[Key, T]] = field(default_factory=list)


class FairQueue(Generic[T]):
    """Fair queue of the ready tasks of several clients."""

    def __init__(self) -> None:
        #: Lines with waiting tasks.
        self.waiting: dict[ClientQueue[T], None] = {}
        #: Virtual time: the turns of the last served client before its task started.
        self._now = 0

    def push(self, client: ClientQueue[T], key: Key, task: T) -> None:
        """Add a task of a client."""
        heapq.heappush(client.waiting, (key, task))
        if client not in self.waiting:
            client.turns = max(client.turns, self._now)
            self.waiting[client] = None

    def peek(self) -> tuple[ClientQueue[T], Key, T]:
        """Return the next task, with its client; call `count_turn` if it starts."""
        client = min(self.waiting, key=_rank) if len(self.waiting) > 1 else next(iter(self.waiting))
        return client, *client.waiting[0]

    def remove_first(self, client: ClientQueue[T]) -> None:
        """Remove the first task of a client."""
        # In this order, Ctrl-C in between leaves a client that the next `push` adds again.
        if len(client.waiting) == 1:
            del self.waiting[client]
        heapq.heappop(client.waiting)

    def count_turn(self, client: ClientQueue[T]) -> None:
        """Count a turn of a client whose task has started."""
        self._now = now = max(client.turns, self._now)
        client.turns = now + 1

    def forget(self, client: ClientQueue[T]) -> None:
        """Remove the tasks of a disconnected client."""
        self.waiting.pop(client, None)


def _rank(client: ClientQueue[Any]) -> tuple[int, int, int]:
    key, _ = client.waiting[0]
    return client.turns, key.rank, key.arrival
