"""OpenVINO's core, and the properties of its devices as plugin properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

import openvino

from hetero.devices.openvino.properties import OWN_PROPERTIES
from hetero.devices.plugin.properties import COMMON_PROPERTIES, Config, Property, PropertyTable

#: Defaults that differ from OpenVINO's and are always passed. Its own default precision may be
#: bfloat16, and pinned threads would take cores from other devices on the node.
_DEFAULTS: Final = {"EXECUTION_MODE_HINT": "ACCURACY", "ENABLE_CPU_PINNING": False}
#: Properties that OpenVINO chooses itself if they are unset; reading one returns its choice.
_AUTOMATIC: Final = {"INFERENCE_PRECISION_HINT": "dynamic"}
#: Properties that affect a model's speed, but not its compiled form.
_RUNTIME: Final = frozenset({"ENABLE_CPU_PINNING", "LOG_LEVEL"})


@cache
def core() -> openvino.Core:
    """Return this process's OpenVINO core, which discovers the devices."""
    return openvino.Core()


def device_ids() -> tuple[str, ...]:
    """Return the names of OpenVINO's devices: ``CPU``, ``GPU.0``, ``NPU``."""
    return tuple(core().available_devices)


def property_table() -> PropertyTable:
    """Return device OV's properties: its own, and those of all of OpenVINO's devices."""
    ids = device_ids()
    first = next(iter(ids), "CPU")
    own = OWN_PROPERTIES.extended(replace(OWN_PROPERTIES["DEVICE_ID"], default=first))
    properties: dict[str, Property] = {}
    for device in ids:
        for name, value, mutable in _readable_properties(device):
            is_new = name not in own and name not in properties
            if is_new and _plain_value(name, value) is not None:
                properties[name] = _property(name, value, mutable)
    return own.extended(*properties.values())


def compile_options(config: Config, table: PropertyTable) -> dict[str, Any]:
    """Return the options in a configuration that differ from OpenVINO's defaults."""
    names = _mutability(config["DEVICE_ID"])
    options = {
        # OpenVINO parses a set from a text.
        name: " ".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in config.items()
        if name in names
        and name not in COMMON_PROPERTIES
        and (name in _DEFAULTS or value != table[name].default)
    }
    if "NUM_STREAMS" in names:
        options["NUM_STREAMS"] = config["NUM_STREAMS"]
    return options


def read_only_properties(device: str) -> dict[str, Any]:
    """Return the values of a device's read-only properties."""
    return {
        name: _plain_value(name, value)
        for name, value, mutable in _readable_properties(device)
        if not mutable
    }


@cache
def _mutability(device: str) -> dict[str, str]:
    """Return a device's properties and their mutability: RO, RW or WO.

    Cached because each call leaks the names inside OpenVINO.
    """
    properties: dict[str, str] = core().get_property(device, "SUPPORTED_PROPERTIES")
    return properties


def _readable_properties(device: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name, the value and the mutability of a device's readable properties."""
    for name, mutability in _mutability(device).items():
        if name == "SUPPORTED_PROPERTIES" or mutability == "WO":
            continue
        try:
            value = core().get_property(device, name)
        except (RuntimeError, TypeError):  # OpenVINO lists some that it cannot return
            continue
        yield name, value, mutability == "RW"


def _plain_value(name: str, value: Any) -> Any:
    """Convert a value of OpenVINO to bool, int, float, str or a tuple; None for other types."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set):
        return tuple(part if isinstance(part, int) else str(part) for part in value)
    if isinstance(value, openvino.Type):
        return value.to_string()
    members = _enum_members(name, value)
    return next((text for text, member in members.items() if member == value), None)


def _enum_members(name: str, value: Any) -> dict[str, Any]:
    """Return the members of a value's enumeration by the names that OpenVINO parses."""
    members = getattr(type(value), "__members__", {})
    return {f"LOG_{n}" if name == "LOG_LEVEL" else n: member for n, member in members.items()}


def _property(name: str, value: Any, mutable: bool) -> Property:
    plain = _plain_value(name, value)
    return Property(
        name,
        type(plain),
        _DEFAULTS.get(name, _AUTOMATIC.get(name, plain)),
        mutable,
        f"OpenVINO's property of this name, documented there; OpenVINO's default is {plain!r}.",
        choices=tuple(_enum_members(name, value)),
        shapes_result=mutable and name not in _RUNTIME,
    )
