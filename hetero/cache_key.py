"""Keys of the cache: everything that a compiled model depends on, and nothing else.

In: the model's structure, names, weights (external ones by content) and declared types; where its
nodes are pinned; the devices' names in order, plugins, versions and fingerprints; the
policy and every option that changes what compilation makes; the versions of the format and of
hetero. Out: paths, times, processes, threads, logging, and the order of options.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from devices.model import Model
from hetero.affinity import Affinity
from hetero.blob import Compilation, DeviceRecord, hetero_version
from hetero.config import HETERO_PROPERTIES
from scheduler.blob_format import FORMAT_VERSION


def plan_key(
    model: Model,
    compilation: Compilation,
    pins: Affinity,
    shaping: Mapping[str, Sequence[str]],
    *,
    encrypted: bool = False,
) -> str:
    """Return the key of a whole model's entry; known before any device is asked about it.

    Parameters
    ----------
    model : Model
        The whole model.
    compilation : Compilation
        Devices in order of priority, and options.
    pins : Affinity
        Nodes that have their device already.
    shaping : mapping of str to sequence of str
        Device -> names of the options that change what compilation makes.
    encrypted : bool
        Whether entries are encrypted.

    Returns
    -------
    str
        SHA-256, as 64 hexadecimal digits.
    """
    types = hashlib.sha256()
    for info in model.value_info:
        data = info.SerializeToString(deterministic=True)
        types.update(len(data).to_bytes(8, "little") + data)
    return _digest(
        {
            "kind": "plan",
            "model": model.content_hash,
            "types": types.hexdigest(),
            "pins": list(pins.items()),
            "devices": [
                [name, *_of_device(record, compilation.configs.get(name, {}), shaping[name])]
                for name, record in compilation.devices.items()
            ],
            "options": HETERO_PROPERTIES.key(compilation.own),
            "encrypted": encrypted,
        }
    )


def stage_key(
    model: Model,
    record: DeviceRecord,
    config: Mapping[str, Any],
    shaping: Sequence[str],
    *,
    encrypted: bool = False,
) -> str:
    """Return the key of one subgraph's entry; the device's name is not part of it.

    Parameters
    ----------
    model : Model
        The subgraph.
    record : DeviceRecord
        Its device.
    config : mapping
        The device's options.
    shaping : sequence of str
        Those that change what compilation makes.
    encrypted : bool
        Whether entries are encrypted.
    """
    return _digest(
        {
            "kind": "stage",
            "model": model.content_hash,
            "device": _of_device(record, config, shaping),
            "encrypted": encrypted,
        }
    )


def _of_device(
    record: DeviceRecord, config: Mapping[str, Any], shaping: Sequence[str]
) -> list[Any]:
    options = {name: config[name] for name in shaping if name in config}
    return [record.plugin, record.version, record.fingerprint, options]


def _digest(document: Mapping[str, Any]) -> str:
    versions = {"format": FORMAT_VERSION, "hetero": hetero_version()}
    # Options of third-party plugins may be anything; what has no JSON form counts by its text.
    text = json.dumps({**versions, **document}, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
