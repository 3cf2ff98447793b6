"""What must hold in a history, and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
from hetero.scheduler.simulation.device import PlayedDevice
from hetero.scheduler.types import events
from hetero.scheduler.types.request_record import RequestState
from tests.simulation.batches import next_due_s
from tests.simulation.drawn import Call, Model

if TYPE_CHECKING:
    from tests.simulation.history import History

#: Turns that each other client may have while one waits: start-time fair queueing bounds the
#: difference of two clients that both wait to a unit of each.
_UNFAIR = 2


class Invariants:
    """What must hold in a history, which hears of what does not."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._break = history.breaks
        self.world, self.cluster, self.threads = history.world, history.cluster, history.threads
        self.faults, self.models, self.calls = history.faults, history.models, history.calls
        self.clients, self.num_clients = history.clients, len(history.clients)
        self._is_long = history.is_long
        self.ran: Counter[tuple[str, str, int, int, int]] = Counter()
        #: Device -> turns that clients had while others waited.
        self.turns: dict[str, Counter[str]] = {}
        #: Device's address -> how many tasks it ran, or might, when last looked at.
        self.running: dict[str, int] = {}
        #: What must not last -> since when it is so.
        self.since_s: dict[tuple[str, Any], float] = {}

    def runs(self, device: PlayedDevice, run: events.Run | LaneTask) -> None:
        """Look at a run that begins: what the device's queue promises."""
        request, stage = run.task
        key = (device.address, request.deployment, request.id, request.attempt, stage)
        self.ran[key] += 1
        if self.ran[key] > 1:
            self._break(f"{run.task} runs twice on {device.address}")
        machine = device.loop._machine
        if self.faults.lines or (
            isinstance(run, events.Run) and run.state is not TaskState.RUNNING
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
                if turns[other] > _UNFAIR * (self.num_clients - 1):
                    self._break(f"{other} waits at {device.address} while others go first")
        turns[client] = 0

    def rows(self, numbers: Sequence[int]) -> None:
        """Look at a run's rows, by their calls' numbers."""
        batching = self.calls[numbers[0] - 1].model.batching
        if len(set(numbers)) > 1 and (batching is None or len(numbers) > batching.size):
            self._break(f"a batch of {len(numbers)} rows")

    def always(self) -> None:
        """Look at all that may be seen at any time."""
        if self.threads.num_away:
            self.since_s.clear()
            return
        for model in self.models:
            self._lasting(model, model.runner)
            machine, limits = model.runner._machine, model.limits
            most = limits.requests * (model.batching.size if model.batching else 1)
            if machine.num_in_flight > most:
                self._break(f"{machine.num_in_flight} of {most} in flight")
            running = [r for r in machine.live() if r.is_suspect and r.state.value == "running"]
            if len(running) > 1:
                self._break(f"{len(running)} suspects run at once")
            if machine.num_waiting > limits.waiting:
                self._break(f"{machine.num_waiting} of {limits.waiting} wait")
            if model.batching and len(machine.batcher.in_flight) > model.batching.most:
                self._break("more batches in flight than may be")
        for device in self.cluster.devices.values():
            self._device(device)

    def _lasting(self, model: Model, runner: Any) -> None:
        """See that nothing is left to be done later which nobody does then."""
        machine, limits, outbox = runner._machine, runner._machine.limits, runner._outbox
        if runner._lock.locked() or model.client.process.is_stopped or self._is_long:
            self.since_s.clear()
            return
        has_room = False
        if machine.num_waiting and (first := machine._waiting.first()):
            nbytes = machine.record(first[1]).submitted.nbytes
            nbytes += machine._expected.of(nbytes) + machine.nbytes_in_flight
            has_room = (
                machine.num_in_flight < machine._most
                and machine._routes.is_any_live()
                and (not machine.num_in_flight or nbytes <= limits.nbytes)
            )
        due_s = None
        if model.batching and machine._routes.is_any_live():
            due_s = next_due_s(machine.batcher)
        lasting = {
            "a batch is due": due_s is not None and due_s < self.world.now,
            "a request waits though there is room": has_room,
            "orders are left in the outbox": outbox.orders and not outbox._turn.locked(),
        }
        for what, is_so in lasting.items():
            if not is_so:
                self.since_s.pop((what, runner), None)
            elif self.since_s.setdefault((what, runner), self.world.now) < self.world.now:
                self._break(what)

    def handled(self, machine: Any, handle: Any, event: Any) -> Any:
        """Have a client's machine take in an event, which of an old attempt changes nothing."""
        record = None
        if isinstance(event, events.PartArrived | events.AttemptFailed):
            record = machine.record(event.request_id)
        if record is None or record.state is not RequestState.RUNNING:
            return handle(event)
        before = record.attempt, record.num_failed, dict(record.outputs)
        done = handle(event)
        after = record.attempt, record.num_failed, record.outputs
        if event.attempt != before[0] and before != after:
            self._break(f"{event} changed attempt {before[0]}, charged {before[1]} times")
        return done

    def _device(self, device: PlayedDevice) -> None:
        machine = device.loop._machine
        # Once the widest stage is closed, what runs goes on, and what began since the last look.
        before = self.running.get(device.address, 0)
        self.running[device.address] = max(machine.num_running, machine.num_streams)
        if machine.num_running > max(machine.num_streams, before):
            self._break(f"{device.address} runs {machine.num_running} of {machine.num_streams}")
        waiting = machine._ready.waiting
        for name in set(self.turns.get(device.address, ())) - set(waiting):
            self.turns[device.address][name] = 0
        opened = [s.description for d in machine._deployments.values() for s in d.stages.values()]
        if waiting and machine.num_running < max(stage.num_streams for stage in opened):
            self._break(f"{device.address} is idle while tasks wait")

    def answers(self) -> None:
        """See how calls ended, and requests."""
        for call in self._history.open_calls():
            if self._history.broken:
                return
            told = [str(line) for line in call.story()] if call.story else ["not admitted"]
            self._break(f"call {call.number} is not answered: " + "; ".join(told))
        for call in self.calls:
            if call.ends and call.model in self.models:
                self._end(call, call.ends[0])
        for model in self.models:
            self._charges(model)
        if not self.faults.lines:  # else a caller may lose its turn before it is heard of
            for model in self.models:
                self._order(model)

    def _charges(self, model: Model) -> None:
        """See whether what was lost with devices alone was charged to requests."""
        faults = self.faults
        others = (faults.loss, faults.cut_s, faults.raises, faults.call, faults.client_stop_s)
        if any(others) or model.batching or model.has_state or model.limits.attempts < 5:
            return
        for record in model.records.values():
            if record.num_failed > max(0, record.num_lost - 2):
                told = "; ".join(str(line) for line in record.story)
                self._break(f"request {record.id} is charged {record.num_failed} times: {told}")

    def _order(self, model: Model) -> None:
        """See whether requests were admitted and, where that is promised, answered in order."""
        admitted = sorted(
            (record for record in model.records.values() if record.admitted_s is not None),
            key=lambda record: (record.admitted_s, -record.submitted.priority, record.id),
        )
        most: dict[int, int] = {}
        for record in admitted:
            for priority, other in most.items():
                if priority <= record.submitted.priority and other > record.id:
                    late = model.records[other]
                    if late.admitted_s < record.admitted_s and self._waited(record, late):
                        self._break(f"request {other} was admitted before {record.id}")
            own = record.submitted.priority
            most[own] = max(most.get(own, 0), record.id)
        if model.limits.in_order and not model.has_state:
            order = [r.id for r in admitted if r.id in model.delivered]
            at = {r.id: r.admitted_s for r in admitted}
            if [at[n] for n in model.delivered if n in at] != sorted(at[n] for n in order):
                self._break(f"answers came as {model.delivered}, admitted as {order}")

    def _waited(self, record: Any, late: Any) -> bool:
        """Whether a request was waiting when a later one came and was admitted."""
        return bool(record.submitted.now_s < late.submitted.now_s)

    def _end(self, call: Call, end: Any) -> None:
        """See whether a call's error has a cause."""
        if not isinstance(end, BaseException):
            if call.mark == "raises":
                self._break(f"call {call.number} is answered, though its stage raises")
            return
        model, limits, faults = call.model, call.model.limits, self.faults
        was_lost = self._history.num_losses > 0 or bool(faults.poison or faults.hang)
        timeout_s = limits.timeout_s if call.request.timeout_s is None else call.request.timeout_s
        waited_s = call.ended_s - call.begun_s
        batched = model.batching is not None
        match end:
            case RequestCancelledError():
                fine = call.is_cancelled or model.is_closed
            case DeadlineError():
                fine = waited_s >= timeout_s - 1e-6
                if not (faults.client_stop_s or faults.lines) and waited_s > timeout_s + 0.6:
                    self._break(f"call {call.number} ended {waited_s - timeout_s:.3f} s late")
            case DeviceLostError():
                is_alone = len(self.models) == 1 and not (faults.crash_s or faults.stop_s)
                fine = was_lost and (
                    call.request.waits is not True
                    or limits.attempts < 5
                    or limits.admission_timeout_s < 600
                    or call.mark in ("poison", "hang")
                    or bool(faults.loss or faults.cut_s or faults.client_stop_s)
                    or batched
                    or (self._num_failed(call) >= limits.attempts and not is_alone)
                )
            case OverloadedError():
                fine = (
                    call.request.waits is False
                    or limits.waiting < 1024
                    or self._is_long  # more may come than can wait
                    or limits.admission_timeout_s < 600
                )
            case TensorError():
                fine = model.has_state and was_lost
            case InferenceError():
                fine = call.mark == "raises"
            case _:
                fine = False
        if not fine:
            self._break(f"call {call.number} got {type(end).__name__}: {end}")
        if not isinstance(end, HeteroError):
            self._break(f"call {call.number} got an untyped {end!r}")

    def _num_failed(self, call: Call) -> int:
        record = call.model.records.get(call.request_id)
        return 0 if record is None else int(record.num_failed)

    def empty(self) -> None:
        """See that nothing is left."""
        for model in self.models:
            runner, machine = model.runner, model.runner._machine
            left = {
                "calls": len(runner._calls),
                "live": len(machine._live) + len(machine._direct),
                "in flight": machine.num_in_flight,
                "waiting": machine.num_waiting,
                "running": machine._in_flight.num_running,
                "bytes": machine.nbytes_in_flight,
                "orders": len(runner._outbox.orders),
                "suspects": len(machine._suspects.parked),
                "routes": sum(way.num_running for way in machine._routes.ways),
                "order": len(machine._order),
                "joining": len(machine._joining),
            }
            if any(left.values()):
                self._break(f"left behind: { {k: v for k, v in left.items() if v} }")
            if model.batching and (machine.batcher.in_flight or machine.batcher._groups):
                self._break("a batcher has something left")
        for client in self.clients:
            if client.memory.pending:
                self._break("a tensor is still awaited")

    def shares(self, model: Model, calls: Sequence[Call]) -> None:
        """See whether requests that came one by one went the ways that their shares say."""
        took = [
            model.records[c.request_id].route
            for c in calls
            if c.model is model and c.request_id in model.records
        ]
        total = sum(route.share for route in model.routes)
        for number, route in enumerate(model.routes):
            wanted = len(took) * route.share / total
            if not model.batching and abs(took.count(number) - wanted) > 2.0:
                self._break(f"way {number} took {took.count(number)} of {len(took)} requests")
