"""Request runner: drives the client's state machine with threads, futures and a clock.

The deployments of both executors use it; they implement the start and the end of attempts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from hetero.devices.errors import HeteroError
from hetero.devices.plugin.one_shot_event import WAIT_SLICE_S
from hetero.devices.plugin.program import Value, nbytes_of
from hetero.devices.request.promise import Promise
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response, StageTiming
from hetero.scheduler.client.batch_rows import join_rows, rows_of
from hetero.scheduler.client.bytes_in_flight import BytesInFlight
from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.client.outbox import Outbox
from hetero.scheduler.client.state_machine import ClientMachine
from hetero.scheduler.clock import Clock
from hetero.scheduler.processes.home_process import HomeProcess
from hetero.scheduler.types import events
from hetero.scheduler.types.events import ClientEvent, ClientInstruction
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.request_record import RequestRecord, RequestState, StoryLine


class Attempts(Protocol):
    """Interface for executing attempts, which each executor implements."""

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Start an attempt; its end is reported as an event.

        An attempt that was dropped or started before is ignored.
        """

    def drop(self, request: Request) -> None:
        """Cancel an attempt on the devices that run it or queue it."""

    def pending_outputs(self, request: Request, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return references to the resident outputs that an attempt will produce."""

    def answer(
        self,
        request: Request,
        inputs: Mapping[str, Value],
        made: Mapping[str, Value],
        runs: tuple[StageTiming, ...],
    ) -> Response:
        """Build the response from the outputs of an attempt's stages."""


class Submission:
    """Submitted request: its inputs, its future and its present attempt.

    `waited_s`: seconds until admission.
    """

    __slots__ = (
        "_pending_outputs",
        "_runner",
        "attempt",
        "first",
        "future",
        "gate",
        "inputs",
        "is_granted",
        "request",
        "request_id",
        "waited_s",
    )

    def __init__(
        self, runner: RequestRunner, request_id: int, inputs: Mapping[str, Value], request: Request
    ) -> None:
        self._runner = runner
        self.request_id = request_id
        #: The inputs; released at the end of the request, which this object may outlive.
        self.inputs = inputs
        self.request = request
        self.future: Promise[Response] = Promise()
        self.waited_s = 0.0
        #: Whether it was admitted, and the first attempt if the caller's thread starts it.
        self.is_granted = False
        self.first: Request | None = None
        #: The present attempt, if any.
        self.attempt: Request | None = None
        #: Event of admission or end, if the caller waits for it.
        self.gate: threading.Event | None = None
        #: References to future resident outputs, which prevent freeing them before the end.
        self._pending_outputs: dict[str, Value] = {}

    def grant(self) -> None:
        """Mark the request as admitted and wake its caller."""
        self.is_granted = True
        if self.gate is not None:
            self.gate.set()

    def end(self) -> None:
        """Release the inputs."""
        self.inputs, self._pending_outputs = {}, {}

    def cancel(self) -> bool:
        """Cancel the request; return whether its future ends with RequestCancelledError."""
        return self._runner.cancel(self.request_id)

    @property
    def story(self) -> Callable[[], list[StoryLine]]:
        """Function that returns the history of the request; it retains no tensors."""
        return partial(self._runner.story, self.request_id)

    def pending_outputs(self) -> dict[str, Value]:
        """Return references to future resident outputs, by name.

        The result is empty unless the first attempt is running.
        """
        attempt = self.attempt
        if attempt is None or attempt.attempt > 1:
            return {}
        made = self._pending_outputs = self._runner.attempts.pending_outputs(attempt, self.inputs)
        if self.attempt is not attempt:  # it has ended: its outputs may be freed already
            made = self._pending_outputs = {}
        return made


class RequestRunner:
    """Runner of the requests of one deployment.

    `deployment`: the deployment's key on its devices.
    `ids`: yields ascending request ids. Deployments on the same devices share it, because the ids
        order the devices' queues.
    `in_flight`: counter of bytes in flight, shared by deployments on the same devices.
    `observers`: the observers that `ended` notifies at present.
    `ended`: called with each ended request and its stage timings, before the caller's future is
        resolved.
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
        clock: Clock,
        ended: Callable[[RequestRecord, Sequence[StageTiming]], None] = lambda record, runs: None,
        observers: Sequence[object] = (),
    ) -> None:
        #: The request program also uses the machine, with the lock: for most requests, they are all
        #: that it needs of this object.
        self.machine = ClientMachine(limits, routes, name=name, in_flight=in_flight)
        #: Guards the machine, the counter and the calls; never held during I/O. Deployments on the
        #: same devices share it.
        self.lock = in_flight.lock
        self.attempts = attempts
        self._ended = ended
        self.observers = observers
        self.now_s = clock.now_s
        self._clock = clock
        self.ids = ids
        self._calls: dict[int, Submission] = {}
        self._outbox = Outbox(clock.call_soon)
        self._timer = clock.timer(self._check_time)
        self._in_flight = in_flight
        #: Whether a callback for the next release of bytes is registered.
        self._awaits_bytes = False
        self._name = name
        self._deployment = deployment
        self.home_process = HomeProcess()

    def submit(
        self,
        inputs: Mapping[str, Value],
        request: Request,
        preferred_devices: frozenset[str] = frozenset(),
    ) -> Submission:
        """Admit a request, waiting for admission if it permits; see `Deployment.submit`.

        `preferred_devices`: devices that hold some of its inputs.
        """
        self.home_process.require(self._name)
        now_s = self.now_s()
        limits = self.machine.limits
        deadline_s = limits.deadline_s(now_s, request.timeout_s)
        request_id = next(self.ids)
        call = Submission(self, request_id, inputs, request)
        submitted = events.Submitted(
            now_s,
            request_id,
            nbytes_of(inputs),
            deadline_s,
            request.waits,
            request.priority,
            preferred_devices,
            request.trace,
        )
        if limits.batching:
            submitted.group, submitted.rows = (
                (None, 0) if request.resident_outputs else rows_of(inputs)
            )
            if submitted.group is None:  # it forms a batch by itself, and does not wait for others
                submitted.rows = limits.batching.size
        try:
            self._calls[request_id] = call
            self.handle(submitted)
            if not call.is_granted and request.waits is None:
                with self.lock:  # its future reports a later failure
                    call.is_granted = call.is_granted or not call.future.done()
            elif not call.is_granted:
                self._wait_for_admission(call, deadline_s)
                call.waited_s = self.now_s() - now_s
            if call.first:
                self._start((call,), call.first)
        except BaseException:  # Ctrl-C: no thread would start or await the request
            self._recover(request_id)
            raise
        if not call.is_granted:
            # It failed before admission: the caller receives the error only here.
            error = call.future.exception()
            assert error is not None
            try:
                raise error
            finally:  # otherwise the error refers to itself, and its traceback to the inputs
                del call, error
        return call

    def observe(self, request_id: int, timings: Sequence[StageTiming]) -> None:
        """Notify the observers of a request that ended without a record."""
        with self.lock:
            record = self.machine.record(request_id)
        if record is not None:
            self._ended(record, timings)

    def submit_direct(self, run: DirectRun, inputs: Mapping[str, Value]) -> Submission | None:
        """Admit and send a request without a record; None if it has to be submitted.

        If this raises, the caller has to abandon the request.
        """
        self.home_process.require(self._name)
        call = Submission(self, 0, inputs, run.request)
        call.is_granted = True
        with self.lock:
            if not self.machine.begin_direct(run, self.ids):
                return None
            call.request_id = run.request_id
            call.attempt = self.attempt_of(run)
            self._calls[run.request_id] = call
            deadline_s = self.machine.limits.deadline_s(run.begun_s, None)
            if deadline_s < self._timer.due_s:
                self._timer.make_due_by(deadline_s)
        self._start((call,), call.attempt)
        return call

    def end_sent(
        self,
        request_id: int,
        attempt: int,
        outputs: Mapping[str, Value],
        timings: Sequence[StageTiming],
    ) -> bool:
        """Complete a request without a record; False if the machine has to adopt it, or has."""
        now_s = self.now_s()
        with self.lock:
            made_nbytes = 0
            for timing in timings:
                made_nbytes += timing.output_nbytes
            if not self.machine.end_sent(
                request_id, attempt, now_s, made_nbytes, len(timings), len(outputs)
            ):
                return False
            call = self._calls.pop(request_id)
            request, call.attempt = call.attempt, None
            is_awaited = self.machine.num_waiting
        assert request is not None
        if self.observers:
            self.observe(request_id, timings)
        try:
            response = self.attempts.answer(request, call.inputs, outputs, tuple(sorted(timings)))
        except Exception as error:  # a bug, or no memory: report it to the caller
            call.end()
            call.future.set_exception(error)
        else:
            call.end()
            call.future.set_result(response)
        if is_awaited:
            self.handle(events.TimePassed(now_s))  # admits waiting requests
        return True

    def attempt_of(self, run: DirectRun) -> Request:
        """Return the record of the only attempt of a direct run."""
        return run.request.for_attempt(self._deployment, run.request_id, 1, run.route)

    def adopt(
        self,
        run: DirectRun,
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
        stage_runs: Sequence[StageTiming],
    ) -> Submission:
        """Hand a direct run over to the machine as a running attempt, with its results so far."""
        request_id = run.request_id
        call = self._calls[request_id] = Submission(self, request_id, inputs, run.request)
        call.is_granted = True
        call.attempt = self.attempt_of(run)
        self.handle(events.Adopted(self.now_s(), request_id, outputs, stage_runs))
        return call

    def abandon(self, run: DirectRun, inputs: Mapping[str, Value]) -> None:
        """Cancel a direct run that Ctrl-C interrupted, in any state."""
        if run.is_admitted:
            self.adopt(run, inputs, {}, ())
        self._recover(run.request_id)

    def _recover(self, request_id: int) -> None:
        """Cancel a request whose thread Ctrl-C interrupted."""
        with self.lock:
            self.machine.recover()
            if self.machine.state(request_id) is None:
                self._calls.pop(request_id, None)
        self.cancel(request_id)

    def _wait_for_admission(self, call: Submission, deadline_s: float) -> None:
        gate = self._clock.event()
        with self.lock:
            call.gate = gate
        # Threads that end or admit the request read the gate after setting its state.
        while not call.is_granted and not call.future.done():
            if not gate.wait(min(WAIT_SLICE_S, max(0.0, deadline_s - self.now_s()) + 0.001)):
                self.handle(events.TimePassed(self.now_s()))

    def cancel(self, request_id: int) -> bool:
        """Cancel a request; return whether it was live."""
        with self.lock:
            live = request_id in self._calls
        self.handle(events.CancelRequested(self.now_s(), request_id))
        return live

    def story(self, request_id: int) -> list[StoryLine]:
        """Return the history of a request."""
        with self.lock:
            return self.machine.story(request_id)

    def live_records(self) -> list[RequestRecord]:
        """Return copies of the records of live requests; those without a record are running."""
        with self.lock:
            return [
                replace(
                    record,
                    story=record.story.copy(),
                    state=RequestState.RUNNING
                    if record.state is RequestState.DIRECT
                    else record.state,
                )
                for record in self.machine.live_records()
            ]

    def counts(self) -> tuple[int, int]:
        """Return the numbers of requests that wait for admission and that are in flight."""
        with self.lock:
            return self.machine.num_waiting, self.machine.num_in_flight

    def running_attempts(self) -> list[tuple[Request, Mapping[str, Value]]]:
        """Return the running attempts with their inputs."""
        with self.lock:
            calls = list(self._calls.values())  # atomic: callers add entries without the lock
            return [(c.attempt, c.inputs) for c in calls if c.attempt]

    def live_route(self) -> int | None:
        """Choose a live route; None if there is none."""
        with self.lock:
            return self.machine.live_route()

    def has_ended(self, attempt: Request) -> bool:
        """Return whether the result of an attempt is no longer needed."""
        call = self._calls.get(attempt.id)
        return call is None or call.attempt is not attempt

    def handle(self, event: ClientEvent) -> None:
        """Pass an event to the machine, and execute its instructions in order."""
        with self.lock:
            for instruction in self.machine.handle(event):
                self._queue_order(instruction)
            due = self.machine.due.entries
            if due and due[0][0] < self._timer.due_s:
                self._timer.make_due_by(due[0][0])
            if self.machine.num_waiting and not self._awaits_bytes and self.machine.waits_for_bytes:
                self._awaits_bytes = True
                self._in_flight.when_fewer(partial(self._clock.call_soon, self._check_for_room))
        if self._outbox.orders:
            self._outbox.carry_out()

    def close(self) -> None:
        """Cancel the requests in flight and reject new ones."""
        self.handle(events.Closed(self.now_s()))
        self._timer.close()

    def _queue_order(self, instruction: ClientInstruction) -> None:
        """Append an instruction's order to the outbox. The caller holds the lock."""
        number = instruction.request_id
        if isinstance(instruction, events.StartAttempt):
            call = self._calls[number]
            started = call.request.for_attempt(
                self._deployment, number, instruction.attempt, instruction.route
            )
            if instruction.joined:
                self._queue_batch_start([self._calls[n] for n in instruction.joined], started)
                return
            if call.is_granted:
                call.attempt = started = started._replace(inline=False)
                self._outbox.orders.append(partial(self._start, (call,), started))
                return
            # The caller's thread starts its first attempt, so that the thread whose request made
            # room for it is not delayed.
            call.attempt = call.first = started
            call.grant()
            return
        if isinstance(instruction, events.Admitted):
            self._calls[number].grant()
            return
        if isinstance(instruction, events.DropAttempt):
            call = self._calls[number]
            dropped, call.attempt = call.attempt, None
            if dropped is not None:  # otherwise Ctrl-C came before it was started
                self._outbox.orders.append(partial(self.attempts.drop, dropped))
            return
        call = self._calls.pop(number)
        attempt, call.attempt = call.attempt, None
        record = self.machine.record(number)
        assert record is not None
        if isinstance(instruction, events.Deliver):
            assert attempt is not None
            self._outbox.orders.append(partial(self._deliver, call, attempt, record, instruction))
            return
        self._outbox.orders.append(partial(self._fail, call, record, instruction.error))
        if not call.is_granted:  # without an order: its caller may be the executing thread
            call.future.set_exception(instruction.error)
            if call.gate is not None:
                call.gate.set()

    def _queue_batch_start(self, calls: Sequence[Submission], first: Request) -> None:
        """Append the start of a batch of calls; `first` is the attempt of the first call."""
        started = first._replace(
            inline=False,
            profile=any(call.request.profile for call in calls),
            priority=max(call.request.priority for call in calls),
        )
        for call in calls:
            call.attempt = started
            call.grant()
        self._outbox.orders.append(partial(self._start, calls, started))

    def _start(self, calls: Sequence[Submission], request: Request) -> None:
        """Start an attempt, unless it was dropped."""
        if calls[0].attempt is request or any(call.attempt is request for call in calls):
            try:
                inputs = calls[0].inputs
                if len(calls) > 1:
                    inputs = join_rows([call.inputs for call in calls])
                self.attempts.start(request, inputs)
            except Exception as error:  # whatever it is, the caller must receive it
                if isinstance(error, HeteroError):  # its traceback refers to the inputs
                    error.with_traceback(None)
                self.handle(events.AttemptFailed(self.now_s(), request.id, request.attempt, error))

    def _deliver(
        self, call: Submission, attempt: Request, record: RequestRecord, instruction: events.Deliver
    ) -> None:
        try:
            answer = self.attempts.answer(
                attempt, call.inputs, instruction.outputs, instruction.runs
            )
        except Exception as error:  # a bug or no memory: the caller must receive the error
            self._fail(call, record, error)
            return
        self._ended(record, answer.stage_timings)
        call.end()
        call.future.set_result(answer)

    def _fail(self, call: Submission, record: RequestRecord, error: BaseException) -> None:
        self._ended(record, ())
        call.end()
        if call.is_granted:
            call.future.set_exception(error)

    def _check_time(self) -> float | None:
        self.handle(events.TimePassed(self.now_s()))
        with self.lock:
            return self.machine.next_deadline_s

    def _check_for_room(self) -> None:
        with self.lock:
            self._awaits_bytes = False
        self._check_time()
