"""Serve requests with a fleet in virtual time: the real scheduler, with the times of a plan."""

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
from hetero.planning.cost.estimation import value_nbytes
from hetero.planning.plan_report import PlanReport, StagePrediction
from hetero.scheduler.observe.observer import Observer
from hetero.scheduler.simulation.client import SimulatedClient
from hetero.scheduler.simulation.device import SimulatedCluster, SimulatedDevice, Workload
from hetero.scheduler.simulation.network import Link, Network
from hetero.scheduler.simulation.simulator import Cores, Simulator
from hetero.scheduler.types.events import TaskRun
from hetero.scheduler.types.limits import Batching, Limits
from hetero.scheduler.types.placement import Placement, share
from hetero.scheduler.types.plan import Plan, Stage

#: Share of the first and of the last requests that are not counted: the pipeline fills, drains.
_WARM_UP = 0.1
#: Maximum wait for a batch to fill in seconds: the default of AUTO_BATCH_TIMEOUT.
_TIMEOUT_S = 1.0
#: Maximum routes of a placement; with more devices, those of a kind have unequal shares.
_MAX_ROUTES = 4096


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Utilisation of one part of the fleet.

    `name`, `kind`: the part: ``device``, ``link``, ``client``, or ``cores`` of a node.
    `busy`: share of the time in which it worked.
    `queued_s`: mean waiting time for it per request, in seconds.
    """

    name: str
    kind: str
    busy: float
    queued_s: float


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    `requests`, `failed`: requests counted, and those that ended with an error.
    `throughput_per_s`: results per second.
    `p50_s`, `p95_s`, `p99_s`: latency percentiles in seconds, from arrival to result.
    `goodput_per_s`: results per second within the deadline; all results without a deadline.
    `used`: utilisation of each part, the busiest first.
    `events`: number of simulated events.
    """

    requests: int
    failed: int
    throughput_per_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    goodput_per_s: float
    used: tuple[Utilisation, ...]
    events: int


class _PlannedWork(Workload):
    """Run times and output sizes of stages, as the plan predicts them."""

    def __init__(self, report: PlanReport, fleet: Fleet, batches: Batches, random: Random) -> None:
        self._batches = batches
        self._program = fleet.program
        self._random = random
        self._devices = {device.name: device for device in fleet.devices}
        self._result_s = fleet.client_s / 2 * fleet.program.one_process
        self._ends: set[str] = set()
        #: Whether the device of the next run was idle before it.
        self.is_idle = False
        seconds = {(s.replica, s.index): _stage_s(s, fleet) for s in report.stages}
        self._of: dict[tuple[str, ...], float] = {}
        self._nbytes: dict[str, int] = {}
        self.value = cache(self._value)
        for number, replica in enumerate(report.replicas):
            model = replica.partition.source
            self._ends.update(replica.partition.plan.output_names)
            for s in replica.partition.subgraphs:
                self._of[tuple(s.node_names)] = seconds[number, s.index]
                for name in (*s.inputs, *s.outputs):
                    self._nbytes[name] = int(value_nbytes(model.spec(name)))

    def _value(self, name: str, rows: int = 1) -> np.ndarray:
        """Return a placeholder of the size of `rows` rows of a value."""
        return np.broadcast_to(np.uint8(0), (rows, self._nbytes.get(name, 0)))

    def run_s(self, device: str, stage: Stage, inputs: Sequence[Any]) -> float:
        factor = self._devices[device].factor * self._batches.factor(_rows(inputs))
        spread = self._program.run
        if self.is_idle:
            spread = self._program.idle or spread
        return self._of[stage.node_names] * factor * draw(spread, self._random, 1.0)

    def num_cores(self, device: str) -> float:
        return self._devices[device].cores

    def leave_s(self, stage: Stage) -> float:
        own_s = self._program.leave_s or 0.0
        # In process, the thread that ran a request's last stage delivers the result.
        return own_s + self._result_s * (not self._ends.isdisjoint(stage.outputs))

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        rows = _rows(inputs)
        return [self.value(name, rows) for name in stage.outputs]


def draw(quantiles: Sequence[float], random: Random, default: float) -> float:
    """Draw one of evenly spaced quantiles; return the default if there are none."""
    return quantiles[int(random.random() * len(quantiles))] if quantiles else default


def _stage_s(stage: StagePrediction, fleet: Fleet) -> float:
    """Return the time that a stage keeps its device busy, without the fleet's own overheads."""
    return stage.run_s + (stage.overhead_s if fleet.program.leave_s is None else 0.0)


def _rows(inputs: Sequence[Any]) -> int:
    return max((len(value) for value in inputs), default=1)


def place(report: PlanReport, fleet: Fleet) -> Placement:
    """Place a plan on a fleet: each route uses the next device of each kind."""
    plans: list[Plan] = []
    shares: list[float] = []
    alike: dict[str, list[FleetDevice]] = {}
    for device in fleet.devices:
        alike.setdefault(device.like, []).append(device)
    for number, replica in enumerate(report.replicas):
        plan, busy_s = replica.plan, defaultdict[str, float](float)
        for s in report.stages:
            busy_s[s.device] += _stage_s(s, fleet) if s.replica == number else 0.0
        counts = [len(alike[name]) for name in plan.devices]
        count = lcm(*counts)
        if count > _MAX_ROUTES:
            count = max(counts)
        for i in range(count):
            mine = {name: alike[name][i % len(alike[name])] for name in plan.devices}
            stages = [replace(stage, device=mine[stage.device].name) for stage in plan.stages]
            slowest_s = max((busy_s[n] * one.factor for n, one in mine.items()), default=1.0)
            plans.append(replace(plan, stages=tuple(stages)))
            shares.append(replica.share / count / max(slowest_s, 1e-9))
    return share(plans, shares)


def _shared_cores(simulator: Simulator, fleet: Fleet) -> dict[str, Cores]:
    """Return the cores of nodes whose devices and clients may need more than the node has."""
    demand = defaultdict[str, float](float)
    for device in fleet.devices:
        demand[device.node] += device.cores
    if fleet.client_s:
        demand[fleet.client_node] += fleet.clients
    cores: dict[str, Cores] = {}
    for name, width in demand.items():
        node = fleet.node(name)
        if width > (node.cores if node.together == 1.0 else 1.0):
            cores[name] = Cores(simulator, node.cores, node.together)
    return cores


class _Serving:
    """A simulated cluster with clients that send the requests."""

    def __init__(
        self,
        report: PlanReport,
        fleet: Fleet,
        in_flight: int,
        batches: Batches,
        seed: int,
        observers: Sequence[Observer],
    ) -> None:
        # Observers need the start times of runs: programs then take their time, in threads.
        # The seed differs from that of the arrivals, so that these do not correlate with run times.
        self.simulator = Simulator(seed + 2**32, is_threaded=bool(observers))
        self._fleet = fleet
        self._in_flight = in_flight * batches.size
        self._work = _PlannedWork(report, fleet, batches, self.simulator.random)
        program = fleet.program
        nodes = {device.name: device.node for device in fleet.devices}

        def link(sender: str, receiver: str) -> Link:
            between = fleet.link(sender, receiver)
            return Link(between.delay_s, between.nbytes_per_s)

        network = Network(self.simulator, link, is_coded=False)
        self._network = network
        self._cores = _shared_cores(self.simulator, fleet)
        self._cluster = SimulatedCluster(
            self.simulator,
            network,
            self._work,
            nodes,
            cost_s=program.arrive_s,
            cores=self._cores,
        )
        if program.hop_s:
            network.faults = lambda *_: (draw(program.hop_s, self.simulator.random, 0.0),)
        self._cluster.on_run = self._on_run
        self._queued_s = dict.fromkeys(nodes, 0.0)
        placement = place(report, fleet)
        inputs = placement.plan.inputs
        self._inputs = {spec.name: self._work.value(spec.name) for spec in inputs}
        limits = Limits(requests=in_flight, nbytes=2**62, waiting=2**30, remembered=16)
        self.clients = [
            SimulatedClient(
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
        #: Start, end, and whether the request failed.
        self.results: list[tuple[float, float, bool]] = []
        self.on_end: Callable[[], None] = lambda: None

    def _on_run(self, device: SimulatedDevice, run: TaskRun) -> None:
        self._work.is_idle = self.simulator.now <= run.ready_s
        self._queued_s[device.name] += max(0.0, self.simulator.now - run.ready_s)

    def arrive(self) -> None:
        """Simulate a caller's request."""
        number = self._count % len(self.clients)
        self._count += 1
        process = self.clients[number].process
        call_s, half_s = self._fleet.program.call_s, self._fleet.client_s / 2
        process.do(call_s, half_s, self._submit, number, self.simulator.now)

    def _submit(self, number: int, begun_s: float) -> None:
        deployment = self._deployments[number]
        load = deployment.current_load()
        submit = partial(self._call, deployment, begun_s)
        # Only a caller that waits for room needs a thread of its own.
        is_full = load.num_waiting or load.num_in_flight >= self._in_flight
        if is_full and not self.simulator.is_threaded:
            self.simulator.enter(submit)
        else:
            submit()

    def _call(self, deployment: Any, begun_s: float) -> None:
        try:
            submission = deployment.submit(self._inputs, DEFAULT_REQUEST)
        except HeteroError:
            self._on_result(begun_s, True)
            return
        submission.future.add_done_callback(
            lambda future: self._on_result(begun_s, future.exception() is not None)
        )

    def _on_result(self, begun_s: float, failed: bool) -> None:
        self.results.append((begun_s, self.simulator.now, failed))
        self.on_end()

    def used(self, elapsed_s: float) -> tuple[Utilisation, ...]:
        """Return the utilisation of each part, the busiest first."""
        rows: list[Utilisation] = []

        def add(name: str, kind: str, busy_s: float, queued_s: float = 0.0) -> None:
            rows.append(
                Utilisation(name, kind, busy_s / elapsed_s, queued_s / max(1, len(self.results)))
            )

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
    """Serve requests in virtual time.

    `arrivals`: None for a closed loop that keeps as many requests in flight as allowed.
    `in_flight`: maximum requests, or batches, in flight per client; 0 for four per device, at
        least 32.
    `observers`: notified of each request, which makes the run several times slower.
    """
    in_flight = in_flight or max(32, 4 * len(fleet.devices))
    serving = _Serving(report, fleet, in_flight, batches, seed, observers)
    simulator = serving.simulator
    if arrivals is not None:
        for time_s in arrivals.times_s(requests, Random(seed)):
            simulator.after(time_s, serving.arrive)
    else:
        remaining = [requests]

        def send_next() -> None:
            if remaining[0] > 0:
                remaining[0] -= 1
                serving.arrive()

        serving.on_end = send_next
        for _ in range(min(requests, in_flight * batches.size * fleet.clients)):
            simulator.after(0.0, send_next)
    while len(serving.results) < requests and simulator.step():
        pass
    simulator.close()
    return _outcome(serving, slo_s)


def _outcome(serving: _Serving, slo_s: float) -> Outcome:
    results = sorted(serving.results, key=lambda row: row[1])
    skip = int(len(results) * _WARM_UP)
    steady = results[skip : len(results) - skip] or results
    start_s = results[skip - 1][1] if skip else 0.0
    elapsed_s = max(steady[-1][1] - start_s, 1e-12)
    latencies_s = sorted(end - start for start, end, failed in steady if not failed) or [0.0]
    num_in_time = sum(seconds <= slo_s for seconds in latencies_s)

    def percentile(part: float) -> float:
        return latencies_s[min(len(latencies_s) - 1, ceil(part * len(latencies_s)) - 1)]

    return Outcome(
        requests=len(steady),
        failed=sum(failed for _, _, failed in steady),
        throughput_per_s=len(latencies_s) / elapsed_s,
        p50_s=percentile(0.5),
        p95_s=percentile(0.95),
        p99_s=percentile(0.99),
        goodput_per_s=num_in_time / elapsed_s,
        used=serving.used(max(serving.simulator.now, 1e-12)),
        events=serving.simulator.num_events,
    )
