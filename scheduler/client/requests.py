"""Requests of a deployment: state counts, queues, deadlines and quarantine. No I/O.

`hetero.scheduler.client.state_machine` decides the state transitions.
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
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.request_record import RequestRecord, RequestState, StoryLine

_S = RequestState
#: States in which a request counts as in flight.
ADMITTED: Final = frozenset({_S.DIRECT, _S.JOINING, _S.RUNNING, _S.PARKED, _S.AWAITING_TURN})
#: States in which an attempt runs.
_ATTEMPTED: Final = frozenset({_S.DIRECT, _S.RUNNING})


class Quarantine:
    """Quarantine of suspected poison requests, which may crash the devices that run them.

    When a device crashes, each request on it is a possible cause. A request that was on crashed
    devices twice is parked and runs alone, so that its next crash counts against no other request.
    A request that crashes a device while it runs alone counts as failed.
    """

    def __init__(self) -> None:
        self.parked: OrderedDict[int, RequestRecord] = OrderedDict()
        self.running: RequestRecord | None = None

    def count_crash(self, request: RequestRecord) -> None:
        """Count a device crash against a request that the device ran."""
        request.num_failed += request.is_quarantined
        request.num_lost += 1
        request.is_quarantined = request.num_lost > 1
        self.update(request)

    def update(self, request: RequestRecord) -> None:
        """Update the quarantine after a state change of a request."""
        if request.is_quarantined and request.state is RequestState.PARKED:
            self.parked.setdefault(request.id, request)
        else:
            self.parked.pop(request.id, None)
        if request is self.running and request.state is not RequestState.RUNNING:
            self.running = None

    def due_requests(self, now_s: float) -> Iterator[RequestRecord]:
        """Yield the parked requests that may run now, unless one is running."""
        if self.running is None:
            yield from (r for r in self.parked.values() if now_s >= r.resume_s)


class Requests:
    """Requests of a deployment: the live ones and the last ones that ended."""

    def __init__(self, limits: Limits, in_flight: BytesInFlight) -> None:
        self.limits = limits
        self._in_flight = in_flight
        #: Live requests, by id.
        self._live: dict[int, RequestRecord] = {}
        #: Requests without a record, by id, in the order of their admission.
        self._direct: dict[int, DirectRun] = {}
        #: Ended requests, oldest first; at most `limits.remembered`.
        self._ended: OrderedDict[int, RequestRecord | DirectRun] = OrderedDict()
        #: (-priority, id) of requests that wait for admission.
        self._waiting: LazyHeap[tuple[int, int]] = LazyHeap(
            lambda entry: self.state(entry[1]) in (_S.NEW, _S.WAITING)
        )
        #: (time, id) of requests with a deadline or a planned retry.
        self.due: LazyHeap[tuple[float, int]] = LazyHeap(lambda entry: entry[1] in self._live)
        #: Admitted requests in order, if results are delivered in order.
        self._order: OrderedDict[int, RequestRecord] = OrderedDict()
        #: Numbers of requests that wait for admission, and that are in flight.
        self.num_waiting = self.num_in_flight = 0
        self._quarantine = Quarantine()
        #: Dynamic batching, if enabled, and the maximum number of requests in flight.
        self.batcher = Batcher(limits.batching) if limits.batching else None
        self._max_in_flight = limits.requests * (limits.batching.size if limits.batching else 1)

    @property
    def next_deadline_s(self) -> float | None:
        """Time at which the machine needs the next `TimePassed`, or None."""
        first = self.due.first()
        sent_s = self._first_sent_s
        if first is None or (sent_s is not None and sent_s < first[0]):
            return sent_s
        return first[0]

    @property
    def _first_sent_s(self) -> float | None:
        """Deadline of the first request that devices run without a record."""
        for run in self._direct.values():  # all have the same time limit: the first ends first
            if run.is_sent:
                return self.limits.deadline_s(run.begun_s, None)
        return None

    @property
    def waits_for_bytes(self) -> bool:
        """Whether requests wait for bytes that other deployments may release."""
        return self.num_waiting > 0 and 0 < self.num_in_flight < self._max_in_flight

    @property
    def nbytes_in_flight(self) -> int:
        """Bytes of admitted requests, over all deployments that share the counter."""
        return self._in_flight.nbytes

    def record(self, request_id: int) -> RequestRecord | None:
        """Return the record of a request; None if it is unknown or was dropped."""
        if (request := self._live.get(request_id)) is not None:
            return request
        if (run := self._direct.get(request_id)) is not None:
            return run.record(self.limits)
        record = self._ended.get(request_id)
        if isinstance(record, DirectRun):
            record = self._ended[request_id] = record.record(self.limits)
        return record

    def live_records(self) -> list[RequestRecord]:
        """Return the records of the live requests."""
        return [*self._live.values(), *(run.record(self.limits) for run in self._direct.values())]

    def state(self, request_id: int) -> RequestState | None:
        """Return the state of a request; None if it is unknown or was dropped."""
        request = self.record(request_id)
        return request.state if request else None

    def story(self, request_id: int) -> list[StoryLine]:
        """Return the history of a request; empty if it is unknown or was dropped."""
        request = self.record(request_id)
        return list(request.story) if request else []

    def _move(self, request: RequestRecord, after: RequestState, now_s: float) -> None:
        before, request.state = request.state, after
        if before is after:
            return
        if before is _S.JOINING and self.batcher is not None:
            self.batcher.remove(request)
        self.num_waiting += (after is _S.WAITING) - (before is _S.WAITING)
        if request.is_quarantined:
            self._quarantine.update(request)
        admitted = (after in ADMITTED) - (before in ADMITTED)
        self.num_in_flight += admitted
        nbytes = request.nbytes if after in ADMITTED else 0
        self._in_flight.count(request, nbytes, int(after in _ATTEMPTED))
        if admitted > 0:
            request.admitted_s = now_s
            if self.limits.in_order:
                self._order[request.id] = request
        if after in ENDED and before not in ENDED:
            request.ended_s = now_s
            # An error refers to the stack frames of its callers, and thereby to their tensors.
            request.outputs, request.runs, request.error = {}, {}, None
            del self._live[request.id]
            self._order.pop(request.id, None)
            self._ended[request.id] = request

    def _forget_ended(self) -> None:
        """Drop the oldest ended requests beyond the limit."""
        while len(self._ended) > self.limits.remembered:
            self._ended.popitem(last=False)

    def _take_due(self, now_s: float) -> list[RequestRecord]:
        """Remove and return the requests that are due."""
        due: dict[int, RequestRecord] = {}
        while (first := self.due.first()) and first[0] <= now_s:
            self.due.pop()
            due[first[1]] = self._live[first[1]]
        return list(due.values())
