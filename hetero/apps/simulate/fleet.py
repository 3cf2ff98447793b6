"""The fleet: devices, links and clients, some of which may not exist yet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hetero.devices.errors import ArgumentError
from hetero.planning.report import PlanReport

#: The node of a fleet that names none.
_HERE = "local"
#: Seconds that a client works for a request (BENCHMARKS.md).
_CLIENT_S = 200e-6
#: Plugins whose runs compute on their node's cores, but for these of OpenVINO's devices.
_ON_CORES = ("CPU", "ORT", "OV")
_OFF_CORES = ("OV.GPU", "OV.NPU")


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device: it runs what the plan gives to the device `like`, in `factor` times its time.

    `cores`: of its node, that a run computes on; 0: it has a processor of its own.
    """

    name: str
    like: str
    node: str = _HERE
    factor: float = 1.0
    price: float = 0.0
    cores: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetLink:
    """A link from one node to another, both ways; 0 bytes a second: any number."""

    delay_s: float = 50e-6
    nbytes_per_s: float = 0.0
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node: its cores, and what is left of the speed of each while all of them work."""

    cores: int = 1
    together: float = 1.0
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class Program:
    """What the program takes besides what is computed; `benchmarks.simulate` measures it.

    `call_s`: seconds from a call until the client's processor turns to it.
    `arrive_s`, `leave_s`: seconds of a device's own for what comes, and after each run; `leave_s`
        None: what the plan says of it.
    `hop_s`: seconds until who gets a message takes it in, besides its link's: evenly spaced
        quantiles.
    `run`, `idle`: the time of a run by its mean, as quantiles; of one for which its device had to
        wake up.
    `one_process`: whether client and devices take turns in one interpreter, as they do in process;
        there the device of the last stage is busy while its client takes the answer.
    """

    call_s: float = 0.0
    arrive_s: float = 0.0
    leave_s: float | None = None
    hop_s: tuple[float, ...] = ()
    run: tuple[float, ...] = ()
    idle: tuple[float, ...] = ()
    one_process: bool = False


@dataclass(frozen=True)
class Fleet:
    """What serves requests.

    `devices`: at least one like each of the plan's.
    `links`: by their nodes, sorted; what is not listed takes 50 microseconds.
    `clients`, `client_s`, `client_node`, `client_price`: how many clients there are, what a request
        costs each in seconds of its processor, where they are, and what one more costs.
    `nodes`: nodes; one that is not listed has as many cores as this machine.
    `program`: what the program takes besides.
    """

    devices: tuple[FleetDevice, ...]
    links: Mapping[tuple[str, str], FleetLink]
    clients: int = 1
    client_s: float = _CLIENT_S
    client_node: str = _HERE
    client_price: float = 0.0
    nodes: Mapping[str, FleetNode] = field(default_factory=dict)
    program: Program = Program()

    @property
    def kinds(self) -> list[str]:
        """The plan's devices that its devices are like."""
        return list(dict.fromkeys(device.like for device in self.devices))

    def link(self, one: str, other: str) -> FleetLink:
        """Return what is between two nodes."""
        if one == other:  # what a hop takes was measured there, or is assumed
            return FleetLink(0.0) if self.program.hop_s else FleetLink()
        return self.links.get((min(one, other), max(one, other)), FleetLink())

    def with_one_more(self, like: str) -> Fleet:
        """Return it with one more device of a kind, beside the last one of the kind."""
        last = next(device for device in reversed(self.devices) if device.like == like)
        count = sum(device.like == like for device in self.devices)
        more = replace(last, name=f"{last.name}+{count}")
        return replace(self, devices=(*self.devices, more))

    def with_node_again(self, node: str) -> Fleet:
        """Return it with another node like one, with the same devices and links."""
        count = len({device.node for device in self.devices})
        new = f"{node}+{count}"
        here = [device for device in self.devices if device.node == node]
        more = [replace(d, name=f"{d.name}+{new}", node=new) for d in here]
        ways = {
            (min(new, other), max(new, other)): link
            for (a, b), link in self.links.items()
            for other in ((b,) if a == node else (a,) if b == node else ())
        }
        return replace(
            self,
            devices=(*self.devices, *more),
            links={**self.links, **ways},
            nodes={**self.nodes, new: self.node(node)},
        )

    def node(self, name: str) -> FleetNode:
        """Return a node."""
        return self.nodes.get(name) or FleetNode(len(os.sched_getaffinity(0)))

    def without(self, *names: str) -> Fleet:
        """Return it without some devices."""
        return replace(self, devices=tuple(d for d in self.devices if d.name not in names))


def planned_fleet(report: PlanReport, counts: Mapping[str, int]) -> Fleet:
    """Return the fleet of a plan, or of so many devices of each plugin that it uses."""
    planned: dict[str, list[str]] = {}
    for name in dict.fromkeys(stage.device for stage in report.stages):
        planned.setdefault(name.partition(".")[0], []).append(name)
    if unknown := sorted(set(counts) - set(planned)):
        raise ArgumentError(
            f"devices {', '.join(unknown)}: the plan of {report.model!r} uses only "
            f"{', '.join(planned)}."
        )
    devices: list[FleetDevice] = []
    for plugin, names in planned.items():
        count = counts.get(plugin, len(names))
        if count < len(names):
            raise ArgumentError(
                f"{count} devices of {plugin} are too few: the plan of {report.model!r} cuts it "
                f"over {', '.join(names)}."
            )
        devices += (
            FleetDevice(
                names[i] if i < len(names) else f"{plugin}.{i}",
                names[i % len(names)],
                cores=_num_cores(report, names[i % len(names)]),
            )
            for i in range(count)
        )
    return Fleet(tuple(devices), {})


def _num_cores(report: PlanReport, name: str) -> float:
    """Return on how many cores a device computes: those of a plan share this machine's."""
    planned = dict.fromkeys(stage.device for stage in report.stages)
    here = [n for n in planned if n.partition(".")[0] in _ON_CORES and n[:6] not in _OFF_CORES]
    return len(os.sched_getaffinity(0)) / len(here) if name in here else 0.0


def read_fleet(given: str | Path | Mapping[str, Any], report: PlanReport) -> Fleet:
    """Read a fleet from YAML, or what that says; `docs/simulate.md` shows one."""
    import yaml  # here, as hardly anybody needs it

    where, document = "cluster", given
    if isinstance(given, str | Path):
        where = f"cluster {str(given)!r}"
        try:
            document = yaml.safe_load(Path(given).read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ArgumentError(f"{where} cannot be read: {error}") from error
    top = _Section(where, document, {"devices", "links", "clients", "nodes", "program"})
    planned = list(dict.fromkeys(stage.device for stage in report.stages))
    known = {"like", "node", "factor", "price", "cores"}
    rows = {
        name: _Section(f"{where}: device {name!r}", row, known)
        for name, row in top.inner("devices").items()
    }
    devices = []
    for name, row in rows.items():
        like, factor = _root(name, rows, planned)
        cores = row.number("cores", _num_cores(report, like))
        node = str(row.get("node", _HERE))
        devices.append(FleetDevice(name, like, node, factor, row.number("price"), cores))
    if missing := sorted(set(planned) - {device.like for device in devices}):
        raise ArgumentError(
            f"{where}: no device is like {', '.join(missing)}, which the plan uses."
        )
    clients = top.inner("clients", {"count", "microseconds", "node", "price"})
    count = clients.number("count", 1)
    if count < 1 or count != int(count):
        raise ArgumentError(f"{clients.at}: count {count:g}; wanted 1 or more.")
    client_node = str(clients.get("node", devices[0].node))
    nodes = {device.node for device in devices} | {client_node}
    return Fleet(
        tuple(devices),
        _links(where, top.get("links") or [], nodes),
        int(count),
        clients.number("microseconds", _CLIENT_S * 1e6) / 1e6,
        client_node,
        clients.number("price"),
        _nodes(where, top.inner("nodes", nodes)),
        _program(top),
    )


class _Section(dict[str, Any]):
    """Keys and values of a fleet's file, none but those `known`, and where they are in it."""

    def __init__(self, at: str, found: Any, known: set[str] | None = None) -> None:
        if found is not None and not isinstance(found, dict):
            raise ArgumentError(f"{at}: wanted keys and values, got {found!r}.")
        super().__init__({str(key): value for key, value in (found or {}).items()})
        self.at = at
        if known is not None and (unknown := sorted(self.keys() - known)):
            raise ArgumentError(f"{at}: unknown {', '.join(unknown)}; known are {sorted(known)}.")

    def inner(self, name: str, known: set[str] | None = None) -> _Section:
        return _Section(f"{self.at}: {name}", self.get(name), known)

    def number(self, name: str, default: float = 0.0) -> float:
        return self._checked(name, self.get(name, default))

    def numbers(self, name: str) -> tuple[float, ...]:
        found = self.get(name, [])
        listed = found if isinstance(found, list) else [found]
        return tuple(self._checked(name, value) for value in listed)

    def _checked(self, name: str, value: Any) -> float:
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if not numeric or not 0 <= value < 1e12:
            raise ArgumentError(
                f"{self.at}: {name} {value!r}; wanted a number that is not negative."
            )
        return float(value)


def _links(where: str, listed: Any, nodes: set[str]) -> dict[tuple[str, str], FleetLink]:
    if not isinstance(listed, list):
        raise ArgumentError(f"{where}: links: wanted a list, got {listed!r}.")
    links: dict[tuple[str, str], FleetLink] = {}
    known = {"between", "delay_ms", "megabytes_per_s", "price"}
    for number, found in enumerate(listed):
        row = _Section(f"{where}: link {number}", found, known)
        ends = row.get("between")
        if not (isinstance(ends, list) and len(ends) == 2 and set(map(str, ends)) <= nodes):
            raise ArgumentError(f"{row.at}: between {ends!r}; wanted two of {sorted(nodes)}.")
        one, other = sorted(map(str, ends))
        if one == other or (one, other) in links:
            why = "is within a node" if one == other else "is there twice"
            raise ArgumentError(
                f"{row.at}: between {one} and {other} {why}; wanted one for two nodes."
            )
        links[one, other] = FleetLink(
            row.number("delay_ms", 0.05) / 1e3,
            row.number("megabytes_per_s") * 1e6,
            row.number("price"),
        )
    return links


def _nodes(where: str, listed: _Section) -> dict[str, FleetNode]:
    found: dict[str, FleetNode] = {}
    for name, given in listed.items():
        row = _Section(f"{where}: node {name!r}", given, {"cores", "together", "price"})
        cores, together = row.number("cores"), row.number("together", 1.0)
        if cores < 1 or cores != int(cores) or not 0 < together <= 1:
            raise ArgumentError(
                f"{row.at}: cores {cores:g}, together {together:g}; wanted whole cores, and how "
                "fast each is while all work: 1 as fast as alone, 0.7 slower."
            )
        found[name] = FleetNode(int(cores), together, row.number("price"))
    return found


def _program(top: _Section) -> Program:
    known = {"call_us", "arrive_us", "leave_us", "hop_us", "run", "idle", "one_process"}
    row = top.inner("program", known)
    if not isinstance(one_process := row.get("one_process", False), bool):
        raise ArgumentError(f"{row.at}: one_process {one_process!r}; wanted true or false.")
    return Program(
        row.number("call_us") / 1e6,
        row.number("arrive_us") / 1e6,
        row.number("leave_us") / 1e6 if "leave_us" in row else None,
        tuple(hop_us / 1e6 for hop_us in row.numbers("hop_us")),
        row.numbers("run"),
        row.numbers("idle"),
        one_process,
    )


def _root(name: str, rows: Mapping[str, _Section], planned: list[str]) -> tuple[str, float]:
    """Return which of the plan's devices one is like, by way of others, and its factor."""
    at, seen, factor = rows[name].at, [name], 1.0
    while True:
        row = rows[seen[-1]]
        factor *= row.number("factor", 1.0)
        like = str(row.get("like", seen[-1]))
        if like in planned:
            if factor <= 0:
                raise ArgumentError(f"{at}: factor {factor:g}; wanted a positive number.")
            return like, factor
        if like in seen:
            raise ArgumentError(f"{at} is like itself: {' -> '.join([*seen, like])}.")
        if like not in rows:
            raise ArgumentError(
                f"{at} is like {like!r}, which is neither of the plan ({', '.join(planned)}) nor "
                "of this file."
            )
        seen.append(like)
