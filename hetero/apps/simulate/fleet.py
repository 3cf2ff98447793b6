"""Fleets: devices, links, nodes and clients of a simulation, which need not exist."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from hetero.devices.errors import ArgumentError
from hetero.devices.file_reader import FileReader
from hetero.planning.plan_report import PlanReport

_READER: Final = FileReader(
    "cluster file", ArgumentError, "See docs/simulate.md for an example.", max_nbytes=2**20
)
#: Default name of a node.
_DEFAULT_NODE = "local"
#: Processor time of a client per request in seconds (BENCHMARKS.md).
_CLIENT_S = 200e-6
#: Plugins that compute on the cores of their node, and OpenVINO's devices that do not.
_ON_CORES = ("CPU", "ORT", "OV")
_OFF_CORES = ("OV.GPU", "OV.NPU")


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device that runs the stages of the planned device `like`, in `factor` times its time.

    `cores`: cores of its node that a run uses; 0 if the device has its own processor.
    """

    name: str
    like: str
    node: str = _DEFAULT_NODE
    factor: float = 1.0
    price: float = 0.0
    cores: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetLink:
    """A link between two nodes, in both directions; 0 bytes per second means unlimited."""

    delay_s: float = 50e-6
    nbytes_per_s: float = 0.0
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node; `together` is the relative speed of each core while all cores work."""

    cores: int = 1
    together: float = 1.0
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class Program:
    """Overheads of the scheduler; `benchmarks.simulate` measures them.

    `call_s`: delay before the client's processor picks up a call.
    `arrive_s`, `leave_s`: time of a device per message received, and after each run; None for
        `leave_s` uses the plan's prediction.
    `hop_s`: receiver latency of a message, excluding the link; evenly spaced quantiles.
    `run`, `idle`: run time relative to its mean, as quantiles; `idle` if the device had to wake up.
    `one_process`: whether client and devices share one interpreter, as with the in-process
        executor; the device of the last stage is then busy while the client receives the result.
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
    """Devices, links, nodes and clients that serve requests.

    `devices`: at least one for each device of the plan.
    `links`: sorted pair of nodes -> link; the delay of other links is 50 microseconds.
    `clients`, `client_s`, `client_node`, `client_price`: number of clients, processor time per
        request, node, and price of one more client.
    `nodes`: node name -> node; unlisted nodes have as many cores as this machine.
    `program`: overheads of the scheduler.
    """

    devices: tuple[FleetDevice, ...]
    links: Mapping[tuple[str, str], FleetLink]
    clients: int = 1
    client_s: float = _CLIENT_S
    client_node: str = _DEFAULT_NODE
    client_price: float = 0.0
    nodes: Mapping[str, FleetNode] = field(default_factory=dict)
    program: Program = Program()

    @property
    def kinds(self) -> list[str]:
        """Planned devices whose stages the fleet runs."""
        return list(dict.fromkeys(device.like for device in self.devices))

    def link(self, one: str, other: str) -> FleetLink:
        """Return the link between two nodes."""
        if one == other:  # measured hop times include the delay within a node
            return FleetLink(0.0) if self.program.hop_s else FleetLink()
        return self.links.get((min(one, other), max(one, other)), FleetLink())

    def with_one_more(self, like: str) -> Fleet:
        """Return the fleet with one more device of a kind, on the node of the last one."""
        last = next(device for device in reversed(self.devices) if device.like == like)
        count = sum(device.like == like for device in self.devices)
        more = replace(last, name=f"{last.name}+{count}")
        return replace(self, devices=(*self.devices, more))

    def with_node_again(self, node: str) -> Fleet:
        """Return the fleet with a copy of a node, its devices and its links."""
        count = len({device.node for device in self.devices})
        new = f"{node}+{count}"
        originals = [device for device in self.devices if device.node == node]
        more = [replace(d, name=f"{d.name}+{new}", node=new) for d in originals]
        new_links = {
            (min(new, other), max(new, other)): link
            for (a, b), link in self.links.items()
            for other in ((b,) if a == node else (a,) if b == node else ())
        }
        return replace(
            self,
            devices=(*self.devices, *more),
            links={**self.links, **new_links},
            nodes={**self.nodes, new: self.node(node)},
        )

    def node(self, name: str) -> FleetNode:
        """Return a node by its name."""
        return self.nodes.get(name) or FleetNode(len(os.sched_getaffinity(0)))

    def without(self, *names: str) -> Fleet:
        """Return the fleet without some devices."""
        return replace(self, devices=tuple(d for d in self.devices if d.name not in names))


def planned_fleet(report: PlanReport, counts: Mapping[str, int]) -> Fleet:
    """Return the fleet of a plan; `counts` overrides the number of devices of each plugin."""
    by_plugin: dict[str, list[str]] = {}
    for name in dict.fromkeys(stage.device for stage in report.stages):
        by_plugin.setdefault(name.partition(".")[0], []).append(name)
    if unknown := sorted(set(counts) - set(by_plugin)):
        raise ArgumentError(
            f"devices {', '.join(unknown)}: the plan of {report.model!r} uses only "
            f"{', '.join(by_plugin)}."
        )
    devices: list[FleetDevice] = []
    for plugin, names in by_plugin.items():
        count = counts.get(plugin, len(names))
        if count < len(names):
            raise ArgumentError(
                f"{count} devices of {plugin} are too few: the plan of {report.model!r} uses "
                f"{', '.join(names)}."
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
    """Return the cores that a device uses: the devices of a plan share this machine's cores."""
    names = dict.fromkeys(stage.device for stage in report.stages)
    on_cores = [n for n in names if n.partition(".")[0] in _ON_CORES and n[:6] not in _OFF_CORES]
    return len(os.sched_getaffinity(0)) / len(on_cores) if name in on_cores else 0.0


def read_fleet(source: str | Path | Mapping[str, Any], report: PlanReport) -> Fleet:
    """Read a fleet from a YAML file or its content; `docs/simulate.md` shows an example."""
    where, document = "cluster", source
    if isinstance(source, str | Path):
        where, document = f"cluster {str(source)!r}", _READER.read_yaml(source)
    top = _Section(where, document, {"devices", "links", "clients", "nodes", "program"})
    planned_names = list(dict.fromkeys(stage.device for stage in report.stages))
    keys = {"like", "node", "factor", "price", "cores"}
    rows = {
        name: _Section(f"{where}: device {name!r}", row, keys)
        for name, row in top.subsection("devices").items()
    }
    devices = []
    for name, row in rows.items():
        if name in report.devices and name not in planned_names and "like" not in row:
            continue  # requested, but the plan does not use it
        like, factor = _root(name, rows, planned_names)
        cores = row.number("cores", _num_cores(report, like))
        node = str(row.get("node", _DEFAULT_NODE))
        devices.append(FleetDevice(name, like, node, factor, row.number("price"), cores))
    if missing := sorted(set(planned_names) - {device.like for device in devices}):
        raise ArgumentError(
            f"{where}: no device is like {', '.join(missing)}, which the plan uses; add one."
        )
    clients = top.subsection("clients", {"count", "microseconds", "node", "price"})
    count = clients.number("count", 1)
    if count < 1 or count != int(count):
        raise ArgumentError(f"{clients.at}: count {count:g}; expected a whole number, 1 or more.")
    client_node = str(clients.get("node", devices[0].node))
    nodes = {str(row.get("node", _DEFAULT_NODE)) for row in rows.values()} | {client_node}
    return Fleet(
        tuple(devices),
        _links(where, top.get("links") or [], nodes),
        int(count),
        clients.number("microseconds", _CLIENT_S * 1e6) / 1e6,
        client_node,
        clients.number("price"),
        _nodes(where, top.subsection("nodes", nodes)),
        _program(top),
    )


class _Section(dict[str, Any]):
    """A mapping of a fleet's file, with its place there; only keys of `allowed` are accepted."""

    def __init__(self, at: str, content: Any, allowed: set[str] | None = None) -> None:
        if content is not None and not isinstance(content, dict):
            raise ArgumentError(f"{at}: expected keys and values, got {content!r}.")
        super().__init__({str(key): value for key, value in (content or {}).items()})
        self.at = at
        if allowed is not None and (unknown := sorted(self.keys() - allowed)):
            raise ArgumentError(f"{at}: unknown {', '.join(unknown)}; use {sorted(allowed)}.")

    def subsection(self, name: str, allowed: set[str] | None = None) -> _Section:
        return _Section(f"{self.at}: {name}", self.get(name), allowed)

    def number(self, name: str, default: float = 0.0) -> float:
        return self._parse_number(name, self.get(name, default))

    def numbers(self, name: str) -> tuple[float, ...]:
        entry = self.get(name, [])
        values = entry if isinstance(entry, list) else [entry]
        return tuple(self._parse_number(name, value) for value in values)

    def _parse_number(self, name: str, value: Any) -> float:
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if not numeric or not 0 <= value < 1e12:
            raise ArgumentError(f"{self.at}: {name} {value!r}; expected a number of at least 0.")
        return float(value)


def _links(where: str, entries: Any, nodes: set[str]) -> dict[tuple[str, str], FleetLink]:
    if not isinstance(entries, list):
        raise ArgumentError(f"{where}: links: expected a list, got {entries!r}.")
    links: dict[tuple[str, str], FleetLink] = {}
    keys = {"between", "delay_ms", "megabytes_per_s", "price"}
    for number, entry in enumerate(entries):
        row = _Section(f"{where}: link {number}", entry, keys)
        ends = row.get("between")
        if not (isinstance(ends, list) and len(ends) == 2 and set(map(str, ends)) <= nodes):
            raise ArgumentError(f"{row.at}: between {ends!r}; expected two of {sorted(nodes)}.")
        one, other = sorted(map(str, ends))
        if one == other or (one, other) in links:
            problem = "is within a node" if one == other else "is listed twice"
            raise ArgumentError(
                f"{row.at}: between {one} and {other} {problem}; expected one for each two nodes."
            )
        links[one, other] = FleetLink(
            row.number("delay_ms", 0.05) / 1e3,
            row.number("megabytes_per_s") * 1e6,
            row.number("price"),
        )
    return links


def _nodes(where: str, entries: _Section) -> dict[str, FleetNode]:
    nodes: dict[str, FleetNode] = {}
    for name, entry in entries.items():
        row = _Section(f"{where}: node {name!r}", entry, {"cores", "together", "price"})
        cores, together = row.number("cores"), row.number("together", 1.0)
        if cores < 1 or cores != int(cores) or not 0 < together <= 1:
            raise ArgumentError(
                f"{row.at}: cores {cores:g}, together {together:g}; expected whole cores, and the "
                "relative speed of each while all work, above 0 and at most 1."
            )
        nodes[name] = FleetNode(int(cores), together, row.number("price"))
    return nodes


def _program(top: _Section) -> Program:
    keys = {"call_us", "arrive_us", "leave_us", "hop_us", "run", "idle", "one_process"}
    row = top.subsection("program", keys)
    if not isinstance(one_process := row.get("one_process", False), bool):
        raise ArgumentError(f"{row.at}: one_process {one_process!r}; expected true or false.")
    return Program(
        row.number("call_us") / 1e6,
        row.number("arrive_us") / 1e6,
        row.number("leave_us") / 1e6 if "leave_us" in row else None,
        tuple(hop_us / 1e6 for hop_us in row.numbers("hop_us")),
        row.numbers("run"),
        row.numbers("idle"),
        one_process,
    )


def _root(name: str, rows: Mapping[str, _Section], planned_names: list[str]) -> tuple[str, float]:
    """Follow `like` to a device of the plan; return that device and the product of the factors."""
    at, seen, factor = rows[name].at, [name], 1.0
    while True:
        row = rows[seen[-1]]
        factor *= row.number("factor", 1.0)
        like = str(row.get("like", seen[-1]))
        if like in planned_names:
            if factor <= 0:
                raise ArgumentError(f"{at}: factor {factor:g}; expected a positive number.")
            return like, factor
        if "like" not in row:
            raise ArgumentError(
                f"{row.at} is not in the plan ({', '.join(planned_names)}) and has no 'like'; "
                "add 'like' with a device of the plan, or remove the row."
            )
        if like in seen:
            raise ArgumentError(f"{at} is like itself: {' -> '.join([*seen, like])}.")
        if like not in rows:
            raise ArgumentError(
                f"{at} is like {like!r}, which is neither in the plan "
                f"({', '.join(planned_names)}) nor in this file."
            )
        seen.append(like)
