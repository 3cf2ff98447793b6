"""ONNX Runtime's Python API on hetero: `InferenceSession` with the extra argument `devices`."""

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
    RequestCancelledError,
    TensorShapeError,
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
    "NodeArg",
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
#: Execution providers -> devices; any other provider ``XExecutionProvider`` is device ``ORT_X``.
_DEVICES: Final = {_CPU: "ORT", "DmlExecutionProvider": "ORT_DML"}
_PROVIDER: Final = "ExecutionProvider"
#: Milliseconds between two looks at RunOptions.terminate.
_TERMINATION_MS: Final = 20


class GraphOptimizationLevel(IntEnum):
    """Graph optimization levels of ONNX Runtime; only ORT_DISABLE_ALL has an effect."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Execution modes of ONNX Runtime; they have no effect."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass(slots=True)
class SessionOptions:
    """Options of a session; objects of ONNX Runtime's own class work too.

    Only the attributes below have an effect. The others are accepted for compatibility.

    Attributes
    ----------
    intra_op_num_threads : int
        Threads of each device; 0 for the device's default.
    enable_profiling : bool
        Whether requests record the times of nodes.
    graph_optimization_level : GraphOptimizationLevel
        ``ORT_DISABLE_ALL`` sets DISABLE_TRANSFORMATIONS: devices run the model unchanged.
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
        """Accept an entry for compatibility; it has no effect."""


@dataclass(slots=True)
class RunOptions:
    """Options of a run; only `terminate` has an effect.

    Attributes
    ----------
    logid : str
        Name of the run in the log.
    log_severity_level, log_verbosity_level : int
        Log levels.
    terminate : bool
        Whether to cancel the runs that have these options; another thread may set it.
    """

    logid: str = ""
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    terminate: bool = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Accept an entry for compatibility; it has no effect."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a session, with ONNX Runtime's names."""

    name: str
    #: ONNX's name of the type, such as ``tensor(float)``.
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Metadata of a model, with ONNX Runtime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class OrtValue:
    """A tensor in host memory, with ONNX Runtime's names."""

    def __init__(self, value: Value) -> None:
        self._tensor = Tensor(value, shared_memory=isinstance(value, np.ndarray))

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value that shares an array's memory.

        Raises
        ------
        UnsupportedOperationError
            If the device type is not ``cpu``.
        """
        _check_host(device_type)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value filled with zeros."""
        _check_host(device_type)
        return OrtValue(Tensor(type=element_type, shape=shape).data)

    def numpy(self) -> Any:
        """Return the value as an array."""
        return self._tensor.data

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._tensor.shape)

    def data_type(self) -> str:
        """Return ONNX's name of the type, such as ``tensor(float)``."""
        return f"tensor({self.element_type()})"

    def element_type(self) -> Type | str:
        """Return the element type."""
        return self._tensor.element_type

    def device_name(self) -> str:
        """Return the type of the device that holds the value: ``cpu``."""
        return "cpu"

    def has_value(self) -> bool:
        """Return whether there is a value."""
        return self._tensor.content() is not None

    def is_tensor(self) -> bool:
        """Return whether the value is one tensor."""
        return self._tensor.is_array

    def tensor_size_in_bytes(self) -> int:
        """Return the size in bytes."""
        return self._tensor.byte_size

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Copy an array of the same shape and type into the value's memory."""
        np.copyto(self._tensor.data, np_arr, casting="no")


class IOBinding:
    """Bound inputs and outputs of a session for repeated runs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Value] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: list[Value] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an input to an array."""
        self._inputs[self._session.port("input", name).name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to an OrtValue."""
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_output(self, name: str, device_type: str = "cpu", *rest: Any, **options: Any) -> None:
        """Bind an output that each run allocates.

        Raises
        ------
        UnsupportedOperationError
            If memory is passed by its address; bind an OrtValue instead.
        """
        _check_host(device_type)
        if rest[3:] or "buffer_ptr" in options:
            raise UnsupportedOperationError(
                f"output {name!r}: a memory address is not supported; use bind_ortvalue_output."
            )
        self._outputs[self._session.port("output", name).name] = None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to an OrtValue, into which runs write."""
        self._outputs[self._session.port("output", name).name] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        """Remove all bound inputs."""
        self._inputs = {}

    def clear_binding_outputs(self) -> None:
        """Remove all bound outputs."""
        self._outputs = {}

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs are in host memory."""

    def synchronize_outputs(self) -> None:
        """Do nothing: outputs are complete when a run ends."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return [OrtValue(value) for value in self._results]

    def copy_outputs_to_cpu(self) -> list[Value]:
        """Return the outputs of the last run as arrays."""
        return list(self._results)

    def run(self, run_options: Any = None) -> None:
        """Run the session once.

        Raises
        ------
        ArgumentError
            If no output is bound.
        TensorShapeError, TensorTypeError
            If a bound value does not fit its output.
        """
        if not self._outputs:
            raise ArgumentError("io_binding: expected at least one output; call bind_output first.")
        results = self._session.run(list(self._outputs), self._inputs, run_options)
        self._results = []
        for (name, memory), value in zip(self._outputs.items(), results, strict=True):
            if memory is not None:
                _copy_output(name, memory, value)
            self._results.append(value if memory is None else memory)


def _copy_output(name: str, memory: np.ndarray, value: np.ndarray) -> None:
    """Copy an output into the memory that is bound to it."""
    if memory.shape != value.shape:
        raise TensorShapeError(
            f"output {name!r} has shape {list(value.shape)}; expected the bound value's "
            f"{list(memory.shape)}. Bind a value of the output's shape, or use bind_output.",
            port=name,
        )
    if memory.dtype != value.dtype:
        raise TensorTypeError(
            f"output {name!r} is {value.dtype}; expected the bound value's {memory.dtype}. Bind a "
            "value of the output's type, or use bind_output.",
            port=name,
        )
    np.copyto(memory, value)


class InferenceSession:
    """A compiled model with ONNX Runtime's API: ``InferenceSession(path, devices="HETERO")``.

    Parameters
    ----------
    path_or_bytes : str, path, bytes, onnx.ModelProto or Model
        The model.
    sess_options : SessionOptions, optional
        An object of ONNX Runtime's class or of ours; see ours for the options that have an effect.
    providers : sequence of str or (str, dict), optional
        Execution providers in order of priority, used if `devices` is not set. Each stands for
        the device that uses it. Provider options are refused, except those of the CPU provider,
        which are ignored.
    devices : str, optional
        Device string, such as ``HETERO:ORT_CUDA,OV,CPU``; by default every device.
    config, affinity : optional
        Properties and pins, as for `Core.compile_model`.
    core : Core, optional
        The core that has the devices; by default a core that the process shares.

    Raises
    ------
    ArgumentError
        If no device uses a provider, or provider options are passed.
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
        shared = shared_core("inprocess") if core is None else core
        self._options = sess_options if sess_options is not None else SessionOptions()
        options = _config(self._options) | dict(config or {})
        provider_devices = _device_string(providers or (), provider_options or ())
        self._devices = devices or provider_devices
        model = shared.read_model(path_or_bytes)
        self._compiled: CompiledModel = shared.compile_model(
            model, self._devices, options, affinity=affinity
        )

    @property
    def compiled_model(self) -> CompiledModel:
        """The compiled model that the session runs."""
        return self._compiled

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs, each with `name`, `type` and `shape`."""
        return list(map(_node_arg, self._compiled.inputs))

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, each with `name`, `type` and `shape`."""
        return list(map(_node_arg, self._compiled.outputs))

    def port(self, role: str, name: str) -> TensorSpec:
        """Return an ``input`` or ``output`` by name."""
        return self._compiled.input(name) if role == "input" else self._compiled.output(name)

    def get_providers(self) -> list[str]:
        """Return the devices that run the model."""
        return list(dict.fromkeys(part.device for part in self._compiled.subgraphs))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the properties of each device that runs the model, as text."""
        properties_by_device = self._compiled.get_property("DEVICE_PROPERTIES")
        return {
            name: {n: str(v) for n, v in of.items()} for name, of in properties_by_device.items()
        }

    def get_session_options(self) -> Any:
        """Return the options that were passed to the session."""
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata."""
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
        """Run once and return the requested outputs; None or an empty list requests all.

        Raises
        ------
        TensorNameError
            If an output does not exist, or inputs are missing or unknown.
        TensorTypeError, TensorShapeError
            If an input does not fit its port.
        """
        if not isinstance(input_feed, Mapping):
            raise ArgumentTypeError(
                f"input_feed: expected a dict of arrays by name, got {type(input_feed).__name__}."
            )
        if run_options is None:
            return self._compiled.run(output_names or None, self._checked_inputs(input_feed))
        ports = self._ports(output_names)
        request = self._compiled.create_infer_request()
        request.start_async(self._checked_inputs(input_feed))
        while not request.wait_for(_TERMINATION_MS):
            if getattr(run_options, "terminate", False):
                request.cancel()
        if getattr(run_options, "terminate", False):
            raise RequestCancelledError("the run was cancelled: RunOptions.terminate is set.")
        request.wait()
        return [request.results[port] for port in ports]

    def _ports(self, output_names: Sequence[str] | None) -> list[TensorSpec]:
        """Return the outputs of these names, or all outputs."""
        return [self._compiled.output(n) for n in output_names or ()] or self._compiled.outputs

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Value], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Start a run, and call ``callback(results, user_data, error)`` when it ends.

        `error` is empty, or the reason why there are no results.
        """
        ports = self._ports(output_names)
        request = self._compiled.create_infer_request()

        def call_back(_: Any) -> None:
            try:
                results: Results = request.results
                values, error = [results[port] for port in ports], ""
            except Exception as raised:
                values, error = [], str(raised)
            callback(values, user_data, error)

        request.set_callback(call_back)
        request.start_async(self._checked_inputs(input_feed))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """Run once with OrtValues as inputs and outputs."""
        values = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(value) for value in values]

    def io_binding(self) -> IOBinding:
        """Return an `IOBinding` for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run once with bound inputs and outputs."""
        iobinding.run(run_options)

    def _checked_inputs(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs; refuse an array of another element type instead of converting it."""
        inputs = {n: v.numpy() if isinstance(v, OrtValue) else v for n, v in feed.items()}
        for port in self._compiled.inputs:
            dtype = getattr(inputs.get(port.name), "dtype", None)
            if dtype is not None and port.is_tensor and Type(dtype) != port.element_type:
                raise TensorTypeError(
                    f"input {port.name!r}: expected {port}, got an array of {dtype}; convert it "
                    f"with astype({port.dtype}).",
                    port=port.name,
                )
        return inputs


def _node_arg(port: TensorSpec) -> NodeArg:
    return NodeArg(port.name, port.type, list(port.shape or ()))


def get_available_providers() -> list[str]:
    """Return the devices of this process."""
    return shared_core("inprocess").available_devices


get_all_providers = get_available_providers


def get_version_string() -> str:
    """Return this package's version."""
    return hetero_version()


def get_device() -> str:
    """Return ``GPU`` if this process has a GPU device, otherwise ``CPU``."""
    return "GPU" if any(name.startswith("GPU") for name in get_available_providers()) else "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger ``hetero``.

    Parameters
    ----------
    severity : {0, 1, 2, 3, 4}
        Least severity that is logged, from 0 (verbose) to 4 (fatal).

    Raises
    ------
    ArgumentError
        If the severity is another number.
    """
    if severity not in range(5):
        raise ArgumentError(
            f"severity: expected 0 (verbose), 1, 2, 3 or 4 (fatal), got {severity!r}."
        )
    logging.getLogger("hetero").setLevel(logging.DEBUG + 10 * severity)


def disable_telemetry_events() -> None:
    """Do nothing: hetero has no telemetry."""


def _config(options: Any) -> dict[str, Any]:
    """Return the properties that a session's options set."""
    properties: dict[str, Any] = {}
    if options.intra_op_num_threads:
        properties["INFERENCE_NUM_THREADS"] = options.intra_op_num_threads
    if options.enable_profiling:
        properties["PERF_COUNT"] = True
    if not int(options.graph_optimization_level):
        properties["DISABLE_TRANSFORMATIONS"] = True
    return properties


def _device_string(providers: Sequence[Any], options_list: Sequence[Any]) -> str:
    """Return the device string of providers; `options_list` has the options of each provider."""
    if options_list and len(options_list) != len(providers):
        raise ArgumentError(
            f"provider_options: expected one for each of {len(providers)} providers, got "
            f"{len(options_list)}."
        )
    devices = []
    for provider, separate_options in zip(providers, options_list or repeat({}), strict=False):
        name, options = provider if isinstance(provider, tuple | list) else (provider, {})
        if (
            options or separate_options
        ) and name != _CPU:  # ONNX Runtime ignores options of the CPU provider
            raise ArgumentError(
                f"options of {name} are not supported; use devices= and config= instead."
            )
        provider_word = name.removesuffix(_PROVIDER)
        is_ort = name.endswith(_PROVIDER)
        if not is_ort and "Execution" in name:
            raise ArgumentError(
                f"provider {name!r}: expected a name that ends with {_PROVIDER}, such as {_CPU}, "
                "or the name of a device."
            )
        devices.append(_DEVICES.get(name, f"ORT_{provider_word.upper()}") if is_ort else name)
    return f"HETERO:{','.join(devices)}" if devices else "HETERO"


def _check_host(device_type: str) -> None:
    if device_type != "cpu":
        raise UnsupportedOperationError(
            f"device type: expected 'cpu', got {device_type!r}. For tensors in device memory use "
            "Core.create_context."
        )
