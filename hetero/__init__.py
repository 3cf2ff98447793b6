"""hetero: one ONNX model, cut across unlike devices, pipelined over a Ray cluster."""

from hetero import own_packages  # noqa: F401 - first: the rest may be hidden

# isort: split
from devices.model.element_type import Type
from devices.model.extension import Extension, custom_operator
from devices.model.model import Model
from devices.model.partial_shape import Dimension, PartialShape, Shape, Symbol
from devices.model.tensor_spec import TensorSpec
from devices.plugin.remote import RemoteContext, RemoteTensor
from devices.plugin.support import Refusal, Support
from devices.request.infer_request import InferRequest
from devices.request.results import ProfilingInfo, Results
from devices.request.states import VariableState
from devices.request.tensor import Tensor
from hetero import errors, preprocess, properties
from hetero.affinity.affinity import Affinity
from hetero.async_infer_queue import AsyncInferQueue
from hetero.compare.compare import Comparison, compare
from hetero.compile.compiled_model import CompiledModel
from hetero.core import Core
from hetero.errors import *  # noqa: F403 - each error is also hetero's own name
from hetero.generate.decoder import read_decoder
from hetero.generate.generation import BatchGeneration, Generation
from hetero.inference_session import (
    ExecutionMode,
    GraphOptimizationLevel,
    InferenceSession,
    OrtValue,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_device,
    set_default_logger_severity,
)
from hetero.observe.metrics_server import MetricsServer
from hetero.observe.trace import Trace
from hetero.planning.cost.costs import Costs
from hetero.planning.report import PlanReport
from hetero.preprocess import ColorFormat, Layout, PaddingMode, PrePostProcessor, ResizeAlgorithm
from hetero.query.survey import Survey
from hetero.serve.server import serve
from hetero.shortcuts import compile_model, get_batch, get_version, save_model, set_batch
from hetero.version import Version, hetero_version

#: A model's port, under OpenVINO's name.
ConstOutput = TensorSpec
#: ONNX Runtime's name of `get_version`.
get_version_string = get_version
#: This package's version.
__version__ = hetero_version()

__all__ = [
    "Affinity",
    "AsyncInferQueue",
    "BatchGeneration",
    "ColorFormat",
    "Comparison",
    "CompiledModel",
    "ConstOutput",
    "Core",
    "Costs",
    "Dimension",
    "ExecutionMode",
    "Extension",
    "Generation",
    "GraphOptimizationLevel",
    "InferRequest",
    "InferenceSession",
    "Layout",
    "MetricsServer",
    "Model",
    "OrtValue",
    "PaddingMode",
    "PartialShape",
    "PlanReport",
    "PrePostProcessor",
    "ProfilingInfo",
    "Refusal",
    "RemoteContext",
    "RemoteTensor",
    "ResizeAlgorithm",
    "Results",
    "RunOptions",
    "SessionOptions",
    "Shape",
    "Support",
    "Survey",
    "Symbol",
    "Tensor",
    "TensorSpec",
    "Trace",
    "Type",
    "VariableState",
    "Version",
    "__version__",
    "compare",
    "compile_model",
    "custom_operator",
    "disable_telemetry_events",
    "errors",
    "get_all_providers",
    "get_available_providers",
    "get_batch",
    "get_device",
    "get_version",
    "get_version_string",
    "preprocess",
    "properties",
    "read_decoder",
    "save_model",
    "serve",
    "set_batch",
    "set_default_logger_severity",
]
__all__ += errors.__all__


def __dir__() -> list[str]:
    """List the public names: modules that happen to be imported are none of them."""
    return __all__
