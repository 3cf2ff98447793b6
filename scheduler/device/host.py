"""The device host: one device of a plugin, and the stages that are compiled on it.

Both executors run the same host: in process behind a thread, on Ray inside an actor.
"""

from __future__ import annotations

import logging
import math
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
from hetero.devices.plugin.program import ExecutedNode, Payload, RunContext, Value, nbytes_of
from hetero.devices.plugin.remote_memory import is_remote
from hetero.devices.plugin.support import Support
from hetero.devices.request.compiled_model import CompiledModel
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.thread_shares import THREADS
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

_log = logging.getLogger(__name__)

#: Makes a record without a call of Python's: each run of a stage makes one.
_new: Final[Callable[..., Any]] = tuple.__new__


class DeviceHost:
    """A device with its stages."""

    def __init__(
        self,
        descriptor: DeviceDescriptor,
        plugin: Plugin,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = now_s
        self.descriptor = descriptor
        self._plugin = plugin
        self._stages: dict[tuple[str, int], CompiledModel] = {}
        #: Inputs of stages that are the same for every request, by their names.
        self._given: dict[tuple[str, int], Mapping[str, Value]] = {}
        #: What runs now, and of which deployment, by identity of the context. It is entered before
        #: its stage is looked up, so that whoever unloads that finds it, or is found by it.
        self._running: dict[int, tuple[str, RunContext]] = {}
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        #: How many wait for runs to end.
        self._num_unloading = 0

    @property
    def leaves_outputs(self) -> bool:
        """Whether outputs may stay in a memory of the device's own."""
        return self._plugin.leaves_outputs

    def query(self, model: Model, config: Mapping[str, Any]) -> Support:
        """Ask the plugin; the answer names the device as the cluster does."""
        with _Typed(self.descriptor, f"cannot be asked about {model.name!r}"):
            support = self._plugin.query_model(model, self._config(config))
        name = self.descriptor.name
        return Support(
            dict.fromkeys(support.devices, name),
            {n: {name: next(iter(r.values()))} for n, r in support.unsupported.items()},
            {n: {name: next(iter(r.values()))} for n, r in support.refusals.items()},
            support.notes,
        )

    def get_property(self, name: str) -> Any:
        """Return a property's value; the device's own, where the plugin has several."""
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
        """Compile or import a stage; return how many requests it runs at once.

        `num_threads`: what ``INFERENCE_NUM_THREADS=0`` resolves to.
        `given`: inputs that are the same for every request; runs take the others.
        """
        placed = {name: self.place(value) for name, value in (given or {}).items()}
        config = self._config(source.config)
        if THREADS in self._plugin.properties and not config.get(THREADS):
            config[THREADS] = num_threads
        with _Typed(self.descriptor, f"cannot compile stage {stage} ({source.model.name!r})"):
            if source.payload is None:
                compiled = self._plugin.compile_model(source.model, config)
            else:
                compiled = self._plugin.import_model(source.payload, source.model, config)
        with self._lock:
            self._stages[deployment, stage] = compiled
            self._given[deployment, stage] = placed
        return int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))

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
        """Run a stage once; return its outputs by name, and how it went.

        `inputs`: in port order, without those that were given with the stage.
        `context`: by which it can be stopped.
        `ready_s`: when its last input was there, by this node's monotonic clock.
        `left`: outputs that may be left in the device's memory.
        Raises HeteroError: what the plugin raised on purpose.
        Raises InferenceError, naming stage, device and cause, for whatever else it raised.
        """
        context = context or RunContext()
        context.profile = request.profile
        try:
            compiled, outputs, run = self.execute(
                request.deployment, stage, inputs, context, ready_s=ready_s, left=left
            )
        except Exception as error:
            raise self.placed(error, stage, request)  # noqa: B904 - it has its cause
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
    ) -> tuple[CompiledModel, Sequence[Value], StageTiming]:
        """Run a stage once; return it, its outputs in port order, and how it went.

        Whatever it raises says nothing of the request; see `placed`.
        """
        number, key = id(context), (deployment, stage)
        self._running[number] = deployment, context
        try:
            compiled = self._stages.get(key) or self._stage(deployment, stage)
            context.profile = context.profile or compiled.profiles
            if left:
                context.resident_outputs = _positions(compiled.output_names, left)
            if given := self._given.get(key):
                taken = iter(inputs)
                names = [spec.name for spec in compiled.inputs]
                inputs = [given[name] if name in given else next(taken) for name in names]
            started_s = self._now_s()
            outputs = compiled.run(inputs, context)
            ended_s = self._now_s()
        finally:
            del self._running[number]
            if self._num_unloading:
                with self._idle:
                    self._idle.notify_all()
        nbytes = 0
        for value in outputs:
            is_plain = type(value) is np.ndarray and not value.dtype.hasobject
            nbytes += value.nbytes if is_plain else _output_nbytes(value)
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
                nbytes,
                (),
            ),
        )
        return compiled, outputs, run

    def make(self, deployment: str, stage: int) -> dict[str, Value]:
        """Run a stage that takes no more than what was given with it; return its outputs."""
        return self.run_stage(Request(deployment=deployment), stage, ())[0]

    def place(self, value: Value) -> Value:
        """Return a value that is kept here, in the device's own memory where it takes such.

        Raises DeviceMemoryError: it has no room.
        """
        if not self.leaves_outputs or not isinstance(value, np.ndarray) or value.dtype.kind == "O":
            return value
        name = self.descriptor.name
        with _Typed(self.descriptor, "cannot keep a tensor"):
            try:
                return self._plugin.create_context(self._config({})).from_host(value)
            except UnsupportedOperationError:  # what it leaves, only its own programs make
                return value
            except MemoryError as error:
                raise DeviceMemoryError(
                    f"device {name} has no room to keep a tensor of {value.nbytes} bytes: {error}. "
                    "Close some.",
                    device=name,
                ) from error

    def executed_nodes(self, deployment: str, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model."""
        return self._stage(deployment, stage).executed_nodes()

    def export(self, deployment: str, stage: int) -> Payload:
        """Return the device's own form of a stage."""
        with _Typed(self.descriptor, f"cannot export stage {stage}"):
            return self._stage(deployment, stage).export_model()

    def has_all(self, deployments: Iterable[str]) -> bool:
        """Whether deployments have stages here."""
        return {key[0] for key in list(self._stages)}.issuperset(deployments)

    def unload(self, deployment: str, *, timeout_s: float = 10.0) -> None:
        """Let go of a deployment's stages, once what runs of them has stopped.

        A program that still runs after `timeout_s` is left to end by itself.
        """
        with self._idle:
            keys = [key for key in self._stages if key[0] == deployment]
            stages = [self._stages.pop(key) for key in keys]
            for key in keys:
                self._given.pop(key, None)
            self._num_unloading += 1
            for context in self._contexts(deployment):
                context.cancel()
            stopped = self._idle.wait_for(lambda: not self._contexts(deployment), timeout_s)
            self._num_unloading -= 1
        for compiled in stages if stopped else ():
            try:
                compiled.close()
            except BaseException as error:  # one program's trouble must not keep the others
                if is_interrupt(error):
                    raise
                _log.exception("device=%s: %r", self.descriptor.name, compiled)

    def close(self) -> None:
        """Let go of every stage."""
        for deployment in {key[0] for key in list(self._stages)}:
            self.unload(deployment)

    def _contexts(self, deployment: str) -> list[RunContext]:
        running = list(self._running.values())
        return [context for of, context in running if of == deployment]

    def _stage(self, deployment: str, stage: int) -> CompiledModel:
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

    def placed(self, error: Exception, stage: int, request: Request) -> HeteroError:
        """Return the error of a request whose stage raised: it names stage, device and request."""
        cause = error.__cause__ if isinstance(error, HeteroError) else error
        if not isinstance(error, HeteroError):
            error = InferenceError(f"{type(error).__name__}: {error_text(error)}")
        where = {
            "stage": stage,
            "device": self.descriptor.name,
            "node": self.descriptor.node,
            "request_id": request.id,
            "attempt": request.attempt,
        }
        if isinstance(error, InferenceError):
            shown_cause = error_text(cause, repr) if cause else error.message
            placed: HeteroError = type(error)(
                f"stage {stage} on device {self.descriptor.name} (node {self.descriptor.node}), "
                f"request {request.id}, attempt {request.attempt}: {error.message}",
                **{**error.data, **where, "cause": shown_cause},
            )
        else:
            placed = error
            placed.data = {**where, **error.data}
            placed.__dict__.update(placed.data)
        placed.__cause__ = cause
        return placed

    def _config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**config, "DEVICE_ID": self.descriptor.device_id}


class _Typed:
    """A block that turns what a plugin raises unplanned into a DeviceError: whose fault it is.

    A generator would do, if it let StopIteration through.
    """

    def __init__(self, descriptor: DeviceDescriptor, what: str) -> None:
        self._descriptor = descriptor
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, HeteroError) or is_interrupt(error):
            return
        name, node = self._descriptor.name, self._descriptor.node
        raise DeviceError(
            f"device {name} on node {node} {self._what}: {type(error).__name__}: "
            f"{error_text(error)}. "
            "That is a fault of its plugin: leave the device out, or report it.",
            device=name,
            node=node,
            cause=error_text(error, repr),
        ) from (error if _is_plain(error) else None)


def _output_nbytes(value: Value) -> int:
    """Return the bytes of an output; a tensor on the device may have room behind it."""
    if is_remote(type(value)):
        nbytes: int = math.prod(value.shape) * value.dtype.itemsize
        return nbytes
    return nbytes_of(value)


@lru_cache  # a stage's are the same in each run
def _positions(names: tuple[str, ...], wanted: frozenset[str]) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(names) if name in wanted)


def _is_plain(error: BaseException) -> bool:
    """Return whether an exception can be printed: a device's process ends where Ray cannot."""
    try:
        return str(error) == error_text(error)
    except Exception:
        return False
