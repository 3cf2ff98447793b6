"""Device names: parsing of device strings, and resolution of names to devices.

``CPU`` and ``CPU.0`` are the same device. A name without an id means the plugin's first device. Ids
may be names, as in ``OV.CPU`` and ``OV.GPU.0``.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hetero.devices.errors import ArgumentTypeError, UnknownDeviceError

#: Prefix of a priority list of devices.
HETERO: Final = "HETERO"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A parsed device string.

    `hetero`: whether the model may be split.
    `names`: devices in order of priority, without repetition; empty for a bare ``HETERO``, which
        means all devices.
    """

    hetero: bool
    names: tuple[str, ...]


def parse_device(text: str) -> DeviceRequest:
    """Parse a device string: ``CPU``, ``ORT.1``, ``HETERO``, ``HETERO:ORT,CPU``.

    Spaces are ignored and repetitions dropped.

    Raises UnknownDeviceError: it is empty, has an empty entry, or lists several devices without
        ``HETERO:``; ArgumentTypeError: it is not a string.
    """
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"device {text!r}: expected a string such as 'CPU' or '{HETERO}:ORT,CPU', got "
            f"{type(text).__name__}."
        )
    head, colon, tail = text.strip().partition(":")
    head = head.strip()
    if head == HETERO and not colon:
        return DeviceRequest(True, ())
    parts = [part.strip() for part in (tail if colon else head).split(",")]
    if head == "AUTO" and not colon:
        problem = "is a device of OpenVINO; to split the model over devices, write "
        problem += f"{HETERO}, or {HETERO}:ORT,CPU"
    elif colon and head != HETERO:
        problem = f"has a list after its colon, which only {HETERO} accepts; write "
        problem += f"{HETERO}:{tail.strip().upper() or 'CPU'}"
    elif not all(parts):
        problem = f"has an empty entry; separate names by commas, as in {HETERO}:ORT,CPU"
    elif not colon and len(parts) > 1:
        problem = f"names {len(parts)} devices; to split a model between them, write "
        problem += f"{HETERO}:{','.join(parts)}"
    else:
        return DeviceRequest(bool(colon), tuple({split_name(p): p for p in parts}.values()))
    raise UnknownDeviceError(f"device {text!r} {problem}.", device=text)


def split_name(name: str) -> tuple[str, str]:
    """Return the plugin and the id of a device name; the default id is ``0``."""
    plugin, _, device_id = name.strip().partition(".")
    return plugin, device_id or "0"


def match_name(name: str, available: Iterable[str]) -> str | None:
    """Return the device of `available` that a name means, or None.

    ``CPU`` and ``CPU.0`` are the same. If ids are names, the first one is meant: ``OV`` is the
    first of ``OV.CPU`` and ``OV.GPU``, and ``OV.GPU`` the first of ``OV.GPU.0`` and ``OV.GPU.1``.
    """
    devices = {split_name(device): device for device in available}
    name = name.strip()
    candidates = (d for d in devices.values() if d.startswith(f"{name}."))
    by_prefix = (d for d in candidates if "." in name or not d[len(name) + 1].isdigit())
    return devices.get(split_name(name)) or next(by_prefix, None)


def resolve_name(name: str, available: Collection[str]) -> str:
    """Return the device of `available` that a name means.

    Raises UnknownDeviceError: lists the available devices and the closest match.
    """
    if name in available:
        return name
    devices = {split_name(device): device for device in available}
    match = match_name(name, devices.values())
    if match is not None:
        return match
    plugin, device_id = split_name(name)
    ids = [device for (other, _), device in devices.items() if other == plugin]
    # GPU is not a misspelling of CPU, although two of three letters are equal.
    close_matches = difflib.get_close_matches(name.upper(), devices.values(), 1, 0.7)
    if ":" in name:
        hint = f" Separate devices by commas: {name.replace(':', ',')}."
    elif ids and device_id.isdecimal():
        hint = (
            f" The {plugin} devices are {', '.join(ids)}; for two on each machine, pass "
            f"devices={{{plugin!r}: 2}} (--devices {plugin}=2)."
        )
    elif ids:
        hint = (
            f" {plugin} finds only {', '.join(ids)} on this machine; for {name}, check that its "
            "hardware and driver are installed (`hetero doctor`)."
        )
    else:
        hint = f" Did you mean {close_matches[0]}?" if close_matches else ""
    raise UnknownDeviceError(
        f"no device {name!r}; available: {', '.join(devices.values()) or 'none'}.{hint}",
        device=name,
    )


def resolve_device(text: str, available: Sequence[str]) -> tuple[str, ...]:
    """Return the devices of a device string, in order of priority."""
    request = parse_device(text)
    if request.hetero and not request.names:
        return tuple(available)
    return tuple(dict.fromkeys(resolve_name(name, available) for name in request.names))


def assign_names(families: Sequence[str]) -> tuple[str, ...]:
    """Name devices by their families, in the cluster's order.

    The only device of a family has its name; several are numbered from 0.
    """
    totals = Counter(families)
    counts: Counter[str] = Counter()
    names = []
    for family in families:
        names.append(family if totals[family] == 1 else f"{family}.{counts[family]}")
        counts[family] += 1
    return tuple(names)
