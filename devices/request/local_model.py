"""Requests of a device's compiled model, on threads of this process, without a scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np

from hetero.devices.plugin.program import ExecutedNode, Payload, RunContext, Value
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.request import Request
from hetero.devices.request.response import NodeTimes, Response, StageTiming
from hetero.devices.request.story import StoryLine
from hetero.devices.request.target import RequestTarget


@dataclass(frozen=True, slots=True)
class _Submission:
    """A run in a thread, or in the queue for one."""

    future: Future[Response]
    context: RunContext
    request_id: int
    waited_s: float = 0.0

    def story(self) -> Sequence[StoryLine]:
        """Return no history: a single device records none."""
        return ()

    def cancel(self) -> None:
        """Remove the run from the queue, or stop it at its next node."""
        self.context.cancel()
        self.future.cancel()

    def pending_outputs(self) -> dict[str, Value]:
        """Return no pending outputs: none stays on the device."""
        return {}


class LocalModel(BaseCompiledModel):
    """A device's compiled model that runs requests on threads of this process.

    Parameters
    ----------
    compiled : DeviceModel
        The compiled model.
    """

    optional_inputs = ()
    variables = ()

    def __init__(self, compiled: Any) -> None:  # DeviceModel, whose module imports this one
        super().__init__(compiled.source)
        self._compiled = compiled
        self.profiles: Final = compiled.profiles
        self.node_times: Final = NodeTimes()
        self._request_ids = count(1)
        self._runs = ThreadPoolExecutor(compiled.get_property("NUM_STREAMS"))
        #: Several threads, so that a callback that waits does not block the others.
        self.callback_executor: Final = ThreadPoolExecutor(4)

    @property
    def target(self) -> RequestTarget:
        """The model itself, which runs its own requests."""
        return self

    def copy_input(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of a large input."""
        return array.copy()

    def submit(self, values: Mapping[str, Value], request: Request) -> _Submission:
        """Queue a run for one of NUM_STREAMS threads."""
        self._compiled.check_open()
        context = RunContext(request.profile or self.profiles)
        if request.timeout_s is not None:
            context.set_timeout(request.timeout_s)
        inputs = [self._compiled.to_host(values[port.name]) for port in self.inputs]
        future = self._runs.submit(self._run, inputs, context)
        return _Submission(future, context, next(self._request_ids))

    def _run(self, inputs: Sequence[Value], context: RunContext) -> Response:
        context.check_cancelled()
        start_s = time.monotonic()
        outputs = self._compiled.run(inputs, context)
        run = StageTiming(
            0,
            self._compiled.device,
            0.0,
            start_s,
            time.monotonic(),
            context.upload_s,
            context.infer_s,
            context.download_s,
            context.node_times_s,
        )
        return Response(dict(zip(self._compiled.output_names, outputs, strict=True)), (run,))

    def executed_name(self, stage: int, node: str) -> str:
        """Return a node's name in the runtime model, which is the same."""
        return node

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the device's executed nodes."""
        nodes: tuple[ExecutedNode, ...] = self._compiled.executed_nodes()
        return nodes

    def get_property(self, name: str) -> Any:
        """Return a property of the compiled model."""
        return self._compiled.get_property(name)

    def export_model(self) -> Payload:
        """Return the device's payload."""
        payload: Payload = self._compiled.export_model()
        return payload

    def close(self) -> None:
        """Wait for running requests, then release the device's model."""
        self.release_memory()
        self.close_threads()
        self._compiled.close()

    def close_threads(self) -> None:
        """Wait for running requests and callbacks, and end the threads."""
        self._runs.shutdown()
        self.callback_executor.shutdown()
