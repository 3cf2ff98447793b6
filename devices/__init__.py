"""What a plugin author imports: the model view, the plugin contract, properties and errors.

A plugin is a subclass of `OperatorPlugin`, which is a table of operators; or one of `Plugin` with
`name`, `refuse` and `compile`, and a `Program` with `run`. `hetero.devices.testing` checks that it
keeps the contract.
"""

from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.reader import read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.operator_plugin import OperatorPlugin
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Config,
    Property,
    PropertyTable,
)
from hetero.devices.plugin.registry import PluginEntry, find_plugin, load_plugins
from hetero.devices.plugin.remote_memory import RemoteContext, RemoteTensor
from hetero.devices.plugin.support import Refusal, Support
from hetero.devices.request.response import Answer, StageRun
from hetero.devices.request.compiled_model import CompiledModel
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.state_machine import State
from hetero.devices.request.request import Request
from hetero.devices.request.results import ProfilingInfo, Results
from hetero.devices.request.target import RequestTarget, Submission
from hetero.devices.request.tensor import Tensor

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
