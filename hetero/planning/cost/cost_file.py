"""Cost files: costs as JSON, and the check that they belong to a model and its devices.

::

    {"format": "hetero-costs", "version": 8, "model": ..., "model_hash": ..., "shapes": {...},
     "devices": {device: {"identity": {...}, "nodes": {node: {"seconds", "source"}}, ...}},
     "transfers": [{"from", "to", "latency": {"a", "b", "source"}, "busy": {...}}], ...}

The other fields are those of `Costs`. Files of older versions are rejected: profile again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from hetero.devices.errors import PlanError
from hetero.devices.file_reader import FileReader
from hetero.planning.cost.costs import Costs, DeviceIdentity, LinearCost, Transfer
from hetero.scheduler.formats.publish import publish
from hetero.scheduler.types.device_descriptor import THIS_PROCESS

FORMAT: Final = "hetero-costs"
VERSION: Final = 8
_READER: Final = FileReader(
    "cost file", PlanError, "Write one with `hetero profile`.", max_nbytes=2**28
)


def write_costs(costs: Costs, path: str | Path) -> None:
    """Write a cost file atomically."""
    text = msgspec.json.format(msgspec.json.encode(to_document(costs)), indent=1)
    publish(Path(path), lambda file: file.write(text))


def read_costs(path: str | Path) -> Costs:
    """Read a cost file.

    Raises PlanError: with the invalid value, or if the file has another format or version.
    """
    document = _READER.read_json(path)
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise _READER.problem(path, f"not a cost file: expected format {FORMAT!r}")
    outdated = replace(_READER, fix="Profile the model again.")
    if (version := document.pop("version", None)) != VERSION:
        raise outdated.problem(path, f"expected version {VERSION}, got {version!r}")
    try:
        rows = msgspec.convert(document.pop("transfers", None), list[_TransferRow])
        costs = msgspec.convert({**document, "transfers": {}}, Costs)
    except (msgspec.ValidationError, OverflowError) as error:
        raise outdated.problem(path, error) from error
    transfers = {(row.sender, row.receiver): Transfer(row.latency, row.busy) for row in rows}
    return replace(costs, transfers=transfers)


class _TransferRow(msgspec.Struct, rename={"sender": "from", "receiver": "to"}):
    """A transfer with its two ends: JSON has no pairs as keys."""

    sender: str
    receiver: str
    latency: LinearCost
    busy: LinearCost


def to_document(costs: Costs) -> dict[str, Any]:
    """Return costs as a JSON document."""
    rows = [_TransferRow(*ends, t.latency, t.busy) for ends, t in costs.transfers.items()]
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
    source: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Check that costs belong to a model, to input shapes, and to devices.

    Costs measured on one cluster node are valid for the same devices in this process, so that a
    plan for the node can be computed without the cluster. Costs measured in process are not valid
    on a cluster, where transfers are slower.

    `source`: the origin of the costs, for the message.
    Raises PlanError: with every difference.
    """
    differences = []
    if costs.model_hash != model_hash:
        differences.append(
            f"expected a model with hash {model_hash[:16]}, got {costs.model!r} with hash "
            f"{costs.model_hash[:16]}"
        )
    differences += [
        f"input {name!r}: expected shape {list(shape)}, measured {list(measured)}"
        for name, shape in (shapes or {}).items()
        if (measured := costs.shapes.get(name, shape)) != shape
    ]
    one_node = len({device.identity.node for device in costs.devices.values()}) == 1
    for name, expected in identities.items():
        if one_node and name in costs.devices and expected.node == THIS_PROCESS:
            expected = replace(expected, node=costs.devices[name].identity.node)
        if name in costs.missing:
            differences.append(f"device {name} was not measured: {costs.missing[name]}")
        elif name not in costs.devices:
            available = ", ".join(costs.devices) or "none"
            differences.append(f"device {name} is missing; available: {available}")
        else:
            differences += [
                f"device {name}: {difference}"
                for difference in _device_differences(costs.devices[name].identity, expected)
            ]
    if differences:
        lines = "".join(f"\n  {d}" for d in differences)
        raise PlanError(
            f"{source} does not match:{lines}\nProfile the model with these devices and options, "
            "or plan for the measured ones.",
            differences=tuple(differences),
            constraint="costs",
        )


def _device_differences(measured: DeviceIdentity, expected: DeviceIdentity) -> Iterator[str]:
    """Describe each difference between a measured and an expected device."""
    actual_settings, expected_settings = _describe_device(measured), _describe_device(expected)
    for key in dict.fromkeys([*actual_settings, *expected_settings]):
        if actual_settings.get(key) != expected_settings.get(key):
            yield (
                f"expected {key} {expected_settings.get(key, 'default')}, measured with "
                f"{actual_settings.get(key, 'default')}"
            )


def _describe_device(device: DeviceIdentity) -> dict[str, Any]:
    """Return the properties that identify a device, by their names in messages."""
    return {
        "plugin": device.plugin,
        "plugin version": device.version,
        "fingerprint": device.fingerprint,
        "node": device.node,
        "threads": device.num_threads,
        **dict(device.config),
    }
