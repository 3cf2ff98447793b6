"""OpenVINO's Python API on hetero: ``import hetero.openvino as ov``."""

from hetero import properties
from hetero.async_infer_queue import AsyncInferQueue
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.model.element_type import Type
from hetero.devices.model.extension import Extension
from hetero.devices.model.model_node import ModelNode as Node
from hetero.devices.model.ov_any import OVAny
from hetero.devices.model.partial_shape import Dimension, PartialShape, Shape, Symbol
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.remote_memory import RemoteContext, RemoteTensor
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.results import ProfilingInfo
from hetero.devices.request.tensor import Tensor
from hetero.devices.request.variable_states import VariableState
from hetero.faces.openvino import preprocess
from hetero.faces.openvino.core import Core
from hetero.faces.openvino.model import Model, Output
from hetero.faces.openvino.preprocess import Layout
from hetero.faces.openvino.shortcuts import (
    compile_model,
    get_batch,
    get_version,
    save_model,
    set_batch,
)
from hetero.version import Version

#: A port of a compiled model, under OpenVINO's name.
ConstOutput = TensorSpec

__all__ = [
    "AsyncInferQueue",
    "CompiledModel",
    "ConstOutput",
    "Core",
    "Dimension",
    "Extension",
    "InferRequest",
    "Layout",
    "Model",
    "Node",
    "OVAny",
    "Output",
    "PartialShape",
    "ProfilingInfo",
    "RemoteContext",
    "RemoteTensor",
    "Shape",
    "Symbol",
    "Tensor",
    "Type",
    "VariableState",
    "Version",
    "compile_model",
    "get_batch",
    "get_version",
    "preprocess",
    "properties",
    "save_model",
    "set_batch",
]
