"""Cache keys: a hash of everything that affects a compiled model, and of nothing else.

A key depends on the model's structure, names, weights (external ones by content) and declared
types; the pins; the devices' names in order, plugins, versions and fingerprints; the policy and
every option that affects the compiled model; the versions of the format and of hetero. It does not
depend on paths, times, processes, threads, logging, and the order of options.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero.devices.file_reader import read_regular
from hetero.devices.model.model import Model
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import HETERO_PROPERTIES
from hetero.scheduler.formats.blob_format import FORMAT_VERSION
from hetero.version import hetero_version


def plan_key(model: Model, request: CompileRequest, *, encrypted: bool = False) -> str:
    """Return the cache key of a model's plan; it requires no query to a device."""
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
            "devices": [[name, *_device_key(name, request)] for name in request.devices],
            "options": HETERO_PROPERTIES.key(request.hetero_config),
            "costs": _cost_file_hash(request.hetero_config["COST_FILE"]),
            "encrypted": encrypted,
        }
    )


def stage_key(
    model: Model, device: str, request: CompileRequest, *, encrypted: bool = False
) -> str:
    """Return the cache key of a subgraph; it does not depend on the device's name."""
    return _digest(
        {
            "kind": "stage",
            "model": model.content_hash,
            "device": _device_key(device, request),
            "encrypted": encrypted,
        }
    )


def verdicts_key(model: Model, device: str, request: CompileRequest) -> str:
    """Return the cache key of the verification of a model's parts on a device."""
    return _digest(
        {
            "kind": "verdicts",
            "model": model.content_hash,
            "device": _device_key(device, request),
            "bound": request.hetero_config["VERIFY_SECONDS"],
        }
    )


def _device_key(name: str, request: CompileRequest) -> list[Any]:
    descriptor = request.descriptor(name)
    options = descriptor.properties.key(request.configs[name])
    return [descriptor.plugin, descriptor.version, descriptor.fingerprint, options]


def _cost_file_hash(path: str) -> str:
    """Return the hash of a cost file; empty without one."""
    if not path:
        return ""
    try:
        return hashlib.sha256(read_regular(Path(path))).hexdigest()
    except OSError:  # the planner raises the error
        return ""


def _digest(document: Mapping[str, Any]) -> str:
    versions = {"format": FORMAT_VERSION, "hetero": hetero_version()}
    # Options of third-party plugins may not be JSON; these count by their text.
    document_json = json.dumps({**versions, **document}, sort_keys=True, default=repr)
    return hashlib.sha256(document_json.encode()).hexdigest()
