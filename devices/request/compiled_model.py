"""A model compiled for one device: its ports, requests, properties, runtime model and export."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from devices.errors import HeteroError, InferenceError, UnsupportedOperationError
from devices.model.model import Model
from devices.model.tensor_spec import TensorSpec
from devices.plugin.configuration import Configuration
from devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from devices.plugin.remote import RemoteTensor
from devices.request.infer_request import InferRequest
from devices.request.results import Results
from devices.request.runtime_model import runtime_model
from devices.request.stage_outputs import StageOutputs
from devices.request.target import Answer
from devices.request.tensors import RequestTensors

if TYPE_CHECKING:
    from devices.plugin.plugin import Plugin

#: Callbacks that may run at once: enough that one that waits does not stop the others.
_CALLBACK_THREADS = 4
_AT_ONCE: Final = nullcontext()
#: Seconds between two looks at whether a run that waits for its turn was cancelled.
_CHECK_S = 0.05


@dataclass(frozen=True, slots=True)
class _DeviceRun:
    """A run in the device's queue or on the device."""

    future: Future[Answer]
    context: RunContext

    def cancel(self) -> None:
        """Take the run out of the queue, or ask it to stop at its next node."""
        self.context.cancel()
        self.future.cancel()


class CompiledModel:
    """A program with names: made by `Plugin.compile_model` and `Plugin.import_model`.

    Parameters
    ----------
    plugin : Plugin
        Who compiled it.
    model : Model
        What was compiled: it gives the ports.
    program : Program
        What runs.
    config : mapping
        The effective configuration.
    """

    def __init__(
        self,
        plugin: Plugin,
        model: Model,
        program: Program,
        config: Mapping[str, Any],
    ) -> None:
        self.inputs: tuple[TensorSpec, ...] = model.inputs
        self.outputs: tuple[TensorSpec, ...] = model.outputs
        self.name = model.name
        self._plugin = plugin
        self._model = model
        self._program = program
        self._device_id: str = config["DEVICE_ID"]
        self._configuration = Configuration(plugin.properties, repr(self), config)
        #: Whether requests time executed nodes.
        self.profiles: bool = config["PERF_COUNT"]
        self._exclusive: bool = config["EXCLUSIVE_ASYNC_REQUESTS"]
        self._ports = RequestTensors(self.inputs, self.outputs)
        self._received = StageOutputs(model, self.device)
        self._closed = False
        self._lock = threading.Lock()
        # Without a request of its own, as in a plan, a model starts none of their threads.
        self._runs = ThreadPoolExecutor(config["NUM_STREAMS"], f"{self.device}-device")
        #: Where callbacks run.
        self.callback_executor = ThreadPoolExecutor(_CALLBACK_THREADS, f"{self.device}-callback")
        #: Executed node -> (seconds in all, runs), of profiled runs.
        self._node_times: dict[str, tuple[float, int]] = {}

    def __repr__(self) -> str:
        return f"<CompiledModel {self.name!r} on {self.device}>"

    @property
    def device(self) -> str:
        """The device that runs it, id included."""
        return f"{self._plugin.name}.{self._device_id}"

    # Ports.

    def input(self, key: int | str | None = None) -> TensorSpec:
        """Return an input port, by position or name; without either, the only one.

        Raises
        ------
        TensorNameError
            There is no such input, or not exactly one.
        """
        return self._ports.input_port(key)

    def output(self, key: int | str | None = None) -> TensorSpec:
        """Return an output port, by position or name; without either, the only one."""
        return self._ports.output_port(key)

    # Requests.

    def create_infer_request(self) -> InferRequest:
        """Return a new request, idle."""
        return InferRequest(self)

    def infer_new_request(self, inputs: Any = None) -> Results:
        """Run once in a request of its own."""
        return self.create_infer_request().infer(inputs)

    def __call__(
        self, inputs: Any = None, share_inputs: bool = True, share_outputs: bool = False
    ) -> Results:
        """Run once; see `InferRequest.infer`."""
        return self.create_infer_request().infer(inputs, share_inputs, share_outputs)

    def run(self, inputs: Sequence[Value], context: RunContext | None = None) -> Sequence[Value]:
        """Run once, unchecked, in the calling thread: what a stage of a plan does.

        Parameters
        ----------
        inputs : sequence of values
            One a port, of its type and shape.
        context : RunContext, optional
            For cancellation and timing.

        Raises
        ------
        HeteroError
            The program's own, or InferenceError around whatever else it raised, and for outputs
            that are not what the ports say.
        """
        if self._closed:
            raise self._closed_error()
        context = context or RunContext(self.profiles)
        start = time.perf_counter()
        try:
            with self._turn(context) if self._exclusive else _AT_ONCE:
                outputs = self._program.run(inputs, context)
        except HeteroError:
            raise
        except Exception as error:
            shapes = ", ".join(
                f"{p.name}{list(np.shape(v))}"
                for p, v in zip(self.inputs, inputs, strict=False)
                if isinstance(v, np.ndarray)
            )
            raise InferenceError(
                f"{self.device} failed on model {self.name!r} with inputs {shapes or 'none'}: "
                f"{type(error).__name__}: {error}",
                device=self.device,
            ) from error
        received = self._received.receive(outputs, inputs)
        if context.profile:
            if not context.node_times_s:  # a backend that does not tell: the model is one row
                context.record(self.name, time.perf_counter() - start)
            self._remember(context.node_times_s)
        return received

    # What a request runs on: `devices.request.target.RequestTarget`.

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that have a default: none, they are constants to a device."""
        return ()

    def submit(
        self, values: Mapping[str, Value], *, profile: bool, timeout_s: float | None
    ) -> _DeviceRun:
        """Queue a run for one of the device's NUM_STREAMS threads."""
        context = RunContext(profile)
        if timeout_s is not None:
            context.set_timeout(timeout_s)
        inputs = [self._on_host(values[port.name]) for port in self.inputs]
        try:
            return _DeviceRun(self._runs.submit(self._answer, inputs, context), context)
        except RuntimeError:  # its threads have ended
            raise self._closed_error() from None

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, in execution order."""
        names = self._model.node_names
        return self._program.executed_nodes() or (
            (ExecutedNode(self.name, "Subgraph", 0, self._plugin.name, names),) if names else ()
        )

    def get_runtime_model(self) -> Model:
        """Return a graph of what is executed.

        Each node's metadata has ``layerType``, ``execOrder``, ``implType``,
        ``originalLayersNames`` (joined by commas) and ``execTimeMcs``: microseconds, the average
        over profiled runs, or ``not_executed``.
        """
        with self._lock:
            times = {name: total / runs for name, (total, runs) in self._node_times.items()}
        return runtime_model(self._model, self.executed_nodes(), times)

    # Properties, export, end.

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
        if name in mine:
            return mine[name]
        if name in self._configuration.values:
            return self._configuration.get(name)
        return self._plugin.get_property(name, self._device_id)

    def set_property(self, config: Mapping[str, Any]) -> None:
        """Refused: a compiled model's properties are given when it is compiled.

        Raises
        ------
        UnsupportedOperationError
            Always, for properties that there are.
        """
        for name in config:
            self.get_property(name)
        raise UnsupportedOperationError(
            f"a compiled model takes no properties ({', '.join(config)}); give them to "
            "compile_model."
        )

    def export(self) -> Payload:
        """Return the device's own form of the compiled model.

        Raises
        ------
        UnsupportedOperationError
            If the device has none.
        """
        return self._program.export()

    def close(self) -> None:
        """Finish what runs, then give back what the device holds for this model."""
        self._runs.shutdown(wait=True)
        self.callback_executor.shutdown(wait=True)
        if not self._closed:
            self._closed = True
            self._program.close()

    def _closed_error(self) -> InferenceError:
        return InferenceError(
            f"model {self.name!r} on {self.device} was closed; compile or import it again.",
            device=self.device,
        )

    @contextmanager
    def _turn(self, context: RunContext) -> Iterator[None]:
        """Wait for the device's other runs: EXCLUSIVE_ASYNC_REQUESTS has them one at a time."""
        turn = self._plugin.exclusive(self._device_id)
        while not turn.acquire(timeout=_CHECK_S):
            context.check_cancelled()
        try:
            yield
        finally:
            turn.release()

    def _answer(self, inputs: Sequence[Value], context: RunContext) -> Answer:
        context.check_cancelled()
        outputs = self.run(inputs, context)
        named = {port.name: value for port, value in zip(self.outputs, outputs, strict=True)}
        return Answer(named, context.node_times_s, context.stage_times_s)

    def _on_host(self, value: Value) -> Value:
        if isinstance(value, RemoteTensor) and not self._program.takes_remote(value):
            return value.to_host()
        return value

    def _remember(self, node_times_s: Mapping[str, float]) -> None:
        with self._lock:
            for name, seconds in node_times_s.items():
                total, runs = self._node_times.get(name, (0.0, 0))
                self._node_times[name] = total + seconds, runs + 1
