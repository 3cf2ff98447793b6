"""The error tree: every error this project raises on purpose.

::

    HeteroError (RuntimeError)
    ├── ModelError (ValueError)                a model that cannot be used
    │   ├── ModelTypeError (TypeError)         what is given as a model is not one
    │   ├── ModelNotFoundError (FileNotFoundError)
    │   ├── ExternalDataError                  weights beside the model: missing, short, outside
    │   └── UnsupportedOpsetError              an opset newer than the installed onnx knows
    ├── UnsupportedNodesError (NotImplementedError)   nodes that no device takes, with reasons
    ├── AffinityError (ValueError)             a pin on no node, no device, or an unsupporting one
    ├── DeviceError (RuntimeError)
    │   ├── UnknownDeviceError (LookupError)
    │   ├── PluginLoadError (ImportError)      a backend that is missing or broken
    │   └── DeviceLostError (ConnectionError)  a device that died with work in flight
    ├── PropertyError (ValueError)
    │   ├── UnknownPropertyError (LookupError)
    │   └── ReadOnlyPropertyError (AttributeError)
    ├── ArgumentError (ValueError)             an argument that a call cannot use
    │   └── ArgumentTypeError (TypeError)
    ├── TensorError (ValueError)               an input or output tensor that does not fit its port
    │   ├── TensorNameError (KeyError)
    │   ├── TensorTypeError (TypeError)
    │   ├── TensorShapeError
    │   └── TensorLostError (ConnectionError)  kept by a device that is gone
    ├── KernelError (ValueError)               a node whose inputs break its specification
    ├── InferenceError (RuntimeError)          a device failed while it ran a stage
    │   └── DeviceMemoryError (MemoryError)    for want of memory: another device may have more
    ├── RequestBusyError (RuntimeError)
    ├── RequestNotStartedError (RuntimeError)
    ├── RequestCancelledError (RuntimeError)
    ├── DeadlineError (TimeoutError)
    ├── OverloadedError (RuntimeError)         a bounded queue is full
    ├── ClusterError (RuntimeError)            Ray cannot start, or cannot be reached
    ├── BlobError (ValueError)                 a blob that is damaged, foreign or of another version
    ├── PlanError (ValueError)                 constraints that no plan meets
    └── UnsupportedOperationError (NotImplementedError)   what a device or plugin does not offer

Each error is also the fitting built-in type, carries its data as attributes and survives pickling.
A message says where, what was got, what was wanted, and how to fix it.
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
]


#: Characters of an exception of a plugin's that are shown.
_SHOWN: Final = 10_000


def shown(error: BaseException, show: Callable[[object], str] = str) -> str:
    """Return what an exception says, in characters that can be encoded.

    A plugin's own may fail to say anything, or say megabytes.
    """
    try:
        said = show(error)
        said = said if len(said) <= _SHOWN else f"{said[:_SHOWN]} ... ({len(said)} characters)"
        return said.encode(errors="backslashreplace").decode()
    except Exception:
        return f"a {type(error).__name__} that cannot be shown"


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is the user's Ctrl-C, which comes in the main thread alone."""
    is_main = threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt) and is_main


def _rebuild(cls: type[HeteroError], message: str, data: dict[str, Any]) -> HeteroError:
    return cls(message, **data)


class HeteroError(RuntimeError):
    """Base of every error here.

    Parameters
    ----------
    message : str
        Where, what was got, what was wanted, the fix.
    **data : object
        What the error is about; each becomes an attribute.
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
    """The model cannot be used as it is."""


class ModelTypeError(ModelError, TypeError):
    """What is given as a model is neither a path, bytes nor a ModelProto."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no such model file."""


class ExternalDataError(ModelError):
    """Weights kept beside the model are missing, too short, or outside the model's folder."""


class UnsupportedOpsetError(ModelError):
    """The model imports an operator set newer than the installed onnx knows."""


class UnsupportedNodesError(HeteroError, NotImplementedError):
    """No device in the list takes these nodes."""

    #: Node name -> {device name: why it refused}.
    unsupported: Mapping[str, Mapping[str, Refusal]]


class AffinityError(HeteroError, ValueError):
    """A pin names no node, no device, or a device that does not support the node."""


class DeviceError(HeteroError, RuntimeError):
    """Something about a device."""

    device: str


class UnknownDeviceError(DeviceError, LookupError):
    """No such device here."""


class PluginLoadError(DeviceError, ImportError):
    """A plugin, or the backend that it needs, could not be loaded."""


class DeviceLostError(DeviceError, ConnectionError):
    """A device died, or stopped answering, with work in flight."""

    node: str
    attempt: int


class PropertyError(HeteroError, ValueError):
    """A property's value is not one that it takes."""


class UnknownPropertyError(PropertyError, LookupError):
    """No property of that name."""


class ReadOnlyPropertyError(PropertyError, AttributeError):
    """The property can be read, not set."""


class ArgumentError(HeteroError, ValueError):
    """An argument that a call cannot use."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of another type than the call takes."""


class TensorError(HeteroError, ValueError):
    """A tensor does not fit its port."""


class TensorLostError(TensorError, ConnectionError):
    """A tensor was kept by a device that is gone; `port` and `device` say which."""


class TensorNameError(TensorError, KeyError):
    """A tensor name is missing, unknown, or not one of the ports'."""


class TensorTypeError(TensorError, TypeError):
    """A tensor has another element type than its port."""


class TensorShapeError(TensorError):
    """A tensor has another shape than its port."""


class KernelError(HeteroError, ValueError):
    """A node's inputs or attributes break its specification."""

    node: str
    op_type: str
    opset: int


class InferenceError(HeteroError, RuntimeError):
    """A device failed while it ran a stage."""


class DeviceMemoryError(InferenceError, MemoryError):
    """A device has not the memory for a stage; another may."""


class RequestBusyError(HeteroError, RuntimeError):
    """The request is running; wait for it first."""


class RequestNotStartedError(HeteroError, RuntimeError):
    """The request has not run, so it has no results."""


class RequestCancelledError(HeteroError, RuntimeError):
    """The request was cancelled."""


class DeadlineError(HeteroError, TimeoutError):
    """No answer within the time allowed."""


class OverloadedError(HeteroError, RuntimeError):
    """A bounded queue is full, or the system has no more threads."""


class ClusterError(HeteroError, RuntimeError):
    """Ray cannot start, or cannot be reached."""


class BlobError(HeteroError, ValueError):
    """A compiled model is damaged, foreign, or of another format version."""


class PlanError(HeteroError, ValueError):
    """No plan meets the constraints."""


class UnsupportedOperationError(HeteroError, NotImplementedError):
    """The device or plugin does not offer this."""
