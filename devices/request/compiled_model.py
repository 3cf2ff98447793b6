"""A model compiled for one device: what it runs, its properties and export."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Final

import numpy as np

from devices.errors import (
    DeviceMemoryError,
    HeteroError,
    InferenceError,
    UnsupportedOperationError,
)
from devices.model.model import Model
from devices.model.tensor_spec import TensorSpec
from devices.model.variables import Variable
from devices.plugin.configuration import Configuration
from devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from devices.plugin.remote import RemoteTensor
from devices.request.answer import Answer, StageRun
from devices.request.base_compiled_model import BaseCompiledModel
from devices.request.node_times import NodeTimes
from devices.request.request import Request
from devices.request.stage_outputs import StageOutputs
from devices.request.story import StoryLine
from devices.request.target import RequestTarget

#: Callbacks that may run at once: enough that one that waits does not stop the others.
_CALLBACK_THREADS = 4
#: Seconds between two looks at whether a run that waits for its turn was cancelled.
_CHECK_S = 0.05


@dataclass(frozen=True, slots=True)
class _DeviceRun:
    """A run in the device's queue or on the device."""

    future: Future[Answer]
    context: RunContext
    request_id: int
    #: Returns its story.
    story: Callable[[], list[StoryLine]]
    waited_s: float = 0.0

    def cancel(self) -> None:
        """Take the run out of the queue, or ask it to stop at its next node."""
        self.context.cancel()
        self.future.cancel()


class CompiledModel(BaseCompiledModel):
    """A program with names: made by `Plugin.compile_model` and `Plugin.import_model`.

    Parameters
    ----------
    model : Model
        What was compiled: it gives the ports.
    program : Program
        What runs.
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
        device: str,
        configuration: Configuration,
        turn: Lock | None = None,
    ) -> None:
        super().__init__(model)
        self._program = program
        self.device: Final = device
        self._configuration = configuration
        self._turn = turn
        #: Whether requests time executed nodes.
        self.profiles: bool = configuration.get("PERF_COUNT")
        #: Times of its requests' executed nodes.
        self.node_times = NodeTimes()
        #: The outputs' names, in order.
        self.output_names: Final = tuple(port.name for port in model.outputs)
        self._received = StageOutputs(model, self.device)
        self._closed = False
        self._request_ids = itertools.count(1)
        # Without a request of its own, as in a plan, a model starts none of their threads.
        streams = configuration.get("NUM_STREAMS")
        self._runs = ThreadPoolExecutor(streams, f"{device}-device")
        #: Where callbacks run.
        self.callback_executor = ThreadPoolExecutor(_CALLBACK_THREADS, f"{device}-callback")

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
            raise self._closed_error()
        context = context or RunContext(self.profiles)
        try:
            if self._turn is None:
                start_s = time.perf_counter()
                outputs = self._program.run(inputs, context)
            else:
                with _held(self._turn, context):
                    start_s = time.perf_counter()
                    outputs = self._program.run(inputs, context)
        except HeteroError:
            raise
        except Exception as error:
            shapes = ", ".join(
                f"{p.name}{list(np.shape(v))}"
                for p, v in zip(self.inputs, inputs, strict=False)
                if isinstance(v, np.ndarray)
            )
            kind = DeviceMemoryError if isinstance(error, MemoryError) else InferenceError
            raise kind(
                f"{self.device} failed on model {self.name!r} with inputs {shapes or 'none'}: "
                f"{type(error).__name__}: {error}",
                device=self.device,
            ) from error
        end_s = time.perf_counter()
        context.infer_s = end_s - start_s - context.upload_s - context.download_s
        received = self._received.receive(outputs, inputs)
        context.download_s += time.perf_counter() - end_s
        if context.profile and not context.node_times_s:
            # A backend that does not tell: the model is one row.
            context.record(self.name, context.infer_s)
        return received

    # What a request runs on: `devices.request.target.RequestTarget`.

    @property
    def target(self) -> RequestTarget:
        """What its requests run on: the model itself."""
        return self

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that have a default: none, they are constants to a device."""
        return ()

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Variables: none, they are inputs and outputs to a device."""
        return ()

    def submit(self, values: Mapping[str, Value], request: Request) -> _DeviceRun:
        """Queue a run for one of the device's NUM_STREAMS threads."""
        if request.keep:
            raise UnsupportedOperationError(
                f"model {self.name!r} on {self.device}: its outputs {list(request.keep)} cannot be "
                "kept there: that is done by models that a Core compiled."
            )
        context = RunContext(request.profile or self.profiles)
        if request.timeout_s is not None:
            context.set_timeout(request.timeout_s)
        begun_s = time.monotonic()
        inputs = [self._on_host(values[port.name]) for port in self.inputs]
        ready_s = time.monotonic()
        try:
            future = self._runs.submit(self._answer, inputs, context, begun_s, ready_s)
            story = [StoryLine(begun_s, 1, f"submitted to {self.device}")]
            future.add_done_callback(partial(_tell_end, story))
            return _DeviceRun(future, context, next(self._request_ids), story.copy)
        except RuntimeError:  # its threads have ended
            raise self._closed_error() from None

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, in execution order."""
        names = self.source.node_names
        plugin, _, _ = self.device.partition(".")
        return self._program.executed_nodes() or (
            (ExecutedNode(self.name, "Subgraph", 0, plugin, names),) if names else ()
        )

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
        """Finish what runs, then give back what the device holds for this model."""
        self.release_memory()
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

    def _answer(
        self, inputs: Sequence[Value], context: RunContext, begun_s: float, ready_s: float
    ) -> Answer:
        context.check_cancelled()
        started_s = time.monotonic()
        outputs = self.run(inputs, context)
        named = dict(zip(self.output_names, outputs, strict=True))
        run = StageRun(
            0,
            self.device,
            started_s - ready_s,
            started_s,
            time.monotonic(),
            ready_s - begun_s + context.upload_s,
            context.infer_s,
            context.download_s,
            context.node_times_s,
        )
        return Answer(named, (run,))

    def executed_name(self, stage: int, node: str) -> str:
        """Return a node's name in the runtime model: its own."""
        return node

    def _on_host(self, value: Value) -> Value:
        if isinstance(value, RemoteTensor) and not self._program.takes_remote(value):
            return value.to_host()
        return value


@contextmanager
def _held(turn: Lock, context: RunContext) -> Iterator[None]:
    """Wait for the device's other runs, and keep them waiting."""
    while not turn.acquire(timeout=_CHECK_S):
        context.check_cancelled()
    try:
        yield
    finally:
        turn.release()


def _tell_end(story: list[StoryLine], future: Future[Answer]) -> None:
    error = None if future.cancelled() else future.exception()
    what = "cancelled" if future.cancelled() else f"failed: {error}" if error else "answered"
    story.append(StoryLine(time.monotonic(), 1, what))
