"""hetero: one ONNX model, cut across unlike devices, pipelined over a Ray cluster."""

from devices.errors import HeteroError
from devices.infer_request import InferRequest
from devices.model import Model
from devices.results import Results
from devices.support import Refusal, Support
from devices.tensor import Tensor
from devices.tensor_spec import TensorSpec
from hetero.affinity import Affinity
from hetero.async_infer_queue import AsyncInferQueue
from hetero.compare import Comparison, compare
from hetero.compiled_model import CompiledModel
from hetero.core import Core

__all__ = [
    "Affinity",
    "AsyncInferQueue",
    "Comparison",
    "CompiledModel",
    "Core",
    "HeteroError",
    "InferRequest",
    "Model",
    "Refusal",
    "Results",
    "Support",
    "Tensor",
    "TensorSpec",
    "compare",
]
