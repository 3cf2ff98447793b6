"""The cost file: costs as JSON, and the check that they belong to a model and its devices.

::

    {"format": "hetero-costs", "version": 4, "measured_at": ISO 8601,
     "model": {"name", "hash", "shapes": {input: [sizes]}},
     "devices": {device: {"identity": {...}, "nodes": {node: [seconds, source]},
                          "dispatch": [...], "fusion": [...], "share": [...], "sway": [...],
                          "alone": {"load": [...], "overhead": [...]},
                          "company": {"load": [...], "overhead": [...]},
                          "fused": [[node, ...]]}},
     "transfers": [{"from", "to", "latency": [a, b, source], "busy": [a, b, source]}],
     "client": {"request": [...], "stage": [...]},
     "missing": {device: reason}, "interrupted": false}

A source is ``measured``, ``calibrated`` or ``estimated``. Older versions lack what requests take
besides devices, or have what devices take before they are warm: a model is profiled again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final, get_args

from devices.errors import PlanError
from hetero.planning.cost.costs import (
    ClientTime,
    Costs,
    DeviceCosts,
    DeviceIdentity,
    Line,
    Pace,
    Source,
    Time,
    Transfer,
)
from scheduler.formats.publish import publish
from scheduler.formats.regular_file import read_regular
from scheduler.vocabulary.rows import THIS_PROCESS

FORMAT: Final = "hetero-costs"
VERSION: Final = 4
_SOURCES: Final = frozenset(get_args(Source))
#: What an identity's fields are called in messages.
_LABELS: Final = {
    "plugin": "plugin",
    "version": "plugin version",
    "fingerprint": "fingerprint",
    "node": "node",
    "num_threads": "threads",
}


def write_costs(costs: Costs, path: str | Path) -> None:
    """Write a cost file; it is there whole or not at all."""
    text = json.dumps(to_document(costs), indent=1)
    publish(Path(path), lambda file: file.write(text.encode()))


def read_costs(path: str | Path) -> Costs:
    """Read a cost file.

    Raises PlanError: the file is missing, is not a cost file, is of another version, or a value in
        it is wrong; the message says which.
    """
    path = Path(path)
    try:
        document = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(
            f"cost file {path}: cannot be read: {error}. Make one with `hetero profile`.",
            path=str(path),
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PlanError(
            f"cost file {path}: not a cost file: wanted format {FORMAT!r}. Make one with "
            "`hetero profile`.",
            path=str(path),
        )
    if document.get("version") != VERSION:
        raise PlanError(
            f"cost file {path}: version {document.get('version')!r}, wanted {VERSION}. Profile the "
            "model again.",
            path=str(path),
        )
    try:
        return from_document(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise PlanError(
            f"cost file {path}: {what}. Profile the model again.", path=str(path)
        ) from error


def to_document(costs: Costs) -> dict[str, Any]:
    """Return costs as plain values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "measured_at": costs.measured_at,
        "model": {
            "name": costs.model,
            "hash": costs.model_hash,
            "shapes": {name: list(shape) for name, shape in costs.shapes.items()},
        },
        "devices": {
            name: {
                "identity": {
                    **asdict(device.identity),
                    "config": dict(device.identity.config),
                },
                "nodes": {n: [t.seconds, t.source] for n, t in device.nodes.items()},
                "dispatch": _pair(device.dispatch),
                "fusion": _pair(device.fusion),
                "share": _pair(device.share),
                "sway": _pair(device.sway),
                "alone": _pace_document(device.alone),
                "company": _pace_document(device.company),
                "fused": [list(group) for group in device.fused],
            }
            for name, device in costs.devices.items()
        },
        "transfers": [
            {
                "from": sender,
                "to": receiver,
                "latency": [t.latency.a, t.latency.b, t.latency.source],
                "busy": [t.busy.a, t.busy.b, t.busy.source],
            }
            for (sender, receiver), t in costs.transfers.items()
        ],
        "client": {"request": _pair(costs.client.request), "stage": _pair(costs.client.stage)},
        "missing": dict(costs.missing),
        "interrupted": costs.interrupted,
    }


def from_document(document: Mapping[str, Any]) -> Costs:
    """Return the costs that `to_document` wrote.

    Raises KeyError, TypeError, ValueError for what is missing or wrong, with its place.
    """
    model = document["model"]
    return Costs(
        model=str(model["name"]),
        model_hash=str(model["hash"]),
        shapes={n: tuple(int(d) for d in shape) for n, shape in model["shapes"].items()},
        devices={
            name: _device(f"devices.{name}", entry) for name, entry in document["devices"].items()
        },
        transfers={
            (str(t["from"]), str(t["to"])): Transfer(
                _line(f"transfers[{i}].latency", t["latency"]),
                _line(f"transfers[{i}].busy", t["busy"]),
            )
            for i, t in enumerate(document["transfers"])
        },
        client=ClientTime(
            *(_time(f"client.{part}", document["client"][part]) for part in ("request", "stage"))
        ),
        missing={str(n): str(reason) for n, reason in document["missing"].items()},
        interrupted=bool(document.get("interrupted", False)),
        measured_at=str(document["measured_at"]),
    )


def check_costs(
    costs: Costs,
    model_hash: str,
    identities: Mapping[str, DeviceIdentity],
    where: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Refuse costs of another model, of other shapes, or of devices that are others or absent.

    What was measured on one node holds for the same devices in this process: a plan for that node
    can be made without its cluster. What was measured in process, with its short ways, holds
    nowhere else.

    `identities`: the devices that are to be planned for.
    `where`: what the costs came from, for the message.
    `shapes`: input -> shape that is to be planned for.
    Raises PlanError with every difference.
    """
    differences = []
    if costs.model_hash != model_hash:
        differences.append(
            f"it is of model {costs.model!r} with hash {costs.model_hash[:16]}, wanted "
            f"{model_hash[:16]}"
        )
    differences += [
        f"input {name!r} was measured as {list(found)}, wanted {list(shape)}"
        for name, shape in (shapes or {}).items()
        if (found := costs.shapes.get(name, shape)) != shape
    ]
    one_node = len({device.identity.node for device in costs.devices.values()}) == 1
    for name, wanted in identities.items():
        if one_node and name in costs.devices and wanted.node == THIS_PROCESS:
            wanted = replace(wanted, node=costs.devices[name].identity.node)
        if name in costs.missing:
            differences.append(f"device {name} was not measured: {costs.missing[name]}")
        elif name not in costs.devices:
            there = ", ".join(costs.devices) or "none"
            differences.append(f"device {name} is not in it; it has {there}")
        else:
            differences += [
                f"device {name}: {difference}"
                for difference in _differences(costs.devices[name].identity, wanted)
            ]
    if differences:
        lines = "".join(f"\n  {d}" for d in differences)
        raise PlanError(
            f"{where} does not fit:{lines}\nProfile the model with these devices and options, or "
            "plan for what was measured.",
            differences=tuple(differences),
            constraint="costs",
        )


def _differences(found: DeviceIdentity, wanted: DeviceIdentity) -> Iterator[str]:
    """Yield what was measured and what is wanted, a sentence each."""
    for key in (field.name for field in fields(DeviceIdentity) if field.name != "config"):
        one, other = getattr(found, key), getattr(wanted, key)
        if one != other:
            yield f"measured with {_LABELS[key]} {one}, wanted {other}"
    one, other = dict(found.config), dict(wanted.config)
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            yield (
                f"measured with {key} {one.get(key, 'at its default')}, wanted "
                f"{other.get(key, 'its default')}"
            )


def _device(where: str, entry: Mapping[str, Any]) -> DeviceCosts:
    identity = entry["identity"]
    return DeviceCosts(
        identity=DeviceIdentity(
            str(identity["plugin"]),
            str(identity["version"]),
            str(identity["fingerprint"]),
            str(identity["node"]),
            int(identity["num_threads"]),
            tuple(sorted((str(k), str(v)) for k, v in identity["config"].items())),
        ),
        nodes={n: _time(f"{where}.nodes.{n}", t) for n, t in entry["nodes"].items()},
        dispatch=_time(f"{where}.dispatch", entry["dispatch"]),
        fusion=_time(f"{where}.fusion", entry["fusion"]),
        share=_time(f"{where}.share", entry["share"]),
        sway=_time(f"{where}.sway", entry["sway"]),
        alone=_pace(f"{where}.alone", entry["alone"]),
        company=_pace(f"{where}.company", entry["company"]),
        fused=tuple(tuple(str(n) for n in group) for group in entry["fused"]),
    )


def _pair(time: Time) -> list[Any]:
    return [time.seconds, time.source]


def _pace_document(pace: Pace) -> dict[str, Any]:
    return {"load": _pair(pace.load), "overhead": _pair(pace.overhead)}


def _pace(where: str, entry: Any) -> Pace:
    return Pace(*(_time(f"{where}.{part}", entry[part]) for part in ("load", "overhead")))


def _time(where: str, entry: Any) -> Time:
    seconds, source = entry
    return Time(_number(where, seconds), _source(where, source))


def _line(where: str, entry: Any) -> Line:
    a, b, source = entry
    return Line(_number(where, a), _number(where, b), _source(where, source))


def _number(where: str, value: Any) -> float:
    # NaN and infinity are JSON to Python, and no time.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{where}: expected a number of at least 0, got {value!r}")
    return float(value)


def _source(where: str, value: Any) -> Source:
    if value not in _SOURCES:
        raise ValueError(f"{where}: expected one of {', '.join(sorted(_SOURCES))}, got {value!r}")
    found: Source = value
    return found
