"""What a plugin author imports: the model view, the plugin contract, properties and errors.

A plugin is a subclass of `OperatorPlugin`, which is a table of operators; or one of `Plugin` with
`name`, `refuse` and `compile`, and a `Program` with `run`. `devices.testing` checks that it keeps
the contract.
"""

from devices.model.model import Constant, Model, Node
from devices.model.reader import read_model
from devices.model.tensor_spec import TensorSpec
from devices.plugin.configuration import Configuration
from devices.plugin.operator_plugin import OperatorPlugin
from devices.plugin.plugin import Plugin
from devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from devices.plugin.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Config,
    Property,
    PropertyTable,
)
from devices.plugin.registry import PluginEntry, find_plugin, load_plugins
from devices.plugin.remote import RemoteContext, RemoteTensor
from devices.plugin.support import Refusal, Support
from devices.request.answer import Answer, StageRun
from devices.request.compiled_model import CompiledModel
from devices.request.infer_request import InferRequest
from devices.request.machine import State
from devices.request.request import Request
from devices.request.results import ProfilingInfo, Results
from devices.request.target import RequestTarget, Submission
from devices.request.tensor import Tensor

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
    "Request",
    "RequestTarget",
    "Results",
    "RunContext",
    "StageRun",
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
