"""Timing models on devices through the executor: warm, until settled, alone or under load."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode, Value
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response, StageTiming
from hetero.measure.load_generator import keep_in_flight
from hetero.partition.partition import partition, stage_sources
from hetero.planning.cost.calibration import LOW, low, settled, spoiled
from hetero.scheduler.executor import Deployment, Executor
from hetero.scheduler.vocabulary.limits import Limits

#: Bounds of a measuring deployment.
_LIMITS: Final = Limits(nbytes=2**32, timeout_s=120.0)
#: Caches, clock and threads need about so long, and so many runs, until runs take what they take in
#: a long row.
WARM_S: Final = 0.02
WARM_RUNS: Final = 2
#: Runs that nodes' times are taken from, at most.
PROFILED_RUNS: Final = 3
#: Answers of each deployment before many requests in flight may end; and in a window of them.
LEAST_ANSWERS: Final = 3
WINDOW: Final = 8


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a model takes on a device."""

    #: Seconds that the device computes.
    run_s: float
    #: Seconds by executed node; one row, the model, where the device does not tell them apart.
    node_times_s: Mapping[str, float]
    executed: tuple[ExecutedNode, ...]
    #: Whether other work spoiled the figures.
    spoiled: bool = False


@contextmanager
def deployed(
    executor: Executor,
    model: Model,
    affinity: Mapping[str, str],
    configs: Mapping[str, Mapping[str, Any]],
    company: Collection[str] = (),
) -> Iterator[Deployment]:
    """Deploy a model by an affinity, while other devices work too, while the context lasts."""
    cut = partition(model, affinity)
    sources = stage_sources([cut], configs)
    deployment = executor.deploy(
        cut.plan, sources, cut.constant_outputs, limits=_LIMITS, company=company
    )
    try:
        yield deployment
    finally:
        deployment.close()


def run(deployment: Deployment, inputs: Mapping[str, Value], *, profile: bool = False) -> Response:
    """Run one request to its end."""
    return deployment.submit(inputs, Request(profile=profile)).future.result()


def _warm_up(deployment: Deployment, inputs: Mapping[str, Value], until_s: float) -> None:
    """Run requests until they take what they take in a long row; one at least.

    `until_s`: when what follows is to end: at least half of the time is left for it.
    """
    begin_s = time.monotonic()
    warm_s = begin_s + min(WARM_S, (until_s - begin_s) / 2)
    for runs in itertools.count(1):
        run(deployment, inputs)
        now_s = time.monotonic()
        if now_s >= until_s or (runs >= WARM_RUNS and now_s >= warm_s):
            return


def time_model(
    executor: Executor,
    device: str,
    model: Model,
    inputs: Mapping[str, Value],
    config: Mapping[str, Any],
    until_s: float,
) -> Timing:
    """Time a model whose nodes a device supports, and its nodes, one request at a time.

    `until_s`: ``time.monotonic()`` at which to end, if the figures have not settled before; one run
        to warm up, one to count and one for the nodes there are in any case.
    """
    affinity = dict.fromkeys(model.node_names, device)
    with deployed(executor, model, affinity, {device: config}) as d:
        whole = look(d, inputs, until_s)
        found: dict[str, list[float]] = {}
        for turn in range(PROFILED_RUNS):
            if turn and time.monotonic() >= until_s:
                break
            for stage in run(d, inputs, profile=True).stage_timings:
                for name, seconds in stage.node_times_s.items():
                    found.setdefault(name, []).append(seconds)
        rows = d.executed_nodes(0) if d.plan.stages else ()
    nodes = {name: low(seconds) for name, seconds in found.items()}
    return Timing(whole.run_s, nodes, rows, whole.spoiled)


class Look(NamedTuple):
    """Requests one at a time: seconds in their runs, before, between and after them."""

    run_s: float
    there_s: float
    between_s: float
    back_s: float
    #: Whether other work spoiled the figures.
    spoiled: bool = False


def look(deployment: Deployment, inputs: Mapping[str, Value], until_s: float) -> Look:
    """Run requests one at a time, warm, until they have settled; one at least that counts.

    The model is one stage, or a chain of them.
    """
    _warm_up(deployment, inputs, until_s)
    found: list[tuple[float, float, float, float]] = []

    def more(sent: int) -> bool:
        if not sent:
            return True
        return time.monotonic() < until_s and not settled([run_s for run_s, *_ in found])

    def add(began_s: float, ended_s: float, answer: Response) -> None:
        stages = answer.stage_timings
        run_s = sum(stage.run_s for stage in stages)
        there_s, back_s = stages[0].started_s - began_s, ended_s - stages[-1].ended_s
        between_s = sum(b.started_s - a.ended_s for a, b in itertools.pairwise(stages))
        # Clocks of two machines need not compare: the ways are taken to be alike then.
        if min(there_s, between_s, back_s) < 0:
            there_s = back_s = max(0.0, ended_s - began_s - run_s) / (len(stages) + 1)
            between_s = there_s * (len(stages) - 1)
        found.append((run_s, there_s, between_s, back_s))

    keep_in_flight(lambda: deployment.submit(inputs).future, 1, more, add)
    runs, there, between, back = zip(*found, strict=True)
    return Look(low(runs), low(there), low(between), low(back), spoiled(runs))


class Saturation(NamedTuple):
    """What a deployment does while many requests are in flight."""

    #: Seconds between two answers.
    period_s: float
    #: Seconds of each stage's runs: together with the rest of its time they make the period.
    runs_s: tuple[float, ...]


def saturate(
    deployments: Sequence[tuple[Deployment, Mapping[str, Value]]], jobs: int, seconds: float
) -> list[Saturation]:
    """Keep so many requests in flight on each at once, until rates have settled or time is up."""
    until_s = time.monotonic() + seconds
    feeds = [_Feed(*one, jobs) for one in deployments]

    def done() -> bool:
        return time.monotonic() >= until_s or all(feed.settled for feed in feeds)

    with ThreadPoolExecutor(len(feeds)) as pool:
        for future in [pool.submit(feed.run, done) for feed in feeds]:
            future.result()
    return [feed.saturation() for feed in feeds]


class _Feed:
    """Requests in flight on one deployment, and the windows of their answers."""

    def __init__(self, deployment: Deployment, inputs: Mapping[str, Value], jobs: int) -> None:
        self._deployment = deployment
        self._inputs = inputs
        self._jobs = jobs
        self._ended: list[tuple[float, Sequence[StageTiming]]] = []
        #: Seconds between two answers, and of each stage's run, on average over a window each.
        self._windows: list[Saturation] = []
        self.settled = False

    def run(self, done: Callable[[], bool]) -> None:
        """Feed until it is done everywhere."""
        keep_in_flight(
            lambda: self._deployment.submit(self._inputs).future,
            self._jobs,
            lambda sent: len(self._ended) < LEAST_ANSWERS or not done(),
            self._add,
        )

    def _add(self, began_s: float, ended_s: float, answer: Response) -> None:
        self._ended.append((ended_s, answer.stage_timings))
        # What comes first finds a cold machine.
        if len(self._ended) % WINDOW == 1 and len(self._ended) > 2 * WINDOW:
            self._windows.append(self._window(self._ended[-WINDOW - 1 :]))
            self.settled = settled([window.period_s for window in self._windows])

    def saturation(self) -> Saturation:
        """Return what one of the quick windows says, or all answers where there is none."""
        windows = sorted(self._windows) or [self._window(self._ended)]
        return windows[len(windows) * LOW // 100]

    def _window(self, ended: Sequence[tuple[float, Sequence[StageTiming]]]) -> Saturation:
        period_s = (ended[-1][0] - ended[0][0]) / max(1, len(ended) - 1)
        stages = range(len(self._deployment.plan.stages))
        runs_s = (float(np.mean([runs[s].run_s for _, runs in ended[1:]])) for s in stages)
        return Saturation(period_s, tuple(runs_s))
