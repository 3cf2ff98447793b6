"""OpenVINO's core, and its devices' properties as ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

import openvino

from hetero.devices.openvino.properties import OWN_PROPERTIES
from hetero.devices.plugin.properties import COMMON_PROPERTIES, Config, Property, PropertyTable

#: Properties of its own that we set otherwise than it does, and always: its default precision may
#: be bfloat16, and threads that are pinned would take cores from the other devices of a node.
_DEFAULTS: Final = {"EXECUTION_MODE_HINT": "ACCURACY", "ENABLE_CPU_PINNING": False}
#: Its defaults that say what it chose; unset, it chooses.
_CHOSEN: Final = {"INFERENCE_PRECISION_HINT": "dynamic"}
#: Properties that change how fast a model runs, not what it is compiled to.
_RUNTIME: Final = frozenset({"ENABLE_CPU_PINNING", "LOG_LEVEL"})


@cache
def core() -> openvino.Core:
    """Return this process's core: it finds the devices and loads their plugins."""
    return openvino.Core()


def device_ids() -> tuple[str, ...]:
    """Return the names of OpenVINO's devices: ``CPU``, ``GPU.0``, ``NPU``."""
    return tuple(core().available_devices)


def property_table() -> PropertyTable:
    """Return our properties, and those of every device of OpenVINO that ours do not hold."""
    ids = device_ids()
    first = next(iter(ids), "CPU")
    own = OWN_PROPERTIES.extended(replace(OWN_PROPERTIES["DEVICE_ID"], default=first))
    found: dict[str, Property] = {}
    for device in ids:
        for name, value, mutable in _supported(device):
            if name not in own and name not in found and _plain(name, value) is not None:
                found[name] = _property(name, value, mutable)
    return own.extended(*found.values())


def compile_options(config: Config, table: PropertyTable) -> dict[str, Any]:
    """Return the part of a configuration that OpenVINO is told: what is not its own default."""
    names = _mutability(config["DEVICE_ID"])
    options = {
        # It reads texts alone as sets.
        name: " ".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in config.items()
        if name in names
        and name not in COMMON_PROPERTIES
        and (name in _DEFAULTS or value != table[name].default)
    }
    if "NUM_STREAMS" in names:
        options["NUM_STREAMS"] = config["NUM_STREAMS"]
    return options


def read_only(device: str) -> dict[str, Any]:
    """Return the values of a device's read-only properties."""
    return {name: _plain(name, value) for name, value, mutable in _supported(device) if not mutable}


@cache
def _mutability(device: str) -> dict[str, str]:
    """Return a device's properties: RO, RW or WO. OpenVINO leaks the names whenever it is asked."""
    supported: dict[str, str] = core().get_property(device, "SUPPORTED_PROPERTIES")
    return supported


def _supported(device: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield a device's properties, each with its value and whether it can be set."""
    for name, mutability in _mutability(device).items():
        if name == "SUPPORTED_PROPERTIES" or mutability == "WO":
            continue
        try:
            value = core().get_property(device, name)
        except (RuntimeError, TypeError):  # some it lists and does not give
            continue
        yield name, value, mutability == "RW"


def _plain(name: str, value: Any) -> Any:
    """Return a value of OpenVINO's as bool, int, float, text or a tuple; None where it is none."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set):
        return tuple(part if isinstance(part, int) else str(part) for part in value)
    if isinstance(value, openvino.Type):
        return value.to_string()
    return next((text for text, member in _members(name, value).items() if member == value), None)


def _members(name: str, value: Any) -> dict[str, Any]:
    """Return the values of an enumeration by the names that OpenVINO reads them by."""
    members = getattr(type(value), "__members__", {})
    return {f"LOG_{n}" if name == "LOG_LEVEL" else n: member for n, member in members.items()}


def _property(name: str, value: Any, mutable: bool) -> Property:
    plain = _plain(name, value)
    return Property(
        name,
        type(plain),
        _DEFAULTS.get(name, _CHOSEN.get(name, plain)),
        mutable,
        f"OpenVINO's property of this name: see its documentation; it has {plain!r} by itself.",
        choices=tuple(_members(name, value)),
        shapes_result=mutable and name not in _RUNTIME,
    )
