"""Deployment of a placement: runs its requests on devices, over any kind of channel."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np

from hetero.devices.errors import (
    BlobError,
    DeviceError,
    PlanError,
    TensorLostError,
    TensorNameError,
)
from hetero.devices.plugin.program import (
    ExecutedNode,
    Payload,
    Value,
    nbytes_of,
    plain_nbytes,
)
from hetero.devices.plugin.remote_memory import RemoteContext, ResidentTensor
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import DEFAULT_REQUEST, QUICK_REQUEST, REPLAY, Request
from hetero.devices.request.response import Response, StageTiming
from hetero.scheduler.channels.channel import Channel, Receiver, SharedChannel, has_lanes
from hetero.scheduler.client.constant_folding import ConstantStages
from hetero.scheduler.client.deployments import Deployments, observer_errors_logged
from hetero.scheduler.client.device_tensors import (
    DeviceBundle,
    kept_specs,
    lost_tensor,
)
from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.client.lanes import ClientLanes, PartialResult
from hetero.scheduler.client.lineage import MOST_NBYTES, copy_value, lineage_nbytes
from hetero.scheduler.client.recompute import RecomputationTarget, StateRecomputer
from hetero.scheduler.client.request_runner import RequestRunner, Submission
from hetero.scheduler.observe.load import DeploymentLoad
from hetero.scheduler.observe.observer import ObservedRequest
from hetero.scheduler.types import events
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.messages import Dropped, Failure, Message, Outputs, Task, Values
from hetero.scheduler.types.placement import Placement, Route
from hetero.scheduler.types.plan import Stage
from hetero.scheduler.types.request_record import RequestRecord, StoryLine

#: Maximum number of callbacks that run at once; a blocking one does not delay the others.
_CALLBACK_THREADS: Final = 4
#: Maximum seconds of a request that runs in the thread of its waiting caller: waking another thread
#: costs about 50 microseconds, but a computing thread notices neither Ctrl-C nor time-outs.
_QUICK_S: Final = 0.02
#: Maximum seconds of a request that runs in the thread that starts it, for the same reason.
_TINY_S: Final = 0.0002
#: Number of such short requests in a row that this requires, because a thread that starts a request
#: must not block. A single slow request among them is attributed to a busy machine.
_STEADY: Final = 8
#: Creates a named tuple without Python's call overhead: each request needs several.
_new: Final[Callable[..., Any]] = tuple.__new__


class Deployment(ABC):
    """Placement that is loaded on its devices and accepts requests.

    `clock_offset_s`: returns by how much the monotonic clock at an address is ahead of this
        process's, or None if unknown; None if all devices share this process's clock.
    `help_with`: calls a function that starts a request, and runs its stages in the calling thread;
        for devices in this process.
    `restores`: whether to record the lineage of states, so that they can be recomputed after a
        device loss.
    """

    def __init__(
        self,
        key: str,
        placement: Placement,
        constants: Mapping[str, np.ndarray],
        limits: Limits,
        deployments: Deployments[Any],
        *,
        connect: Callable[[Receiver], Channel],
        addresses: Mapping[str, str],
        clock_offset_s: Callable[[str], float | None] | None = None,
        help_with: Callable[[int, Callable[[], None]], None] | None = None,
        restores: bool = True,
    ) -> None:
        plan = placement.plan
        wanted = dict.fromkeys(n for r in placement.routes for n in r.plan.constant_outputs)
        if missing := [name for name in wanted if name not in constants]:
            raise PlanError(f"plan of {plan.name!r}: no values for constant outputs {missing}.")
        #: The plan of the first route.
        self.plan = plan
        self.key = key
        self.limits = limits
        #: Whether only the state machine may start and complete requests.
        self._is_ordered = limits.in_order or limits.batching is not None
        #: Stages that were imported from compiled payloads; all others were compiled.
        self.imported: set[int] = set()
        self._constants = {name: constants[name] for name in wanted}
        #: Constant stages; requests run them only for profiling.
        self.constant_stages = ConstantStages()
        #: Guards the placement, which may be extended while stages are loaded.
        self._placement_lock = threading.Lock()
        self._inputs = frozenset(spec.name for spec in plan.inputs)
        self.placement = placement
        self.switch_to()
        self._restores = restores
        self._openings = itertools.count(1)
        self._addresses = dict(addresses)
        self._clock_offset_s = clock_offset_s
        # A thread that runs a stage cannot observe its deadline: if the user has set a time-out,
        # callers run no stages.
        self._help_with = help_with if limits.timeout_s >= Limits().timeout_s else None
        #: Whether running a request takes less time than waiting for one.
        self._is_quick = False
        #: Recent requests that were faster than waking a thread, and their maximum input bytes.
        self._num_tiny, self._tiny_nbytes = 0, -1
        name = f"{plan.name} ({key})"
        self.stage_timeout_s = limits.stage_timeout_s
        self._runner = RequestRunner(
            limits,
            self,
            routes=placement.routes,
            ended=self._notify_observers,
            observers=deployments.observers,
            name=name,
            deployment=key,
            ids=deployments.request_ids,
            in_flight=deployments.in_flight,
            clock=deployments.clock,
        )
        self._restorer = StateRecomputer(
            key,
            deployments.memory,
            deployments.clock,
            deployments.request_ids,
            target=self._recomputation_target,
            live_route=self._runner.live_route,
        )
        #: Executor of request callbacks, so that no thread of a device runs them; its threads start
        #: with the first callback.
        self.callback_executor = ThreadPoolExecutor(_CALLBACK_THREADS, f"{name}-callback")
        self._close_lock = threading.RLock()
        #: Whether `close` has begun.
        self.is_closed = False
        self._deployments = deployments
        self._channel = connect(self._receive)
        deployments.add(self)

    #: Its packed messages; None if the channel has none.
    _lanes: ClientLanes | None = None
    #: Whether plain requests are sent without a record.
    _sends_directly = False

    @abstractmethod
    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model, in execution order."""

    @abstractmethod
    def export(self, stage: int) -> Payload:
        """Export a compiled stage in its device's own format.

        Raises UnsupportedOperationError: the device cannot export stages.
        """

    @abstractmethod
    def _unload(self) -> None:
        """Unload the stages from the devices."""

    def replan_without(self, device: str, cause: str) -> None:
        """Exclude a device from this deployment; other deployments keep it.

        Requests that run on the device are replayed elsewhere. If every route has an excluded
        device, the model is planned again. `cause` completes "device X is gone: ...".

        Raises HeteroError: the model cannot run without the device, which therefore stays.
        """
        raise DeviceError(f"{self.key} cannot be planned without device {device}.")

    @property
    def runs_in_caller(self) -> bool:
        """Whether the thread of a caller that waits runs the stages."""
        return False

    @property
    def excluded_devices(self) -> frozenset[str]:
        """The devices that the deployment is planned without."""
        return frozenset()

    @property
    def routes(self) -> tuple[Route, ...]:
        """The routes without excluded devices; all routes if there is no such route.

        Routes have the numbers of their stages.
        """
        return self._whole_routes or self.placement.routes

    @property
    def has_route(self) -> bool:
        """Whether a route without excluded devices exists."""
        return bool(self._whole_routes)

    @property
    def _whole_routes(self) -> tuple[Route, ...]:
        excluded = self.excluded_devices
        return tuple(r for r in self.placement.routes if excluded.isdisjoint(r.plan.devices))

    def _has_route_without(self, device: str) -> bool:
        """Return whether a route has neither excluded devices nor `device`."""
        return any(device not in route.plan.devices for route in self._whole_routes)

    def submit(
        self, inputs: Mapping[str, Value], request: Request = DEFAULT_REQUEST
    ) -> Submission | CompletedSubmission:
        """Admit a request; block while the limits in flight are reached, if `request.waits`.

        `inputs`: one for each input of the plan, already checked and converted. The caller must not
            write to the arrays until the result has arrived.
        Raises TensorNameError: an input is missing or unknown.
        Raises TensorError: the request cannot read a resident input.
        Raises OverloadedError: the limits are reached, and `request.waits` is False or too many
            requests wait already.
        Raises DeadlineError: the request was not admitted within its `timeout_s`.
        Raises DeviceLostError: a device of the plan is lost.
        """
        if inputs.keys() != self._inputs:
            missing = sorted(self._inputs - set(inputs))
            extra = sorted(set(inputs) - self._inputs)
            raise TensorNameError(
                f"model {self.plan.name!r}: inputs missing {missing}, unknown {extra}; it takes "
                f"{sorted(self._inputs)}."
            )
        if (
            self._sends_directly
            and not self._is_ordered
            and (request is QUICK_REQUEST or (request.timeout_s is None and request.is_plain))
        ):
            nbytes = plain_nbytes(inputs)
            if nbytes is not None:
                run = DirectRun(request, nbytes, self._runner.now_s(), is_sent=True)
                try:
                    if (call := self._runner.submit_direct(run, inputs)) is not None:
                        return call
                except BaseException:  # Ctrl-C: the caller does not receive the submission
                    self._runner.abandon(run, inputs)
                    raise
        preferred_devices: frozenset[str] = frozenset()
        for value in inputs.values():
            if type(value) is not np.ndarray:
                inputs, preferred_devices = self._deployments.memory.usable(inputs)
                break
        if request.restore_s:
            nbytes = lineage_nbytes(inputs) if self._restores else None
            if nbytes is None or nbytes > MOST_NBYTES:
                request = request._replace(restore_s=0.0)
        return self._runner.submit(inputs, request, preferred_devices)

    def use_lanes(self, shared: SharedChannel) -> None:
        """Use packed messages for plain requests, if the client's channel supports them."""
        if shared.channel is not None and has_lanes(shared.channel):
            lanes = ClientLanes(
                self.key,
                shared.channel,
                lambda: self.placement.stages,
                self.plan.output_names,
                self._received_inputs,
                self._end_sent,
                self._fail_unreadable,
            )
            shared.lanes[lanes.key] = lanes.receive
            self._lanes = lanes
            self._sends_directly = True

    def _end_sent(self, result: PartialResult) -> None:
        """Complete a request, or pass a part of its result to the state machine."""
        if not self._runner.end_sent(*result):
            self._runner.handle(events.PartArrived(self._runner.now_s(), *result))

    def _fail_unreadable(self, request_id: int, attempt: int, error: BlobError) -> None:
        self._runner.handle(events.AttemptFailed(self._runner.now_s(), request_id, attempt, error))

    def copy_input(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of an input, if possible in memory that devices of this node can read."""
        copy = None if self._lanes is None else self._lanes.copy_to_shared_memory(array)
        return array.copy() if copy is None else copy

    def context(self) -> RemoteContext:
        """Return the memory of the device that reads the first inputs."""
        firsts = self._firsts[0]
        device = firsts[0][0].device if firsts else self.plan.devices[0]
        return self._deployments.memory.context(device, lambda: self._addresses[device])

    def tensors_lost(self, device: str) -> None:
        """Fail the requests that wait for a tensor of a lost device outside their own route."""
        self._restorer.interrupt(device)
        for request, inputs in self._runner.running_attempts():
            if device not in self.placement.routes[request.route].plan.devices:
                for name, value in inputs.items():
                    if type(value) is ResidentTensor and value.bundle.device == device:
                        self._restore(request, inputs, lost_tensor(name, value.bundle))
                        break

    def in_flight(self) -> list[ObservedRequest]:
        """Return the requests that have not ended."""
        live = self._runner.live_records()
        return [ObservedRequest(self.key, self.placement.routes[r.route], r, ()) for r in live]

    def current_load(self) -> DeploymentLoad:
        """Return the numbers of waiting and running requests."""
        return DeploymentLoad(self.plan.name, *self._runner.counts())

    def story(self, request_id: int) -> list[StoryLine]:
        """Return the history of a request; empty if it is unknown or was dropped."""
        return self._runner.story(request_id)

    def close(self) -> None:
        """Cancel the requests in flight and unload the stages; idempotent."""
        with self._close_lock:  # a second caller waits for the first
            if self.is_closed or not self._runner.home_process.is_current:
                return
            self.is_closed = True
            try:
                self._restorer.close()
                self._runner.close()
                self._unload()
            finally:
                self._channel.close()
                self.callback_executor.shutdown(wait=False)
                self._deployments.discard(self)

    def close_later(self) -> None:
        """Close in another thread; for finalizers, which run in any thread, under any lock."""
        # No thread is started here: a finalizer may run while this thread starts another.
        if not self.is_closed:
            name = f"{self.key}-close"
            closing = threading.Thread(target=self.close, name=name, daemon=True)
            self._deployments.clock.call_soon(closing.start)

    def set_address(self, device: str, address: str) -> None:
        """Replace the address of a device."""
        self._addresses[device] = address

    def extend(
        self,
        placement: Placement,
        constants: Mapping[str, np.ndarray],
        addresses: Mapping[str, str],
    ) -> Placement:
        """Add the routes and new stages of a placement; return the extended placement.

        Requests use the routes after the stages are loaded and `RoutesAdded` is handled.
        """
        self._constants |= constants
        self._addresses |= addresses
        self.switch_to(self.placement.with_routes(placement))
        return self.placement

    def switch_to(self, placement: Placement | None = None) -> None:
        """Switch requests to a placement (default: the present one), with its constant inputs."""
        with self._placement_lock:
            placement = self.placement if placement is None else placement
            self.constant_stages.keep(len(placement.stages))
            #: By route, the stages that read inputs of the model, or no inputs, with those inputs.
            self._firsts = tuple(
                tuple(
                    (stage, tuple(dict.fromkeys(n for n in stage.inputs if n in self._inputs)))
                    for stage in (placement.stages[number] for number in route.stages)
                    if not self._inputs.isdisjoint(stage.inputs)
                    or self.constant_stages.inputs_of(placement, stage.index).keys()
                    >= set(stage.inputs)
                )
                for route in placement.routes
            )
            self.placement = placement
            if self._lanes is not None:
                self._lanes.clear()

    def _received_inputs(self, stage: int) -> tuple[str, ...]:
        """Return the inputs that a stage receives with each request: those that vary."""
        given = self.constant_stages.inputs_of(self.placement, stage)
        return tuple(name for name in self.placement.stages[stage].inputs if name not in given)

    def stage_description(self, stage: int, num_streams: int) -> events.StageOpened:
        """Describe a stage to its device: inputs, outputs, receivers and limits."""
        number = next(self._openings)  # before addresses are looked up, which may change
        placed = self.placement.stages

        def send_to(consumer: int, tensors: Sequence[str]) -> events.Send | None:
            inputs = self._received_inputs(consumer)
            names = tuple(name for name in inputs if name in tensors)  # in the order of a mask
            address = self._addresses[placed[consumer].device]
            positions = tuple(map(inputs.index, names))
            return events.Send(address, consumer, names, positions) if names else None

        sends = {
            route: tuple(send for target in targets if (send := send_to(*target)))
            for route, targets in self.placement.sends[stage].items()
        }
        return events.StageOpened(
            self.key,
            stage,
            self._received_inputs(stage),
            self.placement.levels[stage],
            sends,
            tuple(name for name in placed[stage].outputs if name in self.plan.output_names),
            num_streams,
            self._channel.address,
            self.stage_timeout_s,
            number,
        )

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Send the inputs to the stages that read them."""
        if not self.placement.routes[request.route].stages:
            self._end_sent(PartialResult(request.id, request.attempt, {}, ()))
            return
        try:
            if request.inline and self._help_with and self._may_help(request):
                self._help_with(request.id, partial(self._send, request, inputs))
            else:
                self._send(request, inputs)
        except TensorLostError as error:
            self._restore(request, inputs, error)

    def _may_help(self, request: Request) -> bool:
        """Return whether the thread that starts an attempt may also run its stages."""
        return self._is_quick and bool(request.inline)

    def _send(self, request: Request, inputs: Mapping[str, Value]) -> None:
        memory = self._deployments.memory
        stored_stages = (
            () if request.profile or request.resident_outputs else self.constant_stages.outputs
        )
        is_used = memory.is_used
        lanes = self._lanes
        if lanes is not None and not request.is_plain:
            lanes = None
        for stage, names in self._firsts[request.route]:
            if stage.index in stored_stages:
                self._report_constant_stage(request, stage)
                continue
            address = self._addresses[stage.device]
            if lanes is not None and lanes.send(address, request, stage, names, inputs):
                continue
            task = _new(Task, (request, stage.index))
            values: Mapping[str, Value] | None = inputs
            if len(names) < len(inputs):
                values = {name: inputs[name] for name in names}
            if is_used and values:
                values = memory.send_resident_inputs(self._channel, task, address, values)
            if values is not None:
                self._channel.send(address, _new(Values, (task, values, ())))

    def _report_constant_stage(self, request: Request, stage: Stage) -> None:
        """Report the stored outputs of a constant stage, with a run time of zero."""
        constants = self.constant_stages.outputs[stage.index]
        now_s = self._runner.now_s()
        if self._clock_offset_s:  # the time by its device's clock
            now_s += self._clock_offset_s(self._addresses[stage.device]) or 0.0
        run = StageTiming(stage.index, stage.device, 0.0, now_s, now_s)
        names = self.plan.output_names
        outputs = {name: constants[name].array for name in stage.outputs if name in names}
        self._end_sent(PartialResult(request.id, request.attempt, outputs, (run,)))

    def pending_outputs(self, request: Request, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return references to the resident outputs that an attempt will produce."""
        outputs: dict[str, Value] = {}
        nbytes = lineage_nbytes(inputs) if request.restore_s else None
        resident_names = {*request.resident_outputs, *request.resident_copies}
        for number in self.placement.routes[request.route].stages:
            stage = self.placement.stages[number]
            if names := resident_names.intersection(stage.outputs):
                task, address = Task(request, number), self._addresses[stage.device]
                memory = self._deployments.memory
                outputs |= memory.pending_outputs(stage.device, address, task, names, nbytes)
        return outputs

    def drop(self, request: Request) -> None:
        """Cancel an attempt on every device of its route."""
        for device in self.placement.routes[request.route].plan.devices:
            self._channel.send(self._addresses[device], Dropped(request))

    def _restore(
        self, request: Request, inputs: Mapping[str, Value], error: TensorLostError
    ) -> None:
        """Recompute the lost states among an attempt's inputs, then start the attempt again."""
        error.with_traceback(None)  # its frames refer to the inputs
        is_lost = self._deployments.memory.is_lost
        bundles: dict[DeviceBundle, None] = {
            value.bundle: None for value in inputs.values() if type(value) is ResidentTensor
        }
        lost_bundles = [bundle for bundle in bundles if is_lost(bundle.address)]
        if (
            not request.restore_s
            or not lost_bundles
            or any(bundle.lineage is None for bundle in lost_bundles)
        ):
            self._report_failure(request, error)
            return
        self._restorer.begin(
            lost_bundles,
            request,
            is_wanted=lambda: not self._runner.has_ended(request),
            then=partial(self.start, request, inputs),
            failed=partial(self._report_failure, request),
        )

    def _recomputation_target(self, route: int) -> RecomputationTarget:
        """Return the target of recomputation for a route."""
        return RecomputationTarget(
            self.placement,
            self.placement.routes[route],
            self._channel,
            self._addresses,
            lambda stage, name: name in self.constant_stages.inputs_of(self.placement, stage),
        )

    def _receive(self, message: Message) -> None:
        outputs: Mapping[str, Value] = {}
        runs: Sequence[StageTiming] = ()
        error: BaseException | None = None
        if type(message) is Failure:
            error = message.error
        elif type(message) is not Outputs:
            return
        else:
            _, outputs, runs = message
            try:
                for run in runs:
                    if run.resident or not run.device:
                        outputs, runs = self._outputs(message), self._with_devices(runs)
                        break
            except Exception as fault:  # report it to the request; the receiver continues
                outputs, error = {}, fault
        request = message.task.request
        if request.route == REPLAY:
            self._restorer.received(request, outputs, error)
        elif error is None:
            self._end_sent(_new(PartialResult, (request.id, request.attempt, outputs, runs)))
        else:
            self._report_failure(request, error)

    def _with_devices(self, runs: Sequence[StageTiming]) -> Sequence[StageTiming]:
        """Return timings with their devices, which packed messages omit."""
        stages = self.placement.stages
        return [
            run if run.device else run._replace(device=stages[run.stage].device) for run in runs
        ]

    def _outputs(self, message: Outputs) -> Mapping[str, Value]:
        """Return the outputs of a message; references to resident outputs replace their copies."""
        request, outputs = message.task.request, message.tensors
        memory = self._deployments.memory
        for run in message.runs:
            if run.resident:  # unreferenced outputs are freed
                stage, task = self.placement.stages[run.stage], Task(request, run.stage)
                specs, address = kept_specs(stage.outputs, run), self._addresses[stage.device]
                stay = memory.outputs(stage.device, address, task, specs, outputs)
                outputs = {**outputs, **stay}
        return outputs

    def _by_our_clock(self, run: StageTiming) -> StageTiming:
        assert self._clock_offset_s
        offset_s = self._clock_offset_s(self._addresses[run.device])
        if not offset_s:
            return run
        started_s, ended_s = run.started_s - offset_s, run.ended_s - offset_s
        return run._replace(started_s=started_s, ended_s=ended_s)

    def answer(
        self,
        request: Request,
        inputs: Mapping[str, Value],
        stage_outputs: Mapping[str, Value],
        runs: tuple[StageTiming, ...],
    ) -> Response:
        """Build the response from the outputs of the stages; `runs` are in stage order."""
        if request.restore_s:
            route = self.placement.routes[request.route]
            self._restorer.remember(request, route, self._addresses, inputs, stage_outputs, runs)
        if self._clock_offset_s:
            runs = tuple([self._by_our_clock(run) for run in runs])
        took_s = 0.0
        for run in runs:
            took_s += run.ended_s - run.started_s
        nbytes = plain_nbytes(inputs)
        self._learn(took_s, nbytes_of(inputs) if nbytes is None else nbytes)
        outputs: dict[str, Value] = {}
        for name in self.plan.output_names:
            if name in stage_outputs:
                value = stage_outputs[name]
                if type(value) is ResidentTensor:  # the caller receives the host's copy, if any
                    value = value.bundle.copies.get(name, value)
                outputs[name] = value
            elif name in self._constants:
                outputs[name] = self._constants[name]
            elif type(inputs[name]) is ResidentTensor:
                outputs[name] = inputs[name]
            else:  # a copy: the caller may overwrite its input after the response
                outputs[name] = copy_value(inputs[name])
        return Response(outputs, runs)

    def _learn(self, took_s: float, nbytes: int) -> None:
        """Record the seconds that a request took without waiting, and its input bytes."""
        self._is_quick = took_s < _QUICK_S
        if took_s >= _TINY_S:
            if nbytes <= self._tiny_nbytes:
                self._num_tiny = max(0, self._num_tiny - _STEADY)
        elif nbytes > self._tiny_nbytes:
            self._tiny_nbytes, self._num_tiny = nbytes, 1
        elif self._num_tiny < 2 * _STEADY:
            self._num_tiny += 1

    @property
    def _max_tiny_nbytes(self) -> int:
        """Input bytes up to which requests are reliably faster than waking a thread, or -1."""
        return self._tiny_nbytes if self._num_tiny >= _STEADY else -1

    def _notify_observers(self, record: RequestRecord, runs: Sequence[StageTiming]) -> None:
        for observer in tuple(self._deployments.observers):
            route = self.placement.routes[record.route]
            request = ObservedRequest(self.key, route, record, tuple(runs))
            with observer_errors_logged(observer):
                observer.ended(request)
                if record.is_first:
                    observer.ran(request)

    def _report_failure(self, request: Request, error: BaseException) -> None:
        now_s = self._runner.now_s()
        self._runner.handle(events.AttemptFailed(now_s, request.id, request.attempt, error))
