"""Model compiled by ONNX Runtime: one session that shares the weights' memory."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import onnx

from hetero.devices.errors import HeteroError
from hetero.devices.file_reader import parse_json, read_regular
from hetero.devices.model.model import Model
from hetero.devices.model.node_validation import check_self_contained
from hetero.devices.model.reader import read_model
from hetero.devices.model.stub_model import attach_weights
from hetero.devices.ort.errors import ERRORS
from hetero.devices.ort.in_place_caches import CacheTensor, InPlaceCaches, InPlaceSession
from hetero.devices.ort.provider import Provider
from hetero.devices.ort.runtime import VERSION, onnxruntime
from hetero.devices.ort.session import open_mapped_session, open_session, session_model
from hetero.devices.ort.sized_arena import sized_arena
from hetero.devices.plugin.heap import map_large_blocks
from hetero.devices.plugin.native_call import NativeCall
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import Config

#: The format of exported payloads.
PAYLOAD_FORMAT: Final = "onnxruntime-optimized-6"
#: Profiling stops after this many measured runs, or after this time if two runs are done.
_PROFILED_RUNS: Final = 5
_PROFILE_TIME_S: Final = 0.5
#: Time that an idle thread spins before it sleeps: more than the gaps between nodes and between
#: consecutive requests. ONNX Runtime's default is tens of milliseconds.
_SPIN_US: Final = "1000"
#: Size up to which an output is copied. If its reader kept it in the session's arena, the next run
#: would use other memory for its tensors, which is not in the processor's caches: measured with
#: squeezenet, whose output has 4 kB, a run then takes 3 to 6 % longer.
_MAX_COPIED_NBYTES: Final = 2**16
#: The suffix of a node's name after ONNX Runtime changes its layout.
_NCHWC: Final = re.compile(r"_nchwc(_token_\d+)?$")
#: Optimisations that change results -> the version that repairs them; None if none does. The first
#: drops one of two successive roundings to steps of different sizes. The second joins Pad with the
#: pool that reads it: a MaxPool then takes zeros for values, ceil_mode is lost, and wide padding is
#: an error.
_WRONG_OPTIMISATIONS: Final = {"DoubleQDQPairsRemover": None, "Pad_Fusion": (1, 32)}
_SEVERITY: Final = {
    "LOG_NONE": 4,
    "LOG_ERROR": 3,
    "LOG_WARNING": 2,
    "LOG_INFO": 1,
    "LOG_DEBUG": 0,
    "LOG_TRACE": 0,
}


class OrtProgram(Program):
    """An ONNX Runtime session of a model, or of a payload that `export` returned.

    With a payload, `model` needs only ports.
    """

    def __init__(
        self, model: Model, config: Config, provider: Provider, *, payload: Payload | None = None
    ) -> None:
        self._model = model
        self._provider = provider
        self._config = dict(config)
        self._payload = payload
        self._optimise = payload is None and not config["DISABLE_TRANSFORMATIONS"]
        #: Outputs of the session: the model's without inputs and constants that pass through.
        self._session_outputs = (
            [o for o in dict.fromkeys(p.name for p in model.outputs) if o in model.producers]
            if payload is None
            else list(payload.header["outputs"])
        )
        self._input_names = [port.name for port in model.inputs]
        self._lock = threading.Lock()
        self._executed_nodes: tuple[ExecutedNode, ...] | None = None
        self._node_times_s: dict[str, float] | None = None
        #: Calls that no run uses now; their construction takes longer than a small model.
        self._idle_calls: list[_SessionCall] = []
        self._session: onnxruntime.InferenceSession | None = None
        #: Runs the session: outputs, inputs by name, options.
        self._run_session: Callable[..., Any] = tuple
        if self._session_outputs:
            self._session, self._weights = self._open(self._options())
            # The session's Python layer checks inputs again, and replaces failing providers.
            runner = getattr(self._session, "_sess", None) if provider.is_cpu else None
            self._run_session = (runner or self._session).run
        self._caches: InPlaceCaches | None = None
        if provider.is_cpu and payload is None:
            self._caches = InPlaceCaches.find(model)
        elif provider.is_cpu and payload and "caches" in payload.header:
            self._caches = InPlaceCaches(*payload.header["caches"])
        presents = set(self._caches.pairs.values()) if self._caches else set()
        #: Indices of the outputs that are present caches.
        self._cache_outputs = frozenset(
            i for i, port in enumerate(model.outputs) if port.name in presents
        )
        self._session_inputs = (
            {port.name for port in self._session.get_inputs()} if self._session else set()
        )
        #: Whether the session has the model's inputs and outputs, so that no value passes it by.
        self._has_all_ports = self._session_inputs.issuperset(self._input_names) and (
            self._session_outputs == [port.name for port in model.outputs]
        )
        self.returns_new_memory = self._has_all_ports  # except for caches, which are no arrays
        self._in_place: InPlaceSession | None = None
        if self._caches and self._session:
            self._in_place = InPlaceSession(
                self._session, self._caches, self._input_names, self._session_outputs
            )

    @cached_property
    def _source(self) -> Model:
        """The model as compiled, or as decoded from the payload at first use."""
        if self._payload is None:
            return self._model
        skeleton = onnx.ModelProto.FromString(self._payload.header["model"])
        return attach_weights(skeleton, self._payload.tensors)

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run the session; cancellation terminates it between nodes."""
        in_place, past = self._in_place, 0
        if in_place is not None:
            if context.resident_outputs >= self._cache_outputs:
                past = in_place.past_length(inputs)
            if not past and CacheTensor in map(type, inputs):
                inputs = [v.to_host() if type(v) is CacheTensor else v for v in inputs]
        values: dict[str, Value] = {}
        if not past or not self._has_all_ports:
            values = dict(zip(self._input_names, inputs, strict=True))
        if context.profile and self._session and not past:
            for name, seconds in self._profile(values).items():
                context.record(name, seconds)
        results: dict[str, Value] = {}
        if self._session:
            try:
                call = self._idle_calls.pop()
            except IndexError:
                call = _session_call()
                if self._caches:
                    self._caches.configure(call.options)
            native, options = call
            native.context = context
            try:  # faster than a `with` block
                native.begin()
                try:
                    if past and in_place is not None:
                        outputs = in_place.run(inputs, past, options)
                    else:
                        feeds = values if self._has_all_ports else self._select_inputs(values)
                        outputs = self._run_session(self._session_outputs, feeds, options)
                        for position, value in enumerate(outputs):
                            if type(value) is np.ndarray and value.nbytes <= _MAX_COPIED_NBYTES:
                                outputs[position] = value.copy()
                except Exception as error:
                    context.check_cancelled()
                    summary = f"ONNX Runtime failed on model {self._model.name!r}"
                    raise ERRORS.run_error(summary, error) from error
            finally:
                native.end()
            # `cancel` sets the flag before it reads `stop`, so that no later call of `stop` affects
            # another run.
            if not context.is_cancelled:
                self._idle_calls.append(call)
            if self._has_all_ports:
                return outputs
            results = dict(zip(self._session_outputs, outputs, strict=True))
        return self._outputs(values, results)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the optimised graph's nodes, mapped to the model's nodes by their outputs."""
        with self._lock:
            if self._executed_nodes is None:
                self._executed_nodes = self._read_executed_nodes() if self._session else ()
            return self._executed_nodes

    def export(self) -> Payload:
        """Return the optimised model: a skeleton, and its weights as arrays."""
        if self._payload is not None:
            return self._payload
        optimised_model = self._optimised_model() if self._session else self._source
        data, stubs = session_model(optimised_model, self._session_outputs)
        tensors = {name: optimised_model.constants[name].array for name in stubs}
        constants = self._source.constants
        tensors |= {
            p.name: constants[p.name].array for p in self._model.outputs if p.name in constants
        }
        header = {
            "format": PAYLOAD_FORMAT,
            "version": str(onnxruntime.__version__),
            "model": data,
            "stubs": stubs,
            "outputs": self._session_outputs,
        }
        if self._caches:
            header["caches"] = [self._caches.pairs, list(self._caches.length_source)]
        return Payload(header, tensors)

    def close(self) -> None:
        """Release the session."""
        self._session, self._in_place, self._run_session = None, None, tuple

    def _options(self, level: str = "") -> onnxruntime.SessionOptions:
        """Return session options; an empty `level` follows DISABLE_TRANSFORMATIONS."""
        options = onnxruntime.SessionOptions()
        # Other providers export the model unoptimised, so they optimise it again after an import.
        optimise = self._optimise or not self._provider.is_cpu
        level = level or ("ORT_ENABLE_ALL" if optimise else "ORT_DISABLE_ALL")
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        cores = len(os.sched_getaffinity(0))
        threads = self._config["INFERENCE_NUM_THREADS"] or cores
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # The search for reusable memory takes half of a long model's start. Without it the arena
        # reuses memory while the model runs.
        options.enable_mem_reuse = False
        options.log_severity_level = _SEVERITY[self._config["LOG_LEVEL"]]
        # Spinning threads start small nodes sooner. They spin only if this device has all cores:
        # devices that share cores would take them from each other.
        spins = str(int(threads >= cores))
        options.add_session_config_entry("session.intra_op.allow_spinning", spins)
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
        # A MatMul of dequantised weights computes in float32; by default its input becomes int8.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        names = [n for n, end in _WRONG_OPTIMISATIONS.items() if end is None or end > VERSION]
        options.add_session_config_entry(
            "optimization.disable_specified_optimizers", ";".join(names)
        )
        if self._config["ORT_MAPPED_WEIGHTS"] or (
            self._config["ORT_ARENA_NBYTES"] and self._packs_weights_in_arena()
        ):
            options.add_session_config_entry("session.disable_prepacking", "1")
        return options

    def _packs_weights_in_arena(self) -> bool:
        """Return whether kernels take packed weights from the arena while the model is compiled.

        The arena's block would then exist together with other copies of the weights.
        """
        return any(node.op_type == "ConvTranspose" for node in self._source.nodes)

    def _open(
        self, options: onnxruntime.SessionOptions
    ) -> tuple[onnxruntime.InferenceSession, list[np.ndarray]]:
        """Open a session; also returns the weights' arrays, which must outlive it."""
        data, weights = self._session_source()
        is_cpu = self._provider.is_cpu
        arena_nbytes = self._config["ORT_ARENA_NBYTES"] if is_cpu else 0
        if arena_nbytes:
            map_large_blocks()  # the compilation frees copies of weights
        try:
            with sized_arena(options, arena_nbytes) if arena_nbytes else nullcontext():
                if is_cpu and self._config["ORT_MAPPED_WEIGHTS"]:
                    return open_mapped_session(data, weights, options, self._provider), []
                return open_session(data, weights, options, self._provider)
        except Exception as error:
            raise self._compile_error(error) from error

    def _session_source(self) -> tuple[bytes, dict[str, np.ndarray]]:
        """Return the session's model as ONNX bytes, and the weights that it does not contain."""
        if self._payload is None:
            data, stubs = session_model(self._source, self._session_outputs)
            return data, {name: self._source.constants[name].array for name in stubs}
        data, stubs = self._payload.header["model"], self._payload.header["stubs"]
        check_self_contained(onnx.ModelProto.FromString(data), stubs, f"model {self._model.name!r}")
        return data, {name: self._payload.tensors[name] for name in stubs}

    def _compile_error(self, error: Exception) -> HeteroError:
        summary = f"ONNX Runtime cannot compile model {self._model.name!r}"
        return ERRORS.compile_error(summary, error, "ORT")

    def _outputs(self, inputs: Mapping[str, Value], results: Mapping[str, Value]) -> list[Value]:
        """Return the model's outputs from the session's results, the inputs and the constants."""
        values = {**inputs, **results}
        names = [port.name for port in self._model.outputs]
        return [values[n] if n in values else self._source.constants[n].array for n in names]

    def _select_inputs(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values that are inputs of the session."""
        return {name: value for name, value in values.items() if name in self._session_inputs}

    def _optimised_model(self, level: str = "") -> Model:
        """Return the graph that the session runs, as ONNX Runtime writes it."""
        if not self._optimise:
            return self._source
        with tempfile.TemporaryDirectory(prefix="hetero-ort-") as folder:
            path = Path(folder) / "model.onnx"
            options = self._options(level)
            options.optimized_model_filepath = str(path)
            options.log_severity_level = 4
            key = "session.optimized_model_external_initializers"
            options.add_session_config_entry(f"{key}_file_name", "weights")
            options.add_session_config_entry(f"{key}_min_size_in_bytes", "1024")
            self._open(options)
            # Arrays stay mapped after the folder is deleted.
            return read_model(path)

    def _read_executed_nodes(self) -> tuple[ExecutedNode, ...]:
        optimised_model = self._optimised_model()
        # A change of layout renames values, and names a node after its former output. The extended
        # level does not change layouts, so its values have the model's names.
        without_layouts = self._optimised_model("ORT_ENABLE_EXTENDED")
        stops = {value for node in without_layouts.nodes for value in node.writes}
        covers: dict[str, tuple[str, ...]] = {}
        for node in without_layouts.nodes:
            names = _covered_nodes(self._model, node.writes, stops)
            covers |= dict.fromkeys((node.name, *node.writes), names)
        rows = []
        for i, node in enumerate(optimised_model.nodes):
            names = covers.get(node.name) or covers.get(_NCHWC.sub("", node.name), ())
            rows.append(ExecutedNode(node.name, node.op_type, i, self._provider.name, names))
        return tuple(rows)

    def _profile(self, values: Mapping[str, Value]) -> dict[str, float]:
        """Return the seconds of each executed node, measured at the first call.

        ONNX Runtime cannot profile a single run, so a second session is profiled once.
        """
        with self._lock:
            if self._node_times_s is None:
                with tempfile.TemporaryDirectory(prefix="hetero-ort-") as folder:
                    self._node_times_s = self._measure(values, Path(folder))
            return self._node_times_s

    def _measure(self, values: Mapping[str, Value], folder: Path) -> dict[str, float]:
        options = self._options()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session, _ = self._open(options)
        runs = 0
        end_s = time.monotonic() + _PROFILE_TIME_S
        while runs < 2 or (runs <= _PROFILED_RUNS and time.monotonic() < end_s):
            with NativeCall():
                session.run(self._session_outputs, self._select_inputs(values))
            runs += 1
        profile = read_regular(Path(session.end_profiling()), 2**31)
        events: list[dict[str, Any]] = parse_json(profile.decode())
        times: dict[str, list[float]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                name = event["name"].removesuffix("_kernel_time")
                times.setdefault(name, []).append(event["dur"] / 1e6)
        return {name: _median_per_run(spans, runs) for name, spans in times.items()}


class _SessionCall(NamedTuple):
    """Call of a session, with its options."""

    native: NativeCall
    options: onnxruntime.RunOptions


def _session_call() -> _SessionCall:
    """Return a call of a session that can be stopped."""
    options = onnxruntime.RunOptions()

    def stop() -> None:
        options.terminate = True

    return _SessionCall(NativeCall(stop), options)


def _median_per_run(spans: Sequence[float], runs: int) -> float:
    """Return the median time of a node per run, without the first run, which warms up."""
    calls = max(1, len(spans) // runs)  # a node in a loop's body runs several times
    return median(sum(spans[i : i + calls]) for i in range(calls, len(spans), calls) or (0,))


def _covered_nodes(model: Model, values: Sequence[str], stops: set[str]) -> tuple[str, ...]:
    """Return the names of the nodes that compute `values` from `stops` and the model's inputs."""
    indices: set[int] = set()
    pending = list(values)
    while pending:
        i = model.producers.get(pending.pop())
        if i is not None and i not in indices:
            indices.add(i)
            pending += [value for value in model.nodes[i].reads if value not in stops]
    return tuple(model.nodes[i].name for i in sorted(indices))
