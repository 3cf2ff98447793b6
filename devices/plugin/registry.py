"""Finding plugins: by entry point group ``hetero.plugins``, ``module:attr``, name or class.

A plugin that cannot be had is an entry with its error, never an exception: one broken backend
must not take the others away. An entry point may also be a function that returns the plugin
classes that it finds.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Final

from hetero.devices.errors import PluginLoadError, UnknownDeviceError, is_interrupt
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.plugin_source import PluginSource

_log = logging.getLogger(__name__)

#: The entry point group of plugins.
GROUP: Final = "hetero.plugins"
#: Device names that mean a way of choosing devices, not a device.
RESERVED_NAMES: Final = frozenset({"HETERO", "AUTO", "MULTI"})


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """A plugin that was found.

    Attributes
    ----------
    name : str
        The device name's first part.
    origin : str
        Where it came from: a distribution and its object reference, or what the caller gave.
    plugin : Plugin or None
        None where it could not be had.
    error : str or None
        Why not, for people; None where `plugin` is there.
    """

    name: str
    origin: str
    plugin: Plugin | None
    error: str | None = None


def load_plugins(
    specs: Sequence[str | type[Plugin]] = (), entry_points: bool = True
) -> dict[str, PluginEntry]:
    """Return every plugin that can be found, by name, in a stable order.

    Parameters
    ----------
    specs : sequence of str or type
        More plugins than the installed ones: ``module:attr``, ``NAME=module:attr`` for one under
        another name, the name of an installed one in place of ``module:attr``, or Plugin
        subclasses. They come after the installed ones. ``PLUGIN@PYTHON``, of another interpreter,
        is an entry with its error, in place of one of that name: only Ray's workers run on it.
    entry_points : bool
        Whether installed plugins are wanted.

    Returns
    -------
    dict of str to PluginEntry
        Installed plugins in order of distribution (this project first) and name, then `specs`. A
        name that two different objects claim is one entry whose error names both.
    """
    entries: dict[str, PluginEntry] = {}
    for point in _installed() if entry_points else ():
        origin = f"{point.dist.name if point.dist else 'unknown distribution'} ({point.value})"
        for entry in _entries(point.name, origin, point.load):
            _add(entries, entry)
    for spec in specs:
        if isinstance(spec, str):
            source = PluginSource.read(spec)
            if source.python:
                where = (
                    f"it is of the interpreter {source.python}, which only Ray starts devices on: "
                    "Core(executor='ray'), --executor ray."
                )
                entries[source.shown] = PluginEntry(source.shown, spec, None, where)
                continue
            found = _entries(source.name or None, spec, partial(_resolve, source))
        else:
            origin = f"{spec.__module__}:{spec.__qualname__}"
            found = _entries(None, origin, partial(_itself, spec))
        for entry in found:
            _add(entries, entry)
    return entries


def find_plugin(entries: Mapping[str, PluginEntry], device: str) -> Plugin:
    """Return the plugin of a device name such as ``CPU`` or ``ORT.1``.

    Raises
    ------
    UnknownDeviceError
        No plugin has that name.
    PluginLoadError
        One has, but could not be loaded.
    """
    name = device.partition(".")[0]
    entry = entries.get(name)
    if entry is None:
        near = difflib.get_close_matches(name.upper(), entries, 1, 0.7)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownDeviceError(
            f"no device {device!r}; there are {', '.join(entries) or 'none'}.{hint} Other "
            "plugins are given as module:attr.",
            device=device,
        )
    if entry.plugin is None:
        raise PluginLoadError(
            f"device {device!r} (from {entry.origin}) is not usable: {entry.error}", device=device
        )
    return entry.plugin


def close_plugins(entries: Iterable[PluginEntry]) -> None:
    """Close every plugin that was loaded; what one raises is logged, and the others still end."""
    for entry in entries:
        if entry.plugin is not None:
            try:
                entry.plugin.close()
            except BaseException as error:
                if is_interrupt(error):
                    raise
                _log.exception("plugin=%s could not be closed", entry.name)


def _installed() -> list[metadata.EntryPoint]:
    try:
        found = metadata.entry_points(group=GROUP)
    except OSError as error:
        raise PluginLoadError(
            f"the installed plugins cannot be listed: {error}. Close what this process has open, "
            "or raise its limit (`ulimit -n`)."
        ) from error
    points = {(p.name, p.value, p.dist.name if p.dist else ""): p for p in found}
    order = {name: i for i, name in enumerate(("CPU", "ORT", "OV", "GPU", "NULL"))}
    return [
        points[key]
        for key in sorted(points, key=lambda k: (k[2] != "hetero", order.get(k[0], 9), *k))
    ]


def renamed(plugin: type[Plugin], name: str) -> type[Plugin]:
    """Return a plugin under another name."""
    return type(plugin.__name__, (plugin,), {"name": name, "__doc__": plugin.__doc__})


def _resolve(source: PluginSource) -> object:
    module, separator, attribute = source.target.partition(":")
    if not separator:
        found = _installed_class(source.target)
    elif module and attribute:
        found = pkgutil.resolve_name(source.target)
    else:
        raise _no_plugin(source.target)
    return renamed(found, source.name) if source.name and isinstance(found, type) else found


def _installed_class(name: str) -> object:
    points = _installed()
    for point in points:
        if point.name == name:
            return point.load()
    for point in points:
        with contextlib.suppress(Exception):  # another's fault, which is in another's row
            found = point.load()
            for cls in found() if inspect.isfunction(found) else ():
                if cls.name == name:
                    return cls
    raise _no_plugin(name)


def _no_plugin(text: str) -> PluginLoadError:
    return PluginLoadError(
        f"no plugin {text!r} is installed; one that is not is given as module:attr, as in "
        "my_package.my_device:MyPlugin.",
        device=text,
    )


def _itself(given: object) -> object:
    return given


def _wants_arguments(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def _entries(name: str | None, origin: str, load: Callable[[], object]) -> Iterator[PluginEntry]:
    """Yield what an object gives: a plugin class is one, a function returns those it finds."""
    try:
        found = load()
        if inspect.isfunction(found) and not _wants_arguments(found):
            for cls in found():
                yield _entry(None, origin, cls)
        else:
            yield _entry(name, origin, found)
    except Exception as error:  # whatever a plugin's import raises belongs to its row
        yield PluginEntry(name or origin, origin, None, _sentence(error))


def _entry(name: str | None, origin: str, found: object) -> PluginEntry:
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        wrong: str | None = f"{found!r} is not a subclass of devices.Plugin; make it one."
        return PluginEntry(name or origin, origin, None, wrong)
    shown = name or getattr(found, "name", "") or origin
    if wrong := _name_error(found, name):
        return PluginEntry(shown, origin, None, wrong)
    try:
        return PluginEntry(found.name, origin, found())
    except Exception as error:  # so does what its start raises
        return PluginEntry(shown, origin, None, _sentence(error))


def _name_error(cls: type[Plugin], entry_name: str | None) -> str | None:
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.strip():
        return f"{cls.__qualname__} has no name; set the class attribute `name`."
    if any(c in name for c in ".:,") or any(c.isspace() for c in name):
        return (
            f"plugin name {name!r} must not contain dot, colon, comma or space: those part names."
        )
    if name in RESERVED_NAMES:
        return f"plugin name {name!r} is taken by a way of choosing devices; use another."
    if entry_name is not None and entry_name != name:
        return f"entry point {entry_name!r} gives a plugin called {name!r}; make the names equal."
    return None


def _add(entries: dict[str, PluginEntry], entry: PluginEntry) -> None:
    other = entries.get(entry.name)
    if other is None:
        entries[entry.name] = entry
    elif other.plugin is None or type(other.plugin) is not type(entry.plugin):
        entries[entry.name] = PluginEntry(
            entry.name,
            f"{other.origin} and {entry.origin}",
            None,
            f"two plugins are called {entry.name!r}: one from {other.origin}, one from "
            f"{entry.origin}. Uninstall or rename one.",
        )


def _sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, PluginLoadError) else f"{type(error).__name__}: {text}"
