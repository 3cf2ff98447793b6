"""Interfaces of compiled programs: `Program`, `RunContext`, `Payload` and `ExecutedNode`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero.devices.deprecation import deprecated_alias
from hetero.devices.errors import (
    BlobError,
    DeadlineError,
    RequestCancelledError,
    UnsupportedOperationError,
)
from hetero.devices.plugin.one_shot_event import OneShotEvent
from hetero.devices.plugin.remote_memory import RemoteTensor, ResidentTensor, is_remote

#: A tensor (numpy array), sequence (list of values), optional (value or None) or map (dict).
Value = Any


def nbytes_of(value: Any) -> int:
    """Return the approximate size of a value in bytes; strings count their characters."""
    if type(value) is dict:  # the most frequent case: no call for arrays and resident tensors
        total = 0
        for item in value.values():
            kind = type(item)
            if is_remote(kind) or (kind is np.ndarray and not item.dtype.hasobject):
                total += item.nbytes
            elif kind is not ResidentTensor:  # its bundle is counted instead
                total += nbytes_of(item)
        return total
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return sum(len(item) if isinstance(item, str | bytes) else 8 for item in value.flat)
    if type(value) is ResidentTensor:  # its bundle is counted instead
        return 0
    nbytes: int | None = getattr(value, "nbytes", None)  # arrays and remote tensors
    if nbytes is not None:
        return nbytes
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0 if value is None else 8
    return sum(map(nbytes_of, value))


class CancelHook:
    """Context manager of a run: within the block, cancelling the run also calls `stop`."""

    __slots__ = ("_context", "_stop")

    def __init__(self, context: RunContext, stop: Callable[[], object]) -> None:
        self._context = context
        self._stop = stop

    def __enter__(self) -> None:
        self._context.stop_call = self._stop
        if self._context.is_cancelled:
            self._stop()

    def __exit__(self, *exception: object) -> None:
        self._context.stop_call = None


@dataclass(slots=True, eq=False)
class RunContext:
    """State of one run of a program: cancellation, deadline, timings and placement of outputs.

    Attributes
    ----------
    profile : bool
        Whether to time executed nodes with `record`.
    node_times_s : dict of str to float
        Executed node -> recorded seconds.
    upload_s, download_s : float
        Seconds of transfers of inputs to the device and of outputs to the host, if the program
        measures them separately.
    infer_s : float
        Seconds of the run without transfers, set after the run.
    output_nbytes : int
        Size of the outputs in bytes, set after the run.
    resident_outputs : frozenset of int
        Positions of outputs that are not needed on the host. If the plugin `leaves_outputs`, its
        program may return these outputs as RemoteTensors.
    is_cancelled : bool
        Whether `cancel` was called.
    """

    profile: bool = False
    node_times_s: dict[str, float] = field(default_factory=dict)
    upload_s: float = 0.0
    infer_s: float = 0.0
    download_s: float = 0.0
    resident_outputs: frozenset[int] = frozenset()
    is_cancelled: bool = False
    output_nbytes: int = 0
    #: Stops the native call that runs.
    stop_call: Callable[[], object] | None = None
    #: Wakes `sleep`; created on the first call, because most runs never sleep.
    _wakeup: OneShotEvent | None = None
    _deadline: float | None = None

    left = deprecated_alias("left", "resident_outputs")

    def cancel(self) -> None:
        """Stop the run at the next node."""
        self.is_cancelled = True
        if self._wakeup is not None:
            self._wakeup.set()
        stop = self.stop_call
        if stop is not None:
            stop()

    def on_cancel(self, stop: Callable[[], object]) -> CancelHook:
        """Return a context manager within which `cancel` also calls `stop`.

        It is for backends that can stop a run between two calls of `check_cancelled`.
        """
        return CancelHook(self, stop)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the deadline of the run to `timeout_s` seconds from now."""
        self._deadline = time.monotonic() + timeout_s

    def check_cancelled(self) -> None:
        """Raise if the run is cancelled or past its deadline; programs call this between nodes.

        Raises
        ------
        RequestCancelledError
            The run is cancelled.
        DeadlineError
            The deadline has passed.
        """
        if self.is_cancelled:
            raise RequestCancelledError("the request was cancelled while it ran")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise DeadlineError("the request exceeded its deadline while it ran")

    def sleep(self, seconds: float) -> None:
        """Sleep until the time, the deadline or a cancellation; then call `check_cancelled`."""
        wait_s = seconds
        if self._deadline is not None:
            wait_s = min(seconds, max(0.0, self._deadline - time.monotonic()) + 1e-3)
        self._wakeup = self._wakeup or OneShotEvent()
        if not self.is_cancelled:
            self._wakeup.wait(wait_s)
        self.check_cancelled()

    def record(self, node: str, seconds: float) -> None:
        """Add `seconds` to an executed node's time."""
        self.node_times_s[node] = self.node_times_s.get(node, 0.0) + seconds


def plain_nbytes(values: Mapping[str, Value]) -> int | None:
    """Return the size of numeric arrays; None if a value is anything else."""
    nbytes = 0
    for value in values.values():
        if type(value) is not np.ndarray or value.dtype.hasobject:
            return None
        nbytes += value.nbytes
    return nbytes


@dataclass(frozen=True, slots=True)
class ExecutedNode:
    """A node of the runtime model: an operator that the device executes.

    Attributes
    ----------
    name : str
        Unique name in the program.
    layer_type : str
        The operator, which may be a fused one.
    execution_order : int
        Position in the run.
    implementation : str
        The implementation, such as a kernel or an execution provider.
    original_names : tuple of str
        The model's nodes that it executes.
    """

    name: str
    layer_type: str
    execution_order: int
    implementation: str
    original_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Payload:
    """A compiled model in the device's own format, for blobs.

    Attributes
    ----------
    header : mapping
        Values for the plugin's `load` that msgpack can pack.
    tensors : mapping of str to numpy.ndarray
        Weights. A blob stores them uncompressed and aligned, and memory-maps them on import.
    """

    header: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    def in_memory(self) -> Payload:
        """Return a payload with copies of the tensors, which do not depend on a file."""
        return Payload(self.header, {name: array.copy() for name, array in self.tensors.items()})

    def check_format(self, expected: str, model: str) -> None:
        """Raise BlobError if the header has another format name."""
        if (actual := self.header.get("format")) != expected:
            raise BlobError(
                f"model {model!r}: expected a payload of format {expected!r}, got {actual!r} of "
                "another device. Compile the model again."
            )


class Program(ABC):
    """A compiled model on one device; computes outputs from checked inputs.

    `DeviceModel` adds port names, checks and profiling. If NUM_STREAMS exceeds 1, as many threads
    call `run` at once.
    """

    #: Whether each run returns memory that neither inputs, nor constants, nor other outputs use.
    #: If not, the caller compares the owners of the arrays.
    returns_new_memory: bool = False

    @abstractmethod
    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs.

        Parameters
        ----------
        inputs : sequence of values
            One checked and converted value per input port. `run` must not modify the arrays, which
            may be read-only.
        context : RunContext
            Cancellation and timing.

        Returns
        -------
        sequence of values
            One value per output port. They are host arrays that the program does not use any more,
            except those in `context.resident_outputs`. The caller copies arrays that share memory
            with an input, a constant or each other.
        """

    def takes_remote(self, tensor: RemoteTensor) -> bool:
        """Return whether `run` accepts `tensor` without a copy to the host."""
        return False

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, in execution order; empty if the backend does not report it."""
        return ()

    def export(self) -> Payload:
        """Return the program in the device's own format.

        Raises
        ------
        UnsupportedOperationError
            The device has no such format. A blob then contains the ONNX subgraph, which is compiled
            again on import.
        """
        raise UnsupportedOperationError(f"{type(self).__name__} does not support export")

    def close(self) -> None:  # noqa: B027 - most programs hold nothing beyond their memory
        """Release the program's resources on the device."""
