"""Plugins of other interpreters: environments of their own, on which Ray starts our workers.

Wheels that take each other's place in one environment serve in one cluster that way.
"""

from __future__ import annotations

import json
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
from hetero.devices.plugin.plugin_source import PluginSource
from hetero.devices.plugin.registry import load_plugins
from hetero.scheduler.device.probe import PluginSpec, probe_node
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

#: Seconds that an interpreter may take to start, and Ray to have it list its devices.
_START_S: Final = 60.0
#: What must be the same here and there, for actors' classes and messages to be.
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
    """Return what has Ray run a task or an actor on a plugin's own interpreter."""
    return {"runtime_env": {"py_executable": shlex.quote(source.python)}} if source else {}


def split_specs(specs: Sequence[PluginSpec]) -> tuple[list[PluginSpec], list[PluginSource]]:
    """Return the plugins of this interpreter, and those of others."""
    sources = {spec: PluginSource.parse(spec) for spec in specs if isinstance(spec, str)}
    others = [source for source in sources.values() if source.python]
    return [spec for spec in specs if spec not in sources or not sources[spec].python], others


def probe_elsewhere(
    node: str, sources: Sequence[PluginSource], counts: Mapping[str, int], num_cores: int | None
) -> list[DeviceDescriptor]:
    """Return the devices of plugins of other interpreters of this node.

    One that cannot be had is a row with its error.
    """
    asked: list[tuple[PluginSource, Any]] = []
    rows: list[DeviceDescriptor] = []
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    for given in sources:
        try:
            source = given._replace(python=_interpreter(given.python))
        except PluginLoadError as error:
            rows.append(_broken(node, given, str(error)))
            continue
        task = ray.remote(_probe).options(
            num_cpus=0, max_retries=0, label_selector=here, **interpreter_options(source)
        )
        asked.append((source, task.remote(node, source, counts, num_cores)))
    for source, ref in asked:
        try:
            found: list[DeviceDescriptor] = ray.get(ref, timeout=_START_S)
        except ray.exceptions.GetTimeoutError:
            ray.cancel(ref, force=True)
            reason = f"Ray could not start a worker on it within {_START_S:.0f} s"
            found = [_broken(node, source, f"{source.python}: {reason}; its logs say why.")]
        except ray.exceptions.RayError as error:
            found = [_broken(node, source, f"{source.python}: {str(error).strip()}")]
        rows += found
    served: dict[str, list[DeviceDescriptor]] = {}
    for row in rows:
        served.setdefault(row.plugin, []).append(row)
    for plugin, mine in served.items():
        given_as = dict.fromkeys(str(row.source) for row in mine)
        if len(given_as) > 1:
            names = " and as ".join(given_as)
            reason = f"it is given as {names}; name one of them otherwise, as OTHER=..."
            served[plugin] = [replace(mine[0], error=reason)]
    return [row for mine in served.values() for row in mine if counts.get(row.plugin) != 0]


def _probe(
    node: str, source: PluginSource, counts: Mapping[str, int], num_cores: int | None
) -> list[DeviceDescriptor]:
    """Return a plugin's devices: runs on the interpreter that has it."""
    entries = load_plugins([str(source.without_interpreter)], entry_points=False)
    rows = probe_node(node, (), counts, num_cores, entries)
    return [replace(row, source=source) for row in rows]


def _interpreter(given: str) -> str:
    """Return the path of an interpreter that can run our actors; of an environment, its own.

    Ray waits without end for a worker on one that cannot.
    Raises PluginLoadError: there is none, or what it has differs from what is here.
    """
    path = Path(given).expanduser()
    python = str(path / "bin" / "python" if path.is_dir() else path)
    try:
        done = subprocess.run(
            [python, "-c", _ASK % (_SHARED,)],
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=True,
        )
        there = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        told = error.stderr.strip().splitlines() or [str(error)]
        raise PluginLoadError(f"{python} is no Python of use: {told[-1]}", device=given) from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise PluginLoadError(f"{python} is no Python of use: {error}", device=given) from error
    ours = {"Python": platform.python_version(), **{n: metadata.version(n) for n in _SHARED}}
    # Objects are sent as the minor version of Python has them.
    minor, wanted = (
        {**versions, "Python": versions["Python"].rpartition(".")[0]} for versions in (there, ours)
    )
    if wrong := [name for name in wanted if minor[name] != wanted[name]]:
        told = [f"{name} {there[name] or 'missing'}, not {ours[name]}" for name in wrong]
        raise PluginLoadError(
            f"{python} has {', '.join(told)} as here. Make its environment with this Python and "
            "`pip install hetero` of this version.",
            device=given,
        )
    return python


def _broken(node: str, source: PluginSource, error: str) -> DeviceDescriptor:
    return DeviceDescriptor(source.label, source.label, "", node, error=error, source=source)
