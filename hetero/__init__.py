"""hetero: one ONNX model, cut across unlike devices, pipelined over a Ray cluster."""

from devices.infer_request import InferRequest
from devices.model import Model
from devices.results import Results
from devices.support import Refusal, Support
from devices.tensor import Tensor
from devices.tensor_spec import TensorSpec
from hetero.affinity import Affinity
from hetero.async_infer_queue import AsyncInferQueue
from hetero.blob import hetero_version
from hetero.compare import Comparison, compare
from hetero.compiled_model import CompiledModel
from hetero.core import Core
from hetero.errors import (
    AffinityError,
    BlobError,
    ClusterError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    ExternalDataError,
    HeteroError,
    InferenceError,
    KernelError,
    ModelError,
    ModelNotFoundError,
    OverloadedError,
    PlanError,
    PluginLoadError,
    PropertyError,
    ReadOnlyPropertyError,
    RequestBusyError,
    RequestCancelledError,
    TensorError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
    UnknownDeviceError,
    UnknownPropertyError,
    UnsupportedNodesError,
    UnsupportedOperationError,
    UnsupportedOpsetError,
)
from hetero.planning.cost import Costs
from hetero.planning.report import PlanReport
from hetero.survey import Survey

#: This package's version.
__version__ = hetero_version()

__all__ = [
    "Affinity",
    "AffinityError",
    "AsyncInferQueue",
    "BlobError",
    "ClusterError",
    "Comparison",
    "CompiledModel",
    "Core",
    "Costs",
    "DeadlineError",
    "DeviceError",
    "DeviceLostError",
    "ExternalDataError",
    "HeteroError",
    "InferRequest",
    "InferenceError",
    "KernelError",
    "Model",
    "ModelError",
    "ModelNotFoundError",
    "OverloadedError",
    "PlanError",
    "PlanReport",
    "PluginLoadError",
    "PropertyError",
    "ReadOnlyPropertyError",
    "Refusal",
    "RequestBusyError",
    "RequestCancelledError",
    "Results",
    "Support",
    "Survey",
    "Tensor",
    "TensorError",
    "TensorNameError",
    "TensorShapeError",
    "TensorSpec",
    "TensorTypeError",
    "UnknownDeviceError",
    "UnknownPropertyError",
    "UnsupportedNodesError",
    "UnsupportedOperationError",
    "UnsupportedOpsetError",
    "__version__",
    "compare",
]
