"""A plan on device actors: the client submits each attempt's whole chain at once, and Ray joins.

Tensors go from actor to actor as object references; the client fetches the model's outputs and
each stage's small report, nothing else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import ray
from ray import exceptions

from devices.errors import (
    ClusterError,
    DeviceLostError,
    HeteroError,
    InferenceError,
    RequestCancelledError,
)
from devices.plugin.program import ExecutedNode, Payload, Value
from devices.request.answer import StageRun
from devices.request.request import Request
from scheduler import events
from scheduler.client.deployment import BaseDeployment, Deployments
from scheduler.client.machine import Limits
from scheduler.formats.codec import nbytes_of
from scheduler.formats.memory_order import packed, unpacked
from scheduler.plan import Plan
from scheduler.ray.devices import ActorDevice, OnLost, first_line, why_lost
from scheduler.ray.start import RaySession

#: Arguments over this size go to the object store; Ray puts them there once for each call.
_INLINE_NBYTES: Final = 100_000
#: Seconds that a report may come later than the last output.
_REPORT_S: Final = 30.0
#: Seconds that devices may take to let go of stages.
_UNLOAD_S: Final = 15.0
#: Which stage's report a key of `_Attempt.parts` is: reports have stage numbers, outputs names.
_Part = int | str


@dataclass(slots=True)
class _Attempt:
    """An attempt in flight, and what has come of it."""

    inputs: Mapping[str, Value]
    #: Tensor names by their references' ids. The references themselves are let go: Ray keeps a
    #: tensor for the calls that take it, and frees it after the last.
    tensors: dict[str, str]
    #: Reports of stages that make something: they come with what they make.
    reports: list[Any]
    num_parts_left: int
    outputs: dict[str, Value] = field(default_factory=dict)
    runs: list[StageRun] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something of an attempt that arrived: an output by name, or a report by stage."""

    deployment: RayDeployment
    request: Request
    part: _Part
    future: Future[Any]


class RayDeployment(BaseDeployment):
    """A plan on actors.

    `devices`: the plan's devices by the names that the plan uses.
    `arrived`: takes each Arrival, from a thread of Ray's that must not be kept.
    `lost`: takes the id of an actor that is gone, and the cause.
    `suspect`: takes a device that could not be reached.
    `ask`: returns what an actor's method answers: device, method's name, arguments.
    """

    def __init__(
        self,
        key: str,
        plan: Plan,
        constants: Mapping[str, np.ndarray],
        limits: Limits,
        deployments: Deployments[RayDeployment],
        *,
        devices: Mapping[str, ActorDevice],
        session: RaySession,
        arrived: Callable[[Arrival], None],
        lost: OnLost,
        suspect: Callable[[ActorDevice], None],
        ask: Callable[..., Any],
    ) -> None:
        super().__init__(key, plan, constants, limits, deployments)
        self._devices = devices
        self._session = session
        self._arrived = arrived
        self._lost = lost
        self._suspect = suspect
        self._ask = ask
        self._attempts: dict[Request, _Attempt] = {}
        self._lock = threading.Lock()
        self._calls = [
            devices[stage.device].actor.run_stage.options(num_returns=len(taken) + 1)
            for stage, taken in zip(plan.stages, plan.taken, strict=True)
        ]
        self._output_names = [n for n in plan.output_names if n in plan.producers]
        #: Actor id -> the device that it was, as long as the deployment lives.
        self.actors = {d.actor_id: d.descriptor for d in devices.values()}

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Submit every stage; each waits in its actor's queue until its inputs are there."""
        plan = self.plan
        if not plan.stages:
            self._answered(request, inputs, {}, ())
            return
        refs: dict[str, Any] = {}
        for name, value in inputs.items():
            shared = len(plan.consumers.get(name, ())) > 1 and nbytes_of(value) > _INLINE_NBYTES
            refs[name] = ray.put(packed(value)) if shared else packed(value)
        parts: dict[_Part, Any] = {}
        reports: list[Any] = []
        tensors: dict[str, str] = {}
        for stage, call, taken in zip(plan.stages, self._calls, plan.taken, strict=True):
            arguments = [refs[name] for name in stage.inputs]
            made = call.remote([stage.index, *request], *arguments)
            *given, report = made if taken else (made,)
            # Whatever a stage makes leads to an output or to a stage that makes nothing; waiting
            # for those is enough, and each wait has its price.
            if taken:
                reports.append(report)
            else:
                parts[stage.index] = report
            refs.update(zip(taken, given, strict=True))
            tensors.update((ref.hex(), name) for name, ref in zip(taken, given, strict=True))
        for name in self._output_names:
            parts[name] = refs[name]
        with self._lock:
            self._attempts[request] = _Attempt(inputs, tensors, reports, len(parts))
        for part, ref in parts.items():
            ref.future().add_done_callback(self._announcer(request, part))

    def _announcer(self, request: Request, part: _Part) -> Callable[[Future[Any]], None]:
        return lambda future: self._arrived(Arrival(self, request, part, future))

    def collect(self, arrival: Arrival) -> None:
        """Take in what arrived: the last part makes the answer, an error ends the attempt."""
        error = arrival.future.exception()
        with self._lock:
            attempt = self._attempts.get(arrival.request)
            if attempt is None:
                return
            if error is None and isinstance(arrival.part, str):
                attempt.outputs[arrival.part] = unpacked(arrival.future.result())
            elif error is None:
                attempt.runs.append(StageRun(*arrival.future.result()))
            attempt.num_parts_left -= 1
            if error is None and attempt.num_parts_left:
                return
            del self._attempts[arrival.request]
        if error is None:
            try:
                reports = ray.get(attempt.reports, timeout=_REPORT_S)
                attempt.runs += [StageRun(*report) for report in reports]
            except exceptions.RayError as failure:
                error = failure
        if error is None:
            self._answered(arrival.request, attempt.inputs, attempt.outputs, attempt.runs)
        else:
            self._end(arrival, attempt, _root(error))

    def _end(self, arrival: Arrival, attempt: _Attempt, cause: BaseException) -> None:
        """End an attempt that has failed."""
        error = self._translate(cause, attempt, arrival)
        failed = partial(self._failed, arrival.request, error)
        if not isinstance(cause, exceptions.RayActorError) or cause.actor_id not in self.actors:
            failed()
        elif isinstance(cause, exceptions.ActorUnavailableError):
            device = next(d for d in self._devices.values() if d.actor_id == cause.actor_id)
            # In this order: if more is lost than a connection, the request is told that.
            self._runner.later(partial(self._suspect, device))
            self._runner.later(failed)
        else:
            self._lost(cause.actor_id, why_lost(cause))

    def _translate(
        self, cause: BaseException, attempt: _Attempt, arrival: Arrival
    ) -> BaseException:
        if isinstance(cause, HeteroError):
            return cause
        request = arrival.request
        where = f"request {request.id}, attempt {request.attempt}"
        ids = {"request_id": request.id, "attempt": request.attempt}
        if isinstance(cause, exceptions.TaskCancelledError):
            return RequestCancelledError(f"{where}: cancelled.", **ids)
        if isinstance(cause, exceptions.ActorUnavailableError):
            descriptor = self.actors[cause.actor_id]
            return DeviceLostError(
                f"{where}: device {descriptor.name} on node {descriptor.node} could not be "
                f"reached: {why_lost(cause)}. Whether it ran the request is unknown; send it "
                "again.",
                device=descriptor.name,
                node=descriptor.node,
                **ids,
            )
        if isinstance(cause, exceptions.ObjectLostError):
            lost = attempt.tensors.get(cause.object_ref_hex, "an input")
            maker = self.plan.producers.get(lost)
            device = None if maker is None else self.device_of(maker).descriptor
            return DeviceLostError(
                f"{where}: tensor {lost!r} is lost with node {device.node if device else '?'} that "
                f"held it: {first_line(str(cause))}. Compile the model again for the nodes left.",
                device=device.name if device else "",
                node=device.node if device else "",
                **ids,
            )
        part = arrival.part
        stage = part if isinstance(part, int) else self.plan.producers[part]
        name = self.device_of(stage).descriptor.name
        kind = ClusterError if isinstance(cause, exceptions.RayError) else InferenceError
        return kind(
            f"stage {stage} on device {name} or one before it, {where}: "
            f"{type(cause).__name__}: {cause}",
            stage=stage,
            device=name,
            cause=str(cause),
            **ids,
        )

    def drop(self, request: Request) -> None:
        """Stop an attempt where it runs, keep it from running where it waits."""
        with self._lock:
            self._attempts.pop(request, None)
        if not self._session.is_ours:  # the actors went with it; a call would start another Ray
            return
        for device in self._devices.values():
            device.actor.cancel.remote(request)

    def device_lost(self, actor: str, cause: str) -> None:
        """Fail every request, those to come included: a device of the plan is gone."""
        descriptor = self.actors[actor]
        self._runner.handle(
            events.DeviceLost(self._runner.now_s(), descriptor.name, descriptor.node, cause)
        )

    def cluster_lost(self, error: ClusterError) -> None:
        """Fail every request, those to come included: nothing is left."""
        self._runner.handle(events.ClusterLost(self._runner.now_s(), error))

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model."""
        device = self.device_of(stage)
        nodes: tuple[ExecutedNode, ...] = self._ask(device, "executed_nodes", self.key, stage)
        return nodes

    def export(self, stage: int) -> Payload:
        """Return a stage's device's own form of it."""
        payload: Payload = self._ask(self.device_of(stage), "export", self.key, stage)
        return payload

    def device_of(self, stage: int) -> ActorDevice:
        """Return the device that a stage is on."""
        return self._devices[self.plan.stages[stage].device]

    def _unload(self) -> None:
        if self._session.is_ours:
            refs = [device.actor.unload.remote(self.key) for device in self._devices.values()]
            with contextlib.suppress(ClusterError):  # what is gone has let go
                self._session.wait(refs, _UNLOAD_S)


def _root(error: BaseException) -> BaseException:
    """Return what a stage, or one before it, raised."""
    while isinstance(error, exceptions.RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error
