"""The order of a device's queue: fair between clients, and a pipeline's for each of them. Pure.

A request's place is its client's count of requests, and a task's key that place plus its stage's
level: old requests go before new ones, and a request at level k may overtake at most k earlier
ones. Of equal keys the greater priority goes first, then what was ready first.

Each client counts for itself, so a client's count is moved to where the device is: whoever comes,
comes back or skips numbers while others wait begins where the device has got to, or right after
its own last place if that is further (start-time fair queueing). So clients that keep the device
busy get equal turns, and one that asks now and then waits for no other's flood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Key(NamedTuple):
    """Tasks that are ready run in the order of their keys."""

    turn: int
    #: Of greater priorities the smaller number.
    rank: int
    arrival: int


class QueueOrder(Protocol):
    """What gives tasks their keys."""

    def place(self, client: str, sequence: int) -> int:
        """Return the place of a client's request, one of whose tasks has come."""

    def ran(self, place: int) -> None:
        """Take note that a task of a request at this place has begun."""

    def left(self, client: str) -> None:
        """Take note that one task fewer of the client is on the device."""

    def forget(self, client: str) -> None:
        """Forget a client that is gone."""


@dataclass(slots=True)
class _Count:
    """Where a client's count of requests stands."""

    offset: int = 0
    last_sequence: int = 0
    #: The greatest place that it was given.
    last_place: int = 0
    num_tasks: int = 0


class FairOrder:
    """Equal turns for clients, each client's requests in their order."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        self._num_tasks = 0
        #: The furthest place of a request that has run: the device's virtual time.
        self._now = 0

    def place(self, client: str, sequence: int) -> int:
        """Return the place of a client's request, one of whose tasks has come."""
        count = self._counts.get(client)
        if count is None:
            count = self._counts[client] = _Count()
        is_alone = count.num_tasks == self._num_tasks
        if sequence > count.last_sequence:
            if not count.num_tasks or not is_alone:
                count.offset = max(self._now, count.last_place + 1) - sequence
            count.last_sequence = sequence
            count.last_place = sequence + count.offset
        count.num_tasks += 1
        self._num_tasks += 1
        return sequence + count.offset

    def ran(self, place: int) -> None:
        """Take note that a task of a request at this place has begun."""
        if place > self._now:
            self._now = place

    def left(self, client: str) -> None:
        """Take note that one task fewer of the client is on the device."""
        count = self._counts.get(client)
        if count is not None:
            count.num_tasks -= 1
            self._num_tasks -= 1

    def forget(self, client: str) -> None:
        """Forget a client that is gone."""
        if gone := self._counts.pop(client, None):
            self._num_tasks -= gone.num_tasks
