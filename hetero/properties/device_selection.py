"""Device strings against the devices that are there, with what is wrong with those that are not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from hetero.devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    PluginLoadError,
    PropertyError,
    UnknownDeviceError,
)
from hetero.devices.plugin.configuration import check_mapping
from hetero.devices.plugin.properties import Config
from hetero.scheduler.vocabulary.names import (
    HETERO,
    DeviceRequest,
    match_name,
    parse_device,
    resolve_device,
    split_name,
)
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

_log = logging.getLogger(__name__)

#: Devices of a plugin that a node offers at most: a thread or a process each.
MOST_DEVICES: Final = 1024


def choose_devices(device: str, rows: Sequence[DeviceDescriptor]) -> tuple[str, ...]:
    """Return the devices that a device string means, in order of priority.

    `device`: ``CPU``, ``ORT.1``, ``HETERO:ORT,CPU``, or ``HETERO`` for every automatic device.
    A device whose plugin is broken is left out of a list in which another works: a warning says so.
    """
    working = [d for d in rows if d.error is None]
    request = parse_device(device)
    if request == DeviceRequest(True, ()):
        ranked = sorted((d for d in working if d.automatic), key=lambda d: d.rank)
        return tuple(d.name for d in ranked)
    names = [d.name for d in working]
    broken = {d.plugin: d.error for d in rows if d.error is not None}
    out = [n for n in request.names if split_name(n)[0] in broken and not match_name(n, names)]
    if request.hetero and 0 < len(out) < len(request.names):
        for name in out:
            _log.warning("%s: left out of %s: %s", name, device, broken[split_name(name)[0]])
        device = f"{HETERO}:" + ",".join(name for name in request.names if name not in out)
    try:
        return resolve_device(device, names)
    except UnknownDeviceError as error:
        for plugin in (split_name(name)[0] for name in out):
            raise PluginLoadError(
                f"device {plugin!r} cannot be used: {broken[plugin]}", device=plugin
            ) from error
        raise


def choose_prioritised(
    device: str, names: Sequence[str], rows: Sequence[DeviceDescriptor]
) -> tuple[str, ...]:
    """Return what a device string means where ``MULTI_DEVICE_PRIORITIES`` lists `names`."""
    if not names or not parse_device(device).hetero:
        return choose_devices(device, rows)
    listed = choose_devices(f"{HETERO}:" + ",".join(names), rows)
    if ":" in device and choose_devices(device, rows) != listed:
        raise PropertyError(
            f"the device string {device!r} and MULTI_DEVICE_PRIORITIES={','.join(names)} "
            "disagree; give one of them.",
            property="MULTI_DEVICE_PRIORITIES",
        )
    return listed


def identified(device: str, config: Config) -> tuple[str, Config]:
    """Return a device string with the id that the option DEVICE_ID gives, and the other options."""
    check_mapping(config, device)
    if "DEVICE_ID" not in config:
        return device, config
    asked = str(config["DEVICE_ID"])
    request = parse_device(device)
    plugin, _, device_id = device.strip().partition(".")
    if request.hetero or device_id not in ("", asked):
        raise PropertyError(
            f"DEVICE_ID={asked!r} for {device!r}: it chooses one of a plugin's devices. Name the "
            f"devices with their ids, as in {split_name([*request.names, 'CPU'][0])[0]}.{asked}.",
            property="DEVICE_ID",
        )
    return f"{plugin}.{asked}", {n: v for n, v in config.items() if n != "DEVICE_ID"}


def parse_counts(devices: Mapping[str, int] | None) -> dict[str, int]:
    """Return how many devices of a plugin each node offers."""
    counts = {} if devices is None else devices
    if not isinstance(counts, Mapping) or not all(
        isinstance(n, str) and isinstance(c, int) and not isinstance(c, bool) and c >= 0
        for n, c in counts.items()
    ):
        raise ArgumentTypeError(
            f"devices={devices!r}: wanted numbers of devices by plugin, as {{'ORT': 2}}."
        )
    for name, count in counts.items():
        if count > MOST_DEVICES:
            raise ArgumentError(
                f"devices={{{name!r}: {count}}}: a node offers at most {MOST_DEVICES} devices of a "
                "plugin."
            )
    return dict(counts)


def check_counts(counts: Mapping[str, int], rows: Sequence[DeviceDescriptor]) -> None:
    """Refuse to count devices of a plugin that is not there."""
    plugins = dict.fromkeys(d.plugin for d in rows)
    for name in counts:
        # A count of none is how a plugin is left out; it has no row then.
        if counts[name] and name not in plugins:
            raise UnknownDeviceError(
                f"devices={{{name!r}: {counts[name]}}}: there is no plugin {name!r}; there are "
                f"{', '.join(plugins)}.",
                device=name,
            )
