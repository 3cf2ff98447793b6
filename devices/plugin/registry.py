"""Plugin discovery: by entry point (group ``hetero.plugins``), ``module:attr``, name or class.

A plugin that fails to load becomes an entry with its error and never raises, so that one broken
backend does not affect the other plugins. An entry point may also be a function that returns plugin
classes.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hetero.devices.errors import PluginLoadError, UnknownDeviceError, is_interrupt
from hetero.devices.plugin.crash_marks import marked
from hetero.devices.plugin.entry_points import InstalledPoint, installed_points
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.plugin_source import PluginSource

_log = logging.getLogger(__name__)

#: Entry point group of plugins.
GROUP: Final = "hetero.plugins"
#: Device names that select several devices, so that a plugin cannot have them.
RESERVED_NAMES: Final = frozenset({"HETERO", "AUTO", "MULTI"})


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """A discovered plugin, or the error of loading it.

    Attributes
    ----------
    name : str
        First part of the device names.
    origin : str
        A distribution and its object reference, or the text or class that the caller passed.
    plugin : Plugin or None
        The plugin; None if it failed to load.
    error : str or None
        The reason of the failure; None if the plugin is loaded.
    source : str
        Text from which another process can load the plugin; empty for classes and for plugins of
        this project, which do not crash.
    """

    name: str
    origin: str
    plugin: Plugin | None
    error: str | None = None
    source: str = ""


def load_plugins(
    specs: Sequence[str | type[Plugin]] = (), entry_points: bool = True, only: str | None = None
) -> dict[str, PluginEntry]:
    """Load plugins and return them by name, in a stable order.

    Parameters
    ----------
    specs : sequence of str or type
        Additional plugins: a ``module:attr`` or the name of an installed plugin, with the optional
        prefix ``NAME=`` for other device names; ``NAME=LIBRARY``, the path of a library with a
        plug-in execution provider of ONNX Runtime; or a Plugin subclass. ``PLUGIN@PYTHON`` names a
        plugin of another interpreter. It becomes an entry with an error, because only Ray workers
        can run another interpreter.
    entry_points : bool
        Whether to load installed plugins.
    only : str, optional
        Name of the only plugin to load. Others are not initialised, which takes time: they open
        their backends.

    Returns
    -------
    dict of str to PluginEntry
        Installed plugins ordered by distribution (this project first) and name, then `specs`. If
        two plugins share a name, its entry has an error that names both.
    """
    entries: dict[str, PluginEntry] = {}
    points = _entry_points() if entry_points else []
    if any(point.name == only for point, _, _ in points):
        points = [row for row in points if row.point.name == only]
    for point, distribution, _ in points:
        origin = f"{distribution or 'unknown distribution'} ({point.value})"
        text = "" if distribution == "hetero" else point.value
        for entry in _load_entries(point.name, origin, point.load, only, text):
            _add(entries, entry)
    for spec in specs:
        if isinstance(spec, str):
            source = PluginSource.parse(spec)
            if source.python:
                error = (
                    f"only Ray can run the interpreter {source.python}; use Core(executor='ray') "
                    "or --executor ray."
                )
                entries[source.label] = PluginEntry(source.label, spec, None, error)
                continue
            name = None if source.is_library else source.name or None
            new = _load_entries(name, spec, partial(_resolve, source), only, spec)
        else:
            origin = f"{spec.__module__}:{spec.__qualname__}"
            new = _load_entries(None, origin, partial(_identity, spec), only)
        for entry in new:
            _add(entries, entry)
    # Plugins whose backend is missing fail before their name is known to differ.
    return {only: entries[only]} if only in entries else entries


def find_plugin(entries: Mapping[str, PluginEntry], device: str) -> Plugin:
    """Return the plugin of a device name such as ``CPU`` or ``ORT.1``.

    Raises
    ------
    UnknownDeviceError
        No plugin has that name.
    PluginLoadError
        The plugin failed to load.
    """
    name = device.partition(".")[0]
    entry = entries.get(name)
    if entry is None:
        matches = difflib.get_close_matches(name.upper(), entries, 1, 0.7)
        hint = f" Did you mean {matches[0]}?" if matches else ""
        # The devices of a module that does not load are unknown.
        unnamed = {name: entry.error for name, entry in entries.items() if ":" in name}
        broken = "".join(f" {name} does not load: {error}." for name, error in unnamed.items())
        names = [name for name in entries if name not in unnamed]
        raise UnknownDeviceError(
            f"no plugin for device {device!r}; the plugins are {', '.join(names) or 'none'}."
            f"{hint}{broken} Pass other plugins as module:attr.",
            device=device,
        )
    if entry.plugin is None:
        raise PluginLoadError(
            f"device {device!r} (from {entry.origin}) is not available: {entry.error}",
            device=device,
        )
    return entry.plugin


def close_plugins(entries: Iterable[PluginEntry]) -> None:
    """Close every loaded plugin; log the error of a plugin that fails to close."""
    for entry in entries:
        if entry.plugin is not None:
            try:
                entry.plugin.close()
            except BaseException as error:
                if is_interrupt(error):
                    raise
                _log.exception("plugin=%s failed to close", entry.name)


def _entry_points() -> list[InstalledPoint]:
    try:
        group = installed_points(GROUP)
    except OSError as error:
        raise PluginLoadError(
            f"the installed plugins cannot be listed: {error}. Close files of this process, or "
            "raise its limit of open files (`ulimit -n`)."
        ) from error
    points = {(row.point.name, row.point.value, row.distribution): row for row in group}
    order = {name: i for i, name in enumerate(("CPU", "ORT", "OV", "GPU", "NULL"))}
    return [
        points[key]
        for key in sorted(points, key=lambda k: (k[2] != "hetero", order.get(k[0], 9), *k))
    ]


def with_name(plugin: type[Plugin], name: str) -> type[Plugin]:
    """Return a subclass of a plugin with another name."""
    # The import path remains that of the original class.
    attributes = {key: getattr(plugin, key) for key in ("__doc__", "__module__", "__qualname__")}
    return type(plugin.__name__, (plugin,), {"name": name, **attributes})


def _resolve(source: PluginSource) -> object:
    if source.is_library:
        make_plugin = pkgutil.resolve_name("hetero.devices.ort.providers:library_plugin")
        return make_plugin(source.name, source.target)
    module, separator, attribute = source.target.partition(":")
    if not separator:
        target = _installed_class(source.target)
    elif module and attribute:
        target = pkgutil.resolve_name(source.target)
    else:
        raise _not_installed(source.target)
    return with_name(target, source.name) if source.name and isinstance(target, type) else target


def _installed_class(name: str) -> object:
    points = [row.point for row in _entry_points()]
    for point in points:
        if point.name == name:
            return point.load()
    for point in points:
        with contextlib.suppress(Exception):  # the entry of that plugin reports its error
            target = point.load()
            for cls in target() if inspect.isfunction(target) else ():
                if cls.name == name:
                    return cls
    raise _not_installed(name)


def _not_installed(text: str) -> PluginLoadError:
    return PluginLoadError(
        f"expected the name of an installed plugin, or module:attr such as "
        f"my_package.my_device:MyPlugin; got {text!r}.",
        device=text,
    )


def _identity(value: object) -> object:
    return value


def _requires_arguments(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def _load_entries(
    name: str | None,
    origin: str,
    load: Callable[[], object],
    only: str | None = None,
    source: str = "",
) -> list[PluginEntry]:
    """Return the entries of a loaded object: a plugin class, or a function that returns several.

    `only`: the name of the only plugin to initialise.
    """
    entries: list[PluginEntry] = []
    try:
        with marked(source):
            target = load()
            if inspect.isfunction(target) and not _requires_arguments(target):
                for cls in target():
                    if only in (None, cls.name):
                        entries.append(_entry(None, origin, cls, source))
            elif only is None or getattr(target, "name", only) == only:
                entries.append(_entry(name, origin, target, source))
    except Exception as error:  # the plugin's import may raise anything
        entries.append(PluginEntry(name or origin, origin, None, _sentence(error)))
    return entries


def plugin_classes(source: str) -> Sequence[type[Plugin]]:
    """Return the plugin classes at the source of an entry."""
    target: Any = _resolve(PluginSource.parse(source))
    return target() if inspect.isfunction(target) else [target]


def _entry(name: str | None, origin: str, target: object, source: str) -> PluginEntry:
    """Return the entry of a plugin class, or its error; `name` is the expected name."""
    if not (isinstance(target, type) and issubclass(target, Plugin)):
        problem: str | None = f"expected a subclass of devices.Plugin, got {target!r}."
        return PluginEntry(name or origin, origin, None, problem)
    label = name or getattr(target, "name", "") or origin
    origin = getattr(target, "origin", origin)
    if problem := _name_error(target, name):
        return PluginEntry(label, origin, None, problem)
    try:
        return PluginEntry(target.name, origin, target(), source=source)
    except Exception as error:  # the plugin's constructor may raise anything
        return PluginEntry(label, origin, None, _sentence(error))


def _name_error(cls: type[Plugin], entry_name: str | None) -> str | None:
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.strip():
        return f"{cls.__qualname__} has no name; set the class attribute `name`."
    if any(c in name for c in ".:,") or any(c.isspace() for c in name):
        return (
            f"plugin name {name!r} must not contain a dot, colon, comma or space, which separate "
            "the parts of device strings."
        )
    if name in RESERVED_NAMES:
        return f"plugin name {name!r} is reserved for lists of devices; use another."
    if entry_name is not None and entry_name != name:
        return f"expected a plugin named {entry_name!r}, like its entry point; got {name!r}."
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
            f"two plugins have the name {entry.name!r}: one from {other.origin}, one from "
            f"{entry.origin}. Uninstall or rename one.",
        )


def _sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, PluginLoadError) else f"{type(error).__name__}: {text}"
