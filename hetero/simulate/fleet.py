"""The fleet: devices, links and clients, some of which may not exist yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devices.errors import ArgumentError
from hetero.planning.report import PlanReport

#: The node of a fleet that names none.
_HERE = "local"
#: Seconds that a client works for a request, and a device for a message (BENCHMARKS.md).
_CLIENT_S = 200e-6


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device: it runs what the plan gives to the device `like`, in `factor` times its time."""

    name: str
    like: str
    node: str = _HERE
    factor: float = 1.0
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetLink:
    """A link from one node to another, both ways; 0 bytes a second: any number."""

    delay_s: float = 50e-6
    nbytes_per_s: float = 0.0
    price: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """What serves requests.

    Attributes
    ----------
    devices : tuple of FleetDevice
        At least one like each of the plan's.
    links : mapping of (str, str) to FleetLink
        By their nodes, sorted; what is not listed takes 50 microseconds.
    clients, client_s, client_node, client_price
        How many clients there are, what a request costs each in seconds of its processor, where
        they are, and what one more costs.
    """

    devices: tuple[FleetDevice, ...]
    links: Mapping[tuple[str, str], FleetLink]
    clients: int = 1
    client_s: float = _CLIENT_S
    client_node: str = _HERE
    client_price: float = 0.0

    @property
    def kinds(self) -> list[str]:
        """The plan's devices that its devices are like."""
        return list(dict.fromkeys(device.like for device in self.devices))

    def link(self, one: str, other: str) -> FleetLink:
        """Return what is between two nodes."""
        if one == other:
            return FleetLink()
        return self.links.get((min(one, other), max(one, other)), FleetLink())

    def with_one_more(self, like: str) -> Fleet:
        """Return it with one more device of a kind, beside the last one of the kind."""
        last = next(device for device in reversed(self.devices) if device.like == like)
        count = sum(device.like == like for device in self.devices)
        more = replace(last, name=f"{last.name}+{count}")
        return replace(self, devices=(*self.devices, more))

    def without(self, *names: str) -> Fleet:
        """Return it without some devices."""
        return replace(self, devices=tuple(d for d in self.devices if d.name not in names))


def planned_fleet(report: PlanReport, counts: Mapping[str, int]) -> Fleet:
    """Return the fleet of a plan, or of so many devices of each plugin.

    Raises ArgumentError: a plugin that the plan does not use, or too few of its devices.
    """
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
            FleetDevice(names[i] if i < len(names) else f"{plugin}.{i}", names[i % len(names)])
            for i in range(count)
        )
    return Fleet(tuple(devices), {})


def read_fleet(path: str | Path, report: PlanReport) -> Fleet:
    """Read a fleet from YAML; `docs` show one.

    Raises ArgumentError: it cannot be read, or does not fit the plan; it says where.
    """
    import yaml  # here, as hardly anybody needs it

    try:
        document = yaml.safe_load(Path(path).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ArgumentError(f"cluster {str(path)!r} cannot be read: {error}") from error
    where = f"cluster {str(path)!r}"
    top = _mapping(where, document, {"devices", "links", "clients"})
    planned = list(dict.fromkeys(stage.device for stage in report.stages))
    known = {"like", "node", "factor", "price"}
    rows = {
        str(name): _mapping(f"{where}: device {name!r}", row, known)
        for name, row in _mapping(f"{where}: devices", top.get("devices"), None).items()
    }
    at = f"{where}: clients"
    clients = _mapping(at, top.get("clients"), {"count", "microseconds", "node", "price"})
    count = _number(at, clients, "count", 1)
    if count < 1 or count != int(count):
        raise ArgumentError(f"{at}: count {count:g}; wanted 1 or more.")
    per_request_s = _number(at, clients, "microseconds", _CLIENT_S * 1e6) / 1e6
    client_price = _number(at, clients, "price", 0.0)
    devices = []
    for name, fields in rows.items():
        at = f"{where}: device {name!r}"
        like, factor = _root(at, name, rows, planned)
        node = str(fields.get("node", _HERE))
        devices.append(FleetDevice(name, like, node, factor, _number(at, fields, "price", 0)))
    missing = sorted(set(planned) - {device.like for device in devices})
    if missing:
        raise ArgumentError(
            f"{where}: no device is like {', '.join(missing)}, which the plan uses."
        )
    client_node = str(clients.get("node", devices[0].node))
    nodes = {device.node for device in devices} | {client_node}
    links: dict[tuple[str, str], FleetLink] = {}
    listed = top.get("links") or []
    if not isinstance(listed, list):
        raise ArgumentError(f"{where}: links: wanted a list, got {listed!r}.")
    for number, row in enumerate(listed):
        at = f"{where}: link {number}"
        fields = _mapping(at, row, {"between", "delay_ms", "megabytes_per_s", "price"})
        ends = fields.get("between")
        if not (isinstance(ends, list) and len(ends) == 2 and set(map(str, ends)) <= nodes):
            raise ArgumentError(f"{at}: between {ends!r}; wanted two of {sorted(nodes)}.")
        one, other = sorted(map(str, ends))
        if one == other or (one, other) in links:
            why = "is within a node" if one == other else "is there twice"
            raise ArgumentError(f"{at}: between {one} and {other} {why}; wanted one for two nodes.")
        links[one, other] = FleetLink(
            _number(at, fields, "delay_ms", 0.05) / 1e3,
            _number(at, fields, "megabytes_per_s", 0.0) * 1e6,
            _number(at, fields, "price", 0.0),
        )
    return Fleet(tuple(devices), links, int(count), per_request_s, client_node, client_price)


def _root(
    at: str, name: str, rows: Mapping[str, Mapping[str, Any]], planned: list[str]
) -> tuple[str, float]:
    """Return which of the plan's devices one is like, by way of others, and its factor."""
    seen, factor = [name], 1.0
    while True:
        row = rows[seen[-1]]
        factor *= _number(at, row, "factor", 1.0)
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


def _mapping(where: str, found: Any, known: set[str] | None) -> Mapping[str, Any]:
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise ArgumentError(f"{where}: wanted keys and values, got {found!r}.")
    if known is not None and (unknown := sorted(map(str, set(found) - known))):
        raise ArgumentError(f"{where}: unknown {', '.join(unknown)}; known are {sorted(known)}.")
    return found


def _number(where: str, row: Mapping[str, Any], name: str, default: float) -> float:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ArgumentError(f"{where}: {name} {value!r}; wanted a number that is not negative.")
    return float(value)
