"""A compiled program on one device, with checks and properties; plugins return it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import attrgetter
from threading import Lock
from time import perf_counter
from typing import Any, Final

import numpy as np

from hetero.devices.errors import (
    DeviceMemoryError,
    HeteroError,
    InferenceError,
    error_text,
    is_interrupt,
)
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.program import (
    ExecutedNode,
    Payload,
    Program,
    RunContext,
    Value,
    nbytes_of,
)
from hetero.devices.plugin.remote_memory import RemoteTensor, is_remote
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.local_model import LocalModel
from hetero.devices.request.output_validation import (
    check_outputs,
    check_shared_sizes,
    output_types,
    shared_sizes,
)
from hetero.devices.request.request_tensors import RequestTensors
from hetero.devices.request.results import Results

#: Interval in seconds at which a run that waits for the device checks for its cancellation.
_CHECK_S: Final = 0.05
#: Returns the class, the element type and the shape of a tensor, without the call of a function.
_type_of: Final = attrgetter("__class__", "dtype", "shape")


class DeviceModel:
    """A program with ports, checks and properties.

    `Plugin.compile_model` and `Plugin.import_model` return it.

    Parameters
    ----------
    model : Model
        The source model, with the ports.
    program : Program
        The compiled program.
    output_specs : sequence of TensorSpec
        Reliable types of the outputs; shapes of the model's ports are hints.
    device : str
        The device, with its id.
    configuration : Configuration
        Options of the compilation, and the device's other properties.
    run_lock : Lock, optional
        Lock that each run acquires, if the device must run one request at a time.
    """

    def __init__(
        self,
        model: Model,
        program: Program,
        *,
        output_specs: Sequence[TensorSpec],
        device: str,
        configuration: Configuration,
        run_lock: Lock | None = None,
    ) -> None:
        self.source: Final = model
        self.name: Final = model.name
        #: All ports: to a device, state variables are ordinary inputs and outputs.
        self.inputs: Final = model.inputs
        self.outputs: Final = model.outputs
        self._program = program
        self.device: Final = device
        self._configuration = configuration
        self._run_lock = run_lock
        #: Whether requests time executed nodes.
        self.profiles: bool = configuration.get("PERF_COUNT")
        #: Names of the outputs.
        self.output_names: Final = tuple(port.name for port in model.outputs)
        self._output_specs = tuple(output_specs)
        self._output_types = output_types(self._output_specs)
        self._shared_sizes = shared_sizes(model.inputs, output_specs)
        #: Types of the outputs of the last run, and their size in bytes; None unless all are
        #: numeric arrays in new memory.
        self._last_outputs: tuple[list[Any] | None, int] = None, 0
        #: Shapes of the inputs and outputs at the last check of shared sizes.
        self._checked_shapes: list[Any] = []
        self._is_closed = False
        self._local_model: LocalModel | None = None

    def __repr__(self) -> str:
        return f"<CompiledModel {self.name!r} on {self.device}>"

    def run(self, inputs: Sequence[Value], context: RunContext | None = None) -> Sequence[Value]:
        """Run once in the calling thread, without checks of the inputs.

        Parameters
        ----------
        inputs : sequence of values
            One value per port, of the port's type and shape.
        context : RunContext, optional
            Cancellation and timing.

        Raises
        ------
        HeteroError
            An error of the program.
        InferenceError
            The program raised another exception, or returned invalid outputs.
        """
        if self._is_closed:
            self.check_open()
        context = context or RunContext(self.profiles)
        program = self._program
        new_memory = program.returns_new_memory
        try:
            if self._run_lock is None:
                start_s = perf_counter()
                outputs = program.run(inputs, context)
            else:
                with _hold_lock(self._run_lock, context):
                    start_s = perf_counter()
                    outputs = program.run(inputs, context)
            end_s = perf_counter()
            last_types, last_nbytes = self._last_outputs
            try:
                are_as_before = (
                    new_memory
                    and last_types is not None
                    and [*map(_type_of, outputs)] == last_types
                )
            except AttributeError:  # some are no tensors
                are_as_before = False
            if are_as_before:  # such outputs need no other check
                results = [*outputs]
                context.output_nbytes = last_nbytes
            else:
                results = self._check_outputs(outputs, None if new_memory else inputs, context)
            if self._shared_sizes:
                # Without the call of a Python function for each value.
                run_shapes = [*map(getattr, (*inputs, *results), repeat("shape"), repeat(None))]
                if run_shapes != self._checked_shapes and check_shared_sizes(
                    self._shared_sizes,
                    results,
                    inputs,
                    self._output_specs,
                    self.source,
                    self.device,
                ):
                    self._checked_shapes = run_shapes
        except BaseException as error:  # a sys.exit in a plugin must not end the process
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
                f"{type(error).__name__}: {error_text(error)}",
                device=self.device,
            ) from error
        context.infer_s = end_s - start_s - context.upload_s - context.download_s
        if not new_memory:  # some outputs may be copies
            context.download_s += perf_counter() - end_s
        if context.profile and not context.node_times_s:
            # The backend does not time nodes, so the profile shows the model as one node.
            context.record(self.name, context.infer_s)
        return results

    def _check_outputs(
        self, outputs: Sequence[Value], inputs: Sequence[Value] | None, context: RunContext
    ) -> list[Value]:
        """Return the checked outputs of a run, and set their size.

        `inputs`: None if no output shares memory with another value.
        """
        self._last_outputs = None, 0
        # Copies of outputs need memory too: a view may be larger than its array.
        results = check_outputs(outputs, inputs, self._output_types, self.source, self.device)
        nbytes, are_plain = 0, True
        shape, size = None, 0
        for value, original in zip(results, outputs, strict=True):
            if type(value) is np.ndarray and not value.dtype.hasobject:
                nbytes += value.nbytes
                are_plain = are_plain and value is original
            elif is_remote(type(value)):  # without padding of device memory
                if value.shape is not shape:  # states often share it
                    shape = value.shape
                    size = math.prod(shape)
                nbytes += size * value.dtype.itemsize
                are_plain = False
            else:
                nbytes += nbytes_of(value)
                are_plain = False
        context.output_nbytes = nbytes
        if are_plain and inputs is None:
            self._last_outputs = [*map(_type_of, results)], nbytes
        return results

    def __call__(self, inputs: Any = None) -> Results:
        """Run once in the calling thread; accepts the inputs of `InferRequest.infer`."""
        values = RequestTensors(self.inputs, self.outputs).collect(inputs, copy=False)
        outputs = self.run([self.to_host(values[port.name]) for port in self.inputs])
        return Results(self.outputs, dict(zip(self.output_names, outputs, strict=True)))

    def check_open(self) -> None:
        """Raise InferenceError if the model is closed."""
        if self._is_closed:
            raise InferenceError(
                f"model {self.name!r} on {self.device} is closed; compile or import it again.",
                device=self.device,
            )

    def to_host(self, value: Value) -> Value:
        """Return a value that the program can read; copy it to the host if necessary."""
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
        own: dict[str, Any] = {
            "NETWORK_NAME": self.name,
            "EXECUTION_DEVICES": (self.device,),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self._configuration.get("NUM_STREAMS"),
        }
        return own[name] if name in own else self._configuration.get(name)

    def set_property(self, config: Mapping[str, Any]) -> None:
        """Raise an error: a compiled model's properties are fixed; see `Core.compile_model`."""
        self._with_requests().set_property(config)

    def create_infer_request(self) -> InferRequest:
        """Return a new idle request; NUM_STREAMS threads of this process run the requests."""
        return self._with_requests().create_infer_request()

    def get_runtime_model(self) -> Model:
        """Return the graph of the executed nodes; see `BaseCompiledModel.get_runtime_model`."""
        return self._with_requests().get_runtime_model()

    def export_model(self) -> Payload:
        """Return the compiled model in the device's own format.

        Raises
        ------
        UnsupportedOperationError
            The device has no such format.
        """
        return self._program.export()

    def close(self) -> None:
        """Release the model's resources on the device; all its runs must have ended."""
        if not self._is_closed:
            if self._local_model is not None:
                self._local_model.close_threads()
            self._is_closed = True
            self._program.close()

    def _with_requests(self) -> LocalModel:
        """Return the model with threads for requests, which the first call starts."""
        if self._local_model is None:
            self._local_model = LocalModel(self)
        return self._local_model


@contextmanager
def _hold_lock(lock: Lock, context: RunContext) -> Iterator[None]:
    """Hold a lock; while waiting for it, raise if the run is cancelled or past its deadline."""
    while not lock.acquire(timeout=_CHECK_S):
        context.check_cancelled()
    try:
        yield
    finally:
        lock.release()
