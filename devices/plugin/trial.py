"""Trial of a plugin in a worker process, which a crash of the plugin ends."""

from __future__ import annotations

import contextlib

from hetero.devices.plugin.registry import plugin_classes


def list_devices(source: bytes) -> bytes:
    """Load the plugins at a source and list their devices; errors of Python are no crash."""
    with contextlib.suppress(Exception):
        for plugin_class in plugin_classes(source.decode()):
            with contextlib.suppress(Exception):
                plugin = plugin_class()
                plugin.version()
                for device_id in plugin.device_ids():
                    plugin.full_name(device_id)
                    plugin.fingerprint(device_id)
                    plugin.device_properties(device_id)
    return b""
