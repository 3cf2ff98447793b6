"""Model compiled by OpenVINO, with a pool of infer requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Final

import numpy as np
import openvino

from hetero.devices.errors import InferenceError
from hetero.devices.openvino.errors import ERRORS
from hetero.devices.openvino.input_limits import InputLimits
from hetero.devices.plugin.native_call import NativeCall
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value

#: The format of exported payloads.
PAYLOAD_FORMAT: Final = "openvino-blob-4"
#: The name of OpenVINO's blob among a payload's tensors; no value of a model has this name.
_BLOB: Final = "#blob"


@dataclass(frozen=True, slots=True)
class Interface:
    """The ports of a model, and those of its compiled form in OpenVINO."""

    #: The model's input and output names.
    inputs: Sequence[str]
    outputs: Sequence[str]
    #: Names of the compiled form's inputs and outputs, in its order.
    compiled_inputs: Sequence[str]
    compiled_outputs: Sequence[str]
    #: Outputs that equal an input or a compiled output -> its name.
    aliases: Mapping[str, str]
    #: Outputs that are constants.
    constants: Mapping[str, np.ndarray]
    #: Limits on inputs under which the model's integers fit 32 bits.
    limits: InputLimits


class OpenVinoProgram(Program):
    """A model compiled by OpenVINO, or imported from a payload that `export` returned.

    `open_compiled` compiles or imports the model, with or without profiling of nodes.
    `list_nodes` returns the nodes that a compiled model executes. `profiles` tells whether runs are
    profiled by default.
    """

    def __init__(
        self,
        interface: Interface,
        open_compiled: Callable[[bool], openvino.CompiledModel],
        list_nodes: Callable[[openvino.CompiledModel], tuple[ExecutedNode, ...]],
        profiles: bool,
    ) -> None:
        self._interface = interface
        self._open_compiled = open_compiled
        self._list_nodes = list_nodes
        self._profiles = profiles
        self._lock = threading.Lock()
        self._compiled: dict[bool, openvino.CompiledModel] = {}
        #: Idle requests, by whether they profile nodes.
        self._idle: dict[bool, list[openvino.InferRequest]] = {False: [], True: []}
        if interface.compiled_outputs:
            self._compiled_model(profiles)

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run a request on the inputs' memory; each run allocates its outputs."""
        feeds: dict[str, Value] = dict(zip(self._interface.inputs, inputs, strict=True))
        self._check_lengths(feeds)
        self._check_magnitudes(feeds)
        values = {**self._interface.constants, **feeds}
        if self._interface.compiled_outputs:
            values |= self._infer(feeds, context)
        aliases = self._interface.aliases
        return [values[aliases.get(name, name)] for name in self._interface.outputs]

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the nodes that OpenVINO executes, mapped to the model's nodes."""
        if not self._interface.compiled_outputs:
            return ()
        return self._list_nodes(self._compiled_model(self._profiles))

    def export(self) -> Payload:
        """Return OpenVINO's blob, and the interface."""
        tensors = dict(self._interface.constants)
        if self._interface.compiled_outputs:
            blob = self._compiled_model(self._profiles).export_model()
            tensors[_BLOB] = np.frombuffer(blob.getbuffer(), np.uint8)
        header = {
            "format": PAYLOAD_FORMAT,
            "inputs": list(self._interface.compiled_inputs),
            "outputs": list(self._interface.compiled_outputs),
            "aliases": dict(self._interface.aliases),
            "limits": asdict(self._interface.limits),
            "executed": [astuple(node) for node in self.executed_nodes()],
        }
        return Payload(header, tensors)

    def close(self) -> None:
        """Release the compiled model and its requests."""
        self._compiled.clear()
        self._idle = {False: [], True: []}

    def _check_lengths(self, feeds: Mapping[str, Value]) -> None:
        longest_axis = self._interface.limits.longest_axis
        if longest_axis is None:
            return
        for name in self._interface.compiled_inputs:
            shape = np.shape(feeds[name])
            if max(shape, default=0) > longest_axis:
                raise InferenceError(
                    f"input {name!r}: expected axes of up to {longest_axis}, got {list(shape)}; "
                    "OpenVINO computes 64-bit integers of this model in 32 bits, which may "
                    "overflow for longer axes. Reshape the model to the actual lengths, or allow "
                    "overflow with OV_NARROW_INTEGERS=YES."
                )

    def _check_magnitudes(self, feeds: Mapping[str, Value]) -> None:
        for name, limit in self._interface.limits.magnitudes.items():
            array = np.asarray(feeds[name])
            if array.size and max(-int(array.min()), int(array.max())) > limit:
                raise InferenceError(
                    f"input {name!r}: expected magnitudes of up to {limit}, got values from "
                    f"{array.min()} to {array.max()}; OpenVINO computes 64-bit integers of this "
                    "model in 32 bits. Use a device that computes in 64 bits, or allow overflow "
                    "with OV_NARROW_INTEGERS=YES."
                )

    def _infer(self, feeds: Mapping[str, Value], context: RunContext) -> dict[str, Value]:
        profile = context.profile or self._profiles
        compiled = self._compiled_model(profile)
        with self._lock, NativeCall():
            idle = self._idle[profile]
            request = idle.pop() if idle else compiled.create_infer_request()
        outputs = [
            openvino.Tensor(port.get_element_type(), port.get_partial_shape().get_min_shape())
            for port in compiled.outputs
        ]
        # Requests do not own their inputs' memory: this list keeps it alive during the run.
        tensors = [shared_tensor(feeds[name]) for name in self._interface.compiled_inputs]
        for i, tensor in enumerate(tensors):
            request.set_input_tensor(i, tensor)
        for i, tensor in enumerate(outputs):
            request.set_output_tensor(i, tensor)
        with NativeCall(request.cancel), context.on_cancel(request.cancel):
            try:
                request.start_async()
                request.wait()
            except RuntimeError as error:
                context.check_cancelled()
                raise ERRORS.run_error("OpenVINO failed", error) from error
        # A cancellation may still reach this request, so it does not return to the pool.
        context.check_cancelled()
        if profile:
            for row in request.profiling_info:
                if row.status == openvino.ProfilingInfo.Status.EXECUTED:
                    context.record(row.node_name, row.real_time.total_seconds())
        with self._lock:
            idle.append(request)
        return {n: t.data for n, t in zip(self._interface.compiled_outputs, outputs, strict=True)}

    def _compiled_model(self, profile: bool) -> openvino.CompiledModel:
        """Return the compiled model with or without profiling; compile it at first use."""
        with self._lock:
            if profile not in self._compiled:
                with NativeCall():
                    self._compiled[profile] = self._open_compiled(profile)
            return self._compiled[profile]


def imported_interface(
    payload: Payload, inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[Interface, openvino.Tensor | None, tuple[ExecutedNode, ...]]:
    """Decode a payload: the interface, the blob unless it has no outputs, and executed nodes."""
    header = payload.header
    constants = {name: array for name, array in payload.tensors.items() if name != _BLOB}
    interface = Interface(
        inputs,
        outputs,
        header["inputs"],
        header["outputs"],
        header["aliases"],
        constants,
        InputLimits(**header["limits"]),
    )
    nodes = tuple(
        ExecutedNode(name, kind, order, implementation, tuple(covers))
        for name, kind, order, implementation, covers in header["executed"]
    )
    blob = shared_tensor(payload.tensors[_BLOB]) if interface.compiled_outputs else None
    return interface, blob, nodes


def shared_tensor(array: np.ndarray) -> openvino.Tensor:
    """Return a tensor that shares an array's memory; OpenVINO only reads it."""
    return openvino.Tensor(np.asarray(_Writable(array)), shared_memory=True)


class _Writable:
    """An array declared as writable: OpenVINO requires writable inputs, but never writes them."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = np.require(array, None, ["C", "A"])
        interface = self._array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
