"""One history of a universe: what a seed draws, what happens, and what must hold."""

from __future__ import annotations

import gc
import logging
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from random import Random
from typing import Any

import numpy as np

from devices.errors import (
    DeadlineError,
    DeviceLostError,
    HeteroError,
    InferenceError,
    OverloadedError,
    RequestCancelledError,
    TensorError,
)
from devices.plugin.remote import RemoteTensor
from devices.request.request import Request
from scheduler.client.batching import Batching
from scheduler.device.machine import TaskState
from scheduler.observe.observer import DeviceEvent, ObservedRequest
from scheduler.universe.client import PlayedClient
from scheduler.universe.cluster import PlayedCluster
from scheduler.universe.device import PlayedDevice, Work
from scheduler.universe.network import Link, Network
from scheduler.universe.world import Process, World
from scheduler.vocabulary import events
from scheduler.vocabulary.limits import Limits
from scheduler.vocabulary.messages import Dropped, Free, Give, Keep, Message, Outputs
from scheduler.vocabulary.placement import Route
from scheduler.vocabulary.plan import Stage
from scheduler.vocabulary.record import RequestState
from tests.universe import models
from tests.universe.threads import Threads, locks_of

#: Virtual seconds in which all is answered once nothing goes wrong any more: a process may be
#: stopped for 6 seconds yet, and a device be started after a pause of 10.
HEALED_S = 30.0
#: Of a long history so much more for each request: all may wait for one slow way.
LATE_S = 0.2
#: Seconds in which a request is answered then, and all that is let go of is freed.
SOON_S = 10.0
#: Turns that each other client may have while one waits: start-time fair queueing bounds the
#: difference of two clients that both wait to a unit of each.
UNFAIR = 2
#: In a long history all is looked at after so many events.
SELDOM = 50


@dataclass
class Faults:
    """Which kinds of faults there are, and how often; 0: never."""

    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    late_s: float = 0.0
    #: Mean seconds between two.
    crash_s: float = 0.0
    stop_s: float = 0.0
    cut_s: float = 0.0
    client_stop_s: float = 0.0
    #: Share of the histories in which a client ends.
    client_crash: float = 0.0
    slow_start: float = 0.0
    failed_start: float = 0.0
    #: Of the calls to devices.
    call: float = 0.0
    #: Of the requests.
    raises: float = 0.0
    poison: float = 0.0
    hang: float = 0.0
    cancel: float = 0.0
    hurry: float = 0.0
    close: float = 0.0
    #: Lines after which a thread loses its turn.
    lines: int = 0
    #: Whether what tells that an attempt is dropped is lost as other messages are.
    loses_drops: bool = False

    @classmethod
    def drawn(cls, random: Random) -> Faults:
        """Draw which there are."""
        if random.random() < 0.1:
            return cls()
        rates = {
            "loss": random.choice((0.002, 0.02, 0.1)),
            "double": random.choice((0.01, 0.1)),
            "late": random.choice((0.05, 0.3)),
            "crash_s": random.choice((0.3, 2.0)),
            "stop_s": random.choice((0.5, 3.0)),
            "cut_s": random.choice((0.5, 3.0)),
            "client_stop_s": random.choice((1.0, 5.0)),
            "client_crash": 0.5,
            "slow_start": random.choice((0.2, 0.8)),
            "failed_start": random.choice((0.2, 0.6)),
            "call": random.choice((0.05, 0.3)),
            "raises": random.choice((0.02, 0.2)),
            "poison": 0.02,
            "hang": 0.02,
            "cancel": random.choice((0.05, 0.3)),
            "hurry": random.choice((0.05, 0.3)),
            "close": 0.3,
        }
        on = {name: rate for name, rate in rates.items() if random.random() < 0.3}
        lines = random.choice((0, 0, 30, 100, 400, 2000))
        late_s = random.choice((0.001, 0.02, 0.3))
        return cls(**on, late_s=late_s, lines=lines, loses_drops=random.random() < 0.3)

    def words(self) -> str:
        """Return those that there are."""
        kinds = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ", ".join(f"{name}={value}" for name, value in kinds if value) or "none"


@dataclass
class Call:
    """A request that a caller made."""

    number: int
    model: Model
    inputs: dict[str, Any]
    wanted: dict[str, np.ndarray]
    request: Request
    begun_s: float
    #: What it is marked with: raises, poison, hang.
    mark: str = ""
    is_cancelled: bool = False
    ends: list[Any] = field(default_factory=list)
    ended_s: float = 0.0
    request_id: int = 0
    story: Any = None
    kept: Any = None


class Model:
    """A deployment, and what its callers want of it."""

    def __init__(self, history: History, client: PlayedClient, number: int) -> None:
        draw = history.random
        self.client = client
        self.has_state = draw.random() < 0.25
        shapes = [s for s in models.SHAPES if s.startswith("state") == self.has_state]
        self.shape = draw.choice(shapes)
        self.width = draw.choice((1, 1, 1, 2500))
        self.placement = models.placement(draw, self.shape, history.names, self.width)
        self.limits = Limits(
            requests=draw.choice((1, 2, 3, 8, 32)),
            nbytes=draw.choice((2**30, 16 * 8 * self.width, 4 * 8 * self.width)),
            waiting=draw.choice((1024, 1024, 2)),
            timeout_s=600.0,
            admission_timeout_s=draw.choice((600.0, 600.0, 2.0)),
            attempts=draw.choice((5, 5, 5, 2)),
            in_order=draw.random() < 0.2,
            stage_timeout_s=1.5 if history.faults.hang else 0.0,
        )
        self.batching: Batching | None = None
        if not self.has_state and draw.random() < 0.3:
            busy = draw.choice((1, 2))
            self.batching = Batching(
                draw.choice((2, 4, 8)),
                draw.choice((0.0, 0.005, 0.05)),
                busy,
                busy + draw.choice((0, 2)),
            )
        self.mean_s = draw.choice((0.0, 0.0005, 0.005, 0.05))
        self.deployment = client.deploy(self.placement, self.limits, self.batching)
        self.runner = self.deployment._runner
        self.below = self.deployment.below if self.batching else self.deployment
        self.is_closed = False
        self.records: dict[int, Any] = {}
        self.delivered: list[int] = []

    @property
    def routes(self) -> Sequence[Route]:
        return self.placement.routes

    @property
    def runners(self) -> list[Any]:
        return [self.runner, self.below._runner] if self.batching else [self.runner]

    def later_s(self, random: Random) -> float:
        """Return when the next caller comes."""
        return random.expovariate(1 / self.mean_s) if self.mean_s else 0.0


class Played(Work):
    """What stages do in a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._usual_s = {name: history.random.choice((0.001, 0.01)) for name in history.names}

    def run_s(self, device: str, stage: Stage, inputs: Sequence[Any]) -> float:
        history = self._history
        number = int(np.asarray(inputs[0]).flat[0]) if stage.inputs[0] == "x" else 0
        mark = "" if history.is_healing else history.marks.get(number)
        if mark == "poison":
            history.world.after(0.0, history.cluster.crash, device)
            return 0.001
        if mark == "hang":
            return 1e6
        return self._usual_s[device] * (0.5 + history.random.random())

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        first = inputs[0]
        if stage.inputs[0] == "x":
            numbers = [int(n) for n in np.asarray(first)[:, 0]]
            self._history.check_rows(numbers)
            if any(self._history.marks.get(n) == "raises" for n in numbers):
                raise InferenceError("this input is not to be")
        return [models.made(name, inputs) for name in stage.outputs]

    def num_streams(self, device: str, stage: Stage) -> int:
        return self._history.streams[device, stage.index % 4]


class History:
    """What a seed leads to.

    `num_requests`: of all callers, about; drawn by default.
    """

    def __init__(
        self,
        seed: int,
        *,
        is_traced: bool = False,
        num_requests: int | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.seed = seed
        self.random = draw = Random(seed)
        self.faults = faults or Faults.drawn(draw)
        self.broken: list[str] = []
        is_threaded = bool(self.faults.lines) or bool(self.faults.hang) or draw.random() < 0.5
        self.world = World(seed, is_threaded=is_threaded, is_traced=is_traced)
        self.num_requests = num_requests or draw.choice((10, 30, 60))
        self._is_long = num_requests is not None
        #: When all is answered at the latest.
        self._until_s = 0.0
        self.names = ["A", "B", "C", "D", "E"][: draw.randint(1, 5)]
        self.streams = {(n, i): draw.choice((1, 1, 2)) for n in self.names for i in range(4)}
        self.marks: dict[int, str] = {}
        self.calls: list[Call] = []
        self.is_healing = False
        self.num_losses = 0
        self.has_lost_client = False
        self.ran: Counter[tuple[str, str, int, int, int]] = Counter()
        #: Device -> turns that clients had while others waited.
        self.turns: dict[str, Counter[str]] = {}
        #: Device's address -> how many tasks it ran when last looked at.
        self.running: dict[str, int] = {}
        #: What must not last -> since when it is so.
        self.since_s: dict[tuple[str, Any], float] = {}

    # What is there.

    def _build(self) -> None:
        draw, world, faults = self.random, self.world, self.faults
        nodes = ["n0", "n1", "n2"][: draw.randint(1, 3)]
        delay_s = draw.choice((0.00005, 0.002, 0.1))
        speed = draw.choice((0.0, 1e9, 1e6))
        far = Link(delay_s, speed)

        def link(sender: str, receiver: str) -> Link:
            near = sender == receiver
            return Link(0.00005) if near else Link(far.delay_s, far.nbytes_per_s)

        self.network = Network(world, link)
        self.network.weather = self._weather
        where = {name: draw.choice(nodes) for name in self.names}
        self.cluster = PlayedCluster(
            world, self.network, Played(self), where, lease_s=draw.choice((60.0, 3.0))
        )
        self.cluster.on_run = self._runs
        self.cluster.start_s = self._start_s
        self.cluster.fate = self._fate
        self.threads = Threads(world, faults.lines)
        num_clients = draw.choice((1, 1, 2, 3))
        self.clients = [
            PlayedClient(self.cluster, f"c{i}", draw.choice(nodes), [Noted(self)])
            for i in range(num_clients)
        ]
        self.num_clients = num_clients
        self.models = [
            Model(self, client, number)
            for client in self.clients
            for number in range(draw.choice((1, 1, 2)))
        ]
        for model in self.models:
            for runner in model.runners:
                runner._machine.handle = partial(
                    self._handle, runner._machine, runner._machine.handle
                )

    # What happens.

    def run(self) -> History:
        """Let it happen; what broke is in `broken`."""
        gc.disable()
        logger = logging.getLogger("scheduler")
        heard = _Heard(self)
        logger.addHandler(heard)
        logger.propagate = False
        try:
            with locks_of(self.world):
                self._run()
        except AssertionError as error:
            self._break(f"assertion: {error!r}")
        finally:
            gc.enable()
            logger.removeHandler(heard)
            logger.propagate = True
            self.world.close()
        return self

    def _run(self) -> None:
        world, draw = self.world, self.random
        self._build()
        share = max(1, self.num_requests // len(self.models))
        for model in self.models:
            world.after(0.0, self._arrive, model, share)
        for kind in ("crash", "stop", "cut", "client_stop"):
            if mean_s := getattr(self.faults, f"{kind}_s"):
                world.after(draw.expovariate(1 / mean_s), self._happen, kind, mean_s)
        if draw.random() < self.faults.client_crash and len(self.clients) > 1:
            world.after(draw.uniform(0.0, 1.0), self._end_client, draw.choice(self.clients))
        heal_s = draw.uniform(1.0, 6.0)
        if self._is_long:
            heal_s += share * max(model.mean_s for model in self.models)
        world.after(heal_s, self._heal)
        self._until_s = heal_s + HEALED_S
        if self._is_long:  # as many wait as came
            self._until_s += LATE_S * self.num_requests
        if draw.random() < self.faults.close:
            closing = draw.choice(self.models)
            world.after(draw.uniform(0.0, 0.5), world.spawn, partial(self._close, closing))
        self._step(lambda: self.is_healing and not self._open_calls())
        self._check_answers()
        if not self.broken:
            self._ask_again()
        self._end()
        if not self.broken:
            self._check_empty()

    def _step(self, done: Any) -> None:
        """Go on until all is done, or should be."""
        world = self.world
        while not done() and (world.next_s or 0.0) <= self._until_s and world.step():
            if world.errors:
                error = world.errors[0]
                told = "".join(traceback.format_exception(error)[-3:])
                self._break(f"raised {type(error).__name__}: {error}\n{told}")
                return
            if not self._is_long or world.num_events % SELDOM == 0:
                self._check_always()
            if self.broken:
                return

    def _ask_again(self) -> None:
        """Have a caller come once more, now that all is well: it gets its answer."""
        self._until_s = self.world.now + HEALED_S
        self._step(lambda: False)
        asked, most = len(self.calls), max(len(m.placement.routes) for m in self.models)
        for number in range(3 * most if most > 1 else 1):
            for model in self.models:
                if not (model.is_closed or self.broken) and number < 3 * len(model.routes):
                    self._arrive(model, 1, is_last=True)
            self._until_s = self.world.now + SOON_S
            self._step(lambda: not self._open_calls())
        for call in self.calls[asked:]:
            if not (self.broken or (call.ends and isinstance(call.ends[0], dict))):
                self._break(f"all is well, and call {call.number} got {call.ends!r}")
        for model in self.models:
            self._check_shares(model, self.calls[asked:])

    def _check_shares(self, model: Model, calls: Sequence[Call]) -> None:
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

    def _open_calls(self) -> list[Call]:
        return [call for call in self.calls if not call.ends and call.model in self.models]

    def _arrive(self, model: Model, left: int, kept: Any = None, *, is_last: bool = False) -> None:
        """Have a caller make a request, and later the next one."""
        draw, faults = self.world.random, Faults() if is_last else self.faults
        if not is_last and (self.is_healing or model.is_closed):
            return
        number = len(self.calls) + 1
        rows = draw.randint(1, 3) if model.batching else 1
        width = model.width + (draw.random() < 0.3 if model.batching else 0)
        x = np.full((rows, width), number, np.int64)
        inputs: dict[str, Any] = {"x": x}
        known: dict[str, np.ndarray] = {"x": x}
        if model.has_state:
            fresh = np.zeros((rows, model.width), np.int64)
            value, tensor = kept or (fresh, fresh)
            known["s"], inputs["s"] = value, tensor
        request = Request(
            timeout_s=draw.choice((0.02, 0.5)) if draw.random() < faults.hurry else None,
            waits=is_last or draw.random() < 0.85,
            priority=draw.choice((0, 0, 0, 1, 5)),
            keep=("r",) if model.has_state else (),
        )
        call = Call(
            number, model, inputs, models.wanted(model.shape, known), request, self.world.now
        )
        for mark in ("raises", "poison", "hang"):
            if draw.random() < getattr(faults, mark):
                call.mark = self.marks[number] = mark
        self.calls.append(call)
        self.world.spawn(partial(self._call, call))
        if draw.random() < faults.cancel:
            self.world.after(draw.choice((0.0, 0.003, 0.03)), self._cancel, call)
        if left > 1 and not model.has_state:
            self.world.after(model.later_s(draw), self._arrive, model, left - 1)
        call.kept = left

    def _call(self, call: Call) -> None:
        try:
            made = call.model.deployment.submit(call.inputs, call.request)
        except Exception as error:
            self._ended(call, error)
            return
        call.request_id, call.story = made.request_id, made.story
        made.future.add_done_callback(partial(self._answered, call))
        if call.is_cancelled:
            made.cancel()
        call.inputs = {"cancel": made.cancel}

    def _cancel(self, call: Call) -> None:
        call.is_cancelled = True
        if cancel := (call.inputs or {}).get("cancel"):
            self.world.spawn(cancel)

    def _answered(self, call: Call, future: Any) -> None:
        error = future.exception()
        self._ended(call, error if error is not None else future.result().outputs)

    def _ended(self, call: Call, end: Any) -> None:
        call.ends.append(end)
        call.ended_s = self.world.now
        what = type(end).__name__ if isinstance(end, BaseException) else "answer"
        self.world.note(f"call {call.number} ends: {what}")
        if len(call.ends) > 1:
            self._break(f"call {call.number} ended {len(call.ends)} times")
        model, left = call.model, call.kept
        if not isinstance(end, BaseException):
            model.delivered.append(call.request_id)
            for name in model.below.plan.output_names:
                value = end.get(name)
                if isinstance(value, RemoteTensor):
                    record: Any = model.records.get(call.request_id)
                    tensor: Any = value
                    key = tensor.kept.key
                    if record is not None and f"/{record.attempt}/" not in key:
                        self._break(f"call {call.number} is answered by another attempt: {key}")
                    continue
                if not np.array_equal(value, call.wanted[name]):
                    self._break(f"call {call.number}: a wrong {name!r}")
        call.kept = None
        if model.has_state and left > 1 and not self.is_healing:
            kept = None
            if not isinstance(end, BaseException):
                kept = call.wanted["r"], end["r"]
            later_s = model.later_s(self.world.random)
            self.world.after(later_s, self._arrive, model, left - 1, kept)

    def _happen(self, kind: str, mean_s: float) -> None:
        if self.is_healing:
            return
        draw, cluster = self.world.random, self.cluster
        name = draw.choice(self.names)
        for_s = draw.choice((0.05, 0.5, 2.5, 6.0))
        self.num_losses += 1
        for _ in range(3):  # callers come as a device is lost
            self.world.after(0.05 * draw.random(), self._arrive, draw.choice(self.models), 1)
        if kind == "crash":
            cluster.crash(name)
        elif kind == "stop":
            cluster.stop(cluster.devices[name].process, for_s)
        elif kind == "client_stop":
            cluster.stop(draw.choice(self.clients).process, for_s)
        else:
            ends = [d.node for d in cluster.devices.values()] + [
                c.process.node for c in self.clients
            ]
            one, other = draw.choice(ends), draw.choice(ends)
            cluster.cut(one, other, for_s)
            if draw.random() < 0.5:
                cluster.cut(other, one, for_s)
        self.world.after(draw.expovariate(1 / mean_s), self._happen, kind, mean_s)

    def _end_client(self, client: PlayedClient) -> None:
        """End a client: nobody waits for its calls any more."""
        self.cluster.end_client(client)
        self.clients.remove(client)
        self.has_lost_client = True
        for model in [model for model in self.models if model.client is client]:
            model.is_closed = True
            self.models.remove(model)

    def _close(self, model: Model) -> None:
        self.world.note(f"{model.below.key} is closed")
        model.is_closed = True
        model.deployment.close()

    def _heal(self) -> None:
        self.world.note("heals")
        self.is_healing = True
        self.threads.late_s = 0.0

    def _weather(self, sender: Process, receiver: Process, message: Message) -> Sequence[float]:
        faults, draw = self.faults, self.world.random
        if self.cluster.is_cut(sender, receiver):
            return ()
        is_told = isinstance(message, Dropped) and not faults.loses_drops
        if self.is_healing or isinstance(message, Keep | Give | Free):
            return (0.0,)
        is_lost = faults.loss and draw.random() < faults.loss and sender.node != receiver.node
        if is_lost and not is_told:
            self.num_losses += 1
            return ()
        late = [0.0]
        if faults.late and draw.random() < faults.late:
            late = [draw.random() * faults.late_s]
        # Channels drop what comes twice, which for a tensor that is kept they alone do.
        keeps = isinstance(message, Outputs) and bool(message.task.request.keep)
        if faults.double and not keeps and draw.random() < faults.double:
            late.append(draw.random() * 0.05)
        return late

    def _start_s(self, name: str) -> float | None:
        draw, faults = self.world.random, self.faults
        if self.is_healing:
            return 0.1
        if draw.random() < faults.failed_start:
            return None
        return draw.choice((3.0, 6.0)) if draw.random() < faults.slow_start else 0.1

    def _fate(self) -> tuple[Sequence[float], bool]:
        draw = self.world.random
        if self.is_healing or draw.random() >= self.faults.call:
            return (0.0,), True
        return draw.choice((((), True), ((0.0,), False), ((0.0, 0.01), True), ((0.3, 0.0), True)))

    def _runs(self, device: PlayedDevice, run: events.Run) -> None:
        """Look at a run that begins: what the device's queue promises."""
        request, stage = run.task
        key = (device.address, request.deployment, request.id, request.attempt, stage)
        self.ran[key] += 1
        if self.ran[key] > 1:
            self._break(f"{run.task} runs twice on {device.address}")
        machine = device.loop._machine
        if self.faults.lines or run.state is not TaskState.RUNNING:
            return
        if machine.is_dropped(request):
            self._break(f"{run.task} runs on {device.address} though it was dropped")
        client, turn = run.stage.opened.client, request.id + run.stage.opened.level
        turns = self.turns.setdefault(device.address, Counter())
        for other, line in machine._ready.waiting.items():
            key, first = line.waiting[0]
            if first.state is not TaskState.READY or first.stage.num_running:
                continue
            if other == client and key.turn < turn:
                self._break(f"{run.task} runs on {device.address} before turn {key.turn}")
            if other != client:
                turns[other] = turns[other] + 1
                if turns[other] > UNFAIR * (self.num_clients - 1):
                    self._break(f"{other} waits at {device.address} while others go first")
        turns[client] = 0

    def check_rows(self, numbers: Sequence[int]) -> None:
        """Look at a run's rows, by their calls' numbers."""
        batching = self.calls[numbers[0] - 1].model.batching
        if len(set(numbers)) > 1 and (batching is None or len(numbers) > batching.size):
            self._break(f"a batch of {len(numbers)} rows")

    # What must hold.

    def _break(self, what: str) -> None:
        self.broken.append(f"t={self.world.now:.4f}: {what}")

    def _check_always(self) -> None:
        if self.threads.num_away:
            self.since_s.clear()
            return
        for model in self.models:
            for runner in model.runners:
                self._check_lasting(model, runner)
                machine, limits = runner._machine, runner._machine.limits
                if machine.num_in_flight > limits.requests:
                    self._break(f"{machine.num_in_flight} of {limits.requests} in flight")
                running = [r for r in machine.live() if r.is_suspect and r.state.value == "running"]
                if len(running) > 1:
                    self._break(f"{len(running)} suspects run at once")
                if machine.num_waiting > limits.waiting:
                    self._break(f"{machine.num_waiting} of {limits.waiting} wait")
            if model.batching and model.deployment._batcher.num_in_flight > model.batching.most:
                self._break("more batches in flight than may be")
        for device in self.cluster.devices.values():
            self._check_device(device)

    def _check_lasting(self, model: Model, runner: Any) -> None:
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
                machine.num_in_flight < limits.requests
                and machine._routes.is_any_live()
                and (not machine.num_in_flight or nbytes <= limits.nbytes)
            )
        due_s = model.deployment._batcher.next_due_s if model.batching else None
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

    def _handle(self, machine: Any, handle: Any, event: Any) -> Any:
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

    def _check_device(self, device: PlayedDevice) -> None:
        machine = device.loop._machine
        # Once the widest stage is closed, what runs goes on.
        before = self.running.get(device.address, 0)
        self.running[device.address] = machine.num_running
        if machine.num_running > max(machine.num_streams, before):
            self._break(f"{device.address} runs {machine.num_running} of {machine.num_streams}")
        waiting = machine._ready.waiting
        for name in set(self.turns.get(device.address, ())) - set(waiting):
            self.turns[device.address][name] = 0
        opened = [s.opened for d in machine._deployments.values() for s in d.stages.values()]
        if waiting and machine.num_running < max(stage.num_streams for stage in opened):
            self._break(f"{device.address} is idle while tasks wait")

    def _check_answers(self) -> None:
        for call in self._open_calls():
            if self.broken:
                return
            told = [str(line) for line in call.story()] if call.story else ["not admitted"]
            self._break(f"call {call.number} is not answered: " + "; ".join(told))
        for call in self.calls:
            if call.ends and call.model in self.models:
                self._check_end(call, call.ends[0])
        for model in self.models:
            self._check_charges(model)
        if not self.faults.lines:  # else a caller may lose its turn before it is heard of
            for model in self.models:
                self._check_order(model)

    def _check_charges(self, model: Model) -> None:
        """See whether what was lost with devices alone was charged to requests."""
        faults = self.faults
        others = (faults.loss, faults.cut_s, faults.raises, faults.call, faults.client_stop_s)
        if any(others) or model.batching or model.has_state or model.limits.attempts < 5:
            return
        for record in model.records.values():
            if record.num_failed > max(0, record.num_lost - 2):
                told = "; ".join(str(line) for line in record.story)
                self._break(f"request {record.id} is charged {record.num_failed} times: {told}")

    def _check_order(self, model: Model) -> None:
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

    def _check_end(self, call: Call, end: Any) -> None:
        """See whether a call's error has a cause."""
        if not isinstance(end, BaseException):
            if call.mark == "raises":
                self._break(f"call {call.number} is answered, though its stage raises")
            return
        model, limits, faults = call.model, call.model.limits, self.faults
        was_lost = self.num_losses > 0 or bool(faults.poison or faults.hang)
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
                    not call.request.waits
                    or limits.attempts < 5
                    or limits.admission_timeout_s < 600
                    or call.mark in ("poison", "hang")
                    or bool(faults.loss or faults.cut_s or faults.client_stop_s)
                    or batched
                    or (self._num_failed(call) >= limits.attempts and not is_alone)
                )
            case OverloadedError():
                fine = (
                    not call.request.waits
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

    def _end(self) -> None:
        """Let go of all."""
        if self.broken:
            return
        faults, draw = self.faults, self.world.random
        if faults.stop_s:  # one is not heard as it is let go of what it keeps
            self.cluster.stop(self.cluster.devices[draw.choice(self.names)].process, 3.7)
            self.world.run(self.world.now + 2.3)
        for call in self.calls:
            if call.model in self.models:
                call.ends[:] = [None]
                call.kept = call.inputs = None  # type: ignore[assignment]  # what it kept is freed
        self.world.run(self.world.now + SOON_S + self.has_lost_client * self.cluster.lease_s)
        for device in self.cluster.devices.values():
            # What says that nobody wants them may have been lost.
            is_sure = not ((faults.loss and faults.loses_drops) or faults.cut_s)
            machine = device.loop._machine
            is_empty = device.loop.is_empty and not device.loop._kept.nbytes
            is_empty = is_empty and not any(c.nbytes for c in machine._clients.values())
            is_empty = is_empty and not any(d.tasks for d in machine._deployments.values())
            if is_sure and device.process.is_alive and not is_empty:
                self._break(
                    f"{device.address} still has {device.loop._machine.num_tasks} tasks, "
                    f"{device.loop._kept.nbytes} bytes kept"
                )

    def _check_empty(self) -> None:
        for model in self.models:
            for runner in model.runners:
                machine = runner._machine
                left = {
                    "calls": len(runner._calls),
                    "live": len(machine._live),
                    "in flight": machine.num_in_flight,
                    "waiting": machine.num_waiting,
                    "running": machine._in_flight.num_running,
                    "bytes": machine.nbytes_in_flight,
                    "orders": len(runner._outbox.orders),
                    "suspects": len(machine._suspects.parked),
                    "routes": sum(way.num_running for way in machine._routes._ways),
                    "order": len(machine._order),
                }
                if any(left.values()):
                    self._break(f"left behind: { {k: v for k, v in left.items() if v} }")
            if model.batching:
                batched = model.deployment
                if batched._callers or batched._batcher.num_in_flight or batched._batcher._groups:
                    self._break("a batcher has something left")
        for client in self.clients:
            if client.memory.awaited:
                self._break("a tensor is still awaited")


class _Heard(logging.Handler):
    """What is logged with an exception went wrong."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._history._break(f"logged {record.getMessage()!r}: {error!r}")


class Noted:
    """Takes note of how requests ended."""

    def __init__(self, history: History) -> None:
        self._history = history

    def ended(self, request: ObservedRequest) -> None:
        for model in self._history.models:
            if model.below.key == request.deployment:
                model.records[request.record.id] = request.record

    def ran(self, request: ObservedRequest) -> None: ...

    def device(self, event: DeviceEvent) -> None: ...
