"""A deployment: requests of a placement on its devices, however these are reached."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from typing import Any, Final

import numpy as np

from hetero.devices.errors import PlanError, TensorLostError, TensorNameError
from hetero.devices.plugin.program import ExecutedNode, Payload, Value, nbytes_of
from hetero.devices.plugin.remote_memory import RemoteContext, ResidentTensor
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import DEFAULT_REQUEST, REPLAY, Request
from hetero.devices.request.response import Response, StageTiming
from hetero.scheduler.channels.channel import Channel, Receiver
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.kept import DeviceBundle, as_answered, kept_specs, lost_tensor
from hetero.scheduler.client.known_stages import KnownStages
from hetero.scheduler.client.past import MOST_NBYTES, copied, past_nbytes
from hetero.scheduler.client.restore import Restorer, Way
from hetero.scheduler.client.runner import RequestRunner, Submission
from hetero.scheduler.observe.load import DeploymentLoad
from hetero.scheduler.observe.observer import ObservedRequest
from hetero.scheduler.vocabulary import events
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.messages import Dropped, Failure, Message, Outputs, Task, Values
from hetero.scheduler.vocabulary.placement import Placement, Route
from hetero.scheduler.vocabulary.plan import Stage
from hetero.scheduler.vocabulary.record import RequestRecord, StoryLine

#: Callbacks of a deployment that may run at once: one that waits does not stop the others.
_CALLBACK_THREADS: Final = 4
#: A request that takes less runs in the thread of a caller that waits for it: waking another costs
#: some 50 microseconds, and Ctrl-C and time-outs are not noticed by a thread that computes.
_QUICK_S: Final = 0.02
#: A request that takes less runs in the thread that starts it: waking another costs as much.
_TINY_S: Final = 0.0002
#: So many have to, in a row: a thread that starts a request must not be held up by it. One that
#: takes longer among them is a busy machine's doing.
_STEADY: Final = 8
_STARTED_S: Final = attrgetter("started_s")
_ENDED_S: Final = attrgetter("ended_s")


class Deployment(ABC):
    """A plan, or a placement, on its devices, ready for requests, by a channel.

    `clock_offset_s`: returns how far an address's monotonic clock is before ours, None where that
        is not known; None where devices go by ours.
    `help_with`: takes a request's id and what starts it, calls that, and has the calling thread run
        its stages, where devices are in this process.
    `restores`: whether what states were made by is kept: devices may be lost, and their stages make
        the same when they run again.
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
        #: Where there are several routes, the first one's.
        self.plan = plan
        self.key = key
        self.limits = limits
        #: Stages that were imported from their payloads; the others were compiled.
        self.imported: set[int] = set()
        self._constants = {name: constants[name] for name in wanted}
        #: They are not asked again, but for their times.
        self.known = KnownStages()
        #: Stages are loaded while another placement may come.
        self._taking = threading.Lock()
        self._inputs = frozenset(spec.name for spec in plan.inputs)
        self.placement = placement
        self.take()
        self._restores = restores
        self._openings = itertools.count(1)
        self._addresses = dict(addresses)
        self._clock_offset_s = clock_offset_s
        # A caller that runs a stage cannot be told that its time is up: where the model's time-out
        # is its user's choice, none does.
        self._help_with = help_with if limits.timeout_s >= Limits().timeout_s else None
        #: Whether requests are so short that to run one takes less than to wait for one.
        self._is_quick = False
        #: How many requests of at most so many bytes took less than waking a thread, lately.
        self._num_tiny, self._tiny_nbytes = 0, -1
        name = f"{plan.name} ({key})"
        self.stage_timeout_s = limits.stage_timeout_s
        self._runner = RequestRunner(
            limits,
            self,
            routes=placement.routes,
            ended=self._ended,
            name=name,
            deployment=key,
            ids=deployments.request_ids,
            in_flight=deployments.in_flight,
            clock=deployments.clock,
        )
        self._restorer = Restorer(
            key,
            deployments.memory,
            deployments.clock,
            deployments.request_ids,
            way=self._way,
            live_route=self._runner.live_route,
        )
        #: Where callbacks of its requests run, never a thread that computes; threads start with the
        #: first callback.
        self.callback_executor = ThreadPoolExecutor(_CALLBACK_THREADS, f"{name}-callback")
        self._close_lock = threading.RLock()
        #: Whether `close` has begun.
        self.is_closed = False
        self._deployments = deployments
        self._channel = connect(self._receive)
        deployments.add(self)

    @abstractmethod
    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model, in execution order."""

    @abstractmethod
    def export(self, stage: int) -> Payload:
        """Return a stage's device's own form of it.

        Raises UnsupportedOperationError: the device has none.
        """

    @abstractmethod
    def _unload(self) -> None:
        """Let the devices let go of the stages."""

    @property
    def routes(self) -> tuple[Route, ...]:
        """The ways that requests take now, with the numbers of their stages; at least one."""
        return self.placement.routes

    @property
    def has_route(self) -> bool:
        """Whether there is one without devices that are gone for good."""
        return True

    def submit(
        self, inputs: Mapping[str, Value], request: Request = DEFAULT_REQUEST
    ) -> Submission | CompletedSubmission:
        """Admit a request; block while as many are in flight as may be, if `request.waits`.

        `inputs`: one for each input of the plan, already checked and converted. The caller must not
            write to the arrays until the answer is there.
        Raises TensorNameError: an input is missing, or one too many.
        Raises TensorError: one is kept where this request cannot have it from.
        Raises OverloadedError: there is no room, and `request.waits` is False or too many wait for
            some.
        Raises DeadlineError: no room within its `timeout_s`, or none of it is left.
        Raises DeviceLostError: a device of the plan is gone.
        """
        if inputs.keys() != self._inputs:
            missing = sorted(self._inputs - set(inputs))
            extra = sorted(set(inputs) - self._inputs)
            raise TensorNameError(
                f"model {self.plan.name!r}: inputs missing {missing}, unknown {extra}; it takes "
                f"{sorted(self._inputs)}."
            )
        near: frozenset[str] = frozenset()
        for value in inputs.values():
            if type(value) is not np.ndarray:
                inputs, near = self._deployments.memory.usable(inputs)
                break
        if request.restore_s:
            nbytes = past_nbytes(inputs) if self._restores else None
            if nbytes is None or nbytes > MOST_NBYTES:
                request = request._replace(restore_s=0.0)
        return self._runner.submit(inputs, request, near)

    def context(self) -> RemoteContext:
        """Return the memory of the device that takes the first inputs."""
        firsts = self._firsts[0]
        device = firsts[0][0].device if firsts else self.plan.devices[0]
        return self._deployments.memory.context(device, lambda: self._addresses[device])

    def tensors_lost(self, device: str) -> None:
        """Fail the requests that wait for a tensor of a device that is away and not theirs."""
        self._restorer.interrupt(device)
        for request, inputs in self._runner.running():
            if device not in self.placement.routes[request.route].plan.devices:
                for name, value in inputs.items():
                    if type(value) is ResidentTensor and value.bundle.device == device:
                        self._restore(request, inputs, lost_tensor(name, value.bundle))
                        break

    def in_flight(self) -> list[ObservedRequest]:
        """Return the requests that have not ended."""
        live = self._runner.live()
        return [ObservedRequest(self.key, self.placement.routes[r.route], r, ()) for r in live]

    def current_load(self) -> DeploymentLoad:
        """Return how many requests wait and are in flight."""
        return DeploymentLoad(self.plan.name, *self._runner.counts())

    def story(self, request_id: int) -> list[StoryLine]:
        """Return what happened to a request so far; empty for one long forgotten."""
        return self._runner.story(request_id)

    def close(self) -> None:
        """Cancel what is in flight and unload the stages; again is harmless."""
        with self._close_lock:  # who comes second waits for the first
            if self.is_closed or not self._runner.home.is_current:
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
        """Close soon, in another thread: for finalizers, which run anywhere, locks held or not."""
        # Not from here: a finalizer may run while this thread starts another.
        if not self.is_closed:
            name = f"{self.key}-close"
            closing = threading.Thread(target=self.close, name=name, daemon=True)
            self._deployments.clock.later(closing.start)

    def move(self, device: str, address: str) -> None:
        """Reach a device at another address from now on."""
        self._addresses[device] = address

    def extend(
        self,
        placement: Placement,
        constants: Mapping[str, np.ndarray],
        addresses: Mapping[str, str],
    ) -> Placement:
        """Add a placement's routes, and its stages that are not there yet; return all.

        Requests take the routes once `RoutesAdded` is handed in, the stages being loaded.
        """
        self._constants |= constants
        self._addresses |= addresses
        self.take(self.placement.extended(placement))
        return self.placement

    def take(self, placement: Placement | None = None) -> None:
        """Have requests take a placement, and its stages what is known; None: the present one."""
        with self._taking:
            placement = self.placement if placement is None else placement
            self.known.keep(len(placement.stages))
            #: Each route's stages that take inputs of the model, with those, or none at all.
            self._firsts = tuple(
                tuple(
                    (stage, tuple(dict.fromkeys(n for n in stage.inputs if n in self._inputs)))
                    for stage in (placement.stages[number] for number in route.stages)
                    if not self._inputs.isdisjoint(stage.inputs)
                    or self.known.given(placement, stage.index).keys() >= set(stage.inputs)
                )
                for route in placement.routes
            )
            self.placement = placement

    def opened(self, stage: int, num_streams: int) -> events.StageOpened:
        """Return what a stage's device is to know of it."""
        number = next(self._openings)  # before addresses are looked up, which may change
        placed = self.placement.stages
        given = partial(self.known.given, self.placement)
        sends = {
            route: tuple(
                events.Send(self._addresses[placed[consumer].device], consumer, left)
                for consumer, tensors in targets
                if (left := tuple(n for n in tensors if n not in given(consumer)))
            )
            for route, targets in self.placement.sends[stage].items()
        }
        return events.StageOpened(
            self.key,
            stage,
            tuple(name for name in placed[stage].inputs if name not in given(stage)),
            self.placement.levels[stage],
            sends,
            tuple(name for name in placed[stage].outputs if name in self.plan.output_names),
            num_streams,
            self._channel.address,
            self.stage_timeout_s,
            number,
        )

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Send the inputs to the stages that take them."""
        if not self.placement.routes[request.route].stages:
            self._part_arrived(request, {}, ())
            return
        try:
            if self._help_with and self._may_help(request):
                self._help_with(request.id, partial(self._send, request, inputs))
            else:
                self._send(request, inputs)
        except TensorLostError as error:
            self._restore(request, inputs, error)

    def _may_help(self, request: Request) -> bool:
        """Whether the calling thread, which starts an attempt, may see it through."""
        return self._is_quick and bool(request.inline)

    def _send(self, request: Request, inputs: Mapping[str, Value]) -> None:
        memory = self._deployments.memory
        known = () if request.profile or request.resident_outputs else self.known.made
        is_used = memory.is_used
        for stage, names in self._firsts[request.route]:
            if stage.index in known:
                self._known(request, stage)
                continue
            task, address = Task(request, stage.index), self._addresses[stage.device]
            values: Mapping[str, Value] | None = inputs
            if len(names) < len(inputs):
                values = {name: inputs[name] for name in names}
            if is_used and values:
                values = memory.give(self._channel, task, address, values)
            if values is not None:
                self._channel.send(address, Values(task, values))

    def _known(self, request: Request, stage: Stage) -> None:
        """Response for a stage that makes the same for every request; it took no time."""
        made = self.known.made[stage.index]
        now_s = self._runner.now_s()
        if self._clock_offset_s:  # as its device would tell it
            now_s += self._clock_offset_s(self._addresses[stage.device]) or 0.0
        run = StageTiming(stage.index, stage.device, 0.0, now_s, now_s)
        names = self.plan.output_names
        outputs = {name: made[name].array for name in stage.outputs if name in names}
        self._part_arrived(request, outputs, (run,))

    def pending_outputs(self, request: Request, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return what stands for the outputs of an attempt that devices will keep."""
        found: dict[str, Value] = {}
        nbytes = past_nbytes(inputs) if request.restore_s else None
        kept = {*request.resident_outputs, *request.resident_copies}
        for number in self.placement.routes[request.route].stages:
            stage = self.placement.stages[number]
            if names := kept.intersection(stage.outputs):
                task, address = Task(request, number), self._addresses[stage.device]
                memory = self._deployments.memory
                found |= memory.pending_outputs(stage.device, address, task, names, nbytes)
        return found

    def drop(self, request: Request) -> None:
        """Tell every device that nobody waits for the attempt."""
        for device in self.placement.routes[request.route].plan.devices:
            self._channel.send(self._addresses[device], Dropped(request))

    def _restore(
        self, request: Request, inputs: Mapping[str, Value], error: TensorLostError
    ) -> None:
        """Have states among an attempt's inputs made again that are lost, and send all then."""
        error.with_traceback(None)  # it leads to the inputs
        is_lost = self._deployments.memory.is_lost
        bundles: dict[DeviceBundle, None] = {
            value.bundle: None for value in inputs.values() if type(value) is ResidentTensor
        }
        lost = [bundle for bundle in bundles if is_lost(bundle.address)]
        if not request.restore_s or not lost or any(bundle.past is None for bundle in lost):
            self._failed(request, error)
            return
        self._restorer.begin(
            lost,
            request,
            is_wanted=lambda: not self._runner.has_ended(request),
            then=partial(self.start, request, inputs),
            failed=partial(self._failed, request),
        )

    def _way(self, route: int) -> Way:
        """Return where stages run again on a route."""
        return Way(
            self.placement,
            self.placement.routes[route],
            self._channel,
            self._addresses,
            lambda stage, name: name in self.known.given(self.placement, stage),
        )

    def _receive(self, message: Message) -> None:
        if not isinstance(message, Outputs | Failure):
            return
        outputs: Mapping[str, Value] = {}
        runs: Sequence[StageTiming] = ()
        error = message.error if isinstance(message, Failure) else None
        if isinstance(message, Outputs):
            try:
                outputs, runs = self._outputs(message), message.runs
            except Exception as fault:  # the request hears of it, whoever receives goes on
                error = fault
        request = message.task.request
        if request.route == REPLAY:
            self._restorer.received(request, outputs, error)
        elif error is None:
            self._part_arrived(request, outputs, runs)
        else:
            self._failed(request, error)

    def _outputs(self, message: Outputs) -> Mapping[str, Value]:
        """Return what an answer gives; what devices keep stands over copies of it."""
        request, outputs = message.task.request, message.tensors
        memory = self._deployments.memory
        for run in message.runs:
            if run.resident:  # what nobody holds is freed
                stage, task = self.placement.stages[run.stage], Task(request, run.stage)
                specs, address = kept_specs(stage.outputs, run), self._addresses[stage.device]
                stay = memory.outputs(stage.device, address, task, specs, outputs)
                outputs = {**outputs, **stay}
        return outputs

    def _part_arrived(
        self, request: Request, outputs: Mapping[str, Value], runs: Sequence[StageTiming]
    ) -> None:
        self._runner.handle(
            events.PartArrived(self._runner.now_s(), request.id, request.attempt, outputs, runs)
        )

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
        made: Mapping[str, Value],
        runs: tuple[StageTiming, ...],
    ) -> Response:
        """Return the whole answer of what stages made of it; `runs` are in stage order."""
        if request.restore_s:
            route = self.placement.routes[request.route]
            self._restorer.remember(request, route, self._addresses, inputs, made, runs)
        if self._clock_offset_s:
            runs = tuple([self._by_our_clock(run) for run in runs])
        self._learn(sum(map(_ENDED_S, runs)) - sum(map(_STARTED_S, runs)), nbytes_of(inputs))
        outputs: dict[str, Value] = {}
        for name in self.plan.output_names:
            if name in made:
                outputs[name] = as_answered(name, made[name])
            elif name in self._constants:
                outputs[name] = self._constants[name]
            elif type(inputs[name]) is ResidentTensor:
                outputs[name] = inputs[name]
            else:  # a copy: the caller may write to its input once the answer is there
                outputs[name] = copied(inputs[name])
        return Response(outputs, runs)

    def _learn(self, took_s: float, nbytes: int) -> None:
        """Take in how long the stages of a request took, and the bytes of its inputs."""
        self._is_quick = took_s < _QUICK_S
        if took_s >= _TINY_S:
            if nbytes <= self._tiny_nbytes:
                self._num_tiny = max(0, self._num_tiny - _STEADY)
        elif nbytes > self._tiny_nbytes:
            self._tiny_nbytes, self._num_tiny = nbytes, 1
        elif self._num_tiny < 2 * _STEADY:
            self._num_tiny += 1

    def _is_tiny(self, nbytes: int) -> bool:
        """Whether a request with inputs of so many bytes surely takes less than waking a thread."""
        return self._num_tiny >= _STEADY and nbytes <= self._tiny_nbytes

    def _ended(self, record: RequestRecord, runs: Sequence[StageTiming]) -> None:
        for observer in tuple(self._deployments.observers):
            route = self.placement.routes[record.route]
            request = ObservedRequest(self.key, route, record, tuple(runs))
            observer.ended(request)
            if record.is_first:
                observer.ran(request)

    def _failed(self, request: Request, error: BaseException) -> None:
        now_s = self._runner.now_s()
        self._runner.handle(events.AttemptFailed(now_s, request.id, request.attempt, error))
