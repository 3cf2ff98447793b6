"""Plugins in other Python environments; Ray starts workers on their interpreters.

Wheels that conflict in one environment can thus serve in one cluster.
"""

from __future__ import annotations

import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import ray

from hetero.devices.errors import PluginLoadError
from hetero.devices.file_reader import parse_json
from hetero.devices.plugin.plugin_source import PluginSource
from hetero.devices.plugin.registry import load_plugins
from hetero.scheduler.device.discovery import PluginSpec, probe_node
from hetero.scheduler.types.device_descriptor import DeviceDescriptor

#: Time limit for an interpreter to start, and for its Ray worker to list devices, in seconds.
_START_S: Final = 60.0
#: Packages that need equal versions in both environments, because actors and messages use them.
_SHARED: Final = ("ray", "hetero")
_ASK: Final = """
import json, platform
from importlib import metadata
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
print(json.dumps({"Python": platform.python_version(), **{n: version(n) for n in %r}}))
"""


def interpreter_options(source: PluginSource | None) -> dict[str, Any]:
    """Return the Ray options that run a task or an actor on a plugin's own interpreter."""
    return {"runtime_env": {"py_executable": shlex.quote(source.python)}} if source else {}


def split_specs(specs: Sequence[PluginSpec]) -> tuple[list[PluginSpec], list[PluginSource]]:
    """Split plugins into those of this interpreter and those of other interpreters."""
    sources = {spec: PluginSource.parse(spec) for spec in specs if isinstance(spec, str)}
    others = [source for source in sources.values() if source.python]
    return [spec for spec in specs if spec not in sources or not sources[spec].python], others


def probe_elsewhere(
    node: str, sources: Sequence[PluginSource], counts: Mapping[str, int], num_cores: int | None
) -> list[DeviceDescriptor]:
    """Return the devices of this node's plugins that run in other interpreters.

    A plugin that fails to load is listed with its error.
    """
    pending: list[tuple[PluginSource, Any]] = []
    rows: list[DeviceDescriptor] = []
    this_node = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    for spec in sources:
        try:
            source = spec._replace(python=_interpreter(spec.python))
        except PluginLoadError as error:
            rows.append(_failure(node, spec, str(error)))
            continue
        task = ray.remote(_probe).options(
            num_cpus=0, max_retries=0, label_selector=this_node, **interpreter_options(source)
        )
        pending.append((source, task.remote(node, source, counts, num_cores)))
    for source, ref in pending:
        try:
            listed: list[DeviceDescriptor] = ray.get(ref, timeout=_START_S)
        except ray.exceptions.GetTimeoutError:
            ray.cancel(ref, force=True)
            reason = f"Ray could not start a worker on it within {_START_S:.0f} s"
            listed = [_failure(node, source, f"{source.python}: {reason}; its logs say why.")]
        except ray.exceptions.RayError as error:
            listed = [_failure(node, source, f"{source.python}: {str(error).strip()}")]
        rows += listed
    by_plugin: dict[str, list[DeviceDescriptor]] = {}
    for row in rows:
        by_plugin.setdefault(row.plugin, []).append(row)
    for plugin, plugin_rows in by_plugin.items():
        spellings = dict.fromkeys(str(row.source) for row in plugin_rows)
        if len(spellings) > 1:
            names = " and as ".join(spellings)
            reason = f"it is given as {names}; name one of them otherwise, as OTHER=..."
            by_plugin[plugin] = [replace(plugin_rows[0], error=reason)]
    return [
        row
        for plugin_rows in by_plugin.values()
        for row in plugin_rows
        if counts.get(row.plugin) != 0
    ]


def _probe(
    node: str, source: PluginSource, counts: Mapping[str, int], num_cores: int | None
) -> list[DeviceDescriptor]:
    """Return a plugin's devices; runs on the plugin's interpreter."""
    entries = load_plugins([str(source.without_interpreter)], entry_points=False)
    rows = probe_node(node, (), counts, num_cores, entries)
    return [replace(row, source=source) for row in rows]


def _interpreter(specified_path: str) -> str:
    """Check that an interpreter can run our actors; return its path.

    Ray would wait forever for a worker on an unsuitable interpreter. A folder stands for the
    interpreter of its environment.
    Raises PluginLoadError: the interpreter does not run, or its versions differ from this one's.
    """
    path = Path(specified_path).expanduser()
    python = str(path / "bin" / "python" if path.is_dir() else path)
    try:
        done = subprocess.run(
            [python, "-c", _ASK % (_SHARED,)],
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=True,
        )
        versions_there = parse_json(done.stdout)
    except subprocess.CalledProcessError as error:
        details = error.stderr.strip().splitlines() or [str(error)]
        raise PluginLoadError(
            f"{python} is no Python of use: {details[-1]}", device=specified_path
        ) from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise PluginLoadError(
            f"{python} is no Python of use: {error}", device=specified_path
        ) from error
    ours = {"Python": platform.python_version(), **{n: metadata.version(n) for n in _SHARED}}
    # Serialized objects depend on the minor version of Python, but not on the patch version.
    their_minor, our_minor = (
        {**versions, "Python": versions["Python"].rpartition(".")[0]}
        for versions in (versions_there, ours)
    )
    if wrong := [name for name in our_minor if their_minor[name] != our_minor[name]]:
        details = [
            f"{name} {versions_there[name] or 'missing'}, not {ours[name]}" for name in wrong
        ]
        raise PluginLoadError(
            f"{python} has {', '.join(details)} as here. Make its environment with this Python and "
            "`pip install hetero` of this version.",
            device=specified_path,
        )
    return python


def _failure(node: str, source: PluginSource, error: str) -> DeviceDescriptor:
    return DeviceDescriptor(source.label, source.label, "", node, error=error, source=source)
