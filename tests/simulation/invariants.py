"""Invariants of histories, during the simulation and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from hetero.devices.errors import (
    DeadlineError,
    DeviceLostError,
    HeteroError,
    InferenceError,
    OverloadedError,
    RequestCancelledError,
    TensorError,
)
from hetero.scheduler.device.lanes import LaneTask
from hetero.scheduler.device.task_queue import TaskState
from hetero.scheduler.simulation.device import SimulatedDevice
from hetero.scheduler.types import events
from hetero.scheduler.types.request_record import RequestState
from tests.simulation.batches import next_due_s
from tests.simulation.scenario import Call, Model
from tests.simulation.supervised_client import SupervisedDeployment

if TYPE_CHECKING:
    from tests.simulation.history import History

#: Maximum number of turns of another client while one waits: start-time fair queueing bounds the
#: difference of two waiting clients to one unit of each.
_MAX_TURNS = 2


#: Maximum virtual time until the program of a dropped task ends, which no usual program takes. Its
#: thread may be preempted several times, for up to 10 ms each.
_CANCEL_S = 0.2

#: Maximum virtual time until a thread executes new orders, which may be preempted several times.
_ORDERS_S = 0.2


class Invariants:
    """Invariants of a history; violations are reported to it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._break = history.report_violation
        self.simulator, self.cluster, self.threads = (
            history.simulator,
            history.cluster,
            history.threads,
        )
        self.faults, self.models, self.calls = history.faults, history.models, history.calls
        self.clients, self.num_clients = history.clients, len(history.clients)
        self._is_long = history.is_long
        self.ran: Counter[tuple[str, str, int, int, int]] = Counter()
        #: Device -> turns of clients while others waited.
        self.turns: dict[str, Counter[str]] = {}
        #: Device's address -> number of tasks that it ran, or could run, at the last check.
        self.running: dict[str, int] = {}
        #: Device's address -> tasks that it started, until they end, each with the time since when
        #: its program should have ended.
        self.started: dict[str, list[tuple[events.TaskRun | LaneTask, float]]] = {}
        #: Outbox -> its first order if no thread executes it, and since when.
        self.first_orders: dict[Any, tuple[Any, float]] = {}
        #: Condition that must not persist -> its start.
        self.condition_start_s: dict[tuple[str, Any], float] = {}

    def check_run(self, device: SimulatedDevice, run: events.TaskRun | LaneTask) -> None:
        """Check the guarantees of the device's queue at the start of a run."""
        request, stage = run.task
        self.started.setdefault(device.address, []).append((run, inf))
        key = (device.address, request.deployment, request.id, request.attempt, stage)
        self.ran[key] += 1
        if self.ran[key] > 1:
            self._break(f"{run.task} runs twice on {device.address}")
        machine = device.loop._machine
        if self.faults.lines or (
            isinstance(run, events.TaskRun) and run.state is not TaskState.RUNNING
        ):
            return
        if machine.is_dropped(request):
            self._break(f"{run.task} runs on {device.address} though it was dropped")
        client, turn = run.stage.description.client, request.id + run.stage.description.level
        turns = self.turns.setdefault(device.address, Counter())
        for line in machine._ready.waiting:
            other, (place, first) = line.name, line.waiting[0]  # type: ignore[attr-defined]
            if first.state is not TaskState.READY or first.stage.num_running:
                continue
            if other == client and place.turn < turn:
                self._break(f"{run.task} runs on {device.address} before turn {place.turn}")
            if other != client:
                turns[other] = turns[other] + 1
                if turns[other] > _MAX_TURNS * (self.num_clients - 1):
                    self._break(f"{other} waits at {device.address} while others go first")
        turns[client] = 0

    def check_rows(self, numbers: Sequence[int]) -> None:
        """Check the rows of a batch, by the numbers of their calls."""
        batching = self.calls[numbers[0] - 1].model.batching
        if len(set(numbers)) > 1 and (batching is None or len(numbers) > batching.size):
            self._break(f"a batch of {len(numbers)} rows")

    def check_always(self) -> None:
        """Check the invariants that hold at any time."""
        for model in self.models:
            self._check_outbox(model)
        if self.threads.num_preempted:
            self.condition_start_s.clear()
            return
        for model in self.models:
            self._check_pending_work(model, model.runner)
            machine, limits = model.runner.machine, model.limits
            limit = limits.requests * (model.batching.size if model.batching else 1)
            if machine.num_in_flight > limit:
                self._break(f"{machine.num_in_flight} of {limit} in flight")
            running = [
                r for r in machine.live_records() if r.is_quarantined and r.state.value == "running"
            ]
            if len(running) > 1:
                self._break(f"{len(running)} quarantined requests run at once")
            if machine.num_waiting > limits.waiting:
                self._break(f"{machine.num_waiting} of {limits.waiting} wait")
            if model.batching and len(machine.batcher.in_flight) > model.batching.most:
                self._break("more batches in flight than may be")
        for device in self.cluster.devices.values():
            self._check_device(device)

    def _check_pending_work(self, model: Model, runner: Any) -> None:
        """Check that no due work remains undone."""
        machine, limits = runner.machine, runner.machine.limits
        if runner.lock.locked() or model.client.process.is_stopped or self._is_long:
            self.condition_start_s.clear()
            return
        has_room = False
        if machine.num_waiting and (first := machine._waiting.first()):
            nbytes = machine.record(first[1]).submitted.nbytes
            nbytes += machine._expected.output_nbytes(nbytes) + machine.nbytes_in_flight
            has_room = (
                machine.num_in_flight < machine._max_in_flight
                and machine._routes.is_any_live()
                and (not machine.num_in_flight or nbytes <= limits.nbytes)
            )
        due_s = None
        if model.batching and machine._routes.is_any_live():
            due_s = next_due_s(machine.batcher)
        lasting = {
            "a batch is due": due_s is not None and due_s < self.simulator.now,
            "a request waits though there is room": has_room,
        }
        for condition, is_so in lasting.items():
            if not is_so:
                self.condition_start_s.pop((condition, runner), None)
            elif (
                self.condition_start_s.setdefault((condition, runner), self.simulator.now)
                < self.simulator.now
            ):
                self._break(condition)

    def check_handled(self, machine: Any, handle: Any, event: Any) -> Any:
        """Handle an event in a client's state machine; events of old attempts change nothing."""
        record = None
        if isinstance(event, events.PartArrived | events.AttemptFailed):
            record = machine.record(event.request_id)
        if record is None or record.state is not RequestState.RUNNING:
            return handle(event)
        before = record.attempt, record.num_failed, dict(record.outputs)
        instructions = handle(event)
        after = record.attempt, record.num_failed, record.outputs
        if event.attempt != before[0] and before != after:
            self._break(f"{event} changed attempt {before[0]}, charged {before[1]} times")
        return instructions

    def _check_device(self, device: SimulatedDevice) -> None:
        machine = device.loop._machine
        # After the widest stage is closed, its running tasks still count.
        self._check_dropped(device)
        before = self.running.get(device.address, 0)
        self.running[device.address] = max(machine.num_running, machine.num_streams)
        if machine.num_running > max(machine.num_streams, before):
            self._break(f"{device.address} runs {machine.num_running} of {machine.num_streams}")
        waiting = machine._ready.waiting
        waiting_clients = {line.name for line in waiting}  # type: ignore[attr-defined]
        for name in set(self.turns.get(device.address, ())) - waiting_clients:
            self.turns[device.address][name] = 0
        stages = [s.description for d in machine._deployments.values() for s in d.stages.values()]
        if waiting and machine.num_running < max(stage.num_streams for stage in stages):
            self._break(f"{device.address} is idle while tasks wait")

    def _check_outbox(self, model: Model) -> None:
        """Check that a thread executes the orders in the outbox, at once unless it is preempted."""
        outbox, now_s = model.runner._outbox, self.simulator.now
        is_stopped = model.client.process.is_stopped
        # A thread that has appended orders executes them after it has left the machine.
        is_stopped = is_stopped or outbox._execution_lock.locked() or model.runner.lock.locked()
        first = outbox.orders[0] if outbox.orders and not is_stopped else None
        known, since_s = self.first_orders.get(outbox, (None, now_s))
        limit_s = _ORDERS_S if self.threads.are_orders_delayed else 0.0
        if first is None or first is not known:
            self.first_orders[outbox] = first, now_s
        elif since_s < now_s - limit_s:
            self._break("orders are left in the outbox")

    def _check_dropped(self, device: SimulatedDevice) -> None:
        """Check that the programs of dropped tasks end soon."""
        if not self.simulator.is_threaded:  # such programs cannot be cancelled
            return
        machine, now_s = device.loop._machine, self.simulator.now
        running = []
        for run, since_s in self.started.get(device.address, ()):
            if not _is_running(run):
                continue
            is_dropped = machine.is_dropped(run.task.request) and not device.process.is_stopped
            # Without a context, its thread still sends the outputs of the task before.
            is_over = is_dropped and run.context is not None
            running.append((run, min(since_s, now_s) if is_over else inf))
            if running[-1][1] < now_s - _CANCEL_S:
                self._break(f"{run.task} runs on at {device.address} though it was dropped")
        self.started[device.address] = running

    def check_results(self) -> None:
        """Check the results of calls and requests."""
        for call in self._history.open_calls():
            if self._history.violations:
                return
            lines = [str(line) for line in call.story()] if call.story else ["not admitted"]
            self._break(f"call {call.number} is not answered: " + "; ".join(lines))
        for call in self.calls:
            if call.results and call.model in self.models:
                self._end(call, call.results[0])
        for model in self.models:
            self._check_charges(model)
        if not self.faults.lines:  # a preempted caller may submit later
            for model in self.models:
                self._check_order(model)

    def _check_charges(self, model: Model) -> None:
        """Check that requests are not charged for losses of devices."""
        faults = self.faults
        others = (
            *(faults.loss, faults.cut_s, faults.raises, faults.call, faults.client_stop_s),
            self._history.has_quota,
        )
        if any(others) or model.batching or model.has_state or model.limits.attempts < 5:
            return
        for record in model.records.values():
            if record.num_failed > max(0, record.num_lost - 2):
                lines = "; ".join(str(line) for line in record.story)
                self._break(f"request {record.id} is charged {record.num_failed} times: {lines}")

    def _check_order(self, model: Model) -> None:
        """Check the order of admissions and, if guaranteed, of results."""
        admitted = sorted(
            (record for record in model.records.values() if record.admitted_s is not None),
            key=lambda record: (record.admitted_s, -record.submitted.priority, record.id),
        )
        limit: dict[int, int] = {}
        for record in admitted:
            for priority, other in limit.items():
                if priority <= record.submitted.priority and other > record.id:
                    later = model.records[other]
                    if later.admitted_s < record.admitted_s and self._was_waiting(record, later):
                        self._break(f"request {other} was admitted before {record.id}")
            own = record.submitted.priority
            limit[own] = max(limit.get(own, 0), record.id)
        if model.limits.in_order and not model.has_state:
            order = [r.id for r in admitted if r.id in model.delivered]
            admitted_s = {r.id: r.admitted_s for r in admitted}
            if [admitted_s[n] for n in model.delivered if n in admitted_s] != sorted(
                admitted_s[n] for n in order
            ):
                self._break(f"answers came as {model.delivered}, admitted as {order}")

    def _was_waiting(self, record: Any, later: Any) -> bool:
        """Return whether a request was waiting when a later one was submitted."""
        return bool(record.submitted.now_s < later.submitted.now_s)

    def _end(self, call: Call, end: Any) -> None:
        """Check that a call's error has a cause."""
        if not isinstance(end, BaseException):
            if call.mark == "raises":
                self._break(f"call {call.number} is answered, though its stage raises")
            return
        model, limits, faults = call.model, call.model.limits, self.faults
        was_lost = self._history.num_losses > 0 or bool(faults.poison or faults.hang)
        timeout_s = limits.timeout_s if call.request.timeout_s is None else call.request.timeout_s
        waited_s = call.end_s - call.start_s
        batched = model.batching is not None
        match end:
            case RequestCancelledError():
                is_explained = call.is_cancelled or model.is_closed
            case DeadlineError():
                is_explained = waited_s >= timeout_s - 1e-6
                if not (faults.client_stop_s or faults.lines) and waited_s > timeout_s + 0.6:
                    self._break(f"call {call.number} ended {waited_s - timeout_s:.3f} s late")
            case DeviceLostError():
                is_alone = len(self.models) == 1 and not (faults.crash_s or faults.stop_s)
                is_explained = was_lost and (
                    call.request.waits is not True
                    or limits.attempts < 5
                    or limits.admission_timeout_s < 600
                    or call.mark in ("poison", "hang")
                    or bool(faults.loss or faults.cut_s or faults.client_stop_s)
                    or batched
                    or (self._num_failed(call) >= limits.attempts and not is_alone)
                )
            case OverloadedError():
                is_explained = (
                    self._history.has_quota
                    or call.request.waits is False
                    or limits.waiting < 1024
                    or self._is_long  # more calls may arrive than can wait
                    or limits.admission_timeout_s < 600
                )
            case TensorError():
                is_explained = model.has_state and was_lost
            case InferenceError():
                is_explained = call.mark == "raises"
            case _:
                is_explained = False
        if not is_explained:
            self._break(f"call {call.number} got {type(end).__name__}: {end}")
        if not isinstance(end, HeteroError):
            self._break(f"call {call.number} got an untyped {end!r}")

    def _num_failed(self, call: Call) -> int:
        record = call.model.records.get(call.request_id)
        return 0 if record is None else int(record.num_failed)

    def check_empty(self) -> None:
        """Check that no call, byte, order or record is left."""
        for model in self.models:
            runner, machine = model.runner, model.runner.machine
            remaining = {
                "calls": len(runner._calls),
                "live": len(machine._live) + len(machine._direct),
                "in flight": machine.num_in_flight,
                "waiting": machine.num_waiting,
                "running": machine._in_flight.num_running,
                "bytes": machine.nbytes_in_flight,
                "orders": len(runner._outbox.orders),
                "quarantined": len(machine._quarantine.parked),
                "routes": sum(way.num_running for way in machine._routes.states),
                "order": len(machine._order),
                "joining": len(machine._joining),
            }
            if any(remaining.values()):
                self._break(f"left behind: { {k: v for k, v in remaining.items() if v} }")
            if model.batching and (machine.batcher.in_flight or machine.batcher._groups):
                self._break("a batcher has something left")
        for client in self.clients:
            if client.memory.pending:
                self._break("a tensor is still awaited")

    def check_returned(self, deployment: SupervisedDeployment) -> None:
        """Check the addresses after the return of a device, if all are available."""
        faults = self.faults
        if not (faults.cut_s or faults.stop_s or faults.client_stop_s):
            self.check_addresses(deployment)

    def check_addresses(self, deployment: SupervisedDeployment) -> None:
        """Check that available devices send to the current addresses of each other."""
        names = deployment.placement.devices
        devices = [self.cluster.devices[name] for name in names]
        if deployment.device_states.unavailable or not all(d.process.is_alive for d in devices):
            return
        for device in devices:
            opened_stages = deployment.opened_on(device.name)
            if deployment.is_closed or not device.host.has_all([deployment.key]):
                continue
            for opened in opened_stages:
                stage = device.loop._machine.stage(deployment.key, opened.stage)
                sends = stage.description.sends
                if sends != opened.sends:
                    self._break(f"{device.address} sends to {sends}, not to {opened.sends}")

    def check_shares(self, model: Model, calls: Sequence[Call]) -> None:
        """Check that consecutive requests are distributed over routes by their measured shares."""
        routes = [
            model.records[c.request_id].route
            for c in calls
            if c.model is model and c.request_id in model.records
        ]
        states = model.runner.machine._routes.states[: len(model.routes)]
        total = sum(state.share for state in states)
        for number, state in enumerate(states):
            expected = len(routes) * state.share / total
            if not model.batching and abs(routes.count(number) - expected) > 2.0:
                self._break(f"way {number} took {routes.count(number)} of {len(routes)} requests")


def _is_running(run: events.TaskRun | LaneTask) -> bool:
    """Return whether the program of a started task has not ended."""
    if isinstance(run, LaneTask):
        return run.entered is not None
    return run.state in (TaskState.RUNNING, TaskState.DROPPED)
