"""Runs of models on a device in a process of their own.

A vendor's library may crash, hang or exhaust the memory. Here this ends a worker process, not the
caller's. The worker loads the plugin by its import path, compiles the model and runs it on several
sets of inputs.
"""

from __future__ import annotations

import contextlib
import math
import os
import pkgutil
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from msgspec.msgpack import Decoder, encode

from hetero.devices.errors import HeteroError, UnsupportedNodesError, error_text
from hetero.devices.model.model import Model
from hetero.devices.model.worker_process import WorkerFailure, WorkerProcess
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.plugin.registry import find_plugin, load_plugins, with_name
from hetero.devices.request.device_model import DeviceModel
from hetero.scheduler.formats.model_parts import ModelParts, join_model, split_model
from hetero.scheduler.formats.value_tree import decode_extension, tree_of
from hetero.scheduler.thread_budget import THREADS
from hetero.scheduler.types.isolation import FailureKind, RunBounds, RunFailure, RunResult

#: Seconds without a call after which the worker ends.
_IDLE_S: Final = 30.0
_IDLE_LOCK: Final = threading.Lock()
#: The timer that ends the worker, if it runs.
_IDLE_TIMERS: Final[list[threading.Timer]] = []


def start_worker() -> None:
    """Start this process's worker in advance; return without waiting."""
    with contextlib.suppress(OSError):  # the call reports it
        _worker().start()
        _stop_when_idle()


def run_isolated(
    plugin: type[Plugin],
    model: Model,
    config: Mapping[str, Any],
    inputs: Sequence[Mapping[str, Value]],
    bounds: RunBounds,
) -> list[RunResult]:
    """Compile a model in a worker process and run it on each set of inputs.

    With several runs, the results of the first runs come first, and then for each set the result
    that differs most from its first. After a crash, all sets fail, because one may have prepared
    the crash of another.
    """
    try:
        request = encode(
            [
                [plugin.__module__, plugin.__qualname__, plugin.name],
                _packed_model(model),
                _tree(dict(config)),
                [_tree(dict(values)) for values in inputs],
                bounds.num_runs,
            ]
        )
    except (TypeError, HeteroError) as error:
        return [RunFailure("unavailable", str(error))] * len(inputs)
    try:
        response = _worker().call(
            request, memory_nbytes=bounds.memory_nbytes, time_s=max(bounds.time_s, 1.0)
        )
    except OSError as error:
        return [RunFailure("unavailable", f"no process could be started: {error}")] * len(inputs)
    _stop_when_idle()
    if isinstance(response, WorkerFailure):
        # An exhausted memory limit ends the process with exit status 0.
        is_bound = "too long" in response.reason or "exit status" in response.reason
        kind: FailureKind = "bound" if is_bound else "crash"
        return [RunFailure(kind, response.reason)] * len(inputs)
    results: list[RunResult] = []
    for entry in _DECODER.decode(response):
        if entry is None:  # equal to that of the first run
            results.append(results[len(results) - len(inputs)])
        else:
            results.append(RunFailure(*entry) if isinstance(entry, list) else entry)
    return results


@cache
def _worker() -> WorkerProcess:
    """Return the worker process, which all devices of this process share."""
    return WorkerProcess(f"{__name__}:_respond", sys.path)


def _stop_when_idle() -> None:
    """End the worker after `_IDLE_S` without a call, to release its memory."""
    with _IDLE_LOCK:
        for timer in _IDLE_TIMERS:
            timer.cancel()
        timer = threading.Timer(_IDLE_S, _worker().stop)
        timer.daemon = True
        timer.start()
        _IDLE_TIMERS[:] = [timer]


def _tree(value: Any) -> Any:
    return tree_of(value, lambda array: array.tobytes())


def _packed_model(model: Model) -> Any:
    parts = split_model(model)
    return [parts.skeleton, _tree(parts.weights), parts.covers, parts.specs, parts.ports]


def _contents(location: Any, dtype: np.dtype, count: int) -> np.ndarray:
    return np.frombuffer(location, dtype, count)


_DECODER: Final[Decoder[Any]] = Decoder(
    ext_hook=lambda tag, data: decode_extension(tag, data, _contents)
)
#: Plugins that the worker has loaded, by import path and name.
_PLUGINS: Final[dict[tuple[str, str, str], Plugin]] = {}
_PLUGINS_LOCK: Final = threading.Lock()


def _respond(request: bytes) -> bytes:
    """Run the model of a request; runs in the worker process."""
    path, parts, config, inputs, num_runs = _DECODER.decode(request)
    results = _results(tuple(path), join_model(ModelParts(*parts)), config, inputs, num_runs)
    return encode([_entry(result) for result in results])


def _entry(result: RunResult | None) -> Any:
    if isinstance(result, RunFailure):
        return [result.kind, result.reason]
    return None if result is None else _tree(dict(result))


def _results(
    path: tuple[str, str, str],
    model: Model,
    config: dict[str, Any],
    inputs: Sequence[Mapping[str, Value]],
    num_runs: int,
) -> list[RunResult | None]:
    """Return the first result of each set of inputs, and then those that changed, or None."""
    try:
        plugin = _plugin(*path)
        if THREADS in plugin.properties and not config.get(THREADS):
            config[THREADS] = len(os.sched_getaffinity(0))
        compiled = plugin.compile_model(model, config)
    except MemoryError:
        return [RunFailure("bound", "it needs too much memory")] * len(inputs)
    except Exception as error:  # a plugin may raise anything
        kind: FailureKind = "refused" if isinstance(error, UnsupportedNodesError) else "unavailable"
        return [RunFailure(kind, error_text(error))] * len(inputs)
    arguments = [[values[port.name] for port in model.inputs] for values in inputs]
    results = [_run(compiled, values) for values in arguments]
    changed: list[RunResult | None] = [None] * len(results)
    for _ in range(num_runs - 1):
        for i, values in enumerate(arguments):
            first, latest = results[i], changed[i] or results[i]
            if not isinstance(latest, RunFailure):
                again = _run(compiled, values)
                if _change(first, again) > _change(first, latest):
                    changed[i] = again
    compiled.close()
    return [*results, *changed] if num_runs > 1 else [*results]


def _run(compiled: DeviceModel, inputs: Sequence[Value]) -> RunResult:
    """Run a program; a failure is a result."""
    try:
        outputs = compiled.run(inputs, RunContext())
    except MemoryError:
        return RunFailure("bound", "it needs too much memory")
    except Exception as error:  # a plugin may raise anything
        return RunFailure("error", f"{type(error).__name__}: {error_text(error)}")
    return dict(zip(compiled.output_names, outputs, strict=True))


def _change(first: RunResult, again: RunResult) -> float:
    """Return the largest change of an output; infinite for a failure or another shape."""
    if first is again:
        return 0.0
    if isinstance(first, RunFailure) or isinstance(again, RunFailure):
        return math.inf
    return max((_change_of_value(first[name], again[name]) for name in first), default=0.0)


def _change_of_value(first: Value, again: Value) -> float:
    if not isinstance(first, np.ndarray) or not isinstance(again, np.ndarray):
        return 0.0  # sequences and maps are made from tensors
    if first.shape != again.shape or first.dtype != again.dtype:
        return math.inf
    if first.tobytes() == again.tobytes():
        return 0.0
    if first.dtype.kind in "OUST":
        return float((first != again).any())
    wide = np.complex128 if first.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        change = np.abs(first.astype(wide) - again.astype(wide))
    is_same = (first == again) | ((first != first) & (again != again))  # NaN differs from itself
    return float(np.where(is_same, 0.0, np.where(np.isnan(change), math.inf, change)).max())


def _plugin(module: str, qualname: str, name: str) -> Plugin:
    """Return a plugin by its class, or by its name if its class is made at run time."""
    with _PLUGINS_LOCK:
        key = (module, qualname, name)
        if key not in _PLUGINS:
            try:
                target = pkgutil.resolve_name(f"{module}:{qualname}")
            except (ImportError, AttributeError, ValueError):
                target = None
            if isinstance(target, type) and issubclass(target, Plugin):
                _PLUGINS[key] = (target if target.name == name else with_name(target, name))()
            else:
                _PLUGINS[key] = find_plugin(load_plugins(), name)
        return _PLUGINS[key]
