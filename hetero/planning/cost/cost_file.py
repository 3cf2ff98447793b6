"""The cost file: costs as JSON, and the check that they belong to a model and its devices.

::

    {"format": "hetero-costs", "version": 7, "model": ..., "model_hash": ..., "shapes": {...},
     "devices": {device: {"identity": {...}, "nodes": {node: {"seconds", "source"}}, ...}},
     "transfers": [{"from", "to", "latency": {"a", "b", "source"}, "busy": {...}}], ...}

The rest is `Costs` field by field. Older versions have other fields: a model is profiled again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from hetero.devices.errors import PlanError
from hetero.planning.cost.costs import Costs, DeviceIdentity, Line, Transfer
from hetero.scheduler.formats.publish import publish
from hetero.scheduler.formats.regular_file import read_regular
from hetero.scheduler.vocabulary.rows import THIS_PROCESS

FORMAT: Final = "hetero-costs"
VERSION: Final = 7


def write_costs(costs: Costs, path: str | Path) -> None:
    """Write a cost file; it is there whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(to_document(costs)), indent=1)
    publish(Path(path), lambda file: file.write(text))


def read_costs(path: str | Path) -> Costs:
    """Read a cost file; PlanError says which value is wrong, or that it is none of this version."""

    def wrong(what: object, fix: str) -> PlanError:
        return PlanError(f"cost file {path}: {what}. {fix}", path=str(path))

    try:
        document = msgspec.json.decode(read_regular(Path(path)))
    except (OSError, ValueError, RecursionError) as error:
        raise wrong(f"cannot be read: {error}", "Make one with `hetero profile`.") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        wanted = f"not a cost file: wanted format {FORMAT!r}"
        raise wrong(wanted, "Make one with `hetero profile`.")
    if (version := document.pop("version", None)) != VERSION:
        raise wrong(f"version {version!r}, wanted {VERSION}", "Profile the model again.")
    try:
        rows = msgspec.convert(document.pop("transfers", None), list[_Row])
        costs = msgspec.convert({**document, "transfers": {}}, Costs)
    except msgspec.ValidationError as error:
        raise wrong(error, "Profile the model again.") from error
    transfers = {(row.sender, row.receiver): Transfer(row.latency, row.busy) for row in rows}
    return replace(costs, transfers=transfers)


class _Row(msgspec.Struct, rename={"sender": "from", "receiver": "to"}):
    """A transfer with its ends: JSON has no pairs as keys."""

    sender: str
    receiver: str
    latency: Line
    busy: Line


def to_document(costs: Costs) -> dict[str, Any]:
    """Return costs as plain values."""
    rows = [_Row(*ends, t.latency, t.busy) for ends, t in costs.transfers.items()]
    document: dict[str, Any] = msgspec.to_builtins(replace(costs, transfers={}))
    return {
        "format": FORMAT,
        "version": VERSION,
        **document,
        "transfers": msgspec.to_builtins(rows),
    }


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

    `where`: what the costs came from, for the message.
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
    one, other = _settings(found), _settings(wanted)
    for key in dict.fromkeys([*one, *other]):
        if one.get(key) != other.get(key):
            yield (
                f"measured with {key} {one.get(key, 'at its default')}, wanted "
                f"{other.get(key, 'its default')}"
            )


def _settings(device: DeviceIdentity) -> dict[str, Any]:
    """Return what a device is and how it is set, by the words of messages."""
    return {
        "plugin": device.plugin,
        "plugin version": device.version,
        "fingerprint": device.fingerprint,
        "node": device.node,
        "threads": device.num_threads,
        **dict(device.config),
    }
