"""Measuring devices with many requests in flight: one at work, and all of them as in a pipeline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from hetero.devices.errors import ClusterError, DeviceError, HeteroError
from hetero.devices.plugin.program import Value
from hetero.planning.cost.calibration import Round
from hetero.planning.cost.profile_request import Kind, Subject
from hetero.planning.cost.timing import deployed, look, saturate
from hetero.scheduler.executor import Deployment

#: Requests in flight on each device.
JOBS: Final = 3
#: Load sways most with what else the machine does: it is looked at so often.
LOOKS: Final = 2
#: Runs of the slowest part that a look must have room for, and those that it needs.
LEAST_RUNS: Final = 4
RUNS: Final = 10
#: Seconds of a look at most, if these are enough runs.
MOST_S: Final = 0.5


def measure_load(
    subject: Subject, parts: Sequence[tuple[Kind, Mapping[str, Value]]], seconds: float
) -> None:
    """Keep devices busy with their kinds' largest parts, for so long at most.

    Each kind works one request at a time, then with many, and then all devices do. A kind whose
    part cannot be deployed has its error; a device that fails later ends measuring. Where the time
    is too short, nothing is measured.
    """
    names = [device.name for device in subject.devices]  # as they share their nodes' cores
    running: list[tuple[Kind, tuple[Deployment, Mapping[str, Value]]]] = []
    with ExitStack() as stack:
        for kind, inputs in parts:
            part = kind.parts[0]
            try:
                for device in kind.devices:
                    affinity = dict.fromkeys(part.node_names, device.name)
                    configs = {device.name: subject.configs.get(device.name, {})}
                    one = deployed(subject.executor, part, affinity, configs, names)
                    running.append((kind, (stack.enter_context(one), inputs)))
            except (DeviceError, ClusterError) as error:
                kind.error = f"{type(error).__name__}: {error}"
        slowest_s = max((kind.alone_s[0] for kind, _ in running), default=0.0)
        each_s = seconds / LOOKS / (1 + 2 * len(parts))
        if running and each_s >= LEAST_RUNS * slowest_s:
            each_s = min(each_s, max(MOST_S, RUNS * slowest_s))
            with suppress(HeteroError):
                for _ in range(LOOKS):
                    _look(running, each_s)


def _look(
    running: Sequence[tuple[Kind, tuple[Deployment, Mapping[str, Value]]]], each_s: float
) -> None:
    first = {kind.name: (kind, one) for kind, one in reversed(running)}
    for kind, one in reversed(first.values()):
        kind.quiet.append(quiet := look(*one, time.monotonic() + each_s))
        (full,) = saturate([one], JOBS, each_s)
        kind.alone.append(Round(quiet.run_s, sum(full.runs_s), full.period_s))
    every = saturate([one for _, one in running], JOBS, each_s)
    for (kind, _), full in zip(running, every, strict=True):
        kind.company.append(Round(kind.quiet[-1].run_s, sum(full.runs_s), full.period_s))
