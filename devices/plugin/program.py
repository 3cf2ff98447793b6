"""What a plugin compiles a model to: a program that turns input values into output values."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero.devices.errors import (
    BlobError,
    DeadlineError,
    RequestCancelledError,
    UnsupportedOperationError,
)
from hetero.devices.plugin.one_shot_event import OneShotEvent
from hetero.devices.plugin.remote_memory import RemoteTensor, ResidentTensor

#: A tensor (numpy array), a sequence (list of values), an optional (a value or None), or a map.
Value = Any


def nbytes_of(value: Any) -> int:
    """Return about how many bytes a value's contents take; strings count their characters."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return sum(len(item) if isinstance(item, str | bytes) else 8 for item in value.flat)
    if type(value) is ResidentTensor:  # its bundle counts it
        return 0
    nbytes: int | None = getattr(value, "nbytes", None)  # of arrays and remote tensors
    if nbytes is not None:
        return nbytes
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0 if value is None else 8
    return sum(map(nbytes_of, value))


class CancelHook:
    """The block of a run in which its backend is asked to stop once the run is cancelled."""

    __slots__ = ("_context", "_stop")

    def __init__(self, context: RunContext, stop: Callable[[], object]) -> None:
        self._context = context
        self._stop = stop

    def __enter__(self) -> None:
        self._context._hook = self._stop
        if self._context._is_cancelled:
            self._stop()

    def __exit__(self, *exception: object) -> None:
        self._context._hook = None


@dataclass(slots=True)
class RunContext:
    """What one run of a program may ask and tell.

    Attributes
    ----------
    profile : bool
        Whether to time executed nodes with `record`.
    node_times_s : dict of str to float
        Seconds by executed node, as recorded.
    upload_s, download_s : float
        Seconds spent bringing inputs to the device and outputs back: the program adds what it can
        tell from the run itself.
    infer_s : float
        Seconds of the run itself, once it has ended.
    left : frozenset of int
        Positions of outputs that nobody wants on the host: a program of a plugin that
        `leaves_outputs` may return each as a RemoteTensor.
    """

    profile: bool = False
    node_times_s: dict[str, float] = field(default_factory=dict)
    upload_s: float = 0.0
    infer_s: float = 0.0
    download_s: float = 0.0
    left: frozenset[int] = frozenset()
    _is_cancelled: bool = False
    #: What `sleep` waits on; made by the first, as most runs never sleep.
    _woken: OneShotEvent | None = None
    _deadline: float | None = None
    _hook: Callable[[], object] | None = None

    def cancel(self) -> None:
        """Ask the run to stop at the next node."""
        self._is_cancelled = True
        if self._woken is not None:
            self._woken.set()
        hook = self._hook
        if hook is not None:
            hook()

    def on_cancel(self, stop: Callable[[], object]) -> CancelHook:
        """Return a block in which `cancel` calls `stop`: for backends that stop themselves."""
        return CancelHook(self, stop)

    def set_timeout(self, timeout_s: float) -> None:
        """Let the run take `timeout_s` seconds from now, waiting in queues included."""
        self._deadline = time.monotonic() + timeout_s

    def check_cancelled(self) -> None:
        """Raise if the run was asked to stop, or its time is up; programs call it between nodes.

        Raises
        ------
        RequestCancelledError, DeadlineError
            What stopped it.
        """
        if self._is_cancelled:
            raise RequestCancelledError("the request was cancelled while it ran")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise DeadlineError("the request's time was up before it had run to its end")

    def sleep(self, seconds: float) -> None:
        """Wait `seconds`, or until the run is asked to stop or its time is up; then check."""
        left = seconds
        if self._deadline is not None:
            left = min(seconds, max(0.0, self._deadline - time.monotonic()) + 1e-3)
        self._woken = self._woken or OneShotEvent()
        if not self._is_cancelled:
            self._woken.wait(left)
        self.check_cancelled()

    def record(self, node: str, seconds: float) -> None:
        """Add `seconds` to an executed node's time."""
        self.node_times_s[node] = self.node_times_s.get(node, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class ExecutedNode:
    """A row of the runtime model: one node as the device really runs it.

    Attributes
    ----------
    name : str
        Unique in the program.
    layer_type : str
        The operator that is run, fused ones included.
    execution_order : int
        Position in the run.
    implementation : str
        What runs it: a kernel's name, a backend's provider.
    original_names : tuple of str
        The model's nodes that it covers.
    """

    name: str
    layer_type: str
    execution_order: int
    implementation: str
    original_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Payload:
    """A device's own form of a compiled model, for blobs.

    Attributes
    ----------
    header : mapping
        msgpack-able values: what the plugin's `load` needs besides tensors.
    tensors : mapping of str to numpy.ndarray
        Weights, stored raw and aligned, memory-mapped on load.
    """

    header: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    def in_memory(self) -> Payload:
        """Return it with tensors of its own, that depend on no file."""
        return Payload(self.header, {name: array.copy() for name, array in self.tensors.items()})

    def check_format(self, wanted: str, model: str) -> None:
        """Raise BlobError unless the header says that this is the payload of such a program."""
        if (found := self.header.get("format")) != wanted:
            raise BlobError(
                f"model {model!r}: a payload of format {found!r}, wanted {wanted!r}; it is another "
                "device's. Compile the model again."
            )


class Program(ABC):
    """A compiled model on one device, without names, states or checks: those are the base's.

    With NUM_STREAMS over 1, `run` is called from that many threads at once.
    """

    @abstractmethod
    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs.

        Parameters
        ----------
        inputs : sequence of values
            One for each port in order, already checked and converted; arrays may be read-only
            and must not be written to.
        context : RunContext
            Cancellation and timing.

        Returns
        -------
        sequence of values
            One for each output port; host arrays that the program will not touch again, but for
            what `context` says may be left. Those that share memory with an input, a constant or
            one another are copied by the caller.
        """

    def takes_remote(self, tensor: RemoteTensor) -> bool:
        """Whether `run` takes `tensor` where it is; else it gets a copy on the host."""
        return False

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, in execution order; empty where the backend does not tell."""
        return ()

    def export(self) -> Payload:
        """Return the device's own form of the program.

        Raises
        ------
        UnsupportedOperationError
            If it has none; the subgraph's ONNX is kept instead and compiled again on import.
        """
        raise UnsupportedOperationError(f"{type(self).__name__} cannot be exported")

    def close(self) -> None:  # noqa: B027 - most programs hold nothing beyond their memory
        """Give back what the program holds on the device."""
