"""Keys of the cache: everything that a compiled model depends on, and nothing else.

In: the model's structure, names, weights (external ones by content) and declared types; where its
nodes are pinned; the devices' names in order, plugins, versions and fingerprints; the
policy and every option that changes what compilation makes; the versions of the format and of
hetero. Out: paths, times, processes, threads, logging, and the order of options.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero.devices.model.model import Model
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import HETERO_PROPERTIES
from hetero.scheduler.formats.blob_format import FORMAT_VERSION
from hetero.scheduler.formats.regular_file import read_regular
from hetero.version import hetero_version


def plan_key(model: Model, request: CompileRequest, *, encrypted: bool = False) -> str:
    """Return the key of a whole model's entry; known before any device is asked about it."""
    types = hashlib.sha256()
    for info in model.value_info:
        data = info.SerializeToString(deterministic=True)
        types.update(len(data).to_bytes(8, "little") + data)
    return _digest(
        {
            "kind": "plan",
            "model": model.content_hash,
            "types": types.hexdigest(),
            "pins": list(request.pins.items()),
            "devices": [[name, *_of_device(name, request)] for name in request.devices],
            "options": HETERO_PROPERTIES.key(request.hetero_config),
            "costs": _costs(request.hetero_config["COST_FILE"]),
            "encrypted": encrypted,
        }
    )


def stage_key(
    model: Model, device: str, request: CompileRequest, *, encrypted: bool = False
) -> str:
    """Return the key of one subgraph's entry; the device's name is not part of it."""
    return _digest(
        {
            "kind": "stage",
            "model": model.content_hash,
            "device": _of_device(device, request),
            "encrypted": encrypted,
        }
    )


def _of_device(name: str, request: CompileRequest) -> list[Any]:
    device = request.descriptor(name)
    options = device.properties.key(request.configs[name])
    return [device.plugin, device.version, device.fingerprint, options]


def _costs(path: str) -> str:
    """Return a hash of a cost file; nothing without one."""
    if not path:
        return ""
    try:
        return hashlib.sha256(read_regular(Path(path))).hexdigest()
    except OSError:  # whoever plans with it says so
        return ""


def _digest(document: Mapping[str, Any]) -> str:
    versions = {"format": FORMAT_VERSION, "hetero": hetero_version()}
    # Options of third-party plugins may be anything; what has no JSON form counts by its text.
    text = json.dumps({**versions, **document}, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
