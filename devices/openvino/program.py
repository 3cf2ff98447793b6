"""A model that OpenVINO runs: a compiled model of its own, and requests that take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Final

import numpy as np
import openvino

from hetero.devices.errors import InferenceError
from hetero.devices.openvino.errors import ERRORS
from hetero.devices.openvino.limits import Limits
from hetero.devices.plugin.native_call import NativeCall
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value

#: What `export` writes.
PAYLOAD_FORMAT: Final = "openvino-blob-3"
#: The name of OpenVINO's blob among a payload's tensors; no value of a model has it.
_BLOB: Final = "#blob"


@dataclass(frozen=True, slots=True)
class Interface:
    """What goes into OpenVINO and what comes out, by the model's names."""

    #: The model's.
    inputs: Sequence[str]
    outputs: Sequence[str]
    #: Those that OpenVINO takes and gives, in its order.
    fed: Sequence[str]
    made: Sequence[str]
    #: Outputs that are an input, or one of `made`, under another name.
    same: Mapping[str, str]
    #: Constants that are outputs.
    constants: Mapping[str, np.ndarray]
    #: Of the inputs for which integers are proven to fit what they are computed in.
    limits: Limits


class OpenVinoProgram(Program):
    """A model compiled by OpenVINO, or imported from what `export` gave.

    `open_compiled` makes a compiled model, that times its nodes or does not; `profiles` is which
    kind runs where nobody asks for times. `executed` are the nodes that are run.
    """

    def __init__(
        self,
        interface: Interface,
        open_compiled: Callable[[bool], openvino.CompiledModel],
        executed: Callable[[openvino.CompiledModel], tuple[ExecutedNode, ...]],
        profiles: bool,
    ) -> None:
        self._interface = interface
        self._open = open_compiled
        self._executed = executed
        self._profiles = profiles
        self._lock = threading.Lock()
        self._compiled: dict[bool, openvino.CompiledModel] = {}
        #: Requests that nobody uses, by whether they time nodes.
        self._idle: dict[bool, list[openvino.InferRequest]] = {False: [], True: []}
        if interface.made:
            self._of(profiles)

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run a request on the inputs' own memory; outputs are made anew for each run."""
        given: dict[str, Value] = dict(zip(self._interface.inputs, inputs, strict=True))
        self._check_lengths(given)
        self._check_sizes(given)
        values = {**self._interface.constants, **given}
        if self._interface.made:
            values |= self._infer(given, context)
        same = self._interface.same
        return [values[same.get(name, name)] for name in self._interface.outputs]

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return what OpenVINO runs, mapped to the model's nodes."""
        return self._executed(self._of(self._profiles)) if self._interface.made else ()

    def export(self) -> Payload:
        """Return OpenVINO's own blob."""
        tensors = dict(self._interface.constants)
        if self._interface.made:
            blob = self._of(self._profiles).export_model()
            tensors[_BLOB] = np.frombuffer(blob.getbuffer(), np.uint8)
        header = {
            "format": PAYLOAD_FORMAT,
            "fed": list(self._interface.fed),
            "made": list(self._interface.made),
            "same": dict(self._interface.same),
            "limits": asdict(self._interface.limits),
            "executed": [astuple(node) for node in self.executed_nodes()],
        }
        return Payload(header, tensors)

    def close(self) -> None:
        """Drop the compiled model and its requests."""
        self._compiled.clear()
        self._idle = {False: [], True: []}

    def _check_lengths(self, given: Mapping[str, Value]) -> None:
        longest = self._interface.limits.longest
        if longest is None:
            return
        for name in self._interface.fed:
            shape = np.shape(given[name])
            if max(shape, default=0) > longest:
                raise InferenceError(
                    f"input {name!r} is {list(shape)}: OpenVINO computes 64-bit integers of this "
                    f"model in 32 bits, which is proven right for axes of up to {longest}. Reshape "
                    "the model to the lengths that it gets, or allow it by OV_NARROW_INTEGERS=YES."
                )

    def _check_sizes(self, given: Mapping[str, Value]) -> None:
        for name, limit in self._interface.limits.magnitudes.items():
            array = np.asarray(given[name])
            if array.size and max(-int(array.min()), int(array.max())) > limit:
                raise InferenceError(
                    f"input {name!r} has values from {array.min()} to {array.max()}: OpenVINO "
                    "computes 64-bit integers of this model in 32 bits, which is right for "
                    f"magnitudes up to {limit} of this input. Use a device that computes in 64 "
                    "bits, or let them be cut off by OV_NARROW_INTEGERS=YES."
                )

    def _infer(self, given: Mapping[str, Value], context: RunContext) -> dict[str, Value]:
        profile = context.profile or self._profiles
        compiled = self._of(profile)
        with self._lock, NativeCall():
            idle = self._idle[profile]
            request = idle.pop() if idle else compiled.create_infer_request()
        outputs = [
            openvino.Tensor(port.get_element_type(), port.get_partial_shape().get_min_shape())
            for port in compiled.outputs
        ]
        # A request does not keep the memory of what it is given: that ends with this list.
        fed = [shared_tensor(given[name]) for name in self._interface.fed]
        for i, tensor in enumerate(fed):
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
        # A request that is cancelled this late may yet be told so: it is not used again.
        context.check_cancelled()
        if profile:
            for row in request.profiling_info:
                if row.status == openvino.ProfilingInfo.Status.EXECUTED:
                    context.record(row.node_name, row.real_time.total_seconds())
        with self._lock:
            idle.append(request)
        return {n: t.data for n, t in zip(self._interface.made, outputs, strict=True)}

    def _of(self, profile: bool) -> openvino.CompiledModel:
        """Return the compiled model that times nodes or does not, made on first use."""
        with self._lock:
            if profile not in self._compiled:
                with NativeCall():
                    self._compiled[profile] = self._open(profile)
            return self._compiled[profile]


def imported_interface(
    payload: Payload, inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[Interface, openvino.Tensor | None, tuple[ExecutedNode, ...]]:
    """Return what `export` wrote: the interface, the blob if there is one, and executed nodes."""
    header = payload.header
    constants = {name: array for name, array in payload.tensors.items() if name != _BLOB}
    interface = Interface(
        inputs,
        outputs,
        header["fed"],
        header["made"],
        header["same"],
        constants,
        Limits(**header["limits"]),
    )
    executed = tuple(
        ExecutedNode(name, kind, order, implementation, tuple(covers))
        for name, kind, order, implementation, covers in header["executed"]
    )
    blob = shared_tensor(payload.tensors[_BLOB]) if interface.made else None
    return interface, blob, executed


def shared_tensor(array: np.ndarray) -> openvino.Tensor:
    """Return a tensor on an array's memory, which OpenVINO only reads."""
    return openvino.Tensor(np.asarray(_Writable(array)), shared_memory=True)


class _Writable:
    """An array's memory, said to be writable: OpenVINO takes no other, and does not write to it."""

    def __init__(self, array: np.ndarray) -> None:
        self._kept = np.require(array, None, ["C", "A"])
        interface = self._kept.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
