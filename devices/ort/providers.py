"""Entry point: one plugin for each execution provider except the CPU's, built in or plug-in."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.devices.plugin.plugin import Plugin


def provider_plugins() -> Sequence[type[Plugin]]:
    """Return a plugin class for each execution provider except the CPU's.

    Without ONNX Runtime there is none; device ``ORT`` then reports that it is not installed.
    """
    try:
        from hetero.devices.ort.library_plugin import library_class
        from hetero.devices.ort.provider import built_in_providers
        from hetero.devices.ort.provider_library import installed_libraries, registered_libraries
        from hetero.devices.ort.provider_plugin import provider_class
    except ImportError:
        return ()
    installed = list(installed_libraries())
    libraries = [*installed, *registered_libraries(installed)]
    classes = [provider_class(name) for name in built_in_providers()]
    return [*classes, *map(library_class, libraries)]


def library_plugin(name: str, path: str) -> type[Plugin]:
    """Return the plugin class of a plug-in provider's library, which is registered as `name`."""
    from hetero.devices.ort.library_plugin import library_class
    from hetero.devices.ort.provider_library import ProviderLibrary, device_name

    return library_class(ProviderLibrary(device_name(name), path, "", path, name))
