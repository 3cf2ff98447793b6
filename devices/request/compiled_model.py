"""A model compiled for one device: what it runs, its properties and export."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import numpy as np

from hetero.devices.errors import (
    DeviceMemoryError,
    HeteroError,
    InferenceError,
    is_interrupt,
    shown,
)
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from hetero.devices.plugin.remote_memory import RemoteTensor
from hetero.devices.request.output_validation import check_outputs
from hetero.devices.request.request_tensors import RequestTensors
from hetero.devices.request.results import Results

#: Seconds between two looks at whether a run that waits for its turn was cancelled.
_CHECK_S: Final = 0.05


class CompiledModel:
    """A program with names: made by `Plugin.compile_model` and `Plugin.import_model`.

    Parameters
    ----------
    model : Model
        What was compiled: it gives the ports.
    program : Program
        What runs.
    made : sequence of TensorSpec
        What is certain of each output; shapes of the model's own ports are hints.
    device : str
        The device that runs it, id included.
    configuration : Configuration
        What it was compiled with, and what its device says for the rest.
    turn : Lock, optional
        What each run holds, where only one at a time may run on the device.
    """

    def __init__(
        self,
        model: Model,
        program: Program,
        *,
        made: Sequence[TensorSpec],
        device: str,
        configuration: Configuration,
        turn: Lock | None = None,
    ) -> None:
        self.source: Final = model
        self.name: Final = model.name
        #: The ports, states among them: to a device they are inputs and outputs like any other.
        self.inputs: Final = model.inputs
        self.outputs: Final = model.outputs
        self._program = program
        self.device: Final = device
        self._configuration = configuration
        self._turn = turn
        #: Whether requests time executed nodes.
        self.profiles: bool = configuration.get("PERF_COUNT")
        #: The outputs' names, in order.
        self.output_names: Final = tuple(port.name for port in model.outputs)
        self._made = tuple(made)
        self._closed = False

    def __repr__(self) -> str:
        return f"<CompiledModel {self.name!r} on {self.device}>"

    def run(self, inputs: Sequence[Value], context: RunContext | None = None) -> Sequence[Value]:
        """Run once, unchecked, in the calling thread: what a stage of a plan does.

        Parameters
        ----------
        inputs : sequence of values
            One per port, of its type and shape.
        context : RunContext, optional
            For cancellation and timing.

        Raises
        ------
        HeteroError
            The program's own, or InferenceError around whatever else it raised, and for outputs
            that are not what the ports say.
        """
        if self._closed:
            self.check_open()
        context = context or RunContext(self.profiles)
        try:
            if self._turn is None:
                start_s = time.perf_counter()
                outputs = self._program.run(inputs, context)
            else:
                with _held(self._turn, context):
                    start_s = time.perf_counter()
                    outputs = self._program.run(inputs, context)
        except BaseException as error:  # a plugin's sys.exit must not end the process
            if isinstance(error, HeteroError) or is_interrupt(error):
                raise
            shapes = ", ".join(
                f"{p.name}{list(np.shape(v))}"
                for p, v in zip(self.inputs, inputs, strict=False)
                if isinstance(v, np.ndarray)
            )
            kind = DeviceMemoryError if isinstance(error, MemoryError) else InferenceError
            raise kind(
                f"{self.device} failed on model {self.name!r} with inputs {shapes or 'none'}: "
                f"{type(error).__name__}: {shown(error)}",
                device=self.device,
            ) from error
        end_s = time.perf_counter()
        context.infer_s = end_s - start_s - context.upload_s - context.download_s
        received = check_outputs(outputs, inputs, self._made, self.source, self.device)
        context.download_s += time.perf_counter() - end_s
        if context.profile and not context.node_times_s:
            # A backend that does not tell: the model is one row.
            context.record(self.name, context.infer_s)
        return received

    def __call__(self, inputs: Any = None) -> Results:
        """Run once in the calling thread; `inputs` are checked as `InferRequest.infer` does."""
        values = RequestTensors(self.inputs, self.outputs).collect(inputs, copy=False)
        outputs = self.run([self.readable(values[port.name]) for port in self.inputs])
        return Results(self.outputs, dict(zip(self.output_names, outputs, strict=True)))

    def check_open(self) -> None:
        """Raise InferenceError once the model was closed."""
        if self._closed:
            raise InferenceError(
                f"model {self.name!r} on {self.device} was closed; compile or import it again.",
                device=self.device,
            )

    def readable(self, value: Value) -> Value:
        """Return a value on the host, unless it is in memory that the program reads."""
        if isinstance(value, RemoteTensor) and not self._program.takes_remote(value):
            return value.to_host()
        return value

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, in execution order."""
        names = self.source.node_names
        plugin, _, _ = self.device.partition(".")
        return self._program.executed_nodes() or (
            (ExecutedNode(self.name, "Subgraph", 0, plugin, names),) if names else ()
        )

    def get_property(self, name: str) -> Any:
        """Return a property's value for this compiled model.

        Raises
        ------
        UnknownPropertyError
            The plugin has no such property.
        """
        mine: dict[str, Any] = {
            "NETWORK_NAME": self.name,
            "EXECUTION_DEVICES": (self.device,),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self._configuration.get("NUM_STREAMS"),
        }
        return mine[name] if name in mine else self._configuration.get(name)

    def export_model(self) -> Payload:
        """Return the device's own form of the compiled model.

        Raises
        ------
        UnsupportedOperationError
            If the device has none.
        """
        return self._program.export()

    def close(self) -> None:
        """Give back what the device holds for this model; nothing of it may still run."""
        if not self._closed:
            self._closed = True
            self._program.close()


@contextmanager
def _held(turn: Lock, context: RunContext) -> Iterator[None]:
    """Wait for the device's other runs, and keep them waiting."""
    while not turn.acquire(timeout=_CHECK_S):
        context.check_cancelled()
    try:
        yield
    finally:
        turn.release()
