"""The request runner: threads, futures and a clock around the client's machine.

Both executors' deployments are one; they say how an attempt starts and how it is dropped.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Protocol

from devices.plugin.program import Value
from devices.plugin.signal import LOOK_S
from devices.plugin.values import nbytes_of
from devices.request.answer import Answer, StageRun
from devices.request.promise import Promise
from devices.request.request import Request
from devices.request.run import LONGEST_S
from scheduler.client.bytes_in_flight import BytesInFlight
from scheduler.client.machine import ClientMachine
from scheduler.client.retry import RetryPolicy, never_retry
from scheduler.executor import Submission
from scheduler.processes.home_process import HomeProcess
from scheduler.vocabulary import events
from scheduler.vocabulary.events import ClientEvent, ClientInstruction
from scheduler.vocabulary.limits import Limits
from scheduler.vocabulary.placement import Route
from scheduler.vocabulary.record import RequestRecord, StoryLine

_log = logging.getLogger(__name__)


class Attempts(Protocol):
    """How attempts are made: what an executor gives."""

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Send an attempt on its way; its end comes back as an event."""

    def drop(self, request: Request) -> None:
        """Stop an attempt where it runs, forget it where it waits."""


class _Call:
    """A request's caller: what it brought, and what it waits on."""

    __slots__ = ("attempt", "future", "gate", "inputs", "is_granted", "request")

    def __init__(self, inputs: Mapping[str, Value], request: Request) -> None:
        self.inputs = inputs
        self.request = request
        self.future: Promise[Answer] = Promise()
        #: Whether it was admitted: its caller then starts the first attempt.
        self.is_granted = False
        #: The attempt that is wanted, if one is.
        self.attempt: Request | None = None
        #: Set once the request is admitted or ended, where its caller waits for that.
        self.gate: threading.Event | None = None


#: What an instruction asks for; it may lead to an event.
_Action = Callable[[], events.AttemptFailed | None]


class RequestRunner:
    """Runs requests of one deployment.

    `routes`: the ways of its requests, by their numbers.
    `deployment`: the key that its devices know it by, where it is theirs.
    `ids`: gives request ids, ascending; shared by all that share devices, whose queues they order.
    `in_flight`: bytes of all that share devices.
    `retry`: what follows a failed attempt.
    `ended`: called, in any thread and with a lock held, with each request that has ended and how
        the stages of its answer went.
    `clock`: returns monotonic seconds.
    """

    def __init__(
        self,
        limits: Limits,
        attempts: Attempts,
        *,
        routes: Sequence[Route],
        name: str,
        deployment: str = "",
        ids: Iterator[int],
        in_flight: BytesInFlight,
        retry: RetryPolicy = never_retry,
        ended: Callable[[RequestRecord, Sequence[StageRun]], None] = lambda record, runs: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine = ClientMachine(limits, routes, retry=retry, name=name, in_flight=in_flight)
        self._attempts = attempts
        self._ended = ended
        self._clock = clock
        self._ids = ids
        self._calls: dict[int, _Call] = {}
        self._lock = threading.Lock()
        #: Work for the thread below; None has it look at the deadlines again.
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wakes_s = float("inf")
        self._in_flight = in_flight
        #: Whether this runner is to hear of bytes that are given back.
        self._awaits_bytes = False
        self._closed = False
        self._name = name
        self._deployment = deployment
        self.home = HomeProcess()
        self._thread = threading.Thread(
            target=self._watch_deadlines, name=f"{name}-deadlines", daemon=True
        )
        self._thread.start()

    def submit(self, inputs: Mapping[str, Value], request: Request) -> Submission:
        """Admit a request, waiting for room; see `Deployment.submit`."""
        self.home.require(self._name)
        now_s = self._clock()
        limits = self._machine.limits
        timeout_s = limits.timeout_s if request.timeout_s is None else request.timeout_s
        deadline_s = now_s + min(timeout_s, LONGEST_S)
        request_id = next(self._ids)
        call = _Call(inputs, request)
        self._calls[request_id] = call
        submitted = events.Submitted(
            now_s, request_id, nbytes_of(inputs), deadline_s, request.waits, request.priority
        )
        try:
            self.handle(submitted)
            if not call.is_granted:
                self._wait_for_admission(call, deadline_s)
            waited_s = self._clock() - now_s
            if (first := call.attempt) and (failed := self._start(call, first)):
                self.handle(failed)
        except BaseException:  # Ctrl-C: nobody would ever start or await the request
            self.cancel(request_id)
            raise
        if not call.is_granted:
            # Ended before it was admitted: the caller hears of it here, and only here.
            error = call.future.exception()
            assert error is not None
            raise error
        return Submission(
            request_id,
            call.future,
            partial(self.cancel, request_id),
            waited_s,
            partial(self.story, request_id),
        )

    def _wait_for_admission(self, call: _Call, deadline_s: float) -> None:
        gate = threading.Event()
        with self._lock:
            call.gate = gate
        # Who ends or grants it looks for the gate after that.
        while not call.is_granted and not call.future.done():
            if not gate.wait(min(LOOK_S, max(0.0, deadline_s - self._clock()) + 0.001)):
                self.handle(events.TimePassed(self._clock()))

    def cancel(self, request_id: int) -> bool:
        """Cancel a request; True if it had not ended."""
        with self._lock:
            live = request_id in self._calls
        self.handle(events.CancelAsked(self._clock(), request_id))
        return live

    def story(self, request_id: int) -> list[StoryLine]:
        """Return a request's life."""
        with self._lock:
            return self._machine.story(request_id)

    def live(self) -> list[RequestRecord]:
        """Return the requests that have not ended, as they are; their owner goes on with them."""
        with self._lock:
            return [replace(record, story=record.story.copy()) for record in self._machine.live()]

    def counts(self) -> tuple[int, int]:
        """Return how many requests wait for admission, and how many are in flight."""
        with self._lock:
            return self._machine.num_waiting, self._machine.num_in_flight

    def is_current(self, request_id: int, attempt: int) -> bool:
        """Whether an attempt's answer is still waited for."""
        with self._lock:
            return self._machine.is_current(request_id, attempt)

    def now_s(self) -> float:
        """Return the time to put into events."""
        return self._clock()

    def handle(self, event: ClientEvent) -> None:
        """Give the machine an event and do what it asks for, in the calling thread."""
        todo = self._take(event)
        for action in todo:
            if failed := action():
                todo += self._take(failed)

    def _take(self, event: ClientEvent) -> list[_Action]:
        todo = []
        is_new_wait = False
        with self._lock:
            for instruction in self._machine.handle(event):
                if action := self._action(instruction):
                    todo.append(action)
            deadline_s = self._machine.earliest_s
            if deadline_s < self._wakes_s:
                self._wakes_s = deadline_s
                self._orders.put(None)
            if self._machine.waits_for_bytes and not self._awaits_bytes:
                self._awaits_bytes = is_new_wait = True
        if is_new_wait:
            self._in_flight.when_fewer(partial(self.later, self._look_for_room))
            # Some may have been given back since the machine looked.
            todo += self._take(events.TimePassed(self._clock()))
        return todo

    def _look_for_room(self) -> None:
        with self._lock:
            self._awaits_bytes = False
        self._look()

    def later(self, order: Callable[[], None]) -> None:
        """Have the runner's own thread do `order`; may be called anywhere, in finalizers too."""
        self._orders.put(order)

    def close(self) -> None:
        """Cancel what is in flight and take no more."""
        self.handle(events.Closed(self._clock()))
        with self._lock:
            self._closed = True
        self._orders.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _action(self, instruction: ClientInstruction) -> _Action | None:
        """Return what an instruction asks for, to be done outside the lock."""
        number = instruction.request_id
        if isinstance(instruction, events.StartAttempt):
            call = self._calls[number]
            call.attempt = started = call.request.admitted(
                self._deployment, number, instruction.attempt, instruction.route
            )
            if call.is_granted:
                return partial(self._start, call, started)
            # The caller starts its own first attempt: whoever made room for it has its own work
            # to do.
            call.is_granted = True
            if call.gate is not None:
                call.gate.set()
            return None
        if isinstance(instruction, events.DropAttempt):
            call = self._calls[number]
            dropped, call.attempt = call.attempt, None
            assert dropped is not None
            return partial(self._attempts.drop, dropped)
        call = self._calls.pop(number)
        call.attempt = None
        if isinstance(instruction, events.Fail):
            self._tell_end(number, ())
            return partial(_fail, call, instruction.error)
        self._tell_end(number, instruction.answer.stage_runs)
        deliver = partial(call.future.set_result, instruction.answer)
        if self._machine.limits.in_order:
            # By one thread, in the order of the machine's instructions.
            self._orders.put(deliver)
            return None
        return deliver

    def _tell_end(self, request_id: int, runs: Sequence[StageRun]) -> None:
        record = self._machine.record(request_id)
        assert record is not None
        self._ended(record, runs)

    def _start(self, call: _Call, request: Request) -> events.AttemptFailed | None:
        """Start an attempt that is still wanted; return how that failed."""
        if call.attempt is request:
            try:
                self._attempts.start(request, call.inputs)
            except Exception as error:  # whatever it is, the caller must hear of it
                return events.AttemptFailed(self._clock(), request.id, request.attempt, error)
        return None

    def _look(self) -> None:
        self.handle(events.TimePassed(self._clock()))

    def _watch_deadlines(self) -> None:
        while True:
            with self._lock:
                if self._closed and self._orders.empty():
                    return
                deadline_s, now_s = self._machine.next_deadline_s, self._clock()
                if deadline_s is not None or self._wakes_s <= now_s:
                    self._wakes_s = float("inf") if deadline_s is None else deadline_s
                # Else it sleeps as long as it was to: the next request need not wake it.
                left_s = max(0.0, self._wakes_s - now_s) if isfinite(self._wakes_s) else None
            try:
                order = self._orders.get(timeout=left_s)
            except queue.Empty:
                order = self._look
            try:
                if order is not None:
                    order()
            except Exception:  # what is due later is still done
                _log.exception("%s: what was due could not be done", self._name)


def _fail(call: _Call, error: BaseException) -> None:
    call.future.set_exception(error)
    if call.gate is not None:
        call.gate.set()
