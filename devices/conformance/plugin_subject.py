"""Adapter of a plugin for the checks: its compiled models run requests on their own threads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from hetero.devices.model.model import Model
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import ExecutedNode, Payload, RunContext, Value
from hetero.devices.plugin.properties import Config
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.compiled_model import CompiledModel
from hetero.devices.request.request import Request
from hetero.devices.request.response import NodeTimes, Response, StageTiming
from hetero.devices.request.story import StoryLine
from hetero.devices.request.target import RequestTarget


class PluginSubject:
    """A plugin whose compiled models run requests like those of a Core."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin: Final = plugin
        self.name: Final = plugin.name
        self.computes: Final = plugin.computes
        self.properties: Final = plugin.properties
        self.get_property: Final = plugin.get_property
        self.set_property: Final = plugin.set_property
        self.query_model: Final = plugin.query_model
        self.create_context: Final = plugin.create_context

    def compile_model(self, model: Model, config: Config | None = None) -> BaseCompiledModel:
        """Compile a model; all of its nodes must be supported."""
        return _DeviceModel(self.plugin.compile_model(model, config))

    def import_model(self, exported: Any, model: Model, /) -> BaseCompiledModel:
        """Import the result of `export_model`."""
        return _DeviceModel(self.plugin.import_model(exported, model))


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


class _DeviceModel(BaseCompiledModel):
    """A device's compiled model, and the target of its requests."""

    optional_inputs = ()
    variables = ()

    def __init__(self, compiled: CompiledModel) -> None:
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

    def submit(self, values: Mapping[str, Value], request: Request) -> _Submission:
        """Queue a run for one of NUM_STREAMS threads."""
        self._compiled.check_open()
        context = RunContext(request.profile or self.profiles)
        if request.timeout_s is not None:
            context.set_timeout(request.timeout_s)
        inputs = [self._compiled.readable(values[port.name]) for port in self.inputs]
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
        return self._compiled.executed_nodes()

    def get_property(self, name: str) -> Any:
        """Return a property of the compiled model."""
        return self._compiled.get_property(name)

    def export_model(self) -> Payload:
        """Return the device's payload."""
        return self._compiled.export_model()

    def close(self) -> None:
        """Wait for running requests, then release the device's model."""
        self.release_memory()
        self._runs.shutdown()
        self.callback_executor.shutdown()
        self._compiled.close()
