"""Which requests are joined into a batch, and when: events in, batches out. Pure.

A batch is fired when it is full, when its oldest request has waited the time-out, or at once while
the pipeline has room for it. Requests of one group can be joined; they keep their order.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.vocabulary.events import TimePassed


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests are joined.

    Attributes
    ----------
    size : int
        Rows of a batch at most, >= 1; a request that brings more is a batch of its own.
    timeout_s : float
        Seconds that a request waits for others at most.
    busy : int
        Batches in flight, >= 1, with which the pipeline is busy; with fewer, none waits.
    most : int
        Batches in flight at most, >= `busy`.
    """

    size: int
    timeout_s: float
    busy: int = 1
    most: int = 32


class RequestArrived(NamedTuple):
    """A request may be joined with others of its group."""

    now_s: float
    request_id: int
    group: Hashable
    rows: int


class RequestLeft(NamedTuple):
    """Nobody waits for a request any more."""

    now_s: float
    request_id: int


class BatchEnded(NamedTuple):
    """A batch has its answer, or failed."""

    now_s: float
    batch: int


BatchEvent = RequestArrived | RequestLeft | BatchEnded | TimePassed


class FireBatch(NamedTuple):
    """Run these requests as one."""

    batch: int
    request_ids: tuple[int, ...]


class _Waiting(NamedTuple):
    sequence: int
    request_id: int
    group: Hashable
    rows: int
    arrived_s: float


class _Group:
    """Requests of one group that wait, by id in order of arrival."""

    def __init__(self) -> None:
        self.waiting: dict[int, _Waiting] = {}
        self.rows = 0

    @property
    def oldest(self) -> _Waiting:
        """The request that came first."""
        return next(iter(self.waiting.values()))

    def put(self, request: _Waiting) -> None:
        """Add a request behind the others."""
        self.waiting[request.request_id] = request
        self.rows += request.rows

    def take(self, request_id: int) -> _Waiting:
        """Take a request out."""
        request = self.waiting.pop(request_id)
        self.rows -= request.rows
        return request


class Batcher:
    """Requests that wait to be joined, and batches in flight."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._groups: dict[Hashable, _Group] = {}
        self._group_of: dict[int, Hashable] = {}
        self._in_flight: set[int] = set()
        self._num_arrived = 0
        self._num_fired = 0

    @property
    def num_in_flight(self) -> int:
        """Batches that were fired and have not ended."""
        return len(self._in_flight)

    @property
    def next_due_s(self) -> float | None:
        """When `TimePassed` is wanted next, or None."""
        if not self._groups or not self._has_room:
            return None
        oldest = min(group.oldest.arrived_s for group in self._groups.values())
        return oldest + self._batching.timeout_s

    def handle(self, event: BatchEvent) -> list[FireBatch]:
        """Take in one event; return the batches to run, in order."""
        match event:
            case RequestArrived():
                self._num_arrived += 1
                self._put(
                    _Waiting(
                        self._num_arrived,
                        event.request_id,
                        event.group,
                        event.rows,
                        event.now_s,
                    )
                )
            case RequestLeft():
                if event.request_id in self._group_of:
                    self._take(event.request_id)
            case BatchEnded():
                self._in_flight.remove(event.batch)
        fired: list[FireBatch] = []
        while self._has_room and (group := self._ready(event.now_s)) is not None:
            fired.append(self._fire(group))
        return fired

    @property
    def _has_room(self) -> bool:
        return len(self._in_flight) < self._batching.most

    def _ready(self, now_s: float) -> _Group | None:
        """Return the group whose batch is to be fired: of several, the one that waits longest."""
        batching = self._batching
        is_busy = len(self._in_flight) >= batching.busy
        ready = (
            group
            for group in self._groups.values()
            if not is_busy
            or group.rows >= batching.size
            or group.oldest.arrived_s + batching.timeout_s <= now_s
        )
        return min(ready, key=lambda group: group.oldest.sequence, default=None)

    def _fire(self, group: _Group) -> FireBatch:
        chosen: list[_Waiting] = []
        left = self._batching.size
        for request in list(group.waiting.values()):
            if chosen and request.rows > left:
                break
            left -= request.rows
            chosen.append(self._take(request.request_id))
        self._num_fired += 1
        self._in_flight.add(self._num_fired)
        return FireBatch(self._num_fired, tuple(request.request_id for request in chosen))

    def _put(self, request: _Waiting) -> None:
        self._group_of[request.request_id] = request.group
        self._groups.setdefault(request.group, _Group()).put(request)

    def _take(self, request_id: int) -> _Waiting:
        name = self._group_of.pop(request_id)
        group = self._groups[name]
        request = group.take(request_id)
        if not group.waiting:
            del self._groups[name]
        return request
