"""What a fleet does, what another device would bring, and what the loss of one costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf, isinf
from pathlib import Path
from typing import Any

from hetero.apps.simulate.arrivals import Arrivals, Batches
from hetero.apps.simulate.fleet import Fleet
from hetero.apps.simulate.run import Outcome, Used, run
from hetero.devices.errors import ArgumentError
from hetero.observe.trace import Trace
from hetero.planning.report import PlanReport
from hetero.scheduler.observe.observer import Observer

#: The most requests of a run that is only compared with others.
_SHORT = 2_000
#: Requests of a trace.
_TRACED = 1_000
#: Loads of the curve, by what the fleet can answer.
_LOADS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Steps in which the greatest rate is narrowed down, and the share of the answers that are in time.
_STEPS = 7
#: A node's cores that are busy by so much less than a device on it are what limits both.
_NEAR = 0.05
_IN_TIME = 0.99


@dataclass(frozen=True, slots=True)
class Change:
    """What another fleet would do.

    `name`, `kind`: what is added or lost; ``device``, ``link``, ``client`` or ``node``.
    `rate_per_s`: answers a second that it then can give; 0: none.
    `gain`: the difference by what the fleet can give now; negative for a loss.
    `price`: what it costs; 0: not known.
    """

    name: str
    kind: str
    rate_per_s: float
    gain: float
    price: float = 0.0

    @property
    def gain_per_price(self) -> float | None:
        """The gain for each unit of the price."""
        return self.gain / self.price if self.price else None


@dataclass(frozen=True)
class Simulation:
    """What a fleet would do with a model.

    `model`, `basis`: the model's name, and what the times rest on.
    `fleet`: the devices, links and clients.
    `arrivals`, `slo_s`, `seed`: as they were given; `slo_s` is infinite for none.
    `outcome`: with these arrivals.
    `capacity_per_s`: answers a second that the fleet can give.
    `bottleneck`: what limits it, in a sentence.
    `added`, `lost`: what else could be there, the greatest gain first; what could be gone.
    `knee_per_s`: the greatest rate of Poisson arrivals of which 99 % are answered in time; None
        without a time.
    `curve`: Poisson arrivals a second, and what came of them, where it was asked for.
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
    lost: tuple[Change, ...]
    knee_per_s: float | None
    curve: tuple[tuple[float, Outcome], ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
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
    """Serve requests in virtual time, no more than can be, and try what could be added and lost."""
    changes = _changes(report, fleet)
    loads = _LOADS if curve else ()
    steps = 2 + len(changes) + len(loads) + (_STEPS if slo_s < inf else 0) + (trace is not None)
    done = iter(range(steps))

    def tell(what: str) -> None:
        if progress is not None:
            progress(next(done, steps), steps, what)

    short = min(requests, _SHORT)
    serve = partial(run, report, batches=batches, seed=seed)

    def knee_per_s() -> float:
        """Return the greatest rate at which enough answers come in time."""
        low, high = 0.0, capacity
        for _ in range(_STEPS):
            tell("the greatest rate in time")
            rate = (low + high) / 2
            come = serve(fleet, Arrivals("", rate), requests=short, slo_s=slo_s)
            if come.goodput_per_s >= _IN_TIME * come.throughput_per_s and not come.failed:
                low = rate
            else:
                high = rate
        return low

    tell("capacity")
    full = serve(fleet, None, requests=short)
    capacity = full.throughput_per_s
    if arrivals is not None and arrivals.rate_per_s > capacity * 1.02:
        raise ArgumentError(
            f"arrivals {arrivals.text!r}: {arrivals.rate_per_s:.6g} requests come a second, and "
            f"the fleet can answer {capacity:.6g}: {_sentence(full, fleet)} Give fewer, or more "
            "devices."
        )
    tell("the arrivals")
    outcome = serve(fleet, arrivals, requests=requests, slo_s=slo_s)
    found: list[Change] = []
    for change, other in changes:
        tell(change.name)
        rate = 0.0 if other is None else serve(other, None, requests=short).throughput_per_s
        found.append(replace(change, rate_per_s=rate, gain=rate / capacity - 1))
    points = []
    for load in loads:
        tell(f"a load of {load:.0%}")
        come = Arrivals("", load * capacity)
        points.append((come.rate_per_s, serve(fleet, come, requests=short, slo_s=slo_s)))
    if trace is not None:
        tell("the trace")
        observers: list[Observer] = []
        nodes = {device.name: device.node for device in fleet.devices}
        with Trace(trace, observers, lambda: nodes, lambda: (), _TRACED):
            serve(fleet, arrivals, requests=min(requests, _TRACED), observers=observers)
    return Simulation(
        model=report.model,
        basis=report.basis,
        fleet=fleet,
        arrivals="as fast as they are answered" if arrivals is None else arrivals.text,
        slo_s=slo_s,
        seed=seed,
        outcome=outcome,
        capacity_per_s=capacity,
        bottleneck=_sentence(full, fleet),
        added=tuple(sorted((c for c in found if c.name[0] == "+"), key=lambda c: -c.gain)),
        lost=tuple(sorted((c for c in found if c.name[0] == "-"), key=lambda c: c.gain)),
        knee_per_s=knee_per_s() if slo_s < inf else None,
        curve=tuple(points),
    )


def _changes(report: PlanReport, fleet: Fleet) -> list[tuple[Change, Fleet | None]]:
    """Return what is tried; None: a fleet that cannot serve at all."""
    tried: list[tuple[Change, Fleet | None]] = []

    def add(name: str, kind: str, other: Fleet | None, price: float = 0.0) -> None:
        if other is not None and set(other.kinds) != set(fleet.kinds):
            other = None
        tried.append((Change(name, kind, 0.0, 0.0, price), other))

    for like in fleet.kinds:
        more = fleet.with_one_more(like)
        add(f"+1 {like}", "device", more, more.devices[-1].price)
    for ends, link in fleet.links.items():
        if link.nbytes_per_s:
            faster = replace(link, nbytes_per_s=2 * link.nbytes_per_s)
            other = replace(fleet, links={**fleet.links, ends: faster})
            add(f"+twice {ends[0]} - {ends[1]}", "link", other, link.price)
    nodes = list(dict.fromkeys(device.node for device in fleet.devices))
    for node in nodes if any(device.cores for device in fleet.devices) else ():
        add(f"+1 node {node}", "node", fleet.with_node_again(node), fleet.node(node).price)
    clients = replace(fleet, clients=fleet.clients + 1)
    add("+1 client", "client", clients, fleet.client_price)
    for like in fleet.kinds:
        alike = [device.name for device in fleet.devices if device.like == like]
        add(f"-1 {like}", "device", fleet.without(alike[-1]))
    for node in nodes if len(nodes) > 1 else ():
        here = (device.name for device in fleet.devices if device.node == node)
        add(f"-node {node}", "node", fleet.without(*here))
    return tried


def _sentence(full: Outcome, fleet: Fleet) -> str:
    """Say what limits a fleet that has as much to do as it can."""
    likes = {device.name: device.like for device in fleet.devices}
    groups: dict[tuple[str, str], list[Used]] = {}
    for row in full.used:
        groups.setdefault((row.kind, likes.get(row.name, row.name)), []).append(row)

    def busy(rows: list[Used]) -> float:
        return sum(row.busy for row in rows) / len(rows)

    def limits(rows: list[Used]) -> float:  # devices that wait for cores are busy meanwhile
        return busy(rows) + _NEAR * (rows[0].kind == "cores")

    (kind, name), rows = max(groups.items(), key=lambda item: limits(item[1]))
    what = {"client": "the client's processor", "cores": f"the processor of node {name}"}.get(
        kind, f"the {kind} {name}"
    )
    count = f" ({len(rows)} of them)" if len(rows) > 1 else ""
    return f"{what}{count} is busy {busy(rows):.0%} of the time and limits the rest."
