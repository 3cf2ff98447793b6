"""Finds ONNX Runtime's other execution providers: what the entry point names."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.devices.plugin.plugin import Plugin


def provider_plugins() -> Sequence[type[Plugin]]:
    """Return a plugin for each execution provider of the installed ONNX Runtime besides the CPU's.

    None where ONNX Runtime is not installed: ``ORT`` says so.
    """
    try:
        from hetero.devices.ort.provider import provider_names
        from hetero.devices.ort.provider_plugin import provider_class
    except ImportError:
        return ()
    return [provider_class(name) for name in provider_names()]
