"""Device names: reading ``HETERO:ORT,CPU``, and finding the device that a name means.

``CPU`` and ``CPU.0`` are one device. A name without an id means the plugin's first device. Ids may
be names, as in ``OV.CPU`` and ``OV.GPU.0``.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hetero.devices.errors import ArgumentTypeError, UnknownDeviceError

#: What asks for several devices.
HETERO: Final = "HETERO"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a device string asks for.

    `hetero`: whether the model may be cut.
    `names`: devices in order of priority, each once; empty for a bare ``HETERO``: all there are.
    """

    hetero: bool
    names: tuple[str, ...]


def parse_device(text: str) -> DeviceRequest:
    """Read a device string: ``CPU``, ``ORT.1``, ``HETERO``, ``HETERO:ORT,CPU``.

    Spaces are ignored and repetitions dropped.

    Raises UnknownDeviceError: it is empty, has an empty place, or lists several devices without
        ``HETERO:``; ArgumentTypeError: it is no text.
    """
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"device {text!r}: wanted text, as 'CPU' or '{HETERO}:ORT,CPU', got "
            f"{type(text).__name__}."
        )
    head, colon, tail = text.strip().partition(":")
    head = head.strip()
    if head == HETERO and not colon:
        return DeviceRequest(True, ())
    parts = [part.strip() for part in (tail if colon else head).split(",")]
    if head == "AUTO" and not colon:
        wrong = "is OpenVINO's; to have devices chosen and the model cut over them write "
        wrong += f"{HETERO}, or {HETERO}:ORT,CPU"
    elif colon and head != HETERO:
        wrong = f"has a list after its colon, which {HETERO} alone takes; write "
        wrong += f"{HETERO}:{tail.strip().upper() or 'CPU'}"
    elif not all(parts):
        wrong = f"has an empty place; write names divided by commas, as in {HETERO}:ORT,CPU"
    elif not colon and len(parts) > 1:
        wrong = f"names {len(parts)} devices; to cut a model between them write "
        wrong += f"{HETERO}:{','.join(parts)}"
    else:
        return DeviceRequest(bool(colon), tuple({split_name(p): p for p in parts}.values()))
    raise UnknownDeviceError(f"device {text!r} {wrong}.", device=text)


def split_name(name: str) -> tuple[str, str]:
    """Return a device name's plugin and id; the id is ``0`` where the name has none."""
    plugin, _, device_id = name.strip().partition(".")
    return plugin, device_id or "0"


def match_name(name: str, available: Iterable[str]) -> str | None:
    """Return the one of `available` that `name` means, or None.

    ``CPU`` and ``CPU.0`` are one; of ids that are names the first is meant: ``OV`` means the first
    of ``OV.CPU`` and ``OV.GPU``, and ``OV.GPU`` the first of ``OV.GPU.0`` and ``OV.GPU.1``.
    """
    known = {split_name(device): device for device in available}
    name = name.strip()
    below = (d for d in known.values() if d.startswith(f"{name}."))
    named = (d for d in below if "." in name or not d[len(name) + 1].isdigit())
    return known.get(split_name(name)) or next(named, None)


def resolve_name(name: str, available: Collection[str]) -> str:
    """Return the one of `available` that `name` means.

    Raises UnknownDeviceError: listing what there is, and the nearest to what was asked for.
    """
    if name in available:
        return name
    known = {split_name(device): device for device in available}
    found = match_name(name, known.values())
    if found is not None:
        return found
    plugin, _ = split_name(name)
    ids = [device for (other, _), device in known.items() if other == plugin]
    # Of three letters two may be alike by chance: GPU is not CPU misspelt.
    near = difflib.get_close_matches(name.upper(), known.values(), 1, 0.7)
    if ids:
        hint = (
            f" {plugin} has {', '.join(ids)}; ask for more with devices={{{plugin!r}: 2}} or "
            f"--devices {plugin}=2."
        )
    else:
        hint = f" Did you mean {near[0]}?" if near else ""
    raise UnknownDeviceError(
        f"no device {name!r}; there are {', '.join(known.values()) or 'none'}.{hint}", device=name
    )


def resolve_device(text: str, available: Sequence[str]) -> tuple[str, ...]:
    """Return the devices that a device string means, in order of priority."""
    request = parse_device(text)
    if request.hetero and not request.names:
        return tuple(available)
    return tuple(dict.fromkeys(resolve_name(name, available) for name in request.names))


def assign_names(families: Sequence[str]) -> tuple[str, ...]:
    """Name devices by their families, in the cluster's order.

    A family's only device has its name; several are numbered from 0.
    """
    totals = Counter(families)
    taken: Counter[str] = Counter()
    names = []
    for family in families:
        names.append(family if totals[family] == 1 else f"{family}.{taken[family]}")
        taken[family] += 1
    return tuple(names)
