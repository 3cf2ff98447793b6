"""One simulated history: clients, devices, calls and faults from a seed."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

import numpy as np

from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.request import Request
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest
from hetero.scheduler.simulation.network import Link, Network
from hetero.scheduler.simulation.simulator import Process, Simulator
from hetero.scheduler.types.messages import (
    Dropped,
    FetchTensors,
    FreeTensors,
    Message,
    Outputs,
    StoreTensors,
)
from tests.simulation import models
from tests.simulation.faulty_cluster import FaultyCluster
from tests.simulation.invariants import Invariants
from tests.simulation.scenario import Call, Faults, Model, SimulatedWork
from tests.simulation.supervised_client import SupervisedClient
from tests.simulation.threads import Threads, locks_of

#: Virtual seconds until all calls have results after the last fault: a process may still be
#: suspended for 6 seconds, and a device may restart after a pause of 10.
RECOVERY_S = 30.0
#: Additional seconds for each open request, because all may wait for one slow route.
RECOVERY_PER_REQUEST_S = 1.0
#: Seconds until a call without faults has its result, and until devices free everything.
SETTLE_S = 10.0
#: Limits of long histories: events between two checks, open calls, seconds until a call or a
#: deployment is tried again, and seconds per request after which faults end.
EVENTS_PER_CHECK = 50
MAX_OPEN_CALLS = 40
RETRY_S = 0.05
DURATION_PER_REQUEST_S = 0.1
#: Probability that a model is deployed while others run.
LATE_DEPLOYMENT = 0.25
#: Seconds until a model is deployed although no task waits at a device, and between two looks.
QUEUE_PATIENCE_S, QUEUE_LOOK_S = 0.6, 0.002
#: Share of the calls to devices that arrive late, or again later, in half of the histories with
#: such faults: openings of a stage then overtake each other.
LATE_CALLS = 0.5
#: Probability that threads are often preempted between two orders of an outbox.
SLOW_OUTBOX = 0.15


class History:
    """The simulation of a seed, with the violations of invariants.

    `num_requests`: approximate number of requests; random by default.
    """

    recovery_s = RECOVERY_S
    settle_s = SETTLE_S
    #: Share of the crashes in which all devices crash at once.
    joint_crashes = 0.6
    #: Class of the deployments, and of the work of their stages.
    model_class: type[Model] = Model
    work_class: type[SimulatedWork] = SimulatedWork

    def __init__(
        self,
        seed: int,
        *,
        is_traced: bool = False,
        num_requests: int | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.faults = faults or Faults.from_random(random)
        self.violations: list[str] = []
        is_threaded = bool(self.faults.lines) or bool(self.faults.hang) or random.random() < 0.5
        self.simulator = Simulator(seed, is_threaded=is_threaded, is_traced=is_traced)
        self.num_requests = num_requests or random.choice((10, 30, 60))
        self.is_long = num_requests is not None
        #: Time by which all calls must have results.
        self._until_s = inf
        self.names = ["A", "B", "C", "D", "E"][: random.randint(1, 5)]
        self.streams = {(n, i): random.choice((1, 1, 2)) for n in self.names for i in range(4)}
        self._joint_crashes = Random(f"crashes {seed}")
        self._late_calls = Random(f"late calls {seed}")
        self.has_late_calls = bool(self.faults.call) and self._late_calls.random() < 0.5
        self.marks: dict[int, str] = {}
        self.calls: list[Call] = []
        #: Calls without a result, by number.
        self._open: dict[int, Call] = {}
        self.are_faults_over = False
        self.num_losses = 0
        self.has_ended_client = False

    # Structure.

    def _build(self) -> None:
        random, simulator, faults = self.random, self.simulator, self.faults
        nodes = ["n0", "n1", "n2"][: random.randint(1, 3)]
        delay_s = random.choice((0.00005, 0.002, 0.1))
        speed = random.choice((0.0, 1e9, 1e6))
        far = Link(delay_s, speed)

        def link(sender: str, receiver: str) -> Link:
            near = sender == receiver
            return Link(0.00005) if near else Link(far.delay_s, far.nbytes_per_s)

        self.network = Network(simulator, link)
        self.network.faults = self._delays_of
        where = {name: random.choice(nodes) for name in self.names}
        self.cluster = FaultyCluster(
            simulator,
            self.network,
            self.work_class(self),
            where,
            lease_s=random.choice((60.0, 3.0)),
            max_tasks=Random(f"quota {self.seed}").choice((None, None, None, None, 3)),
        )
        self.has_quota = self.cluster.max_tasks is not None
        self.cluster.start_s = self._start_s
        self.cluster.call_outcome = self._call_outcome
        is_outbox_slow = Random(f"outbox {self.seed}").random() < SLOW_OUTBOX
        self.threads = Threads(simulator, faults.lines, is_outbox_slow=is_outbox_slow)
        num_clients = random.choice((1, 1, 2, 3))
        if num_clients > 1:
            SupervisedClient(self.cluster, "keeper", nodes[0], supervises_pool=True)
        self.clients = [
            SupervisedClient(self.cluster, f"c{i}", random.choice(nodes), [RecordObserver(self)])
            for i in range(num_clients)
        ]
        self.models: list[Model] = []
        for client in self.clients:
            for _ in range(random.choice((1, 2))):
                self.models.append(self.model_class(self, client))
        self.invariants = Invariants(self)
        self.cluster.on_run = self.invariants.check_run
        self.cluster.on_returned = self.invariants.check_returned
        for model in self.models:
            self._watch(model)

    def _watch(self, model: Model) -> None:
        machine = model.runner.machine
        machine.handle = partial(self.invariants.check_handled, machine, machine.handle)

    # Events.

    def run(self) -> History:
        """Simulate the history; `violations` has the broken invariants."""
        gc.disable()
        logger = logging.getLogger("scheduler")
        log_handler = ErrorLogHandler(self)
        logger.addHandler(log_handler)
        logger.propagate = False
        try:
            with locks_of(self.simulator):
                self._run()
        except AssertionError as error:
            self.report_violation(f"assertion: {error!r}")
        finally:
            gc.enable()
            logger.removeHandler(log_handler)
            logger.propagate = True
            self.simulator.close()
        return self

    def _run(self) -> None:
        simulator, random = self.simulator, self.random
        self._build()
        share = max(1, self.num_requests // len(self.models))
        delays = Random(f"starts {self.seed}")
        for model in self.models:
            # A client that begins later finds the tasks of others in the queues of devices.
            delay_s = delays.choice((0.0, 0.02)) if len(self.clients) > 1 else 0.0
            simulator.after(delay_s, self._start_call, model, share)
        if delays.random() < LATE_DEPLOYMENT:
            client = delays.choice(self.clients)
            deploy = partial(self._deploy, client, share)
            simulator.after(delays.uniform(0.0, 0.5), simulator.spawn, deploy)
        for kind in ("crash", "stop", "cut", "client_stop"):
            if mean_s := getattr(self.faults, f"{kind}_s"):
                simulator.after(random.expovariate(1 / mean_s), self._inject_fault, kind, mean_s)
        if random.random() < self.faults.client_crash and len(self.clients) > 1:
            simulator.after(random.uniform(0.0, 1.0), self._end_client, random.choice(self.clients))
        heal_s = random.uniform(1.0, 6.0)
        simulator.after(
            heal_s + self.is_long * DURATION_PER_REQUEST_S * self.num_requests, self._end_faults
        )
        if random.random() < self.faults.close:
            closing = random.choice(self.models)
            simulator.after(
                random.uniform(0.0, 0.5), simulator.spawn, partial(self._close, closing)
            )
        self._step(lambda: self.are_faults_over and not any(self.open_calls()))
        self.invariants.check_results()
        if not self.violations:
            self._check_recovery()
        self._end()
        if not self.violations:
            self.invariants.check_empty()
        # Closing the simulator ends threads like Ctrl-C, after which devices start tasks once more.
        self.cluster.on_run = lambda device, run: None

    def _step(self, is_done: Any) -> None:
        """Simulate events until a condition or the time limit, and check invariants."""
        simulator = self.simulator
        while not is_done() and (simulator.next_s or 0.0) <= self._until_s and simulator.step():
            if simulator.errors:
                error = simulator.errors[0]
                lines = "".join(traceback.format_exception(error)[-3:])
                self.report_violation(f"raised {type(error).__name__}: {error}\n{lines}")
                return
            if not self.is_long or simulator.num_events % EVENTS_PER_CHECK == 0:
                self.invariants.check_always()
            if self.violations:
                return

    def _check_recovery(self) -> None:
        """Make more calls after the last fault; each must have a result."""
        self._until_s = self.simulator.now + self.recovery_s
        self._step(lambda: False)
        for model in self.models:
            self.invariants.check_addresses(model.deployment)
        first_new, max_routes = len(self.calls), max(len(m.placement.routes) for m in self.models)
        for number in range(3 * max_routes if max_routes > 1 else 1):
            for model in self.models:
                if not (model.is_closed or self.violations) and number < 3 * len(model.routes):
                    self._start_call(model, 1, is_last=True)
            self._until_s = self.simulator.now + self.settle_s
            self._step(lambda: not any(self.open_calls()))
        for call in self.calls[first_new:]:
            if not (self.violations or (call.results and isinstance(call.results[0], dict))):
                self.report_violation(f"after recovery, call {call.number} got {call.results!r}")
        for model in self.models:
            self.invariants.check_shares(model, self.calls[first_new:])

    def _deploy(self, client: SupervisedClient, num_calls: int) -> None:
        """Deploy another model while requests of the others run, if possible while tasks wait.

        Its stages have two streams, so waiting tasks of others may start when it is opened.
        """
        devices = self.cluster.devices.values()
        if self.are_faults_over or client not in self.clients:
            return
        is_impossible = client.process.is_stopped or not all(map(client.is_live, devices))
        has_queue = any(device.loop._machine._ready.waiting for device in devices)
        if is_impossible or (not has_queue and self.simulator.now < QUEUE_PATIENCE_S):
            retry = partial(self._deploy, client, num_calls)
            retry_s = RETRY_S if is_impossible else QUEUE_LOOK_S
            self.simulator.after(retry_s, self.simulator.spawn, retry)
            return
        self.threads.is_suspended = True  # its devices must not end meanwhile
        usual_streams, self.streams = self.streams, dict.fromkeys(self.streams, 2)
        model = self.model_class(self, client)
        self.streams = usual_streams
        self.threads.is_suspended = False
        self.simulator.note(f"{model.deployment.key} is deployed")
        self._watch(model)
        self.models.append(model)
        self._start_call(model, num_calls)

    def open_calls(self) -> Iterator[Call]:
        """Yield the calls of live clients that have no result."""
        return (call for call in self._open.values() if call.model in self.models)

    def _start_call(
        self, model: Model, remaining: int, state: Any = None, *, is_last: bool = False
    ) -> None:
        """Make a call with random inputs, and schedule the next one."""
        random, faults = self.simulator.random, Faults() if is_last else self.faults
        if not is_last and (self.are_faults_over or model.is_closed):
            return
        if self.is_long and len(self._open) >= MAX_OPEN_CALLS and not model.has_state:
            self.simulator.after(RETRY_S, self._start_call, model, remaining)
            return
        number = len(self.calls) + 1
        if self.is_long and number == self.num_requests:
            self.simulator.after(0.0, self._end_faults)
        rows = 1 if model.has_state else random.randint(1, 3)
        width = model.width + (random.random() < 0.3 if model.batching else 0)
        plan = model.placement.plan
        arrays = models.request_inputs(plan, number, (rows, width))
        inputs: dict[str, Any] = dict(arrays)
        if model.has_state:
            fresh = np.zeros((rows, model.width), np.int64)
            value, tensor = state or (fresh, fresh)
            arrays["s"], inputs["s"] = value, tensor
        request = Request(
            timeout_s=random.choice((0.02, 0.5)) if random.random() < faults.hurry else None,
            waits=is_last or random.choice((True, True, True, None, False)),
            priority=random.choice((0, 0, 0, 1, 5)),
            resident_outputs=("r",) if model.has_state else (),
        )
        call = Call(
            number,
            model,
            inputs,
            models.expected_values(plan.stages, arrays),
            request,
            self.simulator.now,
        )
        for mark in ("raises", "poison", "hang"):
            if random.random() < getattr(faults, mark):
                call.mark = self.marks[number] = mark
        self.calls.append(call)
        self._open[number] = call
        self.simulator.spawn(partial(self._call, call))
        if random.random() < faults.cancel:
            self.simulator.after(random.choice((0.0, 0.003, 0.03)), self._cancel, call)
        if remaining > 1 and not model.has_state:
            self.simulator.after(
                model.next_call_delay_s(random), self._start_call, model, remaining - 1
            )
        call.remaining = remaining

    def _call(self, call: Call) -> None:
        try:
            submission = call.model.deployment.submit(call.inputs, call.request)
        except Exception as error:
            self._ended(call, error)
            return
        call.request_id, call.story = submission.request_id, submission.story
        submission.future.add_done_callback(partial(self._answered, call))
        if call.is_cancelled:
            submission.cancel()
        call.inputs = {"cancel": submission.cancel}

    def _cancel(self, call: Call) -> None:
        call.is_cancelled = True
        if cancel := (call.inputs or {}).get("cancel"):
            self.simulator.spawn(cancel)

    def _answered(self, call: Call, future: Any) -> None:
        error = future.exception()
        self._ended(call, error if error is not None else future.result().outputs)

    def _ended(self, call: Call, result: Any) -> None:
        call.results.append(result)
        self._open.pop(call.number, None)
        call.end_s = self.simulator.now
        outcome = type(result).__name__ if isinstance(result, BaseException) else "answer"
        self.simulator.note(f"call {call.number} ends: {outcome}")
        if len(call.results) > 1:
            self.report_violation(f"call {call.number} ended {len(call.results)} times")
        model, remaining = call.model, call.remaining
        if not isinstance(result, BaseException):
            model.delivered.append(call.request_id)
            for name in model.deployment.plan.output_names:
                value = result.get(name)
                if isinstance(value, ResidentTensor):
                    record: Any = model.records.get(call.request_id)
                    bundle: Any = value.bundle
                    key = bundle.key
                    if record is not None and f"/{record.attempt}/" not in key:
                        self.report_violation(
                            f"call {call.number} is answered by another attempt: {key}"
                        )
                    continue
                if not np.array_equal(value, call.expected[name]):
                    self.report_violation(f"call {call.number}: a wrong {name!r}")
        call.remaining = None
        if model.has_state and not isinstance(result, BaseException) and "r" in result:
            model.last_state = call.expected["r"], result["r"]
        if model.has_state and remaining > 1 and not self.are_faults_over:
            state = None
            if not isinstance(result, BaseException):
                state = call.expected["r"], result["r"]
            next_call_delay_s = model.next_call_delay_s(self.simulator.random)
            self.simulator.after(
                next_call_delay_s, self._start_call, self._next(model), remaining - 1, state
            )

    def _start_extra_call(self, model: Model) -> None:
        """Make a call, which may read a state on other devices."""
        state = self._next(model).last_state if model.has_state and model in self.models else None
        self._start_call(model, 1, state)

    def _next(self, model: Model) -> Model:
        """Return a model that takes over a state, possibly on other devices."""
        alike = [m for m in self.models if m.client is model.client and m.width == model.width]
        return self.simulator.random.choice([m for m in alike if m.has_state] or [model])

    def _inject_fault(self, kind: str, mean_s: float) -> None:
        if self.are_faults_over:
            return
        random, cluster = self.simulator.random, self.cluster
        used_names = [name for model in self.models for name in model.placement.devices]
        name = random.choice(used_names or self.names)
        for_s = random.choice((0.05, 0.5, 2.5, 6.0, 6.0))  # some exceed a short lease
        self.num_losses += 1
        for _ in range(4):  # calls during the loss of a device, and when it returns
            delay_s = random.choice((0.0, for_s)) + 0.05 * random.random()
            self.simulator.after(delay_s, self._start_extra_call, random.choice(self.models))
        if kind == "crash":
            if (
                self._joint_crashes.random() < self.joint_crashes
            ):  # several devices restart at the same time
                for other in dict.fromkeys(used_names):
                    cluster.crash(other, notice_s=0.0)
            cluster.crash(name)
            if random.random() < 0.3:  # soon followed by another one
                self.simulator.after(
                    0.4 * random.random(), cluster.crash, random.choice(used_names or self.names)
                )
        elif kind == "stop":
            cluster.stop(cluster.devices[name].process, for_s)
        elif kind == "client_stop":
            cluster.stop(
                random.choice(cluster.clients).process, for_s
            )  # possibly the pool supervisor
        else:
            ends = [d.node for d in cluster.devices.values()] + [
                c.process.node for c in self.clients
            ]
            one, other = random.choice(ends), random.choice(ends)
            cluster.cut(one, other, for_s)
            if random.random() < 0.5:
                cluster.cut(other, one, for_s)
        self.simulator.after(random.expovariate(1 / mean_s), self._inject_fault, kind, mean_s)

    def _end_client(self, client: SupervisedClient) -> None:
        """End a client and discard its calls."""
        self.cluster.end_client(client)
        self.clients.remove(client)
        self.has_ended_client = True
        for model in [model for model in self.models if model.client is client]:
            model.is_closed = True
            self.models.remove(model)

    def _close(self, model: Model) -> None:
        self.simulator.note(f"{model.deployment.key} is closed")
        model.is_closed = True
        model.deployment.close()

    def _end_faults(self) -> None:
        if self.are_faults_over:
            return
        self.simulator.note("heals")
        self.are_faults_over = True
        self.cluster.end_quota()
        self._until_s = (
            self.simulator.now + self.recovery_s + RECOVERY_PER_REQUEST_S * len(self._open)
        )
        self.threads.late_s = 0.0

    def _delays_of(
        self, sender: Process, receiver: Process, message: Message | bytes
    ) -> Sequence[float]:
        faults, random = self.faults, self.simulator.random
        if self.cluster.is_cut(sender, receiver):
            return ()
        is_drop_notice = isinstance(message, Dropped) and not faults.loses_drops
        if self.are_faults_over or isinstance(message, StoreTensors | FetchTensors | FreeTensors):
            return (0.0,)
        is_lost = faults.loss and random.random() < faults.loss and sender.node != receiver.node
        if is_lost and not is_drop_notice:
            self.num_losses += 1
            return ()
        late = [0.0]
        if faults.late and random.random() < faults.late:
            late = [random.random() * faults.late_s]
        # Only channels drop duplicates of resident tensors, and this network has no channels.
        keeps = isinstance(message, Outputs) and bool(message.task.request.resident_outputs)
        if faults.double and not keeps and random.random() < faults.double:
            late.append(random.random() * 0.05)
        return late

    def _start_s(self, name: str) -> float | None:
        random, faults = self.simulator.random, self.faults
        if self.are_faults_over:
            return 0.1
        if random.random() < faults.failed_start:
            return None
        return random.choice((3.0, 6.0)) if random.random() < faults.slow_start else 0.1

    def _call_outcome(self) -> tuple[Sequence[float], bool]:
        random = self.simulator.random
        if self.are_faults_over:
            return (0.0,), True
        if self.has_late_calls and self._late_calls.random() < LATE_CALLS:
            return self._late_calls.choice((((0.3,), True), ((1.5, 0.0), True), ((4.0, 0.0), True)))
        if random.random() >= self.faults.call:
            return (0.0,), True
        # The call is repeated during the first one or long after it.
        again = (random.choice((0.3, 1.5, 4.0)), 0.0), True
        slow = (random.choice((0.3, 1.5)),), True
        return random.choice(
            (((), True), ((0.0,), False), ((0.0, 0.01), True), again, again, slow, slow)
        )

    def report_violation(self, violation: str) -> None:
        self.violations.append(f"t={self.simulator.now:.4f}: {violation}")

    def _end(self) -> None:
        """Release all calls and check that devices have freed everything."""
        if self.violations:
            return
        faults, random = self.faults, self.simulator.random
        if faults.stop_s:  # a device is suspended when its resident tensors are released
            self.cluster.stop(self.cluster.devices[random.choice(self.names)].process, 3.7)
            self.simulator.run(self.simulator.now + 2.3)
        for model in self.models:
            model.last_state = None
        for call in self.calls:
            if call.model in self.models:
                call.results[:] = [None]
                call.remaining = call.inputs = None  # type: ignore[assignment]  # frees resident tensors
        self.simulator.run(
            self.simulator.now + SETTLE_S + self.has_ended_client * self.cluster.lease_s
        )
        for device in self.cluster.devices.values():
            # Notices of dropped attempts may be lost.
            is_sure = not ((faults.loss and faults.loses_drops) or faults.cut_s)
            machine = device.loop._machine
            is_empty = not device.loop._machine.num_tasks and not device.loop._kept.nbytes
            is_empty = is_empty and not any(c.nbytes for c in machine._clients.values())
            is_empty = is_empty and not any(d.tasks for d in machine._deployments.values())
            if device.process.is_alive and device.host._running:
                self.report_violation(f"{device.address} lists runs that have ended")
            if is_sure and device.process.is_alive and not is_empty:
                self.report_violation(
                    f"{device.address} still has {device.loop._machine.num_tasks} tasks, "
                    f"{device.loop._kept.nbytes} bytes kept"
                )


class ErrorLogHandler(logging.Handler):
    """Reports each logged error as a violation."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._history.report_violation(f"logged {record.getMessage()!r}: {error!r}")


class RecordObserver:
    """Observer that stores the records of finished requests."""

    def __init__(self, history: History) -> None:
        self._history = history

    def ended(self, request: ObservedRequest) -> None:
        for model in self._history.models:
            if model.deployment.key == request.deployment:
                model.records[request.record.id] = request.record

    def ran(self, request: ObservedRequest) -> None: ...

    def device(self, event: DeviceEvent) -> None: ...
