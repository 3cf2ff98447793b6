"""Compile requests with given devices and options, for tests that start no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero.affinity.affinity import NO_PINS, Affinity
from hetero.devices.plugin.properties import COMMON_PROPERTIES, OPTIONAL_PROPERTIES
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import HETERO_PROPERTIES
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import split_name

PROPERTIES = COMMON_PROPERTIES.extended(*OPTIONAL_PROPERTIES.values())


def descriptor(name: str, **values: Any) -> DeviceDescriptor:
    """Return the descriptor of a device called ``PLUGIN.id``."""
    plugin, device_id = split_name(name)
    fixed = DeviceDescriptor(name, plugin, device_id or "0", "local", "", "1.0", "fingerprint")
    return replace(fixed, **{"properties": PROPERTIES, **values})


def compile_request(
    *devices: str | DeviceDescriptor,
    pins: Affinity = NO_PINS,
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> CompileRequest:
    """Return a request with defaults; `options` are HETERO's."""
    descriptors = tuple(descriptor(d) if isinstance(d, str) else d for d in devices)
    defaults = {name: p.default for name, p in HETERO_PROPERTIES.items()} | {"VERIFY": "NO"}
    assert options.keys() <= defaults.keys()
    own_configs: dict[str, Mapping[str, Any]] = {d.name: {} for d in descriptors}
    return CompileRequest(
        descriptors, {**defaults, **options}, {**own_configs, **(configs or {})}, pins
    )
