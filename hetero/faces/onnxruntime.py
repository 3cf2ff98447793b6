"""ONNX Runtime's face: a session whose model is split over devices by one more argument."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import repeat
from typing import Any, Final

import numpy as np

from hetero.affinity.pins import AffinitySource
from hetero.compile.compiled_model import CompiledModel
from hetero.core import Core
from hetero.devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    TensorTypeError,
    UnsupportedOperationError,
)
from hetero.devices.model.element_type import Type
from hetero.devices.model.model import Model
from hetero.devices.model.reader import Source
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.request.results import Results
from hetero.devices.request.tensor import Tensor
from hetero.shared_core import shared_core
from hetero.version import hetero_version

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "set_default_logger_severity",
]

_CPU: Final = "CPUExecutionProvider"
#: ONNX Runtime's providers -> the devices that run them; others are ``ORT_`` and their word.
_DEVICES: Final = {_CPU: "ORT", "DmlExecutionProvider": "ORT_DML"}
_PROVIDER: Final = "ExecutionProvider"


class GraphOptimizationLevel(IntEnum):
    """ONNX Runtime's levels: all but the first leave it to the devices how they run a model."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """ONNX Runtime's orders of nodes."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass(slots=True)
class SessionOptions:
    """A session's options, as ONNX Runtime's scripts make them; its own do as well.

    Those of its memory, its order of nodes, its log and its entries change no answer, and are not
    read.

    Attributes
    ----------
    intra_op_num_threads : int
        Threads of each device; 0 leaves it to them.
    enable_profiling : bool
        Whether requests note the times of nodes.
    graph_optimization_level : GraphOptimizationLevel
        ``ORT_DISABLE_ALL`` has devices run the model as it is: DISABLE_TRANSFORMATIONS.
    """

    intra_op_num_threads: int = 0
    enable_profiling: bool = False
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    inter_op_num_threads: int = 0
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Take an entry, which tunes ONNX Runtime alone and is not read."""


@dataclass(slots=True)
class RunOptions:
    """A run's options, as ONNX Runtime's scripts make them: they concern its log alone.

    Attributes
    ----------
    logid : str
        What the log calls the run.
    log_severity_level, log_verbosity_level : int
        How much is logged.
    """

    logid: str = ""
    log_severity_level: int = 2
    log_verbosity_level: int = 0


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model says of itself, under ONNX Runtime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class OrtValue:
    """A value under ONNX Runtime's name for it: a tensor in the host's memory."""

    def __init__(self, value: Value) -> None:
        self._tensor = Tensor(value, shared_memory=isinstance(value, np.ndarray))

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value that holds an array's memory.

        Raises
        ------
        UnsupportedOperationError
            For another memory than the host's.
        """
        _check_host(device_type)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value of zeros."""
        _check_host(device_type)
        return OrtValue(Tensor(type=element_type, shape=shape).data)

    def numpy(self) -> Any:
        """Return the value as an array."""
        return self._tensor.data

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._tensor.shape)

    def data_type(self) -> str:
        """Return ONNX's word for the type: ``tensor(float)``."""
        return f"tensor({self.element_type()})"

    def element_type(self) -> Type | str:
        """Return the element type."""
        return self._tensor.element_type

    def device_name(self) -> str:
        """Return where the value is."""
        return "cpu"

    def has_value(self) -> bool:
        """Return whether there is a value."""
        return self._tensor.held() is not None

    def is_tensor(self) -> bool:
        """Return whether the value is one tensor."""
        return self._tensor.is_array

    def tensor_size_in_bytes(self) -> int:
        """Return how many bytes the elements take."""
        return self._tensor.byte_size

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Write other elements of the same shape and type into the value's memory."""
        np.copyto(self._tensor.data, np_arr, casting="no")


class IOBinding:
    """Inputs and outputs of a session that are set once and run many times."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Value] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: list[Value] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Read an input from an array."""
        self._inputs[self._session.port("input", name).name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a value."""
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_output(self, name: str, device_type: str = "cpu", *rest: Any, **named: Any) -> None:
        """Have an output made.

        Raises
        ------
        UnsupportedOperationError
            Into memory given by its address: bind an OrtValue.
        """
        _check_host(device_type)
        if rest[3:] or "buffer_ptr" in named:
            raise UnsupportedOperationError(
                f"output {name!r}: memory is not taken by its address; use bind_ortvalue_output."
            )
        self._outputs[self._session.port("output", name).name] = None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write an output into a value."""
        self._outputs[self._session.port("output", name).name] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs = {}

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs = {}

    def synchronize_inputs(self) -> None:
        """Do nothing: host memory is there at once."""

    def synchronize_outputs(self) -> None:
        """Do nothing: outputs are there when a run ends."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the bound outputs of the last run, in the order of their binding."""
        return [OrtValue(value) for value in self._results]

    def copy_outputs_to_cpu(self) -> list[Value]:
        """Return the bound outputs of the last run as arrays."""
        return list(self._results)

    def run(self) -> None:
        """Run the session once."""
        results = self._session.run(list(self._outputs), self._inputs)
        self._results = []
        for memory, value in zip(self._outputs.values(), results, strict=True):
            if memory is not None:
                np.copyto(memory, value, casting="no")
            self._results.append(value if memory is None else memory)


class InferenceSession:
    """A compiled model under ONNX Runtime's names: ``InferenceSession(path, devices="HETERO")``.

    Parameters
    ----------
    path_or_bytes : str, path, bytes, onnx.ModelProto or Model
        The model.
    sess_options : SessionOptions, optional
        ONNX Runtime's or ours; threads and profiling are read.
    providers : sequence of str or (str, dict), optional
        ONNX Runtime's providers in order of priority, where `devices` are not given: each is the
        device that runs it. Options are refused, but for the CPU one, which has none.
    devices : str, optional
        The devices, as ``HETERO:ORT_CUDA,OV,CPU``; by default all that there are.
    config, affinity : optional
        Properties and pins, as for `Core.compile_model`.
    core : Core, optional
        Whose devices; by default those of this process, kept to its end.

    Raises
    ------
    ArgumentError
        For providers that no device runs, or with options.
    """

    def __init__(
        self,
        path_or_bytes: Source | Model,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        devices: str | None = None,
        config: Mapping[str, Any] | None = None,
        affinity: AffinitySource | None = None,
        core: Core | None = None,
    ) -> None:
        held = shared_core("inprocess") if core is None else core
        self._options = sess_options if sess_options is not None else SessionOptions()
        options = _config(self._options) | dict(config or {})
        named = _device_string(providers or (), provider_options or ())
        self._devices = devices or named
        model = held.read_model(path_or_bytes)
        self._compiled: CompiledModel = held.compile_model(
            model, self._devices, options, affinity=affinity
        )

    @property
    def compiled_model(self) -> CompiledModel:
        """What the session runs, with all that `CompiledModel` offers."""
        return self._compiled

    def get_inputs(self) -> list[TensorSpec]:
        """Return the inputs, each with `name`, `type` and `shape`."""
        return self._compiled.inputs

    def get_outputs(self) -> list[TensorSpec]:
        """Return the outputs, each with `name`, `type` and `shape`."""
        return self._compiled.outputs

    def port(self, role: str, name: str) -> TensorSpec:
        """Return an ``input`` or ``output`` by name."""
        return self._compiled.input(name) if role == "input" else self._compiled.output(name)

    def get_providers(self) -> list[str]:
        """Return the devices that run the model."""
        return list(dict.fromkeys(part.device for part in self._compiled.subgraphs))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the properties of each device that runs the model, as text."""
        told = self._compiled.get_property("DEVICE_PROPERTIES")
        return {name: {n: str(v) for n, v in of.items()} for name, of in told.items()}

    def get_session_options(self) -> Any:
        """Return the options that the session was made with."""
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the model says of itself."""
        model = self._compiled.source
        header = model.header
        return ModelMetadata(
            header.producer_name,
            model.name,
            header.domain,
            header.doc_string,
            header.graph.doc_string,
            header.model_version,
            dict(model.metadata),
        )

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Value]:
        """Run once and return the outputs that are wanted; None or none named: all.

        Raises
        ------
        TensorNameError
            There is no such output, or not these inputs.
        TensorTypeError, TensorShapeError
            An input does not fit.
        """
        if not isinstance(input_feed, Mapping):
            raise ArgumentTypeError(
                f"input_feed is a dict of arrays by name, got {type(input_feed).__name__}."
            )
        return self._compiled.run(output_names or None, self._checked(input_feed))

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Value], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Start a run; ``callback(results, user_data, error)`` is called when it has ended.

        `error` is empty, or says why there are no results.
        """
        ports = [self._compiled.output(n) for n in output_names or ()] or self._compiled.outputs
        request = self._compiled.create_infer_request()

        def tell(_: Any) -> None:
            try:
                results: Results = request.results
                values, error = [results[port] for port in ports], ""
            except Exception as raised:
                values, error = [], str(raised)
            callback(values, user_data, error)

        request.set_callback(tell)
        request.start_async(self._checked(input_feed))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """Run once on values and return values."""
        return [OrtValue(v) for v in self.run(output_names, input_dict_ort_values)]

    def io_binding(self) -> IOBinding:
        """Return inputs and outputs that are set once, for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run once on what is bound."""
        iobinding.run()

    def _checked(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs; an array of another element type is refused, not converted."""
        given = {n: v.numpy() if isinstance(v, OrtValue) else v for n, v in feed.items()}
        for port in self._compiled.inputs:
            dtype = getattr(given.get(port.name), "dtype", None)
            if dtype is not None and port.is_tensor and Type(dtype) != port.element_type:
                raise TensorTypeError(
                    f"input {port.name!r} is {port}, got an array of {dtype}; convert it with "
                    f"astype({port.dtype}).",
                    port=port.name,
                )
        return given


def get_available_providers() -> list[str]:
    """Return the devices of this process."""
    return shared_core("inprocess").available_devices


get_all_providers = get_available_providers


def get_version_string() -> str:
    """Return this package's version."""
    return hetero_version()


def get_device() -> str:
    """Return ``GPU`` if a device of this process is one, else ``CPU``."""
    return "GPU" if any(name.startswith("GPU") for name in get_available_providers()) else "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Log what is at least so severe, of all packages here.

    Parameters
    ----------
    severity : {0, 1, 2, 3, 4}
        From everything to what ends a program.

    Raises
    ------
    ArgumentError
        For another number.
    """
    if severity not in range(5):
        raise ArgumentError(f"severity {severity!r}: it is 0 (everything), 1, 2, 3 or 4 (fatal).")
    logging.getLogger("hetero").setLevel(logging.DEBUG + 10 * severity)


def disable_telemetry_events() -> None:
    """Do nothing: nobody is told of the use of this package."""


def _config(options: Any) -> dict[str, Any]:
    """Return the properties that a session's options stand for."""
    found: dict[str, Any] = {}
    if options.intra_op_num_threads:
        found["INFERENCE_NUM_THREADS"] = options.intra_op_num_threads
    if options.enable_profiling:
        found["PERF_COUNT"] = True
    if not int(options.graph_optimization_level):
        found["DISABLE_TRANSFORMATIONS"] = True
    return found


def _device_string(providers: Sequence[Any], more: Sequence[Any]) -> str:
    """Return the devices of providers; `more`: the options of each, where they are given apart."""
    if more and len(more) != len(providers):
        raise ArgumentError(
            f"provider_options are one for each of providers, got {len(more)} for {len(providers)}."
        )
    names = []
    for provider, apart in zip(providers, more or repeat({}), strict=False):
        name, options = provider if isinstance(provider, tuple | list) else (provider, {})
        if (options or apart) and name != _CPU:  # which has none: ONNX Runtime drops them
            raise ArgumentError(f"options of {name} are not read; give devices= and config=.")
        word = name.removesuffix(_PROVIDER)
        is_ort = name.endswith(_PROVIDER)
        names.append(_DEVICES.get(name, f"ORT_{word.upper()}") if is_ort else name)
    return f"HETERO:{','.join(names)}" if names else "HETERO"


def _check_host(device_type: str) -> None:
    if device_type != "cpu":
        raise UnsupportedOperationError(
            f"memory of {device_type!r} is not offered here; the host's is 'cpu'. What stays on "
            "devices is a RemoteTensor: see Core.create_context."
        )
