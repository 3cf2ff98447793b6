"""One simulated history: the cluster, its faults, and the events."""

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
from hetero.scheduler.simulation.world import Process, World
from hetero.scheduler.types.messages import Dropped, Free, Give, Keep, Message, Outputs
from tests.simulation import models
from tests.simulation.drawn import Call, Faults, Model, Played
from tests.simulation.faulty_cluster import FaultyCluster
from tests.simulation.invariants import Invariants
from tests.simulation.kept_client import KeptClient
from tests.simulation.threads import Threads, locks_of

#: Virtual seconds in which all is answered once nothing goes wrong any more: a process may be
#: stopped for 6 seconds yet, and a device be started after a pause of 10.
HEALED_S = 30.0
#: And so much more for each request that is open then: all may wait for one slow way.
LATE_S = 1.0
#: Seconds in which a request is answered then, and all that is let go of is freed.
SOON_S = 10.0
#: In a long history all is looked at after so many events; so many requests are open at once, and
#: the next one waits so long then; and it heals at the latest after so long for each.
SELDOM = 50
MOST_OPEN = 40
PACE_S = 0.05
LONG_S = 0.1


class History:
    """What a seed leads to.

    `num_requests`: of all callers, about; drawn by default.
    """

    healed_s = HEALED_S
    soon_s = SOON_S
    #: What is deployed, and what its stages do.
    model_of: type[Model] = Model
    work_of: type[Played] = Played

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
        self.is_long = num_requests is not None
        #: When all is answered at the latest.
        self._until_s = inf
        self.names = ["A", "B", "C", "D", "E"][: draw.randint(1, 5)]
        self.streams = {(n, i): draw.choice((1, 1, 2)) for n in self.names for i in range(4)}
        self.marks: dict[int, str] = {}
        self.calls: list[Call] = []
        #: Those that have not ended, by number.
        self._open: dict[int, Call] = {}
        self.is_healing = False
        self.num_losses = 0
        self.has_lost_client = False

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
        self.cluster = FaultyCluster(
            world, self.network, self.work_of(self), where, lease_s=draw.choice((60.0, 3.0))
        )
        self.cluster.start_s = self._start_s
        self.cluster.fate = self._fate
        self.threads = Threads(world, faults.lines)
        num_clients = draw.choice((1, 1, 2, 3))
        if num_clients > 1:
            KeptClient(self.cluster, "keeper", nodes[0], keeps_pool=True)
        self.clients = [
            KeptClient(self.cluster, f"c{i}", draw.choice(nodes), [Noted(self)])
            for i in range(num_clients)
        ]
        self.models: list[Model] = []
        for client in self.clients:
            for _ in range(draw.choice((1, 2))):
                self.models.append(self.model_of(self, client))
        self.invariants = Invariants(self)
        self.cluster.on_run = self.invariants.runs
        for model in self.models:
            machine = model.runner._machine
            machine.handle = partial(self.invariants.handled, machine, machine.handle)

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
            self.breaks(f"assertion: {error!r}")
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
        world.after(heal_s + self.is_long * LONG_S * self.num_requests, self._heal)
        if draw.random() < self.faults.close:
            closing = draw.choice(self.models)
            world.after(draw.uniform(0.0, 0.5), world.spawn, partial(self._close, closing))
        self._step(lambda: self.is_healing and not any(self.open_calls()))
        self.invariants.answers()
        if not self.broken:
            self._ask_again()
        self._end()
        if not self.broken:
            self.invariants.empty()

    def _step(self, done: Any) -> None:
        """Go on until all is done, or should be."""
        world = self.world
        while not done() and (world.next_s or 0.0) <= self._until_s and world.step():
            if world.errors:
                error = world.errors[0]
                told = "".join(traceback.format_exception(error)[-3:])
                self.breaks(f"raised {type(error).__name__}: {error}\n{told}")
                return
            if not self.is_long or world.num_events % SELDOM == 0:
                self.invariants.always()
            if self.broken:
                return

    def _ask_again(self) -> None:
        """Have a caller come once more, now that all is well: it gets its answer."""
        self._until_s = self.world.now + self.healed_s
        self._step(lambda: False)
        asked, most = len(self.calls), max(len(m.placement.routes) for m in self.models)
        for number in range(3 * most if most > 1 else 1):
            for model in self.models:
                if not (model.is_closed or self.broken) and number < 3 * len(model.routes):
                    self._arrive(model, 1, is_last=True)
            self._until_s = self.world.now + self.soon_s
            self._step(lambda: not any(self.open_calls()))
        for call in self.calls[asked:]:
            if not (self.broken or (call.ends and isinstance(call.ends[0], dict))):
                self.breaks(f"all is well, and call {call.number} got {call.ends!r}")
        for model in self.models:
            self.invariants.shares(model, self.calls[asked:])

    def open_calls(self) -> Iterator[Call]:
        """Yield the calls of clients that live which have not ended."""
        return (call for call in self._open.values() if call.model in self.models)

    def _arrive(self, model: Model, left: int, kept: Any = None, *, is_last: bool = False) -> None:
        """Have a caller make a request, and later the next one."""
        draw, faults = self.world.random, Faults() if is_last else self.faults
        if not is_last and (self.is_healing or model.is_closed):
            return
        if self.is_long and len(self._open) >= MOST_OPEN and not model.has_state:
            self.world.after(PACE_S, self._arrive, model, left)
            return
        number = len(self.calls) + 1
        if self.is_long and number == self.num_requests:
            self.world.after(0.0, self._heal)
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
            waits=is_last or draw.choice((True, True, True, None, False)),
            priority=draw.choice((0, 0, 0, 1, 5)),
            resident_outputs=("r",) if model.has_state else (),
        )
        call = Call(
            number, model, inputs, models.wanted(model.shape, known), request, self.world.now
        )
        for mark in ("raises", "poison", "hang"):
            if draw.random() < getattr(faults, mark):
                call.mark = self.marks[number] = mark
        self.calls.append(call)
        self._open[number] = call
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
        self._open.pop(call.number, None)
        call.ended_s = self.world.now
        what = type(end).__name__ if isinstance(end, BaseException) else "answer"
        self.world.note(f"call {call.number} ends: {what}")
        if len(call.ends) > 1:
            self.breaks(f"call {call.number} ended {len(call.ends)} times")
        model, left = call.model, call.kept
        if not isinstance(end, BaseException):
            model.delivered.append(call.request_id)
            for name in model.deployment.plan.output_names:
                value = end.get(name)
                if isinstance(value, ResidentTensor):
                    record: Any = model.records.get(call.request_id)
                    bundle: Any = value.bundle
                    key = bundle.key
                    if record is not None and f"/{record.attempt}/" not in key:
                        self.breaks(f"call {call.number} is answered by another attempt: {key}")
                    continue
                if not np.array_equal(value, call.wanted[name]):
                    self.breaks(f"call {call.number}: a wrong {name!r}")
        call.kept = None
        if model.has_state and left > 1 and not self.is_healing:
            kept = None
            if not isinstance(end, BaseException):
                kept = call.wanted["r"], end["r"]
            later_s = model.later_s(self.world.random)
            self.world.after(later_s, self._arrive, self._next(model), left - 1, kept)

    def _next(self, model: Model) -> Model:
        """Return who takes a state next: a model that runs elsewhere may read it there."""
        alike = [m for m in self.models if m.client is model.client and m.width == model.width]
        return self.world.random.choice([m for m in alike if m.has_state] or [model])

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
            if draw.random() < 0.3:  # and soon another one
                self.world.after(0.4 * draw.random(), cluster.crash, draw.choice(self.names))
        elif kind == "stop":
            cluster.stop(cluster.devices[name].process, for_s)
        elif kind == "client_stop":
            cluster.stop(draw.choice(cluster.clients).process, for_s)  # the keeper too
        else:
            ends = [d.node for d in cluster.devices.values()] + [
                c.process.node for c in self.clients
            ]
            one, other = draw.choice(ends), draw.choice(ends)
            cluster.cut(one, other, for_s)
            if draw.random() < 0.5:
                cluster.cut(other, one, for_s)
        self.world.after(draw.expovariate(1 / mean_s), self._happen, kind, mean_s)

    def _end_client(self, client: KeptClient) -> None:
        """End a client: nobody waits for its calls any more."""
        self.cluster.end_client(client)
        self.clients.remove(client)
        self.has_lost_client = True
        for model in [model for model in self.models if model.client is client]:
            model.is_closed = True
            self.models.remove(model)

    def _close(self, model: Model) -> None:
        self.world.note(f"{model.deployment.key} is closed")
        model.is_closed = True
        model.deployment.close()

    def _heal(self) -> None:
        if self.is_healing:
            return
        self.world.note("heals")
        self.is_healing = True
        self._until_s = self.world.now + self.healed_s + LATE_S * len(self._open)
        self.threads.late_s = 0.0

    def _weather(
        self, sender: Process, receiver: Process, message: Message | bytes
    ) -> Sequence[float]:
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
        keeps = isinstance(message, Outputs) and bool(message.task.request.resident_outputs)
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
        # Called again while the first call runs, or long after it.
        again = (draw.choice((0.3, 1.5, 4.0)), 0.0), True
        return draw.choice((((), True), ((0.0,), False), ((0.0, 0.01), True), again, again))

    def breaks(self, what: str) -> None:
        self.broken.append(f"t={self.world.now:.4f}: {what}")

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
            is_empty = not device.loop._machine.num_tasks and not device.loop._kept.nbytes
            is_empty = is_empty and not any(c.nbytes for c in machine._clients.values())
            is_empty = is_empty and not any(d.tasks for d in machine._deployments.values())
            if is_sure and device.process.is_alive and not is_empty:
                self.breaks(
                    f"{device.address} still has {device.loop._machine.num_tasks} tasks, "
                    f"{device.loop._kept.nbytes} bytes kept"
                )


class _Heard(logging.Handler):
    """What is logged with an exception went wrong."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._history.breaks(f"logged {record.getMessage()!r}: {error!r}")


class Noted:
    """Takes note of how requests ended."""

    def __init__(self, history: History) -> None:
        self._history = history

    def ended(self, request: ObservedRequest) -> None:
        for model in self._history.models:
            if model.deployment.key == request.deployment:
                model.records[request.record.id] = request.record

    def ran(self, request: ObservedRequest) -> None: ...

    def device(self, event: DeviceEvent) -> None: ...
