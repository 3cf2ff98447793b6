"""hetero: run one ONNX model across several devices, pipelined over a Ray cluster.

Public names are imported on first use, so that `import hetero` is fast and loads no runtime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hetero import errors as errors
    from hetero import preprocess as preprocess
    from hetero import properties as properties
    from hetero.affinity.affinity import Affinity as Affinity
    from hetero.apps.generate.generation import BatchGeneration as BatchGeneration
    from hetero.apps.generate.generation import Generation as Generation
    from hetero.apps.generate.read_decoder import read_decoder as read_decoder
    from hetero.apps.serve.server import serve as serve
    from hetero.async_infer_queue import AsyncInferQueue as AsyncInferQueue
    from hetero.cache.check import BlobCheck as BlobCheck
    from hetero.cache.check import StageCheck as StageCheck
    from hetero.comparison.compare import Comparison as Comparison
    from hetero.comparison.compare import compare as compare
    from hetero.compile.compiled_model import CompiledModel as CompiledModel
    from hetero.core import Core as Core
    from hetero.devices.model.element_type import Type as Type
    from hetero.devices.model.extension import Extension as Extension
    from hetero.devices.model.extension import custom_operator as custom_operator
    from hetero.devices.model.model import Model as Model
    from hetero.devices.model.partial_shape import Dimension as Dimension
    from hetero.devices.model.partial_shape import PartialShape as PartialShape
    from hetero.devices.model.partial_shape import Shape as Shape
    from hetero.devices.model.partial_shape import Symbol as Symbol
    from hetero.devices.model.tensor_spec import TensorSpec as TensorSpec
    from hetero.devices.plugin.remote_memory import RemoteContext as RemoteContext
    from hetero.devices.plugin.remote_memory import RemoteTensor as RemoteTensor
    from hetero.devices.plugin.support import Refusal as Refusal
    from hetero.devices.plugin.support import Support as Support
    from hetero.devices.request.infer_request import InferRequest as InferRequest
    from hetero.devices.request.results import ProfilingInfo as ProfilingInfo
    from hetero.devices.request.results import Results as Results
    from hetero.devices.request.tensor import Tensor as Tensor
    from hetero.devices.request.variable_states import VariableState as VariableState
    from hetero.errors import *  # noqa: F403 - each error is also a top-level name
    from hetero.faces.onnxruntime import ExecutionMode as ExecutionMode
    from hetero.faces.onnxruntime import GraphOptimizationLevel as GraphOptimizationLevel
    from hetero.faces.onnxruntime import InferenceSession as InferenceSession
    from hetero.faces.onnxruntime import OrtValue as OrtValue
    from hetero.faces.onnxruntime import RunOptions as RunOptions
    from hetero.faces.onnxruntime import SessionOptions as SessionOptions
    from hetero.faces.onnxruntime import disable_telemetry_events as disable_telemetry_events
    from hetero.faces.onnxruntime import get_all_providers as get_all_providers
    from hetero.faces.onnxruntime import get_available_providers as get_available_providers
    from hetero.faces.onnxruntime import get_device as get_device
    from hetero.faces.onnxruntime import get_version_string as get_version_string
    from hetero.faces.onnxruntime import set_default_logger_severity as set_default_logger_severity
    from hetero.faces.openvino import ConstOutput as ConstOutput
    from hetero.faces.openvino.preprocess import ColorFormat as ColorFormat
    from hetero.faces.openvino.preprocess import Layout as Layout
    from hetero.faces.openvino.preprocess import PaddingMode as PaddingMode
    from hetero.faces.openvino.preprocess import PrePostProcessor as PrePostProcessor
    from hetero.faces.openvino.preprocess import ResizeAlgorithm as ResizeAlgorithm
    from hetero.faces.openvino.shortcuts import compile_model as compile_model
    from hetero.faces.openvino.shortcuts import get_batch as get_batch
    from hetero.faces.openvino.shortcuts import get_version as get_version
    from hetero.faces.openvino.shortcuts import save_model as save_model
    from hetero.faces.openvino.shortcuts import set_batch as set_batch
    from hetero.observe.metrics_server import MetricsServer as MetricsServer
    from hetero.observe.trace import Trace as Trace
    from hetero.planning.cost.costs import Costs as Costs
    from hetero.planning.plan_report import PlanReport as PlanReport
    from hetero.query.survey import Survey as Survey
    from hetero.version import Version as Version

    __version__: str

#: Module -> the public names that it defines.
_EXPORTS: Final = {
    "hetero.affinity.affinity": ("Affinity",),
    "hetero.async_infer_queue": ("AsyncInferQueue",),
    "hetero.cache.check": (
        "BlobCheck",
        "StageCheck",
    ),
    "hetero.comparison.compare": (
        "Comparison",
        "compare",
    ),
    "hetero.compile.compiled_model": ("CompiledModel",),
    "hetero.core": ("Core",),
    "hetero.devices.model.element_type": ("Type",),
    "hetero.devices.model.extension": (
        "Extension",
        "custom_operator",
    ),
    "hetero.devices.model.model": ("Model",),
    "hetero.devices.model.partial_shape": (
        "Dimension",
        "PartialShape",
        "Shape",
        "Symbol",
    ),
    "hetero.devices.model.tensor_spec": ("TensorSpec",),
    "hetero.faces.openvino": ("ConstOutput",),
    "hetero.devices.plugin.remote_memory": (
        "RemoteContext",
        "RemoteTensor",
    ),
    "hetero.devices.plugin.support": (
        "Refusal",
        "Support",
    ),
    "hetero.devices.request.infer_request": ("InferRequest",),
    "hetero.devices.request.results": (
        "ProfilingInfo",
        "Results",
    ),
    "hetero.devices.request.variable_states": ("VariableState",),
    "hetero.devices.request.tensor": ("Tensor",),
    "hetero.apps.generate.read_decoder": ("read_decoder",),
    "hetero.apps.generate.generation": (
        "BatchGeneration",
        "Generation",
    ),
    "hetero.faces.onnxruntime": (
        "ExecutionMode",
        "GraphOptimizationLevel",
        "InferenceSession",
        "OrtValue",
        "RunOptions",
        "SessionOptions",
        "disable_telemetry_events",
        "get_all_providers",
        "get_available_providers",
        "get_device",
        "get_version_string",
        "set_default_logger_severity",
    ),
    "hetero.observe.metrics_server": ("MetricsServer",),
    "hetero.observe.trace": ("Trace",),
    "hetero.planning.cost.costs": ("Costs",),
    "hetero.planning.plan_report": ("PlanReport",),
    "hetero.faces.openvino.preprocess": (
        "ColorFormat",
        "Layout",
        "PaddingMode",
        "PrePostProcessor",
        "ResizeAlgorithm",
    ),
    "hetero.query.survey": ("Survey",),
    "hetero.apps.serve.server": ("serve",),
    "hetero.faces.openvino.shortcuts": (
        "compile_model",
        "get_batch",
        "get_version",
        "save_model",
        "set_batch",
    ),
    "hetero.version": ("Version",),
    "hetero.errors": (
        "AffinityError",
        "ArgumentError",
        "ArgumentTypeError",
        "BlobError",
        "ClusterError",
        "DeadlineError",
        "DeviceError",
        "DeviceLostError",
        "DeviceMemoryError",
        "ExternalDataError",
        "HeteroError",
        "InferenceError",
        "KernelError",
        "ModelError",
        "ModelNotFoundError",
        "ModelTypeError",
        "OverloadedError",
        "PlanError",
        "PluginLoadError",
        "PropertyError",
        "ReadOnlyPropertyError",
        "RequestBusyError",
        "RequestCancelledError",
        "RequestNotStartedError",
        "TensorError",
        "TensorLostError",
        "TensorNameError",
        "TensorShapeError",
        "TensorTypeError",
        "UnknownDeviceError",
        "UnknownPropertyError",
        "UnsupportedNodesError",
        "UnsupportedOperationError",
        "UnsupportedOpsetError",
        "VerificationError",
    ),
}
_MODULE_OF: Final = {name: module for module, names in _EXPORTS.items() for name in names}
_SUBMODULES: Final = ("backend", "errors", "onnxruntime", "openvino", "preprocess", "properties")

__all__ = sorted([*_MODULE_OF, "__version__", "errors", "preprocess", "properties"])


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    value: Any
    if name == "__version__":
        value = import_module("hetero.version").hetero_version()
    elif name in _SUBMODULES:
        value = import_module(f"hetero.{name}")
    elif name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module 'hetero' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
