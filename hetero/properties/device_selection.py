"""Selection of devices by device strings, DEVICE_ID and MULTI_DEVICE_PRIORITIES."""

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
from hetero.properties.known_devices import known_devices
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import (
    HETERO,
    DeviceRequest,
    match_name,
    parse_device,
    resolve_device,
    split_name,
)

_log = logging.getLogger(__name__)

#: Maximum number of devices of a plugin on a node: each is a thread or a process.
MAX_DEVICES_PER_NODE: Final = 1024


def select_devices(device: str, descriptors: Sequence[DeviceDescriptor]) -> tuple[str, ...]:
    """Return the names of the devices of a device string, in order of priority.

    A device whose plugin failed to load, or a known device that is not installed, is removed from
    a list with other devices, with a warning.

    `device`: ``CPU``, ``ORT.1``, ``HETERO:ORT,CPU``, or ``HETERO`` for every automatic device.
    Raises UnknownDeviceError: no such device.
    Raises PluginLoadError: the plugin of the only device failed to load, or is not installed.
    """
    usable = [d for d in descriptors if d.error is None]
    request = parse_device(device)
    if request == DeviceRequest(True, ()):
        ranked = sorted((d for d in usable if d.automatic), key=lambda d: d.rank)
        return tuple(d.name for d in ranked)
    names = [d.name for d in usable]
    errors_by_plugin = {d.plugin: d.error for d in descriptors if d.error is not None}
    # A name with an id remains an error: Ray's autoscaler may start a node with that device.
    # Plugins of hetero itself are installed: without a descriptor, a count of 0 disables them.
    for name in set(request.names) - {d.plugin for d in descriptors}:
        if name.startswith("ORT_") and (known := known_devices().get(name)) is not None:
            errors_by_plugin[name] = f"{known.missing}. To install: {known.install}"
    unusable = [
        n
        for n in request.names
        if split_name(n)[0] in errors_by_plugin and not match_name(n, names)
    ]
    if request.hetero and 0 < len(unusable) < len(request.names):
        for name in unusable:
            _log.warning(
                "%s: removed from %s: %s", name, device, errors_by_plugin[split_name(name)[0]]
            )
        device = f"{HETERO}:" + ",".join(name for name in request.names if name not in unusable)
    try:
        return resolve_device(device, names)
    except UnknownDeviceError as error:
        for plugin in (split_name(name)[0] for name in unusable):
            raise PluginLoadError(
                f"device {plugin!r} cannot be used: {errors_by_plugin[plugin]}", device=plugin
            ) from error
        # The devices of a module that does not load are unknown.
        broken = [f"{d.plugin} does not load: {d.error}." for d in descriptors if ":" in d.plugin]
        raise UnknownDeviceError(" ".join([error.message, *broken]), **error.data) from error


def select_prioritised_devices(
    device: str, priorities: Sequence[str], descriptors: Sequence[DeviceDescriptor]
) -> tuple[str, ...]:
    """Return the devices of a device string, with `names` from ``MULTI_DEVICE_PRIORITIES``.

    Raises PropertyError: both list devices, and not the same ones.
    """
    if not priorities or not parse_device(device).hetero:
        return select_devices(device, descriptors)
    selected = select_devices(f"{HETERO}:" + ",".join(priorities), descriptors)
    if ":" in device and select_devices(device, descriptors) != selected:
        raise PropertyError(
            f"the device string {device!r} and MULTI_DEVICE_PRIORITIES={','.join(priorities)} "
            "disagree; use one of them.",
            property="MULTI_DEVICE_PRIORITIES",
        )
    return selected


def apply_device_id(device: str, config: Config) -> tuple[str, Config]:
    """Return a device string with the id of the option DEVICE_ID, and the remaining options."""
    check_mapping(config, device)
    if "DEVICE_ID" not in config:
        return device, config
    device_id = str(config["DEVICE_ID"])
    request = parse_device(device)
    plugin, _, own_id = device.strip().partition(".")
    if request.hetero or own_id not in ("", device_id):
        example = f"{split_name([*request.names, 'CPU'][0])[0]}.{device_id}"
        raise PropertyError(
            f"DEVICE_ID={device_id!r} for {device!r}: expected a plugin without an id. Name the "
            f"devices with their ids, such as {example}.",
            property="DEVICE_ID",
        )
    return f"{plugin}.{device_id}", {n: v for n, v in config.items() if n != "DEVICE_ID"}


def parse_counts(devices: Mapping[str, int] | None) -> dict[str, int]:
    """Check the numbers of devices per plugin and node, and return them as a dictionary."""
    counts = {} if devices is None else devices
    if not isinstance(counts, Mapping) or not all(
        isinstance(n, str) and isinstance(c, int) and not isinstance(c, bool) and c >= 0
        for n, c in counts.items()
    ):
        raise ArgumentTypeError(
            "devices: expected numbers of devices by plugin, such as {'ORT': 2}; got "
            f"{devices!r}."
        )
    for name, count in counts.items():
        if count > MAX_DEVICES_PER_NODE:
            raise ArgumentError(
                f"devices={{{name!r}: {count}}}: expected at most {MAX_DEVICES_PER_NODE} devices "
                "of a plugin on a node."
            )
    return dict(counts)


def check_counts(counts: Mapping[str, int], descriptors: Sequence[DeviceDescriptor]) -> None:
    """Raise UnknownDeviceError if `counts` names a plugin that does not exist."""
    plugins = dict.fromkeys(d.plugin for d in descriptors)
    for name in counts:
        # A count of 0 disables a plugin, which then has no descriptor.
        if counts[name] and name not in plugins:
            raise UnknownDeviceError(
                f"devices={{{name!r}: {counts[name]}}}: no plugin {name!r}; available plugins: "
                f"{', '.join(plugins)}.",
                device=name,
            )
