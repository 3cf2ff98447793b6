"""API for plugin authors: models, the plugin contract, properties and requests.

A plugin subclasses `OperatorPlugin` and fills in a table of operators; or it subclasses `Plugin`
and implements `name`, `refuse`, `compile` and a `Program` with `run`. The conformance suite in
`hetero.devices.testing` checks that a plugin keeps the contract.
"""

from typing import Any

from hetero.devices.deprecation import warn_renamed
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.reader import read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.operator_plugin import OperatorFunction, OperatorPlugin
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
from hetero.devices.request.device_model import DeviceModel
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response, StageTiming
from hetero.devices.request.results import ProfilingInfo, Results
from hetero.devices.request.state_machine import State
from hetero.devices.request.target import RequestTarget, Submission
from hetero.devices.request.tensor import Tensor

__all__ = [
    "COMMON_PROPERTIES",
    "OPTIONAL_PROPERTIES",
    "Config",
    "Configuration",
    "Constant",
    "DeviceModel",
    "ExecutedNode",
    "InferRequest",
    "Model",
    "Node",
    "OperatorFunction",
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
    "Response",
    "Results",
    "RunContext",
    "StageTiming",
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

#: Deprecated name -> the name that replaces it.
_RENAMED = {"CompiledModel": "DeviceModel", "Answer": "Response", "StageRun": "StageTiming"}


def __getattr__(name: str) -> Any:
    """Return a renamed class under its deprecated name."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(name, _RENAMED[name], stacklevel=2)
    return globals()[_RENAMED[name]]
