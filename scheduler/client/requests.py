"""The requests of a deployment by state: how many, which are next, when one is due. Pure.

`hetero.scheduler.client.machine` decides what state is next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from hetero.scheduler.client.batching import Batcher
from hetero.scheduler.client.bytes_in_flight import BytesInFlight
from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.client.lazy_heap import LazyHeap
from hetero.scheduler.client.transitions import ENDED
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.record import RequestRecord, RequestState, StoryLine

_S = RequestState
#: States in which a request counts as in flight.
_ADMITTED: Final = frozenset({_S.DIRECT, _S.JOINING, _S.RUNNING, _S.PARKED, _S.HELD})
#: States in which an attempt is awaited.
_ATTEMPTED: Final = frozenset({_S.DIRECT, _S.RUNNING})


class Suspects:
    """Requests that may be what ends devices: those that are parked, and the one that runs.

    What ends a device is among those that it had. Those with which devices ended twice are tried
    again one by one, so that the others are not taken for it; what ends one alone has failed.
    """

    def __init__(self) -> None:
        self.parked: OrderedDict[int, RequestRecord] = OrderedDict()
        self.running: RequestRecord | None = None

    def blame(self, request: RequestRecord) -> None:
        """Take note that a device has ended with a request on it."""
        request.num_failed += request.is_suspect
        request.num_lost += 1
        request.is_suspect = request.num_lost > 1
        self.moved(request)

    def moved(self, request: RequestRecord) -> None:
        """Take in a request's state."""
        if request.is_suspect and request.state is RequestState.PARKED:
            self.parked.setdefault(request.id, request)
        else:
            self.parked.pop(request.id, None)
        if request is self.running and request.state is not RequestState.RUNNING:
            self.running = None

    def due(self, now_s: float) -> Iterator[RequestRecord]:
        """Return those that may be tried now, if none runs."""
        if self.running is None:
            yield from (r for r in self.parked.values() if now_s >= r.resume_s)


class Requests:
    """Requests that have not ended, and those that have lately."""

    def __init__(self, limits: Limits, in_flight: BytesInFlight) -> None:
        self.limits = limits
        self._in_flight = in_flight
        #: Requests that have not ended, by id.
        self._live: dict[int, RequestRecord] = {}
        #: Requests that callers' threads run, by id.
        self._direct: dict[int, DirectRun] = {}
        #: Requests that have ended, oldest first; at most `limits.remembered`.
        self._ended: OrderedDict[int, RequestRecord | DirectRun] = OrderedDict()
        #: (-priority, id) of requests not yet admitted.
        self._waiting: LazyHeap[tuple[int, int]] = LazyHeap(
            lambda entry: self.state(entry[1]) in (_S.NEW, _S.WAITING)
        )
        #: (time, id): when something of a request is due.
        self.due: LazyHeap[tuple[float, int]] = LazyHeap(lambda entry: entry[1] in self._live)
        #: Admitted requests, the first first, where answers are to come so.
        self._order: OrderedDict[int, RequestRecord] = OrderedDict()
        #: Requests that wait for admission; that are admitted and have not ended.
        self.num_waiting = self.num_in_flight = 0
        self._suspects = Suspects()
        #: What requests are joined by, where they are, and how many may be in flight then.
        self.batcher = Batcher(limits.batching) if limits.batching else None
        self._most = limits.requests * (limits.batching.size if limits.batching else 1)

    @property
    def next_deadline_s(self) -> float | None:
        """When `TimePassed` is wanted next, or None."""
        first = self.due.first()
        return first[0] if first else None

    @property
    def waits_for_bytes(self) -> bool:
        """Whether requests wait that other deployments' requests may make room for."""
        return self.num_waiting > 0 and 0 < self.num_in_flight < self._most

    @property
    def nbytes_in_flight(self) -> int:
        """Bytes that admitted requests are counted for, of all machines that share the count."""
        return self._in_flight.nbytes

    def record(self, request_id: int) -> RequestRecord | None:
        """Return what is kept of a request; None for one unknown or forgotten."""
        if (request := self._live.get(request_id)) is not None:
            return request
        if (run := self._direct.get(request_id)) is not None:
            return run.record(self.limits)
        ended = self._ended.get(request_id)
        if isinstance(ended, DirectRun):
            ended = self._ended[request_id] = ended.record(self.limits)
        return ended

    def live(self) -> list[RequestRecord]:
        """Return what is kept of the requests that have not ended."""
        return [*self._live.values(), *(run.record(self.limits) for run in self._direct.values())]

    def state(self, request_id: int) -> RequestState | None:
        """Return a request's state; None for one unknown or forgotten."""
        request = self.record(request_id)
        return request.state if request else None

    def story(self, request_id: int) -> list[StoryLine]:
        """Return what happened to a request; empty for one unknown or forgotten."""
        request = self.record(request_id)
        return list(request.story) if request else []

    def _move(self, request: RequestRecord, after: RequestState, now_s: float) -> None:
        before, request.state = request.state, after
        if before is after:
            return
        if before is _S.JOINING and self.batcher is not None:
            self.batcher.leave(request)
        self.num_waiting += (after is _S.WAITING) - (before is _S.WAITING)
        if request.is_suspect:
            self._suspects.moved(request)
        admitted = (after in _ADMITTED) - (before in _ADMITTED)
        self.num_in_flight += admitted
        running = (after in _ATTEMPTED) - (before in _ATTEMPTED)
        if admitted or running:
            self._in_flight.add(admitted * request.nbytes, running)
        if admitted > 0:
            request.admitted_s = now_s
            if self.limits.in_order:
                self._order[request.id] = request
        if after in ENDED and before not in ENDED:
            request.ended_s = now_s
            # An error leads to all that its callers had on their stacks: their tensors too.
            request.outputs, request.runs, request.error = {}, {}, None
            del self._live[request.id]
            self._order.pop(request.id, None)
            self._ended[request.id] = request

    def _forget_ended(self) -> None:
        """Forget the oldest of the requests that have ended, if they are too many."""
        while len(self._ended) > self.limits.remembered:
            self._ended.popitem(last=False)

    def _take_due(self, now_s: float) -> list[RequestRecord]:
        """Return the requests of which something is due, which then is not."""
        due: dict[int, RequestRecord] = {}
        while (first := self.due.first()) and first[0] <= now_s:
            self.due.pop()
            due[first[1]] = self._live[first[1]]
        return list(due.values())
