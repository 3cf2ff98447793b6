"""Timing models on devices through the executor: warm, median of several, alone or under load."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from devices.model.model import Model
from devices.plugin.program import ExecutedNode, Value
from devices.request.answer import Answer, StageRun
from devices.request.request import Request
from hetero.observe.in_flight import keep_in_flight
from hetero.partition.partition import partition
from hetero.partition.sources import constant_outputs, stage_sources
from hetero.planning.cost.calibration import Look
from scheduler.executor import Deployment, Executor
from scheduler.vocabulary.limits import Limits

#: Bounds of a measuring deployment.
_LIMITS: Final = Limits(nbytes=2**32, timeout_s=120.0)
#: Caches, clock and threads need about so long, and so many runs, until runs take what they take in
#: a long row.
WARM_S: Final = 0.02
WARM_RUNS: Final = 2
#: Runs that nodes' times are the median of, at most.
PROFILED_RUNS: Final = 3
#: Seconds that count of a model's turn where several take turns.
TURN_S: Final = 0.02
#: Answers of each deployment before many requests in flight may end.
LEAST_ANSWERS: Final = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How long one model is measured."""

    #: ``time.monotonic()`` from which on nothing more is run; one run to warm up and one to count
    #: there are in any case.
    until_s: float
    #: Runs at most that count.
    runs: int = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a model takes on a device."""

    #: Median seconds that the device computes.
    run_s: float
    #: Median seconds by executed node; empty where the device does not report them.
    node_times_s: Mapping[str, float]
    executed: tuple[ExecutedNode, ...]


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
    deployment = executor.deploy(
        cut.plan,
        stage_sources([cut], configs),
        constant_outputs(cut),
        limits=_LIMITS,
        company=company,
    )
    try:
        yield deployment
    finally:
        deployment.close()


def run(deployment: Deployment, inputs: Mapping[str, Value], *, profile: bool = False) -> Answer:
    """Run one request to its end."""
    return deployment.submit(inputs, Request(profile=profile)).future.result()


def warm_up(deployment: Deployment, inputs: Mapping[str, Value], until_s: float) -> None:
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
    effort: Effort,
    *,
    profile: bool = False,
) -> Timing:
    """Time a whole model on one device, one request at a time.

    `model`: all of whose nodes it supports.
    `profile`: whether to ask for the nodes' times as well.
    """
    with _on_one(executor, device, model, config) as d:
        warm_up(d, inputs, effort.until_s)
        times = [busy_seconds(run(d, inputs))]
        while len(times) < effort.runs and time.monotonic() < effort.until_s:
            times.append(busy_seconds(run(d, inputs)))
        rows: tuple[ExecutedNode, ...] = ()
        found: dict[str, list[float]] = {}
        for turn in range(PROFILED_RUNS if profile else 0):
            if turn and time.monotonic() >= effort.until_s:
                break
            for stage in run(d, inputs, profile=True).stage_runs:
                for name, seconds in stage.node_times_s.items():
                    found.setdefault(name, []).append(seconds)
            rows = d.executed_nodes(0) if d.plan.stages else ()
    nodes = {name: float(np.median(seconds)) for name, seconds in found.items()}
    return Timing(float(np.median(times)), nodes, rows)


def time_in_turns(
    executor: Executor,
    device: str,
    models: Sequence[tuple[Model, Mapping[str, Value]]],
    config: Mapping[str, Any],
    effort: Effort,
) -> list[float]:
    """Return the median seconds of whole models and their inputs, each in turn on one device.

    What slows the machine for a while slows all of them: their times compare. Each turn warms up,
    so that a model finds the machine as one does that runs by itself.
    """
    with ExitStack() as stack:
        running = [
            (stack.enter_context(_on_one(executor, device, model, config)), inputs)
            for model, inputs in models
        ]
        found: list[list[float]] = [[] for _ in running]
        while not found[0] or (len(found[0]) < effort.runs and time.monotonic() < effort.until_s):
            for times, (one, inputs) in zip(found, running, strict=True):
                warm_up(one, inputs, effort.until_s)
                times.append(busy_seconds(run(one, inputs)))
                end_s = min(effort.until_s, time.monotonic() + TURN_S)
                while time.monotonic() < end_s:
                    times.append(busy_seconds(run(one, inputs)))
    return [float(np.median(times)) for times in found]


def look(deployment: Deployment, inputs: Mapping[str, Value], runs: int, until_s: float) -> Look:
    """Run requests one at a time, warm; one at least that counts, and so many in the time."""
    warm_up(deployment, inputs, until_s)
    found: list[tuple[float, float, float]] = []

    def add(began_s: float, ended_s: float, answer: Answer) -> None:
        stages = answer.stage_runs
        there_s, back_s = stages[0].started_s - began_s, ended_s - stages[-1].ended_s
        # Clocks of two machines need not compare: what they leave is halved then.
        if min(there_s, back_s) < 0:
            there_s = back_s = max(0.0, there_s + back_s) / 2
        found.append((there_s, busy_seconds(answer), back_s))

    keep_in_flight(
        lambda: deployment.submit(inputs).future,
        1,
        lambda sent: not sent or (sent < runs and time.monotonic() < until_s),
        add,
    )
    return Look(*(float(np.median(column)) for column in zip(*found, strict=True)))


def _on_one(
    executor: Executor, device: str, model: Model, config: Mapping[str, Any]
) -> AbstractContextManager[Deployment]:
    affinity = dict.fromkeys(model.node_names, device)
    return deployed(executor, model, affinity, {device: config})


@dataclass(frozen=True, slots=True)
class Saturation:
    """What a deployment does while many requests are in flight."""

    #: Seconds between two answers.
    period_s: float
    #: Mean seconds of each stage's runs: together with the rest of its time they make the period.
    runs_s: tuple[float, ...]


def saturate(
    deployments: Sequence[tuple[Deployment, Mapping[str, Value]]], jobs: int, seconds: float
) -> list[Saturation]:
    """Keep `jobs` requests in flight on each deployment at once, for so long.

    The first third of the time is warming up and does not count.
    """
    found: list[Saturation | BaseException] = [RuntimeError("not run")] * len(deployments)

    def feed(place: int) -> None:
        try:
            found[place] = _saturate(*deployments[place], jobs, seconds)
        except BaseException as error:  # raised again in the caller's thread
            found[place] = error

    threads = [
        threading.Thread(target=feed, args=(i,), daemon=True) for i in range(len(deployments))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results = []
    for result in found:
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def _saturate(
    deployment: Deployment, inputs: Mapping[str, Value], jobs: int, seconds: float
) -> Saturation:
    ended: list[tuple[float, Sequence[StageRun]]] = []
    begin = time.monotonic()
    last = keep_in_flight(
        lambda: deployment.submit(inputs).future,
        jobs,
        lambda sent: time.monotonic() < begin + seconds or len(ended) < LEAST_ANSWERS,
        lambda began_s, ended_s, answer: ended.append((ended_s, answer.stage_runs)),
    )
    # Counting ends with the feeding: what drains afterwards has the devices to itself.
    counted = [(t, runs) for t, runs in ended if begin + (last - begin) / 3 <= t <= last]
    if len(counted) < 2:
        counted = ended
    period = (counted[-1][0] - counted[0][0]) / max(1, len(counted) - 1)
    stages = range(len(deployment.plan.stages))
    return Saturation(
        period, tuple(float(np.mean([runs[s].run_s for _, runs in counted])) for s in stages)
    )


def busy_seconds(answer: Answer) -> float:
    """Seconds that devices computed for an answer."""
    return sum(stage.run_s for stage in answer.stage_runs)
