"""Dynamic batching: joins requests into batches and splits the results. No I/O.

A batch starts when it is full, when its oldest request has waited for the time-out, or at once
while the pipeline is not busy. Only requests of one group are joined, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from hetero.devices.errors import (
    ClusterError,
    DeviceLostError,
    InferenceError,
    OverloadedError,
    RequestCancelledError,
)
from hetero.devices.request.response import StageTiming
from hetero.scheduler.client.batch_rows import split_rows
from hetero.scheduler.client.error_messages import copy_error
from hetero.scheduler.types.events import AttemptFailed, CancelRequested, PartArrived
from hetero.scheduler.types.limits import Batching
from hetero.scheduler.types.request_record import RequestRecord

#: Errors that no input causes: running the requests of a batch one by one would not help.
_NOT_OF_THE_INPUTS: Final = (DeviceLostError, ClusterError, OverloadedError, RequestCancelledError)


@dataclass(slots=True)
class _Group:
    """Waiting requests of one group.

    `waiting`: the requests by id, in order of arrival, each with the start of its wait.
    `rows`: the number of their rows.
    """

    waiting: dict[int, tuple[RequestRecord, float]] = field(default_factory=dict)
    rows: int = 0

    @property
    def oldest(self) -> tuple[int, float]:
        """Id of the oldest request, and the start of its wait."""
        number, (_, since_s) = next(iter(self.waiting.items()))
        return number, since_s


@dataclass(slots=True, eq=False)
class _Batch:
    """An attempt of several requests.

    `key`: the id and the attempt of the first request.
    `num_wanted`: the number of requests that still wait for the result.
    """

    key: tuple[int, int]
    requests: list[RequestRecord]
    num_wanted: int
    outputs: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, StageTiming] = field(default_factory=dict)


class Batcher:
    """Queue of requests to be joined, and the batches in flight."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._groups: dict[Hashable, _Group] = {}
        #: Batches in flight, by key.
        self.in_flight: dict[tuple[int, int], _Batch] = {}

    def enqueue(self, request: RequestRecord, now_s: float) -> float:
        """Queue a request for a batch of its group; return the end of its wait."""
        since_s = now_s if request.admitted_s is None else request.admitted_s
        group = self._groups.setdefault(_group_key(request), _Group())
        group.waiting[request.id] = request, since_s
        group.rows += request.submitted.rows
        return since_s + self._batching.timeout_s

    def remove(self, request: RequestRecord) -> None:
        """Remove a request from the queue, if it waits there."""
        name = _group_key(request)
        group = self._groups.get(name)
        if group is not None and request.id in group.waiting:
            del group.waiting[request.id]
            group.rows -= request.submitted.rows
            if not group.waiting:
                del self._groups[name]

    def take_batch(self, now_s: float) -> list[RequestRecord]:
        """Remove and return the requests of the batch that starts now; empty if none does."""
        group = self._next_group(now_s) if self._has_room else None
        if group is None:
            return []
        batch: list[RequestRecord] = []
        free_rows = self._batching.size
        for request, _ in list(group.waiting.values()):
            if batch and request.submitted.rows > free_rows:
                break
            free_rows -= request.submitted.rows
            batch.append(request)
            self.remove(request)
        return batch

    @property
    def _has_room(self) -> bool:
        return len(self.in_flight) < self._batching.most

    def _next_group(self, now_s: float) -> _Group | None:
        """Return the group whose batch starts next: the one with the oldest request."""
        batching = self._batching
        is_busy = len(self.in_flight) >= batching.busy
        ready = (
            group
            for group in self._groups.values()
            if not is_busy
            or group.rows >= batching.size
            or group.oldest[1] + batching.timeout_s <= now_s
        )
        return min(ready, key=lambda group: group.oldest, default=None)

    # Batches in flight.

    def begin(self, requests: list[RequestRecord]) -> None:
        """Register a batch whose attempt has started."""
        first = requests[0]
        key = (first.id, first.attempt)
        batch = self.in_flight[key] = _Batch(key, requests, len(requests))
        for request in requests:
            request.batch = batch

    def withdraw(self, request: RequestRecord) -> bool:
        """Remove a request from its batch, if any; return whether no other request is left."""
        batch, request.batch = request.batch, None
        if batch is None:
            return True
        batch.num_wanted -= 1
        if batch.num_wanted:
            return False
        del self.in_flight[batch.key]
        return True

    def may_be_of_others(self, request: RequestRecord, error: BaseException) -> bool:
        """Return whether another request of the batch may have caused a request's error."""
        is_joined = request.batch is not None and len(request.batch.requests) > 1
        return is_joined and not isinstance(error, _NOT_OF_THE_INPUTS)

    def split_event(
        self,
        event: PartArrived | AttemptFailed | CancelRequested,
        is_whole: Callable[[int, int, int], bool],
    ) -> list[tuple[RequestRecord, PartArrived | AttemptFailed]] | None:
        """Split a batch's event into one event per request; None if there is only one request.

        `is_whole`: whether the given numbers of runs and outputs complete an attempt on a route.
        """
        if isinstance(event, CancelRequested):
            return None
        batch = self.in_flight.get((event.request_id, event.attempt))
        if batch is None or len(batch.requests) == 1:
            return None
        now_s, requests = event.now_s, batch.requests
        waiting = [(i, r) for i, r in enumerate(requests) if r.batch is batch]
        if isinstance(event, PartArrived):
            batch.outputs.update(event.outputs)
            batch.runs.update((run.stage, run) for run in event.runs)
            if not is_whole(requests[0].route, len(batch.runs), len(batch.outputs)):
                return []
            runs = tuple(batch.runs.values())
            nbytes = sum(run.output_nbytes for run in runs) // len(requests)
            try:
                parts = split_rows(batch.outputs, [r.submitted.rows for r in requests])
            except InferenceError as error:
                event = AttemptFailed(now_s, event.request_id, event.attempt, error)
            else:
                for _, request in waiting[1:]:
                    request.is_first = False
                return [
                    (r, PartArrived(now_s, r.id, r.attempt, parts[i], runs, nbytes))
                    for i, r in waiting
                ]
        return [
            (r, AttemptFailed(now_s, r.id, r.attempt, copy_error(event.error))) for _, r in waiting
        ]


def _group_key(request: RequestRecord) -> Hashable:
    """Return the key of a request's group."""
    group = request.submitted.group
    return (request.id,) if request.is_alone or group is None else group
