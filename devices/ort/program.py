"""A model that ONNX Runtime runs: one session, weights handed over without a copy."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime

from hetero.devices.errors import DeviceError
from hetero.devices.model.model import Model
from hetero.devices.model.node_contents import check_inside
from hetero.devices.model.reader import read_model
from hetero.devices.model.skeleton import joined_model
from hetero.devices.ort.caches import Caches, CacheTensor
from hetero.devices.ort.errors import ERRORS
from hetero.devices.ort.provider import Provider
from hetero.devices.ort.session import open_session, session_model
from hetero.devices.plugin.native_call import NativeCall
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import Config

#: What `export` writes.
PAYLOAD_FORMAT: Final = "onnxruntime-optimized-3"
#: Runs in which nodes are timed, and seconds after which there is one at least.
_MEASURED: Final = 5
_MEASURE_S: Final = 0.5
#: How long a thread spins before it sleeps: longer than between nodes and requests in a row. Theirs
#: spin for tens of milliseconds, from the session's start on.
_SPIN_US: Final = "1000"
#: What a change of layout adds to a node's name.
_NCHWC: Final = re.compile(r"_nchwc(_token_\d+)?$")
_SEVERITY: Final = {
    "LOG_NONE": 4,
    "LOG_ERROR": 3,
    "LOG_WARNING": 2,
    "LOG_INFO": 1,
    "LOG_DEBUG": 0,
    "LOG_TRACE": 0,
}


class OrtProgram(Program):
    """One ONNX Runtime session, of a model or of what `export` gave.

    With a payload, `model` need only have ports.
    """

    def __init__(
        self, model: Model, config: Config, provider: Provider, *, payload: Payload | None = None
    ) -> None:
        self._model = model
        self._provider = provider
        self._config = dict(config)
        self._payload = payload
        self._optimise = payload is None and not config["DISABLE_TRANSFORMATIONS"]
        #: Names that the session gives out; inputs and constants that pass through are ours.
        self._wanted = (
            [o for o in dict.fromkeys(p.name for p in model.outputs) if o in model.producers]
            if payload is None
            else list(payload.header["wanted"])
        )
        self._names = [port.name for port in model.inputs]
        self._lock = threading.Lock()
        self._executed: tuple[ExecutedNode, ...] | None = None
        self._node_times_s: dict[str, float] | None = None
        self._session: onnxruntime.InferenceSession | None = None
        if self._wanted:
            self._session, self._weights = self._open(self._options())
        self._caches: Caches | None = None
        if provider.is_cpu and payload is None:
            self._caches = Caches.of(model)
        elif provider.is_cpu and payload and "caches" in payload.header:
            self._caches = Caches(*payload.header["caches"])
        presents = set(self._caches.pairs.values()) if self._caches else set()
        #: Positions of the caches' next values.
        self._kept = frozenset(i for i, p in enumerate(model.outputs) if p.name in presents)
        self._fed = {i.name for i in self._session.get_inputs()} if self._session else set()
        #: Whether the session takes all that is given, and gives all that is wanted, in order.
        self._is_whole = self._fed.issuperset(self._names) and self._wanted == [
            port.name for port in model.outputs
        ]

    @cached_property
    def _source(self) -> Model:
        """The model, as it was compiled or as a payload holds it: few ask for that."""
        if self._payload is None:
            return self._model
        skeleton = onnx.ModelProto.FromString(self._payload.header["model"])
        return joined_model(skeleton, self._payload.tensors)

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run the session; cancelling terminates it between nodes."""
        given = dict(zip(self._names, inputs, strict=True))
        caches = self._caches if self._caches and context.left >= self._kept else None
        if caches is None and any(type(value) is CacheTensor for value in inputs):
            given = {n: v.to_host() if type(v) is CacheTensor else v for n, v in given.items()}
        if context.profile and self._session and caches is None:
            for name, seconds in self._profile(given).items():
                context.record(name, seconds)
        made: dict[str, Value] = {}
        if self._session:
            options = onnxruntime.RunOptions()

            def stop() -> None:
                options.terminate = True

            with NativeCall(stop), context.on_cancel(stop):
                try:
                    fed = given if self._is_whole else self._feeds(given)
                    if caches and caches.length(fed):
                        values = caches.run(self._session, fed, self._wanted, options)
                    else:
                        values = self._session.run(self._wanted, fed, options)
                except Exception as error:
                    context.check_cancelled()
                    what = f"ONNX Runtime failed on model {self._model.name!r}"
                    raise ERRORS.run_error(what, error) from error
            if self._is_whole:
                return list(values)
            made = dict(zip(self._wanted, values, strict=True))
        return self._outputs(given, made)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the optimised graph's nodes, mapped to the model's by the values they make."""
        with self._lock:
            if self._executed is None:
                self._executed = self._read_executed() if self._session else ()
            return self._executed

    def export(self) -> Payload:
        """Return the optimised model: a skeleton, and the weights as arrays."""
        if self._payload is not None:
            return self._payload
        optimised = self._optimised() if self._session else self._source
        data, stubs = session_model(optimised, self._wanted)
        tensors = {name: optimised.constants[name].array for name in stubs}
        constants = self._source.constants
        tensors |= {
            p.name: constants[p.name].array for p in self._model.outputs if p.name in constants
        }
        header = {
            "format": PAYLOAD_FORMAT,
            "version": str(onnxruntime.__version__),
            "model": data,
            "stubs": stubs,
            "wanted": self._wanted,
        }
        if self._caches:
            header["caches"] = [self._caches.pairs, list(self._caches.count)]
        return Payload(header, tensors)

    def close(self) -> None:
        """Drop the session."""
        self._session = None

    def _options(self, level: str = "") -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        optimise = self._optimise or not self._provider.is_cpu  # theirs is exported as it was
        level = level or ("ORT_ENABLE_ALL" if optimise else "ORT_DISABLE_ALL")
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        cores = len(os.sched_getaffinity(0))
        threads = self._config["INFERENCE_NUM_THREADS"] or cores
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Its search for memory to use again takes half the start of a long model; without it
        # the arena does the same while the model runs.
        options.enable_mem_reuse = False
        options.log_severity_level = _SEVERITY[self._config["LOG_LEVEL"]]
        # Threads that spin are there sooner, as small nodes want them; where devices share cores
        # they would take them from each other.
        spins = str(int(threads >= cores))
        options.add_session_config_entry("session.intra_op.allow_spinning", spins)
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
        return options

    def _open(
        self, options: onnxruntime.SessionOptions
    ) -> tuple[onnxruntime.InferenceSession, list[np.ndarray]]:
        """Return a session, and the arrays whose memory it reads as long as it lives."""
        if self._payload is None:
            data, stubs = session_model(self._source, self._wanted)
            weights = {name: self._source.constants[name].array for name in stubs}
        else:
            data, stubs = self._payload.header["model"], self._payload.header["stubs"]
            check_inside(onnx.ModelProto.FromString(data), stubs, f"model {self._model.name!r}")
            weights = {name: self._payload.tensors[name] for name in stubs}
        try:
            return open_session(data, weights, options, self._provider)
        except Exception as error:
            raise DeviceError(
                f"ONNX Runtime cannot compile model {self._model.name!r}: "
                f"{' '.join(str(error).split())[:500]}",
                device="ORT",
            ) from error

    def _outputs(self, given: Mapping[str, Value], made: Mapping[str, Value]) -> list[Value]:
        """Return the outputs: what the session made, inputs, and constants."""
        known = {**given, **made}
        names = [port.name for port in self._model.outputs]
        return [known[n] if n in known else self._source.constants[n].array for n in names]

    def _feeds(self, given: Mapping[str, Value]) -> dict[str, Value]:
        return {name: value for name, value in given.items() if name in self._fed}

    def _optimised(self, level: str = "") -> Model:
        """Return the graph that the session runs, as ONNX Runtime writes it."""
        if not self._optimise:
            return self._source
        with tempfile.TemporaryDirectory(prefix="hetero-ort-") as folder:
            path = Path(folder) / "model.onnx"
            options = self._options(level)
            options.optimized_model_filepath = str(path)
            options.log_severity_level = 4
            beside = "session.optimized_model_external_initializers"
            options.add_session_config_entry(f"{beside}_file_name", "weights")
            options.add_session_config_entry(f"{beside}_min_size_in_bytes", "1024")
            self._open(options)
            # Arrays mapped from the folder outlive its name: the mapping keeps the file.
            return read_model(path)

    def _read_executed(self) -> tuple[ExecutedNode, ...]:
        optimised = self._optimised()
        # A change of layout renames values, and names its node after the value that it made;
        # before it, values have the model's own names.
        plain = self._optimised("ORT_ENABLE_EXTENDED")
        stops = {value for node in plain.nodes for value in node.writes}
        covers: dict[str, tuple[str, ...]] = {}
        for node in plain.nodes:
            names = _covered(self._model, node.writes, stops)
            covers |= dict.fromkeys((node.name, *node.writes), names)
        rows = []
        for i, node in enumerate(optimised.nodes):
            stands_for = covers.get(node.name) or covers.get(_NCHWC.sub("", node.name), ())
            rows.append(ExecutedNode(node.name, node.op_type, i, self._provider.name, stands_for))
        return tuple(rows)

    def _profile(self, given: Mapping[str, Value]) -> dict[str, float]:
        """Return seconds by executed node, measured once: ONNX Runtime profiles a whole session."""
        with self._lock:
            if self._node_times_s is None:
                with tempfile.TemporaryDirectory(prefix="hetero-ort-") as folder:
                    self._node_times_s = self._measure(given, Path(folder))
            return self._node_times_s

    def _measure(self, given: Mapping[str, Value], folder: Path) -> dict[str, float]:
        options = self._options()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session, _ = self._open(options)
        runs = 0
        until_s = time.monotonic() + _MEASURE_S
        while runs < 2 or (runs <= _MEASURED and time.monotonic() < until_s):
            with NativeCall():
                session.run(self._wanted, self._feeds(given))
            runs += 1
        events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
        times: dict[str, list[float]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                name = event["name"].removesuffix("_kernel_time")
                times.setdefault(name, []).append(event["dur"] / 1e6)
        return {name: _of_a_run(spans, runs) for name, spans in times.items()}


def _of_a_run(spans: Sequence[float], runs: int) -> float:
    """Return the median of what a node took in each run but the first, which warms up."""
    each = max(1, len(spans) // runs)  # several times in a loop's body
    return median(sum(spans[i : i + each]) for i in range(each, len(spans), each) or (0,))


def _covered(model: Model, values: Sequence[str], stops: set[str]) -> tuple[str, ...]:
    """Return the nodes that make `values`, back to what other executed nodes make."""
    found: set[int] = set()
    pending = list(values)
    while pending:
        i = model.producers.get(pending.pop())
        if i is not None and i not in found:
            found.add(i)
            pending += [value for value in model.nodes[i].reads if value not in stops]
    return tuple(model.nodes[i].name for i in sorted(found))
