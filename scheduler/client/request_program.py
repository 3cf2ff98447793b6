"""Request programs: a deployment's routes, compiled to steps that a caller's own thread runs.

A step takes and gives tensors by number. While nothing unusual happens, a request is these steps
between being counted in and being counted out, and the client's machine keeps no record of it. If
something unusual happens (a busy device, an error, a close, Ctrl-C), the machine *adopts* the
request as it stands, as an attempt that runs, and decides as for every other request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from hetero.devices.plugin.program import Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.client.runner import RequestRunner, Submission
from hetero.scheduler.vocabulary import events
from hetero.scheduler.vocabulary.placement import Placement

#: Makes a tuple without a call of Python's.
_completed: Final[Callable[..., CompletedSubmission]] = tuple.__new__


class Stage(Protocol):
    """A stage that the calling thread can run; see `hetero.scheduler.device.direct_stage`."""

    def left(self, route: int) -> frozenset[str]:
        """Return the outputs that a route leaves in the device's memory."""

    def run(
        self, inputs: Sequence[Value], left: frozenset[str], task: Any
    ) -> tuple[Sequence[Value], StageTiming] | None:
        """Run the stage; None: its device is busy."""

    def leave(self, task: Any) -> None:
        """Give the device's stream back."""

    def placed(self, error: Exception, request: Request) -> Exception:
        """Return the error of a request whose stage raised."""


class Step(NamedTuple):
    """A stage, and the numbers of the tensors that it takes and gives."""

    number: int
    stage: Stage
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    left: frozenset[str]


class Resumption(NamedTuple):
    """What the stages that have not run yet take of the tensors that are there, by stage."""

    attempt: Request
    inputs: Mapping[int, Mapping[str, Value]]


class RequestProgram:
    """The routes of a deployment as steps.

    `stages`: the placement's, by number.
    `resume`: sends inputs to the stages of an attempt that has been adopted.
    `learn`: takes the seconds that a request's stages took, and the bytes of its inputs.
    """

    def __init__(
        self,
        placement: Placement,
        stages: Sequence[Stage],
        runner: RequestRunner,
        *,
        resume: Callable[[Resumption], None],
        learn: Callable[[float, int], None],
    ) -> None:
        self._runner = runner
        self._resume = resume
        self._learn = learn
        numbers: dict[str, int] = {}

        def numbered(names: Iterable[str]) -> tuple[int, ...]:
            return tuple(numbers.setdefault(name, len(numbers)) for name in names)

        plan = placement.plan
        names = tuple(spec.name for spec in plan.inputs)
        self._inputs = tuple(zip(names, numbered(names), strict=True))
        #: By route.
        self._steps = tuple(
            tuple(
                Step(
                    number,
                    stages[number],
                    numbered(placement.stages[number].inputs),
                    numbered(placement.stages[number].outputs),
                    stages[number].left(route),
                )
                for number in placed.stages
            )
            for route, placed in enumerate(placement.routes)
        )
        self._outputs = tuple(zip(plan.output_names, numbered(plan.output_names), strict=True))
        self._names = tuple(numbers)

    def run(
        self, inputs: Mapping[str, Value], request: Request
    ) -> Submission | CompletedSubmission | None:
        """Run a request in the calling thread.

        Returns None for a request that has to be submitted, and a submission for one that the
        machine has adopted.
        """
        values: list[Value] = [None] * len(self._names)
        nbytes = 0
        for name, number in self._inputs:
            value = inputs.get(name)
            if type(value) is not np.ndarray or value.dtype.hasobject:
                return None
            nbytes += value.nbytes
            values[number] = value
        if len(inputs) != len(self._inputs):
            return None
        runner = self._runner
        run = DirectRun(request, nbytes, runner.now_s())
        ended: list[StageTiming] = []
        try:
            if not runner.begin_direct(run):
                return None
            made_nbytes, took_s = 0, 0.0
            for _, stage, taken, given, left in self._steps[run.route]:
                made = stage.run([read_only(values[i]) for i in taken], left, run)
                if made is None:
                    return self._adopt(run, inputs, values, ended)
                for number, value in zip(given, made[0], strict=True):
                    values[number] = value
                went = made[1]
                ended.append(went)
                made_nbytes += went.output_nbytes
                took_s += went.ended_s - went.started_s
            if not runner.end_direct(run, made_nbytes):
                return self._adopt(run, inputs, values, ended)
        except BaseException as error:
            step = self._steps[run.route][min(len(ended), len(self._steps[run.route]) - 1)]
            if run.entered is not None:
                step.stage.leave(run)
            if isinstance(error, Exception) and run.is_admitted:
                return self._fail(run, inputs, ended, step, error)
            runner.abandon(run, inputs)  # Ctrl-C: nobody awaits the answer
            raise
        self._learn(took_s, nbytes)
        outputs = {name: values[number] for name, number in self._outputs}
        return _completed(
            CompletedSubmission, (outputs, tuple(sorted(ended)), run.request_id, runner.story)
        )

    def _adopt(
        self,
        run: DirectRun,
        inputs: Mapping[str, Value],
        values: Sequence[Value],
        ended: Sequence[StageTiming],
    ) -> Submission:
        """Have the machine take a request over, and its other stages run on their devices."""
        steps = self._steps[run.route]
        there = {number for _, number in self._inputs}
        there.update(number for step in steps[: len(ended)] for number in step.outputs)
        outputs = {name: values[i] for name, i in self._outputs if i in there}
        call = self._runner.adopt(run, inputs, outputs, ended)
        if (attempt := call.attempt) is not None:
            self._resume(
                Resumption(
                    attempt,
                    {
                        step.number: {self._names[i]: values[i] for i in step.inputs if i in there}
                        for step in steps[len(ended) :]
                    },
                )
            )
        return call

    def _fail(
        self,
        run: DirectRun,
        inputs: Mapping[str, Value],
        ended: Sequence[StageTiming],
        step: Step,
        error: Exception,
    ) -> Submission:
        """Have the machine take a request over, and decide what becomes of it after an error."""
        call = self._runner.adopt(run, inputs, {}, ended)
        if (attempt := call.attempt) is not None:
            placed = step.stage.placed(error, attempt)
            self._runner.handle(
                events.AttemptFailed(self._runner.now_s(), run.request_id, 1, placed)
            )
        return call
