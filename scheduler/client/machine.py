"""The client's machine: admission, attempts, deadlines, cancellation, answers. Pure.

::

    NEW ──> WAITING ──> RUNNING ──> ANSWERED | FAILED | CANCELLED | EXPIRED
     │         └──────────────────> FAILED | CANCELLED | EXPIRED
     └────> RUNNING | FAILED | EXPIRED

A request is admitted in order of arrival while there is room for its count and its bytes. Each
attempt has a number; what an attempt says after its request ended, or after a later attempt
began, is dropped. A caller hears of each request exactly once: `Deliver` or `Fail`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    HeteroError,
    OverloadedError,
    RequestCancelledError,
)
from scheduler import events
from scheduler.client.bytes_in_flight import BytesInFlight
from scheduler.events import ClientEvent, ClientInstruction


class RequestState(Enum):
    """Where a request is in its life."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    ANSWERED = "answered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


#: What the most that requests of a size have made shrinks to with each later one.
_FADING: Final = 7 / 8

_ENDED: Final = frozenset(
    {
        RequestState.ANSWERED,
        RequestState.FAILED,
        RequestState.CANCELLED,
        RequestState.EXPIRED,
    }
)


class StoryLine(NamedTuple):
    """One line of a request's life.

    Attributes
    ----------
    time_s : float
        When, by the client's monotonic clock.
    attempt : int
        Which attempt; 0 before the first.
    what : str
        What happened.
    """

    time_s: float
    attempt: int
    what: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a deployment's queues.

    Attributes
    ----------
    requests : int
        Requests in flight at once, >= 1.
    nbytes : int
        Bytes in flight, of all deployments of the executor, at which requests wait: of inputs
        and of what stages are expected to make. One request of the deployment may exceed it.
    waiting : int
        Callers that may wait for admission.
    timeout_s : float
        Seconds until a request without a deadline of its own expires.
    remembered : int
        Ended requests whose story is kept.
    """

    requests: int = 32
    nbytes: int = 2**30
    waiting: int = 1024
    timeout_s: float = 600.0
    remembered: int = 1024


class InvalidTransitionError(RuntimeError):
    """An event that cannot be in the request's state: a fault of whoever runs the machine."""


@dataclass(slots=True)
class _Request:
    id: int
    input_nbytes: int
    deadline_s: float
    #: What it is counted for once it runs: its inputs, and what its stages may make.
    nbytes: int = 0
    state: RequestState = RequestState.NEW
    attempt: int = 0
    story: list[StoryLine] = field(default_factory=list)


class _Transition(NamedTuple):
    handler: str
    to: frozenset[RequestState]


def _row(handler: str, *to: RequestState) -> _Transition:
    return _Transition(handler, frozenset(to))


_S = RequestState
#: Every legal (state, event), its handler, and the states that it may lead to.
TRANSITIONS: Final[dict[tuple[RequestState, type], _Transition]] = {
    (_S.NEW, events.Submitted): _row("_admit", _S.WAITING, _S.RUNNING, _S.FAILED, _S.EXPIRED),
    (_S.WAITING, events.CancelAsked): _row("_cancel", _S.CANCELLED),
    (_S.WAITING, events.TimePassed): _row("_expire", _S.EXPIRED),
    (_S.WAITING, events.DeviceLost): _row("_lose", _S.FAILED),
    (_S.WAITING, events.ClusterLost): _row("_lose", _S.FAILED),
    (_S.WAITING, events.Closed): _row("_cancel", _S.CANCELLED),
    (_S.RUNNING, events.AttemptAnswered): _row("_answer", _S.ANSWERED, _S.RUNNING),
    (_S.RUNNING, events.AttemptFailed): _row("_fail", _S.FAILED, _S.RUNNING),
    (_S.RUNNING, events.CancelAsked): _row("_cancel", _S.CANCELLED),
    (_S.RUNNING, events.TimePassed): _row("_expire", _S.EXPIRED),
    (_S.RUNNING, events.DeviceLost): _row("_lose", _S.FAILED, _S.RUNNING),
    (_S.RUNNING, events.ClusterLost): _row("_lose", _S.FAILED, _S.RUNNING),
    (_S.RUNNING, events.Closed): _row("_cancel", _S.CANCELLED),
} | {
    (ended, late): _row("_drop_late", ended)
    for ended in sorted(_ENDED, key=lambda s: s.value)
    for late in (events.AttemptAnswered, events.AttemptFailed, events.CancelAsked)
}

#: Whether a failed attempt is to be made again: error, number of the failed attempt -> yes.
RetryPolicy = Callable[[BaseException, int], bool]


def never_retry(error: BaseException, attempt: int) -> bool:
    """Give every failure to the caller."""
    return False


class ClientMachine:
    """Requests of one deployment.

    `retry`: which failures are followed by another attempt.
    `in_flight`: the executor's count; one of its own by default.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        retry: RetryPolicy = never_retry,
        name: str = "",
        in_flight: BytesInFlight | None = None,
    ) -> None:
        self.limits = limits
        self._in_flight = in_flight or BytesInFlight()
        self._retry = retry
        self._name = name
        #: Requests that have not ended, by id.
        self._live: dict[int, _Request] = {}
        #: Requests that have, oldest first; at most `limits.remembered`.
        self._ended: OrderedDict[int, _Request] = OrderedDict()
        #: Requests not yet admitted, in order of arrival; may hold ended ones.
        self._waiting: deque[_Request] = deque()
        self._num_waiting = 0
        self._num_running = 0
        #: Number of bits of a request's input bytes -> about the most that the stages of one made.
        self._made_nbytes: dict[int, int] = {}
        #: (deadline, id) of live requests; may hold ended ones.
        self._deadlines: list[tuple[float, int]] = []
        #: What was lost, by device; the whole cluster has no name.
        self._lost: dict[str, events.DeviceLost | events.ClusterLost] = {}
        self._closed = False

    @property
    def next_deadline_s(self) -> float | None:
        """When `TimePassed` is wanted next, or None."""
        while self._deadlines and self._deadlines[0][1] not in self._live:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def num_in_flight(self) -> int:
        """Requests that run."""
        return self._num_running

    @property
    def num_waiting(self) -> int:
        """Requests that wait for admission."""
        return self._num_waiting

    @property
    def nbytes_in_flight(self) -> int:
        """Bytes that running requests are counted for, of all machines that share the count."""
        return self._in_flight.nbytes

    def state(self, request_id: int) -> RequestState | None:
        """Return a request's state; None for one unknown or forgotten."""
        request = self._live.get(request_id) or self._ended.get(request_id)
        return request.state if request else None

    def is_current(self, request_id: int, attempt: int) -> bool:
        """Whether an attempt's answer is still waited for."""
        request = self._live.get(request_id)
        return bool(request and request.state is _S.RUNNING and request.attempt == attempt)

    def story(self, request_id: int) -> list[StoryLine]:
        """Return what happened to a request; empty for one unknown or forgotten."""
        request = self._live.get(request_id) or self._ended.get(request_id)
        return list(request.story) if request else []

    def handle(self, event: ClientEvent) -> list[ClientInstruction]:
        """Take in one event; return what is to be done, in order.

        Raises InvalidTransitionError: the event cannot be in the request's state.
        """
        instructions: list[ClientInstruction] = []
        match event:
            case events.TimePassed():
                for request in self._due(event.now_s):
                    instructions += self._step(request, event)
            case events.DeviceLost() | events.ClusterLost():
                self._lost[event.device if isinstance(event, events.DeviceLost) else ""] = event
                for request in list(self._live.values()):
                    instructions += self._step(request, event)
            case events.Closed():
                self._closed = True
                for request in list(self._live.values()):
                    instructions += self._step(request, event)
            case events.DeviceReturned():
                self._lost.pop(event.device, None)
            case events.Submitted():
                if event.request_id in self._live or event.request_id in self._ended:
                    raise InvalidTransitionError(f"request {event.request_id} submitted twice")
                request = _Request(event.request_id, event.nbytes, event.deadline_s)
                self._live[request.id] = request
                instructions += self._step(request, event)
            case _:
                known = self._live.get(event.request_id) or self._ended.get(event.request_id)
                if known:
                    instructions += self._step(known, event)
        return instructions + self._admit_waiting(event.now_s)

    def _step(self, request: _Request, event: ClientEvent) -> list[ClientInstruction]:
        before = request.state
        row = TRANSITIONS.get((before, type(event)))
        if row is None:
            raise InvalidTransitionError(
                f"{type(event).__name__} while {before.value}; story: {request.story}"
            )
        after, instructions = getattr(self, row.handler)(request, event)
        if after not in row.to:
            raise InvalidTransitionError(f"{row.handler} led from {before} to {after}")
        self._move(request, after)
        return list(instructions)

    def _move(self, request: _Request, after: RequestState) -> None:
        before, request.state = request.state, after
        self._num_waiting += (after is _S.WAITING) - (before is _S.WAITING)
        running = (after is _S.RUNNING) - (before is _S.RUNNING)
        self._num_running += running
        if running:
            self._in_flight.add(running * request.nbytes)
        if after in _ENDED and before not in _ENDED:
            del self._live[request.id]
            self._ended[request.id] = request
            while len(self._ended) > self.limits.remembered:
                self._ended.popitem(last=False)

    def _due(self, now_s: float) -> list[_Request]:
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, request_id = heapq.heappop(self._deadlines)
            if request_id in self._live:
                due.append(self._live[request_id])
        return due

    def _has_room(self, request: _Request) -> bool:
        if self._num_running >= self.limits.requests:
            return False
        request.nbytes = request.input_nbytes + self._expected_nbytes(request.input_nbytes)
        if not self._num_running:
            return True
        return self._in_flight.nbytes + request.nbytes <= self.limits.nbytes

    def _expected_nbytes(self, input_nbytes: int) -> int:
        """Return what stages may make of so much: as of the nearest size seen, up to this one."""
        bits = input_nbytes.bit_length()
        if bits in self._made_nbytes:
            return self._made_nbytes[bits]
        smaller = [seen for seen in self._made_nbytes if seen < bits]
        return self._made_nbytes[max(smaller)] if smaller else 0

    def _admit_waiting(self, now_s: float) -> list[ClientInstruction]:
        started: list[ClientInstruction] = []
        while self._waiting:
            request = self._waiting[0]
            if request.state is not _S.WAITING:
                self._waiting.popleft()
                continue
            if not self._has_room(request):
                break
            self._waiting.popleft()
            started += self._start(request, now_s)
            self._move(request, _S.RUNNING)
        return started

    def _start(self, request: _Request, now_s: float) -> list[ClientInstruction]:
        request.attempt += 1
        _note(request, now_s, "started")
        return [events.StartAttempt(request.id, request.attempt)]

    # Handlers of the table: (request, event) -> (next state, instructions).

    def _admit(
        self, request: _Request, event: events.Submitted
    ) -> tuple[RequestState, list[ClientInstruction]]:
        _note(request, event.now_s, f"submitted with {event.nbytes} bytes")
        if self._closed:
            error: BaseException = RequestCancelledError(
                f"{self._name}: closed; compile the model again.", request_id=request.id
            )
            return self._refuse(request, event.now_s, error)
        if self._lost:
            lost = self._lost.get("") or next(iter(self._lost.values()))
            return self._refuse(request, event.now_s, self._lost_error(request, lost))
        if event.deadline_s <= event.now_s:
            return self._expire(request, event)
        if not self._num_waiting and self._has_room(request):
            heapq.heappush(self._deadlines, (request.deadline_s, request.id))
            return _S.RUNNING, self._start(request, event.now_s)
        full = (
            f"{self._name}: {self._num_running} of {self.limits.requests} requests and "
            f"{self.nbytes_in_flight} of {self.limits.nbytes} bytes are in flight"
        )
        if not event.waits or self._num_waiting >= self.limits.waiting:
            return self._refuse(
                request,
                event.now_s,
                OverloadedError(
                    f"{full}, and {self._num_waiting} of {self.limits.waiting} callers wait. "
                    "Wait for answers, have the request wait, or raise MAX_REQUESTS_IN_FLIGHT, "
                    "MAX_BYTES_IN_FLIGHT or MAX_REQUESTS_WAITING.",
                    request_id=request.id,
                ),
            )
        heapq.heappush(self._deadlines, (request.deadline_s, request.id))
        self._waiting.append(request)
        _note(request, event.now_s, f"waits: {full}")
        return _S.WAITING, []

    def _refuse(
        self, request: _Request, now_s: float, error: BaseException
    ) -> tuple[RequestState, list[ClientInstruction]]:
        _note(request, now_s, f"refused: {error}")
        return _S.FAILED, [events.Fail(request.id, error)]

    def _answer(
        self, request: _Request, event: events.AttemptAnswered
    ) -> tuple[RequestState, list[ClientInstruction]]:
        if event.attempt != request.attempt:
            _note(request, event.now_s, f"late answer of attempt {event.attempt} dropped")
            return _S.RUNNING, []
        bits = request.input_nbytes.bit_length()
        faded = int(self._made_nbytes.get(bits, 0) * _FADING)
        self._made_nbytes[bits] = max(event.nbytes, faded)
        _note(request, event.now_s, "answered")
        return _S.ANSWERED, [events.Deliver(request.id, event.answer)]

    def _fail(
        self, request: _Request, event: events.AttemptFailed
    ) -> tuple[RequestState, list[ClientInstruction]]:
        if event.attempt != request.attempt:
            _note(request, event.now_s, f"late failure of attempt {event.attempt} dropped")
            return _S.RUNNING, []
        return self._end_attempt(request, event.now_s, event.error)

    def _lose(
        self, request: _Request, event: events.DeviceLost | events.ClusterLost
    ) -> tuple[RequestState, list[ClientInstruction]]:
        error = self._lost_error(request, event)
        if request.state is _S.WAITING:
            return self._refuse(request, event.now_s, error)
        return self._end_attempt(request, event.now_s, error)

    def _end_attempt(
        self, request: _Request, now_s: float, error: BaseException
    ) -> tuple[RequestState, list[ClientInstruction]]:
        drop = events.DropAttempt(request.id, request.attempt)
        _note(request, now_s, f"failed: {error}")
        if self._retry(error, request.attempt):
            return _S.RUNNING, [drop, *self._start(request, now_s)]
        return _S.FAILED, [drop, events.Fail(request.id, error)]

    def _cancel(
        self, request: _Request, event: events.CancelAsked | events.Closed
    ) -> tuple[RequestState, list[ClientInstruction]]:
        closed = isinstance(event, events.Closed)
        why = f"{self._name}: closed with the request in flight" if closed else "cancelled"
        _note(request, event.now_s, why)
        error = RequestCancelledError(
            f"request {request.id}, attempt {request.attempt}: {why}.", request_id=request.id
        )
        return _S.CANCELLED, self._end(request, error)

    def _expire(
        self, request: _Request, event: events.TimePassed | events.Submitted
    ) -> tuple[RequestState, list[ClientInstruction]]:
        waited = event.now_s - request.story[0].time_s
        where = "in flight" if request.state is _S.RUNNING else "waiting for admission"
        _note(request, event.now_s, f"expired while {where}")
        error = DeadlineError(
            f"request {request.id}, attempt {request.attempt}: no answer after {waited:.3f} s "
            f"({where}). Allow more time, or send fewer requests at once.",
            request_id=request.id,
            attempt=request.attempt,
        )
        return _S.EXPIRED, self._end(request, error)

    def _end(self, request: _Request, error: BaseException) -> list[ClientInstruction]:
        drop: list[ClientInstruction] = []
        if request.state is _S.RUNNING:
            drop.append(events.DropAttempt(request.id, request.attempt))
        return [*drop, events.Fail(request.id, error)]

    def _drop_late(
        self,
        request: _Request,
        event: events.AttemptAnswered | events.AttemptFailed | events.CancelAsked,
    ) -> tuple[RequestState, list[ClientInstruction]]:
        _note(request, event.now_s, f"{type(event).__name__} came late and was dropped")
        return request.state, []

    def _lost_error(
        self, request: _Request, event: events.DeviceLost | events.ClusterLost
    ) -> HeteroError:
        attempt = f", attempt {request.attempt}" if request.attempt else ""
        if isinstance(event, events.ClusterLost):
            error = event.error
            return ClusterError(f"request {request.id}{attempt}: {error.message}", **error.data)
        return DeviceLostError(
            f"request {request.id}{attempt}: device {event.device} on node {event.node} is gone: "
            f"{event.cause}. Compile the model again; a device whose node is alive is "
            "restarted.",
            device=event.device,
            node=event.node,
            attempt=request.attempt,
            request_id=request.id,
        )


def _note(request: _Request, now_s: float, what: str) -> None:
    request.story.append(StoryLine(now_s, request.attempt, what))
