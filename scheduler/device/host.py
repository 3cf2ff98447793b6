"""Device host: a device of a plugin with its compiled stages.

Both executors use it: in this process behind a thread, or on Ray inside an actor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from hetero.devices.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    HeteroError,
    InferenceError,
    UnsupportedOperationError,
    error_text,
    is_interrupt,
)
from hetero.devices.model.model import Model
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import ExecutedNode, Payload, RunContext, Value
from hetero.devices.plugin.support import Support
from hetero.devices.request.device_model import DeviceModel
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.device.isolated_run import run_isolated
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.thread_budget import THREADS
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.isolation import RunBounds, RunResult

_log = logging.getLogger(__name__)

#: Fix of a device that is out of memory while it loads a model.
MEMORY_ADVICE: Final = (
    "Let a plan fit the devices' memory (FIT_MEMORY, --fit), list more devices, or give this one "
    "more memory."
)

#: Creates a named tuple without Python's call overhead: each stage run creates one.
_new: Final[Callable[..., Any]] = tuple.__new__


class DeviceHost:
    """Device with its compiled stages."""

    def __init__(
        self,
        descriptor: DeviceDescriptor,
        plugin: Plugin,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = now_s
        self.descriptor = descriptor
        self._plugin = plugin
        self._stages: dict[tuple[str, int], DeviceModel] = {}
        #: Constant inputs of stages, by name.
        self._constants: dict[tuple[str, int], Mapping[str, Value]] = {}
        #: Contexts of running stages, with the deployment. A run is added before its stage is
        #: looked up: either `unload` sees the run, or the run sees the removal.
        self._running: dict[RunContext, str] = {}
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        #: Number of `unload` calls that wait for runs to end.
        self._num_unloading = 0

    @property
    def leaves_outputs(self) -> bool:
        """Whether outputs may stay in the device's own memory."""
        return self._plugin.leaves_outputs

    def query(self, model: Model, config: Mapping[str, Any]) -> Support:
        """Query the plugin; the result names the device by its cluster name."""
        with _TypedErrors(self.descriptor, f"cannot be asked about {model.name!r}"):
            support = self._plugin.query_model(model, self._config(config))
        name = self.descriptor.name
        return Support(
            dict.fromkeys(support.devices, name),
            {n: {name: next(iter(r.values()))} for n, r in support.unsupported.items()},
            {n: {name: next(iter(r.values()))} for n, r in support.refusals.items()},
            support.notes,
        )

    def run_isolated(
        self,
        model: Model,
        config: Mapping[str, Any],
        inputs: Sequence[Mapping[str, Value]],
        bounds: RunBounds,
    ) -> list[RunResult]:
        """Run a model for each set of inputs, in a process of its own."""
        return run_isolated(type(self._plugin), model, self._config(config), inputs, bounds)

    def get_property(self, name: str) -> Any:
        """Return the value of a property for this device."""
        descriptor = self.descriptor
        value = self._plugin.get_property(name, descriptor.device_id)
        return (descriptor.name,) if name == "EXECUTION_DEVICES" else value

    def load_stage(
        self,
        deployment: str,
        stage: int,
        source: StageSource,
        num_threads: int,
        given: Mapping[str, np.ndarray] | None = None,
    ) -> int:
        """Compile or import a stage; return the number of requests that it runs at once.

        `num_threads`: the value that replaces ``INFERENCE_NUM_THREADS=0``.
        `given`: constant inputs; requests provide the other inputs.
        """
        constants = {name: self.place(value) for name, value in (given or {}).items()}
        config = self._config(source.config)
        if THREADS in self._plugin.properties and not config.get(THREADS):
            config[THREADS] = num_threads
        with _TypedErrors(self.descriptor, f"cannot compile stage {stage} ({source.model.name!r})"):
            if source.payload is None:
                model = self._plugin.compile_model(source.model, config)
            else:
                model = self._plugin.import_model(source.payload, source.model, config)
        with self._lock:
            self._stages[deployment, stage] = model
            self._constants.pop((deployment, stage), None)
            if constants:
                self._constants[deployment, stage] = constants
        return int(model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))

    def run_stage(
        self,
        request: Request,
        stage: int,
        inputs: Sequence[Value],
        context: RunContext | None = None,
        *,
        ready_s: float | None = None,
        left: frozenset[str] = frozenset(),
    ) -> tuple[dict[str, Value], StageTiming]:
        """Run a stage once; return its outputs by name, and its timing.

        `inputs`: in port order, without the constant inputs.
        `context`: cancels the run.
        `ready_s`: arrival of the last input, by this node's monotonic clock.
        `left`: outputs that may stay in the device's memory.
        Raises HeteroError: a typed error of the plugin.
        Raises InferenceError, with stage, device and cause, for every other exception.
        """
        context = context or RunContext()
        context.profile = request.profile
        try:
            compiled, outputs, run = self.execute(
                request.deployment, stage, inputs, context, ready_s=ready_s, left=left
            )
        except Exception as error:
            raise self.convert_error(error, stage, request)  # noqa: B904 - it carries its cause
        return dict(zip(compiled.output_names, outputs, strict=True)), run

    def execute(
        self,
        deployment: str,
        stage: int,
        inputs: Sequence[Value],
        context: RunContext,
        *,
        ready_s: float | None = None,
        left: frozenset[str] = frozenset(),
    ) -> tuple[DeviceModel, Sequence[Value], StageTiming]:
        """Run a stage once; return the stage, its outputs in port order, and its timing.

        Exceptions do not identify the request; see `convert_error`.
        """
        key = (deployment, stage)
        now_s = self._now_s
        self._running[context] = deployment
        try:
            compiled = self._stages.get(key) or self._stage(deployment, stage)
            if compiled.profiles:
                context.profile = True
            if left:
                context.resident_outputs = _positions(compiled.output_names, left)
            if self._constants and (constants := self._constants.get(key)):
                request_inputs = iter(inputs)
                names = [spec.name for spec in compiled.inputs]
                inputs = [
                    constants[name] if name in constants else next(request_inputs) for name in names
                ]
            started_s = now_s()
            outputs = compiled.run(inputs, context)
            ended_s = now_s()
        finally:
            del self._running[context]
            if self._num_unloading:
                with self._idle:
                    self._idle.notify_all()
        run = _new(
            StageTiming,
            (
                stage,
                self.descriptor.name,
                0.0 if ready_s is None else started_s - ready_s,
                started_s,
                ended_s,
                context.upload_s,
                context.infer_s,
                context.download_s,
                context.node_times_s,
                context.output_nbytes,
                (),
            ),
        )
        return compiled, outputs, run

    def compiled(self, deployment: str, stage: int) -> DeviceModel | None:
        """Return a stage's compiled model; None if it is not loaded."""
        return self._stages.get((deployment, stage))

    def make(self, deployment: str, stage: int) -> dict[str, Value]:
        """Run a stage whose inputs are all constant; return its outputs."""
        return self.run_stage(Request(deployment=deployment), stage, ())[0]

    def place(self, value: Value) -> Value:
        """Copy a value to the device's own memory, if the plugin supports it.

        Raises DeviceMemoryError: the device is out of memory.
        """
        if not self.leaves_outputs or not isinstance(value, np.ndarray) or value.dtype.kind == "O":
            return value
        name = self.descriptor.name
        with _TypedErrors(self.descriptor, "cannot keep a tensor"):
            try:
                return self._plugin.create_context(self._config({})).from_host(value)
            except UnsupportedOperationError:  # its memory holds only outputs of its programs
                return value
            except MemoryError as error:
                raise DeviceMemoryError(
                    f"device {name} has no room to keep a tensor of {value.nbytes} bytes: {error}. "
                    "Close some.",
                    device=name,
                ) from error

    def executed_nodes(self, deployment: str, stage: int) -> tuple[ExecutedNode, ...]:
        """Return the runtime model of a stage."""
        return self._stage(deployment, stage).executed_nodes()

    def export(self, deployment: str, stage: int) -> Payload:
        """Export a compiled stage in the device's own format."""
        with _TypedErrors(self.descriptor, f"cannot export stage {stage}"):
            return self._stage(deployment, stage).export_model()

    def has_all(self, deployments: Iterable[str]) -> bool:
        """Return whether all given deployments have stages on the device."""
        return {key[0] for key in list(self._stages)}.issuperset(deployments)

    def unload(self, deployment: str, *, timeout_s: float = 10.0) -> None:
        """Unload a deployment's stages after cancelling their runs.

        A program that still runs after `timeout_s` is abandoned and ends by itself.
        """
        with self._idle:
            keys = [key for key in self._stages if key[0] == deployment]
            stages = [self._stages.pop(key) for key in keys]
            for key in keys:
                self._constants.pop(key, None)
            self._num_unloading += 1
            for context in self._contexts(deployment):
                context.cancel()
            is_idle = self._idle.wait_for(lambda: not self._contexts(deployment), timeout_s)
            self._num_unloading -= 1
        for model in stages if is_idle else ():
            try:
                model.close()
            except BaseException as error:  # an error of one program must not stop the loop
                if is_interrupt(error):
                    raise
                _log.exception("device=%s: %r", self.descriptor.name, model)

    def close(self) -> None:
        """Unload every stage."""
        for deployment in {key[0] for key in list(self._stages)}:
            self.unload(deployment)

    def _contexts(self, deployment: str) -> list[RunContext]:
        running = list(self._running.items())
        return [context for context, owner in running if owner == deployment]

    def _stage(self, deployment: str, stage: int) -> DeviceModel:
        try:
            return self._stages[deployment, stage]
        except KeyError:
            raise DeviceLostError(
                f"device {self.descriptor.name}: stage {stage} of deployment {deployment} is not "
                "loaded; it was closed, or the device was restarted.",
                device=self.descriptor.name,
                node=self.descriptor.node,
                attempt=0,
            ) from None

    def convert_error(self, error: Exception, stage: int, request: Request) -> HeteroError:
        """Convert an exception of a stage into an error with stage, device and request."""
        cause = error.__cause__ if isinstance(error, HeteroError) else error
        if not isinstance(error, HeteroError):
            kind = DeviceMemoryError if isinstance(error, MemoryError) else InferenceError
            error = kind(f"{type(error).__name__}: {error_text(error)}")
        location = {
            "stage": stage,
            "device": self.descriptor.name,
            "node": self.descriptor.node,
            "request_id": request.id,
            "attempt": request.attempt,
        }
        if isinstance(error, InferenceError):
            shown_cause = error_text(cause, repr) if cause else error.message
            typed_error: HeteroError = type(error)(
                f"stage {stage} on device {self.descriptor.name} (node {self.descriptor.node}), "
                f"request {request.id}, attempt {request.attempt}: {error.message}",
                **{**error.data, **location, "cause": shown_cause},
            )
        else:
            typed_error = error
            typed_error.data = {**location, **error.data}
            typed_error.__dict__.update(typed_error.data)
        typed_error.__cause__ = cause
        return typed_error

    def _config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**config, "DEVICE_ID": self.descriptor.device_id}


class _TypedErrors:
    """Context manager that converts a plugin's untyped exceptions to a typed error.

    It is DeviceMemoryError for a MemoryError, and otherwise DeviceError.

    It is a class because a generator-based context manager cannot pass on StopIteration.
    """

    def __init__(self, descriptor: DeviceDescriptor, action: str) -> None:
        self._descriptor = descriptor
        self._action = action

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        name, node = self._descriptor.name, self._descriptor.node
        if isinstance(error, DeviceMemoryError):  # a plugin does not know the cluster's names
            error.data |= {"device": name, "node": node}
            error.__dict__.update(error.data)
        if error is None or isinstance(error, HeteroError) or is_interrupt(error):
            return
        if isinstance(error, MemoryError):
            raise DeviceMemoryError(
                f"device {name} on node {node} {self._action}: out of memory: "
                f"{error_text(error)}. {MEMORY_ADVICE}",
                device=name,
                node=node,
            ) from error
        raise DeviceError(
            f"device {name} on node {node} {self._action}: {type(error).__name__}: "
            f"{error_text(error)}. "
            "This is a bug of its plugin: exclude the device, or report the bug.",
            device=name,
            node=node,
            cause=error_text(error, repr),
        ) from (error if _is_plain(error) else None)


@lru_cache  # the names of a stage are the same in each run
def _positions(names: tuple[str, ...], subset: frozenset[str]) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(names) if name in subset)


def _is_plain(error: BaseException) -> bool:
    """Return whether an exception can be printed: Ray ends the process if it cannot print it."""
    try:
        return str(error) == error_text(error)
    except Exception:
        return False
