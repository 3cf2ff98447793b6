"""The error tree: all errors that this project raises on purpose.

::

    HeteroError (RuntimeError)
    ├── ModelError (ValueError)                an invalid model
    │   ├── ModelTypeError (TypeError)         a model argument of the wrong type
    │   ├── ModelNotFoundError (FileNotFoundError)
    │   ├── ExternalDataError                  external weights are missing, too short or outside
    │   └── UnsupportedOpsetError              an opset newer than the installed onnx
    ├── UnsupportedNodesError (NotImplementedError)   nodes that no device supports, with reasons
    ├── AffinityError (ValueError)             a pin of an unknown node, or to an invalid device
    ├── DeviceError (RuntimeError)
    │   ├── UnknownDeviceError (LookupError)
    │   ├── PluginLoadError (ImportError)      a missing or broken backend
    │   ├── DeviceLostError (ConnectionError)  a device that failed during a request
    │   └── VerificationError (ArithmeticError)   a device with wrong results
    ├── PropertyError (ValueError)
    │   ├── UnknownPropertyError (LookupError)
    │   └── ReadOnlyPropertyError (AttributeError)
    ├── ArgumentError (ValueError)             an invalid argument
    │   └── ArgumentTypeError (TypeError)
    ├── TensorError (ValueError)               a tensor that does not fit its port
    │   ├── TensorNameError (KeyError)
    │   ├── TensorTypeError (TypeError)
    │   ├── TensorShapeError
    │   └── TensorLostError (ConnectionError)  a resident tensor of a device that failed
    ├── KernelError (ValueError)               a node with invalid inputs or attributes
    ├── InferenceError (RuntimeError)          a failure of a device in a stage
    │   └── DeviceMemoryError (MemoryError)    a device with too little memory for a stage
    ├── RequestBusyError (RuntimeError)
    ├── RequestNotStartedError (RuntimeError)
    ├── RequestCancelledError (RuntimeError)
    ├── DeadlineError (TimeoutError)
    ├── OverloadedError (RuntimeError)         a full queue
    ├── ClusterError (RuntimeError)            Ray fails to start, or is unreachable
    ├── BlobError (ValueError)                 a damaged or foreign blob, or one of another version
    ├── PlanError (ValueError)                 constraints that no plan satisfies
    └── UnsupportedOperationError (NotImplementedError)   an optional feature that is missing

Each error is also of the matching built-in type, has its data as attributes, and can be pickled.
A message states where the error occurred, the expected and the actual value, and the fix.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hetero.devices.plugin.support import Refusal

__all__ = [
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
]


#: Maximum length of the message of a plugin's exception.
_MAX_LENGTH: Final = 10_000


def error_text(error: BaseException, convert: Callable[[object], str] = str) -> str:
    """Return the message of an exception, of limited length and safe to encode.

    The `__str__` of a plugin's exception may raise, or return megabytes.
    """
    try:
        text = convert(error)
        if len(text) > _MAX_LENGTH:
            text = f"{text[:_MAX_LENGTH]} ... ({len(text)} characters)"
        return text.encode(errors="backslashreplace").decode()
    except Exception:
        return f"a {type(error).__name__} without a readable message"


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is the user's Ctrl-C, which only the main thread receives."""
    is_main = threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt) and is_main


def _rebuild(cls: type[HeteroError], message: str, data: dict[str, Any]) -> HeteroError:
    return cls(message, **data)


class HeteroError(RuntimeError):
    """Base class of all errors.

    Parameters
    ----------
    message : str
        Where the error occurred, the expected and the actual value, and the fix.
    **data : object
        Data of the error; each item becomes an attribute.
    """

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data
        self.__dict__.update(data)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.data)


class ModelError(HeteroError, ValueError):
    """A model is invalid."""


class ModelTypeError(ModelError, TypeError):
    """A model argument is neither a path, bytes nor a ModelProto."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """A model file does not exist or cannot be read."""


class ExternalDataError(ModelError):
    """An external data file is missing, too short, or outside the model's folder."""


class UnsupportedOpsetError(ModelError):
    """A model imports an opset that is newer than the installed onnx."""


class UnsupportedNodesError(HeteroError, NotImplementedError):
    """No listed device supports some of a model's nodes."""

    #: Node name -> {device name: refusal}.
    unsupported: Mapping[str, Mapping[str, Refusal]]


class AffinityError(HeteroError, ValueError):
    """A pin names an unknown node or device, or a device that does not support the node."""


class DeviceError(HeteroError, RuntimeError):
    """Base class of errors about devices."""

    device: str


class UnknownDeviceError(DeviceError, LookupError):
    """A device does not exist."""


class PluginLoadError(DeviceError, ImportError):
    """A plugin or its backend failed to load."""


class DeviceLostError(DeviceError, ConnectionError):
    """A device failed, or became unreachable, during a request."""

    node: str
    attempt: int


class VerificationError(DeviceError, ArithmeticError):
    """A device gives other results than the reference for some of a model's nodes."""

    #: The nodes of the smallest failing subgraphs.
    nodes: tuple[str, ...]


class PropertyError(HeteroError, ValueError):
    """A property's value is invalid."""


class UnknownPropertyError(PropertyError, LookupError):
    """A property does not exist."""


class ReadOnlyPropertyError(PropertyError, AttributeError):
    """A property is read-only."""


class ArgumentError(HeteroError, ValueError):
    """An argument has an invalid value."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has an invalid type."""


class TensorError(HeteroError, ValueError):
    """A tensor does not fit its port."""


class TensorLostError(TensorError, ConnectionError):
    """A resident tensor was lost with its device; `port` and `device` identify it."""


class TensorNameError(TensorError, KeyError):
    """A tensor name is missing or unknown."""


class TensorTypeError(TensorError, TypeError):
    """A tensor has another element type than its port."""


class TensorShapeError(TensorError):
    """A tensor has another shape than its port."""


class KernelError(HeteroError, ValueError):
    """A node's inputs or attributes violate its operator's specification."""

    node: str
    op_type: str
    opset: int


class InferenceError(HeteroError, RuntimeError):
    """A device failed while it ran a stage."""


class DeviceMemoryError(InferenceError, MemoryError):
    """A device has too little memory for a stage; another device may have enough."""


class RequestBusyError(HeteroError, RuntimeError):
    """A request is running, and the operation requires an idle request."""


class RequestNotStartedError(HeteroError, RuntimeError):
    """A request has never run, and therefore has no results."""


class RequestCancelledError(HeteroError, RuntimeError):
    """A request was cancelled."""


class DeadlineError(HeteroError, TimeoutError):
    """A request exceeded its deadline."""


class OverloadedError(HeteroError, RuntimeError):
    """A bounded queue is full, or the system cannot start more threads."""


class ClusterError(HeteroError, RuntimeError):
    """Ray fails to start, or its cluster is unreachable."""


class BlobError(HeteroError, ValueError):
    """A blob is damaged, foreign, or of another format version."""


class PlanError(HeteroError, ValueError):
    """No plan satisfies the constraints."""


class UnsupportedOperationError(HeteroError, NotImplementedError):
    """A device or plugin does not support an optional operation."""
