"""Entry point: one plugin for each execution provider of the installed ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.devices.plugin.plugin import Plugin


def provider_plugins() -> Sequence[type[Plugin]]:
    """Return a plugin class for each execution provider except the CPU's.

    Without ONNX Runtime there is none; device ``ORT`` then reports that it is not installed.
    """
    try:
        from hetero.devices.ort.provider import provider_names
        from hetero.devices.ort.provider_plugin import provider_class
    except ImportError:
        return ()
    return [provider_class(name) for name in provider_names()]
