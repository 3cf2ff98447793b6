"""Simulations: capacity, bottleneck and latency of a fleet, and the effect of changing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf, isinf
from pathlib import Path
from typing import Any

from hetero.apps.simulate.arrivals import Arrivals, Batches
from hetero.apps.simulate.fleet import Fleet
from hetero.apps.simulate.virtual_run import Outcome, Utilisation, run
from hetero.devices.errors import ArgumentError
from hetero.observe.trace import Trace
from hetero.planning.plan_report import PlanReport
from hetero.scheduler.observe.observer import Observer

#: Maximum requests of a run that is only compared with other runs.
_COMPARED_REQUESTS = 2_000
#: Maximum requests of a trace.
_TRACED_REQUESTS = 1_000
#: Loads of the latency curve, as shares of the fleet's capacity.
_LOADS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Bisection steps in the search for the highest rate that meets the deadline.
_BISECTION_STEPS = 7
#: Share of the requests that must meet the deadline.
_IN_TIME = 0.99
#: The cores of a node count as the bottleneck if they are at most this much less busy than its
#: devices, which also appear busy while they wait for a core.
_CORES_MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Change:
    """A fleet with one part added or removed.

    `name`, `kind`: the part; its kind is ``device``, ``link``, ``client`` or ``node``.
    `rate_per_s`: capacity of the changed fleet in requests per second; 0 if it cannot serve.
    `gain`: relative change of the capacity; negative for a loss.
    `price`: price of the part; 0 if unknown.
    """

    name: str
    kind: str
    rate_per_s: float
    gain: float
    price: float = 0.0

    @property
    def gain_per_price(self) -> float | None:
        """Gain per unit of the price; None without a price."""
        return self.gain / self.price if self.price else None


@dataclass(frozen=True)
class Simulation:
    """Simulated service of a model by a fleet.

    `model`, `basis`: name of the model, and origin of the times.
    `fleet`: devices, links and clients.
    `arrivals`, `slo_s`, `seed`: arguments of `simulate`; `slo_s` is infinite without a deadline.
    `outcome`: result with these arrivals.
    `capacity_per_s`: requests per second that the fleet can serve.
    `bottleneck`: the part that limits the capacity, in a sentence.
    `added`, `removed`: capacity with one part more, the largest gain first; with one part less.
    `knee_per_s`: highest rate of Poisson arrivals of which 99 % meet the deadline; None without a
        deadline.
    `curve`: Poisson rates with their outcomes, if a curve was requested.
    """

    model: str
    basis: str
    fleet: Fleet
    arrivals: str
    slo_s: float
    seed: int
    outcome: Outcome
    capacity_per_s: float
    bottleneck: str
    added: tuple[Change, ...]
    removed: tuple[Change, ...]
    knee_per_s: float | None
    curve: tuple[tuple[float, Outcome], ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the simulation as a JSON document."""
        document = asdict(self)
        links = document["fleet"]["links"].items()
        document["fleet"]["links"] = [{"between": list(ends), **link} for ends, link in links]
        document["slo_s"] = None if isinf(self.slo_s) else self.slo_s
        return document


def simulate(
    report: PlanReport,
    fleet: Fleet,
    arrivals: Arrivals | None = None,
    *,
    requests: int = 10_000,
    slo_s: float = inf,
    batches: Batches = Batches(),  # noqa: B008  # it is frozen
    seed: int = 0,
    trace: str | Path | None = None,
    curve: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Simulation:
    """Serve requests in virtual time, and measure the effect of adding and removing parts.

    Raises ArgumentError: the arrivals exceed the fleet's capacity.
    """
    changes = _changes(report, fleet)
    loads = _LOADS if curve else ()
    steps = 2 + len(changes) + len(loads) + (trace is not None)
    steps += _BISECTION_STEPS if slo_s < inf else 0
    step_numbers = iter(range(steps))

    def report_progress(activity: str) -> None:
        if progress is not None:
            progress(next(step_numbers, steps), steps, activity)

    short = min(requests, _COMPARED_REQUESTS)
    serve = partial(run, report, batches=batches, seed=seed)

    def knee_per_s() -> float:
        """Return the highest rate at which enough requests meet the deadline."""
        low, high = 0.0, capacity
        for _ in range(_BISECTION_STEPS):
            report_progress("highest rate within the deadline")
            rate = (low + high) / 2
            result = serve(fleet, Arrivals("", rate), requests=short, slo_s=slo_s)
            if result.goodput_per_s >= _IN_TIME * result.throughput_per_s and not result.failed:
                low = rate
            else:
                high = rate
        return low

    report_progress("capacity")
    full_load = serve(fleet, None, requests=short)
    capacity = full_load.throughput_per_s
    if arrivals is not None and arrivals.rate_per_s > capacity * 1.02:
        raise ArgumentError(
            f"arrivals {arrivals.text!r}: {arrivals.rate_per_s:.6g} requests per second exceed the "
            f"cluster's capacity of {capacity:.6g}: {_bottleneck(full_load, fleet)} Lower the rate "
            "or add devices."
        )
    report_progress("arrivals")
    outcome = serve(fleet, arrivals, requests=requests, slo_s=slo_s)
    results: list[Change] = []
    for change, other in changes:
        report_progress(change.name)
        rate = 0.0 if other is None else serve(other, None, requests=short).throughput_per_s
        results.append(replace(change, rate_per_s=rate, gain=rate / capacity - 1))
    points = []
    for load in loads:
        report_progress(f"load of {load:.0%}")
        poisson = Arrivals("", load * capacity)
        points.append((poisson.rate_per_s, serve(fleet, poisson, requests=short, slo_s=slo_s)))
    if trace is not None:
        report_progress("trace")
        observers: list[Observer] = []
        nodes = {device.name: device.node for device in fleet.devices}
        with Trace(trace, observers, lambda: nodes, lambda: (), _TRACED_REQUESTS):
            serve(fleet, arrivals, requests=min(requests, _TRACED_REQUESTS), observers=observers)
    return Simulation(
        model=report.model,
        basis=report.basis,
        fleet=fleet,
        arrivals="closed loop: as fast as possible" if arrivals is None else arrivals.text,
        slo_s=slo_s,
        seed=seed,
        outcome=outcome,
        capacity_per_s=capacity,
        bottleneck=_bottleneck(full_load, fleet),
        added=tuple(sorted((c for c in results if c.name[0] == "+"), key=lambda c: -c.gain)),
        removed=tuple(sorted((c for c in results if c.name[0] == "-"), key=lambda c: c.gain)),
        knee_per_s=knee_per_s() if slo_s < inf else None,
        curve=tuple(points),
    )


def _changes(report: PlanReport, fleet: Fleet) -> list[tuple[Change, Fleet | None]]:
    """Return the changes with their fleets; None for a fleet that cannot serve at all."""
    variants: list[tuple[Change, Fleet | None]] = []

    def add(name: str, kind: str, other: Fleet | None, price: float = 0.0) -> None:
        if other is not None and set(other.kinds) != set(fleet.kinds):
            other = None
        variants.append((Change(name, kind, 0.0, 0.0, price), other))

    for like in fleet.kinds:
        more = fleet.with_one_more(like)
        add(f"+1 {like}", "device", more, more.devices[-1].price)
    for ends, link in fleet.links.items():
        if link.nbytes_per_s:
            faster = replace(link, nbytes_per_s=2 * link.nbytes_per_s)
            other = replace(fleet, links={**fleet.links, ends: faster})
            add(f"+1 link {ends[0]} - {ends[1]}", "link", other, link.price)
    nodes = list(dict.fromkeys(device.node for device in fleet.devices))
    for node in nodes if any(device.cores for device in fleet.devices) else ():
        add(f"+1 node {node}", "node", fleet.with_node_again(node), fleet.node(node).price)
    clients = replace(fleet, clients=fleet.clients + 1)
    add("+1 client", "client", clients, fleet.client_price)
    for like in fleet.kinds:
        alike = [device.name for device in fleet.devices if device.like == like]
        add(f"-1 {like}", "device", fleet.without(alike[-1]))
    for node in nodes if len(nodes) > 1 else ():
        names = (device.name for device in fleet.devices if device.node == node)
        add(f"-1 node {node}", "node", fleet.without(*names))
    return variants


def _bottleneck(full_load: Outcome, fleet: Fleet) -> str:
    """Return a sentence about the part that limits a fully loaded fleet."""
    likes = {device.name: device.like for device in fleet.devices}
    groups: dict[tuple[str, str], list[Utilisation]] = {}
    for row in full_load.used:
        groups.setdefault((row.kind, likes.get(row.name, row.name)), []).append(row)

    def mean_utilisation(rows: list[Utilisation]) -> float:
        return sum(row.busy for row in rows) / len(rows)

    def priority(rows: list[Utilisation]) -> float:
        return mean_utilisation(rows) + _CORES_MARGIN * (rows[0].kind == "cores")

    (kind, name), rows = max(groups.items(), key=lambda item: priority(item[1]))
    part = {"client": "the client's processor", "cores": f"the processor of node {name}"}.get(
        kind, f"the {kind} {name}"
    )
    count = f" ({len(rows)} of them)" if len(rows) > 1 else ""
    return f"{part}{count} is busy {mean_utilisation(rows):.0%} of the time and limits the rest."
