"""What a plugin author imports: the model view, the plugin contract, properties and errors.

A plugin is a subclass of `OperatorPlugin`, which is a table of operators; or one of `Plugin` with
`name`, `refuse` and `compile`, and a `Program` with `run`. `devices.testing` checks that it keeps
the contract.
"""

from devices.compiled_model import CompiledModel
from devices.configuration import Configuration
from devices.infer_request import InferRequest, State
from devices.model import Constant, Model, Node
from devices.model_reader import read_model
from devices.operator_plugin import OperatorPlugin
from devices.plugin import Plugin
from devices.program import ExecutedNode, Payload, Program, RunContext, Value
from devices.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Config,
    Property,
    PropertyTable,
)
from devices.registry import PluginEntry, find_plugin, load_plugins
from devices.remote import RemoteContext, RemoteTensor
from devices.request_target import Answer, RequestTarget, Submission
from devices.results import ProfilingInfo, Results
from devices.support import Refusal, Support
from devices.tensor import Tensor
from devices.tensor_spec import TensorSpec

__all__ = [
    "COMMON_PROPERTIES",
    "OPTIONAL_PROPERTIES",
    "Answer",
    "CompiledModel",
    "Config",
    "Configuration",
    "Constant",
    "ExecutedNode",
    "InferRequest",
    "Model",
    "Node",
    "OperatorPlugin",
    "Payload",
    "Plugin",
    "PluginEntry",
    "ProfilingInfo",
    "Program",
    "Property",
    "PropertyTable",
    "Refusal",
    "RemoteContext",
    "RemoteTensor",
    "RequestTarget",
    "Results",
    "RunContext",
    "State",
    "Submission",
    "Support",
    "Tensor",
    "TensorSpec",
    "Value",
    "find_plugin",
    "load_plugins",
    "read_model",
]
