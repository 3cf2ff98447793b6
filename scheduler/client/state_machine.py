"""State machine of the client: admission, routing, retries, deadlines and delivery. No I/O.

Requests are admitted by priority and arrival, while the limits of requests and bytes allow it and
a route is live. Attempts are numbered; the machine drops events of an attempt whose request has
ended or has started a later attempt. Each request ends exactly once, with `Deliver` or `Fail`.
`hetero.scheduler.client.transitions` lists the states.

With dynamic batching, an admitted request waits until `hetero.scheduler.client.batching` starts a
batch with it. Cancelling one request of a batch does not affect the others. If an input may have
caused the failure of a batch, its requests are retried one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Final

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    OverloadedError,
    RequestCancelledError,
)
from hetero.scheduler.client.batching import Batcher
from hetero.scheduler.client.bytes_in_flight import BytesInFlight, ExpectedBytes
from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.client.error_messages import (
    away_text,
    cluster_error,
    failure_event,
    lost_error,
    overload,
)
from hetero.scheduler.client.requests import ADMITTED, Requests
from hetero.scheduler.client.routes import Routes
from hetero.scheduler.client.transitions import TRANSITIONS, InvalidTransitionError
from hetero.scheduler.types import events
from hetero.scheduler.types.events import ClientEvent, ClientInstruction
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.request_record import RequestRecord, RequestState

#: Seconds before a request is sent again to a device that lost it but counts as live, doubled after
#: each attempt: meanwhile the loss is detected or has passed.
_PAUSE_S: Final = 0.2


_S = RequestState
_output_nbytes: Final = attrgetter("output_nbytes")
#: Events that concern a single submitted request.
_OF_ONE: Final = (events.PartArrived, events.AttemptFailed, events.CancelRequested)
#: Events that concern all attempts.
_OF_ATTEMPTS: Final = (
    events.DeviceLost,
    events.DeviceRemoved,
    events.DeviceEnded,
    events.ClusterLost,
    events.Closed,
)
_Next = tuple[RequestState, list[ClientInstruction]]


class ClientMachine(Requests):
    """State machine of a deployment's requests."""

    def __init__(
        self,
        limits: Limits,
        routes: Sequence[Route],
        *,
        name: str = "",
        in_flight: BytesInFlight | None = None,
    ) -> None:
        super().__init__(limits, in_flight or BytesInFlight())
        self._routes = Routes(routes)
        self._expected = ExpectedBytes()
        self._name = name
        #: Requests admitted during the present event, which wait for a batch.
        self._joining: list[RequestRecord] = []
        self._cluster_error: ClusterError | None = None
        self._closed = False

    def live_route(self) -> int | None:
        """Choose a live route; None if there is none."""
        return self._routes.choose()

    def recover(self) -> None:
        """Restore consistency after Ctrl-C interrupted a change.

        A request that is still new is forgotten, and the others are counted again.
        """
        for request_id in [r.id for r in self._live.values() if r.state is _S.NEW]:
            del self._live[request_id]
        live = self._live.values()
        self.num_waiting = sum(request.state is _S.WAITING for request in live)
        self.num_in_flight = sum(request.state in ADMITTED for request in live) + len(self._direct)
        attempts = [r for r in live if r.state is _S.RUNNING and r.batch is None]
        if self.batcher is not None:
            attempts += [batch.requests[0] for batch in self.batcher.in_flight.values()]
        routes = [attempt.route for attempt in attempts]
        self._routes.recount([*routes, *(run.route for run in self._direct.values())])

    def begin_direct(self, run: DirectRun, ids: Iterator[int]) -> bool:
        """Admit a request without a record, if it can start at once.

        The request receives an id and a route, and runs until `end_direct` or its adoption.
        """
        if self.num_waiting or self._closed or self._cluster_error:
            return False
        if self.num_in_flight >= self._max_in_flight:
            return False
        nbytes = run.input_nbytes + self._expected.output_nbytes(run.input_nbytes)
        if self.num_in_flight and not self._has_bytes(nbytes):
            return False
        routes = self._routes
        has_routes = routes.count > 1
        route = routes.choose() if has_routes or not routes.live else 0
        if route is None:
            return False
        request_id = run.request_id = next(ids)
        run.nbytes, run.route, run.names_route = nbytes, route, has_routes
        if has_routes:
            routes.pass_time(route, run.begun_s)
        in_flight, state = self._in_flight, routes.states[route]
        # No call between these lines: Ctrl-C comes before or after them.
        self._direct[request_id] = run
        state.num_running += 1
        self.num_in_flight += 1
        in_flight.nbytes += nbytes
        in_flight.num_running += 1
        run.is_admitted = True
        return True

    def end_direct(self, run: DirectRun, now_s: float, made_nbytes: int) -> bool:
        """Complete a direct run; False if the machine has to adopt it instead."""
        if self._closed:
            return False
        if len(self._ended) > self.limits.remembered:
            self._ended.popitem(last=False)
        self._expected.record(run.input_nbytes, made_nbytes)
        routes, route, request_id = self._routes, run.route, run.request_id
        has_routes = routes.count > 1
        if has_routes:
            routes.pass_time(route, now_s)
        run.ended_s = now_s
        in_flight, state = self._in_flight, routes.states[route]
        # No call between these lines: Ctrl-C comes before or after them.
        self._ended[request_id] = run
        del self._direct[request_id]
        state.num_running -= 1
        self.num_in_flight -= 1
        in_flight.nbytes -= run.nbytes
        in_flight.num_running -= 1
        run.is_admitted = False
        if in_flight.waiting:
            in_flight.notify()
        if has_routes:
            routes.count_completed(route)
            routes.advance(route)
        return True

    def is_direct(self, request_id: int) -> bool:
        """Return whether a request runs without a record."""
        return request_id in self._direct

    def end_sent(
        self,
        request_id: int,
        attempt: int,
        now_s: float,
        made_nbytes: int,
        num_runs: int,
        num_outputs: int,
    ) -> bool:
        """Complete a request that devices ran without a record; False if its result is partial."""
        run = self._direct.get(request_id)
        if run is None or attempt != 1 or not run.is_sent:
            return False
        if not self._routes.is_whole(run.route, num_runs, num_outputs):
            return False
        return self.end_direct(run, now_s, made_nbytes)

    def _adopt_sent(self, runs: Sequence[DirectRun], now_s: float) -> list[ClientInstruction]:
        """Create the records of requests that devices run; callers' threads keep theirs."""
        done: list[ClientInstruction] = []
        for run in runs:
            if run.is_sent:
                adopted = events.Adopted(now_s, run.request_id, {})
                done += self._step(self._take_direct(run.request_id), adopted)
        return done

    def _concerned_direct(self, event: ClientEvent) -> list[DirectRun]:
        """Return the requests without a record that an event concerns."""
        runs = list(self._direct.values())
        if isinstance(event, events.TimePassed):
            limits, now_s = self.limits, event.now_s
            return [run for run in runs if limits.deadline_s(run.begun_s, None) <= now_s]
        return runs if isinstance(event, _OF_ATTEMPTS) else []

    def _take_direct(self, request_id: int) -> RequestRecord:
        """Track a direct run as a live request; return the record."""
        run = self._direct[request_id]
        request = run.record(self.limits)
        # No call between these lines: Ctrl-C comes before or after them.
        self._live[request_id] = request
        del self._direct[request_id]
        run.is_admitted = False  # the record is counted instead
        return request

    def handle(self, event: ClientEvent) -> list[ClientInstruction]:
        """Process one event; return the instructions to execute, in order.

        Raises InvalidTransitionError: the event is illegal in the request's state.
        """
        # Not earlier: the runner may read the records of requests that the last event ended.
        self._forget_ended()
        done: list[ClientInstruction] = []
        if isinstance(event, _OF_ONE):
            shared = None
            if self.batcher is not None:
                shared = self.batcher.split_event(event, self._routes.is_whole)
            if shared is not None:
                for request, own in shared:
                    done += self._step(request, own)
            else:
                if (run := self._direct.get(event.request_id)) is not None:
                    done = self._adopt_sent([run], event.now_s)
                # Only its own thread has access to a request that its caller runs.
                if event.request_id not in self._direct and (
                    record := self.record(event.request_id)
                ):
                    done += self._step(record, event)
        else:
            if self._direct:
                done = self._adopt_sent(self._concerned_direct(event), event.now_s)
            for request in self._apply_to_shared_state(event):
                done += self._step(request, event)
        if self._quarantine.parked:
            done += self._try_quarantined(event.now_s)
        if self._order:
            done += self._deliver_held(event.now_s)
        if self.num_waiting:
            done += self._admit_waiting(event.now_s)
        if self.batcher is not None:
            done += self._start_batches(self.batcher, event.now_s)
        return done

    def _apply_to_shared_state(self, event: ClientEvent) -> Sequence[RequestRecord]:
        """Apply an event to the shared state; return the requests that it concerns."""
        match event:
            case events.Submitted():
                number = event.request_id
                if number in self._live or number in self._ended:
                    raise InvalidTransitionError(f"request {number} submitted twice")
                admit_by_s = event.now_s + self.limits.admission_timeout_s
                request = self._live[number] = RequestRecord(event, number, admit_by_s)
                return (request,)
            case events.Adopted():
                return (self._take_direct(event.request_id),)
            case events.TimePassed():
                return self._take_due(event.now_s)
            case events.DeviceLost() | events.DeviceRemoved():
                self._routes.mark_lost(event)
            case events.DeviceReturned():
                self._routes.mark_available(event.device, is_steady=event.is_steady)
                for request in self._live.values():
                    if request.silent_on == event.device:
                        request.silent_on = ""
            case events.DeviceSteady():
                self._routes.mark_steady(event.device)
            case events.RoutesAdded():
                self._routes.add(event.routes)
            case events.ClusterLost():
                self._cluster_error = event.error
            case events.Closed():
                self._closed = True
        concerned = [r for r in self._live.values() if (r.state, type(event)) in TRANSITIONS]
        # Adopted requests are the last of the live ones, but may be older than others.
        return sorted(concerned, key=attrgetter("id"))

    def _step(self, request: RequestRecord, event: ClientEvent) -> list[ClientInstruction]:
        before = request.state
        row = TRANSITIONS.get((before, type(event)))
        if row is None:
            raise InvalidTransitionError(
                f"{type(event).__name__} while {before.value}; story: {request.story}"
            )
        instructions: list[ClientInstruction]
        after, instructions = getattr(self, row.handler)(request, event)
        if after not in row.to:
            raise InvalidTransitionError(f"{row.handler} led from {before} to {after}")
        self._move(request, after, event.now_s)
        return instructions

    def _has_room(self, request: RequestRecord) -> bool:
        # A request that waits for a batch may also wait for a device.
        awaits = self.batcher is not None and self._routes.may_become_live()
        if self.num_in_flight >= self._max_in_flight or not (self._routes.live or awaits):
            return False
        nbytes = request.submitted.nbytes
        request.nbytes = nbytes + self._expected.output_nbytes(nbytes)
        return self._has_bytes(request.nbytes)

    def _has_bytes(self, nbytes: int) -> bool:
        if not self.num_in_flight:
            return True
        return self._in_flight.nbytes + nbytes <= self.limits.nbytes

    def _admit_waiting(self, now_s: float) -> list[ClientInstruction]:
        instructions_of_admitted: list[ClientInstruction] = []
        while first := self._waiting.first():
            request = self._live[first[1]]
            if not self._has_room(request):
                break
            self._waiting.pop()
            after, instructions = self._enter(
                request, now_s, preferred_devices=request.submitted.preferred_devices
            )
            instructions_of_admitted += instructions
            self._move(request, after, now_s)
        return instructions_of_admitted

    def _deliver_held(self, now_s: float) -> list[ClientInstruction]:
        delivered: list[ClientInstruction] = []
        while (first := next(iter(self._order.values()), None)) and first.state is _S.AWAITING_TURN:
            first.note(now_s, "its turn has come")
            delivered.append(_deliver(first))
            self._move(first, _S.ANSWERED, now_s)
        return delivered

    def _enter(
        self,
        request: RequestRecord,
        now_s: float,
        but: Collection[int] = (),
        preferred_devices: frozenset[str] = frozenset(),
    ) -> _Next:
        """Start an attempt on a route that is not in `but`; with batching, queue the request.

        A request that has to avoid routes runs outside batches.
        """
        if self.batcher is None or request.avoided:
            return _S.RUNNING, self._start(
                request, self._routes.choose(but, preferred_devices), now_s
            )
        if request.admitted_s is None:
            self._joining.append(request)
        self.due.push((self.batcher.enqueue(request, now_s), request.id))
        return _S.JOINING, []

    def _start(
        self, request: RequestRecord, route: int | None, now_s: float
    ) -> list[ClientInstruction]:
        assert route is not None
        self._begin(request, route, now_s, "started")
        self._routes.begin(route, now_s)
        return [events.StartAttempt(request.id, request.attempt, route)]

    def _begin(self, request: RequestRecord, route: int, now_s: float, what: str) -> None:
        request.begin_attempt(now_s, what, route, names_route=self._routes.count > 1)

    def _start_batches(self, batcher: Batcher, now_s: float) -> list[ClientInstruction]:
        """Start the batches that are ready; report the admitted requests that still wait."""
        done: list[ClientInstruction] = []
        while self._routes.live and (requests := batcher.take_batch(now_s)):
            first, is_joined = requests[0], len(requests) > 1
            tried_routes = {request.route for request in requests if request.attempt}
            but = tried_routes if self._routes.is_any_live(tried_routes) else ()
            preferred_devices = frozenset() if is_joined else first.submitted.preferred_devices
            route = self._routes.choose(but, preferred_devices)
            assert route is not None
            for request in requests:
                self._begin(request, route, now_s, f"batch of {len(requests)}: started")
                self._move(request, _S.RUNNING, now_s)
            self._routes.begin(route, now_s)
            batcher.begin(requests)
            joined = tuple(request.id for request in requests) if is_joined else ()
            done.append(events.StartAttempt(first.id, first.attempt, route, joined))
        done += [events.Admitted(r.id) for r in self._joining if r.state is _S.JOINING]
        self._joining.clear()
        return done

    def _withdraw_request(self, request: RequestRecord, completed_s: float | None = None) -> bool:
        """Withdraw a request from its attempt; return whether no request needs the attempt."""
        if self.batcher is not None and not self.batcher.withdraw(request):
            return False
        self._routes.end(request.route, completed_s)
        return True

    def _stop(self, request: RequestRecord) -> list[ClientInstruction]:
        """Stop the running attempt of a request, if no other request needs its result."""
        if request.state is _S.DIRECT:  # no device has received it
            self._routes.end(request.route)
            return []
        if request.state is not _S.RUNNING or not self._withdraw_request(request):
            return []
        return [events.DropAttempt(request.id, request.attempt, request.route)]

    def _end_attempt(self, request: RequestRecord, now_s: float, error: BaseException) -> _Next:
        """Start another attempt, park the request until one is possible, or fail it."""
        request.note(now_s, f"failed: {error}")
        request.error, request.resume_s = error, now_s
        drop = self._stop(request)
        # Replay an attempt that was lost with a device or in transit, or rejected by a full queue.
        # A request that exceeds a device's memory may fit on another device. Any other error of a
        # plugin would occur again.
        is_lost = isinstance(error, DeviceLostError | OverloadedError)
        is_final = not (is_lost or isinstance(error, MemoryError))
        has_failed = max(request.num_failed, self.limits.attempts == 1)
        if is_final or has_failed >= self.limits.attempts:
            return _S.FAILED, [*drop, failure_event(request, error)]
        if not is_lost:
            request.avoided |= {request.route}
        tried_routes = {*request.avoided, request.route}
        is_live = self._routes.is_any_live(tried_routes)
        if is_live and not request.is_quarantined:
            after, next_instructions = self._enter(request, now_s, tried_routes)
            return after, [*drop, *next_instructions]
        if not is_live and not self._routes.may_become_live(request.avoided):
            request.note(now_s, "no other route is left")
            return _S.FAILED, [*drop, failure_event(request, error)]
        if self._routes.is_any_live(request.avoided):
            request.resume_s += _PAUSE_S * 2 ** (request.attempt - 1)
            self.due.push((request.resume_s, request.id))
        request.note(now_s, f"parked: {self._why_parked(request)}")
        return _S.PARKED, drop

    def _try_quarantined(self, now_s: float) -> list[ClientInstruction]:
        """Replay the next request in quarantine, if none of them runs."""
        for request in self._quarantine.due_requests(now_s):
            route = self._routes.choose(request.avoided)
            if route is not None:
                self._move(request, _S.RUNNING, now_s)
                self._quarantine.running = request
                return self._start(request, route, now_s)
        return []

    def _why_parked(self, request: RequestRecord) -> str:
        away = self._routes.unavailability()
        if away is not None:
            return away_text(away)
        if request.is_quarantined:
            return "tried again alone, as devices were lost with it"
        return f"tried again after a pause, as {request.error}"

    # Handlers of the transition table: (request, event) -> (next state, instructions).

    def _admit(self, request: RequestRecord, event: events.Submitted) -> _Next:
        request.note_submission()
        if self._closed:
            error: BaseException = RequestCancelledError(
                f"{self._name}: closed; compile the model again.", request_id=request.id
            )
            return self._refuse(request, event.now_s, error)
        if self._cluster_error:
            return self._refuse(request, event.now_s, cluster_error(request, self._cluster_error))
        if event.deadline_s <= event.now_s:
            return self._expire(request, event.now_s)
        if not self.num_waiting and self._has_room(request):
            self.due.push((event.deadline_s, request.id))
            return self._enter(request, event.now_s, preferred_devices=event.preferred_devices)
        away = self._routes.unavailability()
        if away:
            error = lost_error(request, away)
            if not (self._routes.may_become_live() and event.waits is True):
                return self._refuse(request, event.now_s, error)
        if event.waits is False or self.num_waiting >= self.limits.waiting:
            return self._refuse(request, event.now_s, self._overload(request))
        for due_s in {event.deadline_s, min(event.deadline_s, request.admit_by_s)}:
            self.due.push((due_s, request.id))
        self._waiting.push((-event.priority, request.id))
        request.note(event.now_s, f"waits: {away_text(away) if away else self._full}")
        return _S.WAITING, []

    def _adopt(self, request: RequestRecord, event: events.Adopted) -> _Next:
        if self._closed:  # after the request was admitted
            return self._cancel(request, events.Closed(event.now_s))
        request.outputs.update(event.outputs)
        request.runs.update((run.stage, run) for run in event.runs)
        self.due.push((request.submitted.deadline_s, request.id))
        return _S.RUNNING, []

    @property
    def _full(self) -> str:
        return (
            f"{self.num_in_flight} of {self._max_in_flight} requests and "
            f"{self.nbytes_in_flight} of {self.limits.nbytes} bytes are in flight"
        )

    def _overload(self, request: RequestRecord) -> OverloadedError:
        callers = f"{self.num_waiting} of {self.limits.waiting} callers wait"
        return overload(request, f"{self._name}: {self._full}, and {callers}")

    def _refuse(self, request: RequestRecord, now_s: float, error: BaseException) -> _Next:
        request.note(now_s, f"refused: {error}")
        return _S.FAILED, [failure_event(request, error)]

    def _join(self, request: RequestRecord, event: events.PartArrived) -> _Next:
        if event.attempt != request.attempt:
            request.note(event.now_s, f"late answer of attempt {event.attempt} dropped")
            return _S.RUNNING, []
        outputs, runs = request.outputs, request.runs
        outputs.update(event.outputs)
        for run in event.runs:
            runs[run.stage] = run
        # Later stages repeat the timings of earlier ones, and their messages may arrive first.
        if not self._routes.is_whole(request.route, len(runs), len(outputs)):
            return _S.RUNNING, []
        self._withdraw_request(request, event.now_s)
        nbytes = event.nbytes
        if nbytes is None:
            nbytes = sum(map(_output_nbytes, runs.values()))
        self._expected.record(request.submitted.nbytes, nbytes)
        request.note(event.now_s, "answered")
        if self.limits.in_order:
            return _S.AWAITING_TURN, []
        return _S.ANSWERED, [_deliver(request)]

    def _fail(self, request: RequestRecord, event: events.AttemptFailed) -> _Next:
        if event.attempt != request.attempt:
            request.note(event.now_s, f"late failure of attempt {event.attempt} dropped")
            return _S.RUNNING, []
        if self.batcher is not None and self.batcher.may_be_of_others(request, event.error):
            request.note(event.now_s, f"failed: {event.error}")
            request.is_alone = True
            drop = self._stop(request)
            after, _ = self._enter(request, event.now_s)
            return after, drop
        request.num_failed += 1
        return self._end_attempt(request, event.now_s, event.error)

    def _handle_loss(
        self, request: RequestRecord, event: events.DeviceLost | events.DeviceRemoved
    ) -> _Next:
        if not self._routes.uses(request.route, event.device):
            return _S.RUNNING, []
        if isinstance(event, events.DeviceLost) and event.may_live:
            request.silent_on = event.device
        elif isinstance(event, events.DeviceLost) and event.on_the_way:
            request.num_failed += 1
        else:
            self._quarantine.count_crash(request)
        return self._end_attempt(request, event.now_s, lost_error(request, event))

    def _count_crash(self, request: RequestRecord, event: events.DeviceEnded) -> _Next:
        """Count the confirmed crash of a suspected device against a request that it ran."""
        if request.silent_on != event.device:
            return request.state, []
        request.silent_on = ""
        was_quarantined = request.is_quarantined
        self._quarantine.count_crash(request)
        is_tried = request.state in (_S.JOINING, _S.RUNNING)
        if is_tried and request.is_quarantined and not was_quarantined:
            request.note(event.now_s, f"parked: {self._why_parked(request)}")
            return _S.PARKED, self._stop(request)
        if request.state is _S.PARKED and request.num_failed >= self.limits.attempts:
            assert request.error is not None
            return _S.FAILED, [failure_event(request, request.error)]
        return request.state, []

    def _wait_on(
        self, request: RequestRecord, event: events.DeviceLost | events.DeviceRemoved
    ) -> _Next:
        """Stay waiting or parked while a route may become live; fail the request otherwise."""
        if self._routes.may_become_live(request.avoided):
            return request.state, []
        last_error = request.error if request.avoided else None
        return self._refuse(request, event.now_s, last_error or lost_error(request, event))

    def _lose_all(self, request: RequestRecord, event: events.ClusterLost) -> _Next:
        error = cluster_error(request, event.error)
        request.note(event.now_s, f"failed: {error}")
        return _S.FAILED, [*self._stop(request), failure_event(request, error)]

    def _unpark(self, request: RequestRecord, event: ClientEvent) -> _Next:
        if event.now_s < request.resume_s or request.is_quarantined:
            return _S.PARKED, []
        if not self._routes.is_any_live(request.avoided):
            return _S.PARKED, []
        return self._enter(request, event.now_s, request.avoided)

    def _fall_due(self, request: RequestRecord, event: events.TimePassed) -> _Next:
        if request.submitted.deadline_s <= event.now_s:
            return self._expire(request, event.now_s)
        if request.state is _S.WAITING:
            away = self._routes.unavailability()
            why = lost_error(request, away) if away else self._overload(request)
            return self._refuse(request, event.now_s, why)
        if request.state is _S.PARKED:
            return self._unpark(request, event)
        return request.state, []

    def _cancel(
        self, request: RequestRecord, event: events.CancelRequested | events.Closed
    ) -> _Next:
        closed = isinstance(event, events.Closed)
        why = f"{self._name}: closed with the request in flight" if closed else "cancelled"
        request.note(event.now_s, why)
        error = RequestCancelledError(f"{request.where}: {why}.", request_id=request.id)
        return _S.CANCELLED, [*self._stop(request), failure_event(request, error)]

    def _expire(self, request: RequestRecord, now_s: float) -> _Next:
        waited_s = now_s - request.submitted.now_s
        where = {
            _S.JOINING: "waiting for others to be joined with",
            _S.RUNNING: "in flight",
            _S.AWAITING_TURN: "answered, waiting for the answers of requests before it",
        }.get(request.state, "waiting for admission")
        if request.state is _S.PARKED:
            where = f"parked: {self._why_parked(request)}"
        elif request.state is _S.WAITING and (away := self._routes.unavailability()):
            where = f"waiting for admission: {away_text(away)}"
        request.note(now_s, f"expired while {where}")
        error = DeadlineError(
            f"{request.where}: no answer after {waited_s:.3f} s ({where}). Allow more time, or "
            "send fewer requests at once.",
            request_id=request.id,
            attempt=request.attempt,
        )
        return _S.EXPIRED, [*self._stop(request), failure_event(request, error)]

    def _drop_late(
        self,
        request: RequestRecord,
        event: events.PartArrived | events.AttemptFailed | events.CancelRequested,
    ) -> _Next:
        request.note(event.now_s, f"{type(event).__name__} came late and was dropped")
        return request.state, []


def _deliver(request: RequestRecord) -> events.Deliver:
    runs = request.runs
    ordered = tuple(map(runs.__getitem__, sorted(runs)))
    return events.Deliver(request.id, request.outputs, ordered)
