"""A fleet in virtual time: the real scheduler serves requests, and what it took is counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil, inf, lcm
from random import Random
from typing import Any

import numpy as np

from hetero.apps.simulate.arrivals import Arrivals, Batches
from hetero.apps.simulate.fleet import Fleet, FleetDevice
from hetero.devices.errors import HeteroError
from hetero.devices.request.request import DEFAULT_REQUEST
from hetero.planning.cost.work import value_nbytes
from hetero.planning.report import PlanReport, StagePrediction
from hetero.scheduler.observe.observer import Observer
from hetero.scheduler.universe.client import PlayedClient
from hetero.scheduler.universe.device import PlayedCluster, PlayedDevice, Work
from hetero.scheduler.universe.network import Link, Network
from hetero.scheduler.universe.world import Cores, World
from hetero.scheduler.vocabulary.events import Run
from hetero.scheduler.vocabulary.limits import Batching, Limits
from hetero.scheduler.vocabulary.placement import Placement, share
from hetero.scheduler.vocabulary.plan import Plan, Stage

#: Share of the requests that come first and are not counted: the pipeline fills.
_WARMING = 0.1
#: Seconds that a request waits for others of its batch at most: AUTO_BATCH_TIMEOUT's default.
_TIMEOUT_S = 1.0
#: Routes of a placement at most; with more, devices of a kind have unlike shares.
_MOST_ROUTES = 4096


@dataclass(frozen=True, slots=True)
class Used:
    """How much a device, link or client was used.

    `name`, `kind`: whose it is; ``device``, ``link``, ``client``, or ``cores`` of a node.
    `busy`: share of the time that it had something to do.
    `queued_s`: seconds that what came had to wait for it, on average over the requests.
    """

    name: str
    kind: str
    busy: float
    queued_s: float


@dataclass(frozen=True)
class Outcome:
    """What a fleet did.

    `requests`, `failed`: requests that were counted, and that ended without an answer.
    `throughput_per_s`: answers a second.
    `p50_s`, `p95_s`, `p99_s`: seconds from a request's arrival to its answer.
    `goodput_per_s`: answers a second that came in time; all of them without a time.
    `used`: the busiest first.
    `events`: what happened in the world.
    """

    requests: int
    failed: int
    throughput_per_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    goodput_per_s: float
    used: tuple[Used, ...]
    events: int


class _Planned(Work):
    """What the plan says that stages take."""

    def __init__(self, report: PlanReport, fleet: Fleet, batches: Batches, random: Random) -> None:
        self._batches = batches
        self._program = fleet.program
        self._random = random
        self._devices = {device.name: device for device in fleet.devices}
        self._answer_s = fleet.client_s / 2 * fleet.program.one_process
        self._ends: set[str] = set()
        #: Whether the device of the run that begins had nothing to do.
        self.is_idle = False
        seconds = {(s.variant, s.index): _stage_s(s, fleet) for s in report.stages}
        self._of: dict[tuple[str, ...], float] = {}
        self._nbytes: dict[str, int] = {}
        self.value = cache(self._value)
        for number, variant in enumerate(report.variants):
            model = variant.partition.source
            self._ends.update(variant.partition.plan.output_names)
            for s in variant.partition.subgraphs:
                self._of[tuple(s.node_names)] = seconds[number, s.index]
                for name in (*s.inputs, *s.outputs):
                    self._nbytes[name] = int(value_nbytes(model.spec(name)))

    def _value(self, name: str, rows: int = 1) -> np.ndarray:
        """Return something as large as so many rows of a value are; the same each time."""
        return np.broadcast_to(np.uint8(0), (rows, self._nbytes.get(name, 0)))

    def run_s(self, device: str, stage: Stage, inputs: Sequence[Any]) -> float:
        factor = self._devices[device].factor * self._batches.factor(_rows(inputs))
        spread = self._program.run
        if self.is_idle:
            spread = self._program.idle or spread
        return self._of[stage.node_names] * factor * drawn(spread, self._random, 1.0)

    def num_cores(self, device: str) -> float:
        return self._devices[device].cores

    def leave_s(self, stage: Stage) -> float:
        own_s = self._program.leave_s or 0.0
        # In process, the thread that ran a request's last stage takes its answer to the caller.
        return own_s + self._answer_s * (not self._ends.isdisjoint(stage.outputs))

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        rows = _rows(inputs)
        return [self.value(name, rows) for name in stage.outputs]


def drawn(quantiles: Sequence[float], random: Random, usual: float) -> float:
    """Draw one of evenly spaced quantiles; what is usual where there are none."""
    return quantiles[int(random.random() * len(quantiles))] if quantiles else usual


def _stage_s(stage: StagePrediction, fleet: Fleet) -> float:
    """Return how long a stage keeps its device busy, but for what the fleet says of it."""
    return stage.run_s + (stage.overhead_s if fleet.program.leave_s is None else 0.0)


def _rows(inputs: Sequence[Any]) -> int:
    return max((len(value) for value in inputs), default=1)


def place(report: PlanReport, fleet: Fleet) -> Placement:
    """Return where a plan's stages are: each route takes the next device of each kind."""
    plans: list[Plan] = []
    shares: list[float] = []
    alike: dict[str, list[FleetDevice]] = {}
    for device in fleet.devices:
        alike.setdefault(device.like, []).append(device)
    for number, variant in enumerate(report.variants):
        plan, busy_s = variant.plan, defaultdict[str, float](float)
        for s in report.stages:
            busy_s[s.device] += _stage_s(s, fleet) if s.variant == number else 0.0
        counts = [len(alike[name]) for name in plan.devices]
        count = lcm(*counts)
        if count > _MOST_ROUTES:
            count = max(counts)
        for i in range(count):
            mine = {name: alike[name][i % len(alike[name])] for name in plan.devices}
            stages = [replace(stage, device=mine[stage.device].name) for stage in plan.stages]
            slowest_s = max((busy_s[n] * one.factor for n, one in mine.items()), default=1.0)
            plans.append(replace(plan, stages=tuple(stages)))
            shares.append(variant.share / count / max(slowest_s, 1e-9))
    return share(plans, shares)


def _shared_cores(world: World, fleet: Fleet) -> dict[str, Cores]:
    """Return the cores of the nodes where more may compute at once than each has for itself."""
    wanted = defaultdict[str, float](float)
    for device in fleet.devices:
        wanted[device.node] += device.cores
    if fleet.client_s:
        wanted[fleet.client_node] += fleet.clients
    found: dict[str, Cores] = {}
    for name, width in wanted.items():
        node = fleet.node(name)
        if width > (node.cores if node.together == 1.0 else 1.0):
            found[name] = Cores(world, node.cores, node.together)
    return found


class _Serving:
    """A world that serves a fleet's requests."""

    def __init__(
        self,
        report: PlanReport,
        fleet: Fleet,
        in_flight: int,
        batches: Batches,
        seed: int,
        observers: Sequence[Observer],
    ) -> None:
        # Who observes is told when runs began: then programs take the time, in threads.
        # Its seed is not that of the arrivals, which would go with what runs take.
        self.world = World(seed + 2**32, is_threaded=bool(observers))
        self._fleet = fleet
        self._in_flight = in_flight * batches.size
        self._work = _Planned(report, fleet, batches, self.world.random)
        program = fleet.program
        nodes = {device.name: device.node for device in fleet.devices}

        def link(sender: str, receiver: str) -> Link:
            found = fleet.link(sender, receiver)
            return Link(found.delay_s, found.nbytes_per_s)

        network = Network(self.world, link, is_coded=False)
        self._network = network
        self._cores = _shared_cores(self.world, fleet)
        self._cluster = PlayedCluster(
            self.world,
            network,
            self._work,
            nodes,
            cost_s=program.arrive_s,
            cores=self._cores,
        )
        if program.hop_s:
            network.weather = lambda *_: (drawn(program.hop_s, self.world.random, 0.0),)
        self._cluster.on_run = self._begins
        self._queued_s = dict.fromkeys(nodes, 0.0)
        placement = place(report, fleet)
        inputs = placement.plan.inputs
        self._inputs = {spec.name: self._work.value(spec.name) for spec in inputs}
        limits = Limits(requests=in_flight, nbytes=2**62, waiting=2**30, remembered=16)
        self.clients = [
            PlayedClient(
                self._cluster,
                f"client {i}",
                fleet.client_node,
                observers,
                cost_s=0.0 if program.one_process else fleet.client_s / 2,
            )
            for i in range(fleet.clients)
        ]
        if program.one_process:
            for device in self._cluster.all:
                device.process.lane = self.clients[0].process
        if batches.size > 1:
            busy = sum(max(route.plan.levels, default=0) + 1 for route in placement.routes)
            batching = Batching(batches.size, _TIMEOUT_S, busy, max(busy, in_flight))
            limits = replace(limits, batching=batching)
        self._deployments = [client.deploy(placement, limits) for client in self.clients]
        self._count = 0
        self.ended: list[tuple[float, float, bool]] = []
        self.on_end: Callable[[], None] = lambda: None

    def _begins(self, device: PlayedDevice, run: Run) -> None:
        self._work.is_idle = self.world.now <= run.ready_s
        self._queued_s[device.name] += max(0.0, self.world.now - run.ready_s)

    def arrive(self) -> None:
        """Have a caller come."""
        number = self._count % len(self.clients)
        self._count += 1
        process = self.clients[number].process
        call_s, half_s = self._fleet.program.call_s, self._fleet.client_s / 2
        process.do(call_s, half_s, self._submit, number, self.world.now)

    def _submit(self, number: int, begun_s: float) -> None:
        deployment = self._deployments[number]
        load = deployment.current_load()
        submit = partial(self._call, deployment, begun_s)
        # Only who waits for room needs a thread; where all is done by threads, this is one.
        is_full = load.num_waiting or load.num_in_flight >= self._in_flight
        if is_full and not self.world.is_threaded:
            self.world.enter(submit)
        else:
            submit()

    def _call(self, deployment: Any, begun_s: float) -> None:
        try:
            made = deployment.submit(self._inputs, DEFAULT_REQUEST)
        except HeteroError:
            self._ends(begun_s, True)
            return
        made.future.add_done_callback(lambda f: self._ends(begun_s, f.exception() is not None))

    def _ends(self, begun_s: float, failed: bool) -> None:
        self.ended.append((begun_s, self.world.now, failed))
        self.on_end()

    def used(self, elapsed_s: float) -> tuple[Used, ...]:
        """Return how much each part was used."""
        rows: list[Used] = []

        def add(name: str, kind: str, busy_s: float, queued_s: float = 0.0) -> None:
            rows.append(Used(name, kind, busy_s / elapsed_s, queued_s / max(1, len(self.ended))))

        for d in self._cluster.all:
            add(d.name, "device", d.process.busy_s, self._queued_s[d.name])
        for (one, other), link in self._network.links.items():
            if link.nbytes_per_s:
                add(f"{one} > {other}", "link", link.busy_s, link.queued_s)
        for client in self.clients:
            add(client.process.name, "client", client.process.busy_s, client.process.queued_s)
        for node, cores in self._cores.items():
            add(node, "cores", cores.busy_s / cores.count)
        return tuple(sorted(rows, key=lambda row: -row.busy))


def run(
    report: PlanReport,
    fleet: Fleet,
    arrivals: Arrivals | None,
    *,
    requests: int,
    slo_s: float = inf,
    in_flight: int = 0,
    batches: Batches = Batches(),  # noqa: B008  # it is frozen
    seed: int = 0,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Serve requests; return what that took.

    `arrivals`: None: as many are in flight as may be, all the time.
    `in_flight`: requests, or batches, of one client at most; 0: four of each device, 32 at least.
    `observers`: told of each request; all takes several times as long then.
    """
    in_flight = in_flight or max(32, 4 * len(fleet.devices))
    serving = _Serving(report, fleet, in_flight, batches, seed, observers)
    world = serving.world
    if arrivals is not None:
        for time_s in arrivals.times_s(requests, Random(seed)):
            world.after(time_s, serving.arrive)
    else:
        left = [requests]

        def again() -> None:
            if left[0] > 0:
                left[0] -= 1
                serving.arrive()

        serving.on_end = again
        for _ in range(min(requests, in_flight * batches.size * fleet.clients)):
            world.after(0.0, again)
    while len(serving.ended) < requests and world.step():
        pass
    world.close()
    return _outcome(serving, slo_s)


def _outcome(serving: _Serving, slo_s: float) -> Outcome:
    ended = sorted(serving.ended, key=lambda row: row[1])
    first = int(len(ended) * _WARMING)
    # The last ones are answered by a pipeline that runs empty.
    counted = ended[first : len(ended) - first] or ended
    begun_s = ended[first - 1][1] if first else 0.0
    elapsed_s = max(counted[-1][1] - begun_s, 1e-12)
    took = sorted(end_s - start_s for start_s, end_s, failed in counted if not failed) or [0.0]
    good = sum(seconds <= slo_s for seconds in took)

    def percentile(part: float) -> float:
        return took[min(len(took) - 1, ceil(part * len(took)) - 1)]

    return Outcome(
        requests=len(counted),
        failed=sum(failed for _, _, failed in counted),
        throughput_per_s=len(took) / elapsed_s,
        p50_s=percentile(0.5),
        p95_s=percentile(0.95),
        p99_s=percentile(0.99),
        goodput_per_s=good / elapsed_s,
        used=serving.used(max(serving.world.now, 1e-12)),
        events=serving.world.num_events,
    )
