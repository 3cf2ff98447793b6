"""Request programs: routes compiled to steps that the caller's own thread executes.

Steps read and write tensors by number. In the normal case, the client's state machine only counts
the request at its start and end, and creates no record of it. If something unusual happens (a busy
device, an error, a close, Ctrl-C), the machine *adopts* the request in its present state as a
running attempt, and handles it like every other request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import DEFAULT_REQUEST, Request
from hetero.devices.request.response import StageTiming, group_outputs
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.client.device_tensors import DeviceBundle, kept_specs
from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.client.request_runner import RequestRunner, Submission
from hetero.scheduler.types import events
from hetero.scheduler.types.messages import bundle_key
from hetero.scheduler.types.placement import Placement

#: Create tuples without Python's call overhead.
_completed: Final[Callable[..., CompletedSubmission]] = tuple.__new__
_timing: Final[Callable[..., StageTiming]] = tuple.__new__


class Stage(Protocol):
    """Stage that the calling thread can run; see `hetero.scheduler.device.direct_stage`."""

    @property
    def address(self) -> str:
        """Address of its device."""

    def outputs_left(self, route: int, resident: tuple[str, ...] = ()) -> frozenset[str]:
        """Return the outputs that stay in the device's memory on a route.

        `resident`: outputs that a request declares resident.
        """

    def find_resident(self, key: str) -> Mapping[str, Value] | None:
        """Return a bundle of resident tensors; None if the device does not have it."""

    def keep(self, key: str, tensors: Mapping[str, Value]) -> None:
        """Store resident tensors under a key."""

    def free(self, keys: Iterable[str]) -> None:
        """Free resident tensors by their keys."""

    def run(
        self, inputs: Sequence[Value], left: frozenset[str], task: Any
    ) -> tuple[Sequence[Value], StageTiming] | None:
        """Run the stage; return None if its device is busy."""

    def release(self, task: Any) -> None:
        """Release the device's stream."""

    def recover(self) -> None:
        """Start the device's tasks whose start Ctrl-C prevented."""

    def convert_error(self, error: Exception, request: Request) -> Exception:
        """Convert an exception of the stage into the error of a request."""


class Step(NamedTuple):
    """Step of a program: a stage, and the numbers of its input tensors.

    `forwarded`: positions among its outputs, and numbers, of the tensors that later steps read.
    `results`: names, and positions among its outputs, of the model's outputs.
    `left`: names of the outputs that may stay in the device's memory.
    `resident`: names, and positions among its outputs, of the outputs that the device stores.
    """

    number: int
    stage: Stage
    inputs: tuple[int, ...]
    forwarded: tuple[tuple[int, int], ...]
    results: tuple[tuple[str, int], ...]
    left: frozenset[str]
    resident: tuple[tuple[str, ...], tuple[int, ...]] = ((), ())


class Resumption(NamedTuple):
    """Adopted attempt with the available inputs of its remaining stages, by stage."""

    attempt: Request
    inputs: Mapping[int, Mapping[str, Value]]


class RequestProgram:
    """Compiled routes of a deployment.

    `stages`: the stages of the placement, by number.
    `memory`: the client's references to resident tensors.
    `resume`: sends the inputs of an adopted attempt to its remaining stages.
    `learn`: records the seconds that a request took and its input bytes.
    """

    def __init__(
        self,
        placement: Placement,
        stages: Sequence[Stage],
        runner: RequestRunner,
        memory: RemoteMemory,
        *,
        resume: Callable[[Resumption], None],
        learn: Callable[[float, int], None],
    ) -> None:
        self._runner = runner
        self._machine, self._lock = runner.machine, runner.lock
        self._resume = resume
        self._learn = learn
        self._memory = memory
        plan = placement.plan
        numbers: dict[str, int] = {}
        for name in (spec.name for spec in plan.inputs):
            numbers[name] = len(numbers)
        for name in (name for stage in placement.stages for name in stage.outputs):
            numbers.setdefault(name, len(numbers))
        self._names = tuple(numbers)
        self._no_values: list[Value] = [None] * len(numbers)
        self._placement = placement
        self._stages = stages
        #: A stage of each device.
        self._stage_on = {placed.device: stages[placed.index] for placed in placement.stages}
        #: Functions that free resident tensors, by address.
        self._free_at = {stage.address: stage.free for stage in stages}
        inputs = []
        for spec in plan.inputs:
            readers = {placed.device for placed in placement.stages if spec.name in placed.inputs}
            reader = readers.pop() if len(readers) == 1 else None
            inputs.append((spec.name, numbers[spec.name], reader))
        #: Name and number of each input, and the device that reads it, if no other device does.
        self._inputs = tuple(inputs)
        #: Whether requests may have resident tensors; with several routes, these decide the route.
        self._has_one_route = len(placement.routes) == 1
        #: The last request with resident tensors, and how it is run.
        self._last_resident: tuple[Request | None, Request, tuple[Step, ...]]
        self._last_resident = None, DEFAULT_REQUEST, ()

        def step(number: int, route: int) -> Step:
            stage = placement.stages[number]
            readers = {
                n for i in placement.routes[route].stages for n in placement.stages[i].inputs
            }
            outputs = tuple(enumerate(stage.outputs))
            return Step(
                number,
                stages[number],
                tuple(numbers[name] for name in stage.inputs),
                tuple((position, numbers[name]) for position, name in outputs if name in readers),
                tuple((n, position) for position, n in outputs if n in plan.output_names),
                stages[number].outputs_left(route),
            )

        #: Steps by route.
        self._steps = tuple(
            tuple(step(number, route) for number in placed.stages)
            for route, placed in enumerate(placement.routes)
        )
        #: Whether a route's stages run in the order of their numbers, as timings are returned.
        self._is_ascending = tuple(
            list(placed.stages) == sorted(placed.stages) for placed in placement.routes
        )

    def run(
        self, inputs: Mapping[str, Value], request: Request, max_nbytes: float = inf
    ) -> Submission | CompletedSubmission | None:
        """Run a request in the calling thread.

        Returns None if the request has to be submitted instead, also because its inputs have more
        than `max_nbytes` bytes, and a submission if the machine has adopted it.
        """
        values = self._no_values.copy()
        nbytes = 0
        bundle: DeviceBundle | None = None
        stored: Mapping[str, Value] = {}
        for name, number, reader in self._inputs:
            value = inputs.get(name)
            if type(value) is ResidentTensor:
                value_bundle, stored_name = value
                if value_bundle is not bundle:
                    bundle = value_bundle
                    stored = self._stored(bundle)
                if reader != bundle.device or stored_name not in stored:
                    return None
                value = stored[stored_name]
                if type(value) is np.ndarray:
                    value = read_only(value)
                values[number] = value
                continue
            if type(value) is not np.ndarray or value.dtype.hasobject:
                return None
            nbytes += value.nbytes
            view = value.view()
            view.setflags(write=False)
            values[number] = view
        if nbytes > max_nbytes or len(inputs) != len(self._inputs):
            return None
        steps: tuple[Step, ...] = ()
        if request.resident_outputs or request.restore_s or bundle is not None:
            if not self._has_one_route:
                return None
            last_request, prepared_request, steps = self._last_resident
            if request is last_request:
                request = prepared_request
            else:
                request, steps = self._prepare_resident(request)
            self._memory.free_released(self._free_at)
        runner = self._runner
        run = DirectRun(request, nbytes, runner.now_s())
        timings: list[StageTiming] = []
        results: dict[str, Value] = {}
        try:
            with self._lock:
                if not self._machine.begin_direct(run, runner.ids):
                    return None
            made_nbytes = 0
            for step in steps or self._steps[run.route]:
                _, stage, read_numbers, forwarded, produced, left, resident = step
                result = stage.run([*map(values.__getitem__, read_numbers)], left, run)
                if result is None:
                    return self._adopt(run, inputs, values, results, timings)
                outputs, timing = result
                for position, read_number in forwarded:
                    output = outputs[position]
                    if type(output) is np.ndarray:  # the usual case, without a call
                        output = output.view()
                        output.setflags(write=False)  # faster than `flags.writeable`
                        values[read_number] = output
                    else:
                        values[read_number] = read_only(output)
                for name, position in produced:
                    results[name] = outputs[position]
                if resident[0]:
                    timing = self._keep_outputs(run, step, outputs, timing, results)
                timings.append(timing)
                made_nbytes += timing.output_nbytes
            now_s = runner.now_s()
            with self._lock:
                is_ended = self._machine.end_direct(run, now_s, made_nbytes)
                others_wait = self._machine.num_waiting
            if not is_ended:
                return self._adopt(run, inputs, values, results, timings)
            if others_wait:
                runner.handle(events.TimePassed(now_s))  # admits them
            if runner.observers:
                runner.observe(run.request_id, timings)
        except BaseException as error:
            step = self._steps[run.route][min(len(timings), len(self._steps[run.route]) - 1)]
            if run.entered is not None:
                step.stage.release(run)
            if isinstance(error, Exception) and run.is_admitted:
                return self._fail(run, inputs, timings, step, error)
            step.stage.recover()
            runner.abandon(run, inputs)  # Ctrl-C: no thread awaits the result
            raise
        self._learn(now_s - run.begun_s, nbytes)
        if not self._is_ascending[run.route]:
            timings.sort()
        return _completed(
            CompletedSubmission, (results, tuple(timings), run.request_id, runner.story)
        )

    def _stored(self, bundle: DeviceBundle) -> Mapping[str, Value]:
        """Return the tensors of a bundle; none if they are not in this process yet."""
        stage = self._stage_on.get(bundle.device)
        if stage is None or bundle.memory is not self._memory:
            return {}
        return stage.find_resident(bundle.key) or {}

    def _prepare_resident(self, request: Request) -> tuple[Request, tuple[Step, ...]]:
        """Return a request with resident tensors as it is run here, and the steps of its route."""
        resident = request.resident_outputs
        steps = tuple(
            step._replace(
                left=step.stage.outputs_left(0, resident),
                resident=self._resident_outputs(step.number, resident),
            )
            for step in self._steps[0]
        )
        # Its states are lost with this process, if at all.
        prepared_request = request._replace(restore_s=0.0)
        self._last_resident = request, prepared_request, steps
        return prepared_request, steps

    def _resident_outputs(
        self, number: int, resident: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names and positions of a stage's outputs that are among `resident`."""
        names = self._placement.stages[number].outputs
        positions = tuple(i for i, name in enumerate(names) if name in resident)
        return tuple(names[i] for i in positions), positions

    def _keep_outputs(
        self,
        run: DirectRun,
        step: Step,
        outputs: Sequence[Value],
        timing: StageTiming,
        results: dict[str, Value],
    ) -> StageTiming:
        """Store the resident outputs of a stage, put references to them into the results.

        Returns the timing with their description.
        """
        names, positions = step.resident
        values = [outputs[position] for position in positions]
        resident = group_outputs(zip(positions, values, strict=True))
        stage = self._placement.stages[step.number]
        timing = _timing(StageTiming, (*timing[:-1], resident))  # `resident` is the last field
        specs = kept_specs(stage.outputs, timing)
        key = bundle_key(self._runner.attempt_of(run), step.number)
        step.stage.keep(key, dict(zip(names, values, strict=True)))
        results.update(self._memory.new_outputs(stage.device, step.stage.address, key, specs))
        return timing

    def _adopt(
        self,
        run: DirectRun,
        inputs: Mapping[str, Value],
        values: Sequence[Value],
        results: Mapping[str, Value],
        timings: Sequence[StageTiming],
    ) -> Submission:
        """Hand a request over to the machine, and its remaining stages to their devices."""
        steps = self._steps[run.route]
        available = {number for _, number, _ in self._inputs}
        available.update(n for step in steps[: len(timings)] for _, n in step.forwarded)
        call = self._runner.adopt(run, inputs, results, timings)
        if (attempt := call.attempt) is not None:
            self._resume(
                Resumption(
                    attempt,
                    {
                        step.number: {
                            self._names[i]: values[i] for i in step.inputs if i in available
                        }
                        for step in steps[len(timings) :]
                    },
                )
            )
        return call

    def _fail(
        self,
        run: DirectRun,
        inputs: Mapping[str, Value],
        timings: Sequence[StageTiming],
        step: Step,
        error: Exception,
    ) -> Submission:
        """Hand a failed request over to the machine, which decides about a retry."""
        call = self._runner.adopt(run, inputs, {}, timings)
        if (attempt := call.attempt) is not None:
            stage_error = step.stage.convert_error(error, attempt)
            self._runner.handle(
                events.AttemptFailed(self._runner.now_s(), run.request_id, 1, stage_error)
            )
        return call
