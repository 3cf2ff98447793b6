"""What requests take from the client and back to it, and what they need one after the other.

Single small stages, and chains of two, are run through the executor.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import onnx

from devices.errors import HeteroError
from devices.model.model import Model
from devices.model.reader import read_model
from devices.plugin.program import Value
from hetero.planning.cost.costs import Line, Transfer
from hetero.planning.cost.timing import deployed, look, saturate
from hetero.planning.cost.transfers import HEADER, JOBS, LEAST_SAMPLES, RUNS, fit
from scheduler.executor import Deployment, Executor
from scheduler.vocabulary.rows import DeviceDescriptor

#: Bytes of the inputs and outputs that are measured. A line needs the first two.
NBYTES: Final = (4_096, 4_194_304, 262_144)
#: Measurements of what requests need one after the other.
ROUNDS: Final = 4
#: Bytes that carry next to nothing.
SMALL: Final = NBYTES[0]


@dataclass(frozen=True, slots=True)
class Ways:
    """Requests' way from the client to a device, and their answers' way back."""

    there: Transfer
    back: Transfer
    #: Seconds that a call keeps the device busy besides its run, whatever it carries.
    call_s: float
    #: Seconds of a run that does next to nothing.
    least_s: float


def measure_client(
    executor: Executor, device: DeviceDescriptor, config: Mapping[str, Any], until_s: float
) -> Ways | None:
    """Measure the ways from the client to a device and back, ``calibrated``.

    `until_s`: ``time.monotonic()`` at which to end.
    Returns: None where time was too short, or the device does not support the operator that is
        measured with.
    """
    if not _takes(executor, device, _identity(NBYTES[0]), config):
        return None
    there: list[float] = []
    back: list[float] = []
    busy: list[float] = []
    runs: list[float] = []
    for place, nbytes in enumerate(NBYTES):
        if time.monotonic() >= until_s:
            break
        model = _identity(nbytes)
        inputs = {"given": np.zeros(nbytes // 4, np.float32)}
        affinity = dict.fromkeys(model.node_names, device.name)
        with deployed(executor, model, affinity, {device.name: config}) as deployment:
            found = look(deployment, inputs, RUNS, until_s)
            left_s = max(0.0, until_s - time.monotonic())
            (full,) = saturate([(deployment, inputs)], JOBS, left_s / (len(NBYTES) - place))
        there.append(max(1e-7, found.there_s))
        back.append(max(1e-7, found.back_s))
        runs.append(found.run_s)
        busy.append(max(1e-7, full.period_s - full.runs_s[0]))
    if len(busy) < LEAST_SAMPLES:
        return None
    rows = [(1.0, float(nbytes)) for nbytes in NBYTES[: len(busy)]]
    call, per_byte_busy = fit(rows, busy)
    # Of both ways together half is the input's, half the output's.
    moved = Line(0.0, per_byte_busy / 2, "calibrated")

    def line(found: list[float]) -> Line:
        start, per_byte = fit(rows, found)
        return Line(start, per_byte, "calibrated")

    return Ways(Transfer(line(there), moved), Transfer(line(back), moved), call, min(runs))


def measure_turns(
    executor: Executor,
    devices: Sequence[DeviceDescriptor],
    configs: Mapping[str, Mapping[str, Any]],
    until_s: float,
) -> dict[int, list[float]]:
    """Measure what requests need one after the other: all devices at once, with next to no work.

    Returns: number of stages of a request -> seconds between two answers, less what the devices
        computed in them, each time; one stage, and where there are several devices two.
    """
    found: dict[int, list[float]] = {}
    able = [d for d in devices if _takes(executor, d, _identity(SMALL), configs.get(d.name, {}))]
    inputs = {"given": np.zeros(SMALL // 4, np.float32)}
    with ExitStack() as stack:
        running: dict[int, list[tuple[Deployment, Mapping[str, Value]]]] = {}
        for stages in (1, 2) if len(able) > 1 else (1,) * len(able):
            model = _identity(SMALL, stages)
            for place in range(len(able)):
                names = [able[(place + i) % len(able)].name for i in range(stages)]
                affinity = dict(zip(model.node_names, names, strict=True))
                one = stack.enter_context(deployed(executor, model, affinity, configs))
                running.setdefault(stages, []).append((one, inputs))
        each_s = (until_s - time.monotonic()) / ROUNDS / max(1, len(running))
        for _ in range(ROUNDS):
            for stages, chains in running.items():
                full = saturate(chains, JOBS, each_s)
                rate = sum(1 / one.period_s for one in full)
                computed = sum(sum(one.runs_s) / one.period_s for one in full) / len(able)
                found.setdefault(stages, []).append(max(0.0, 1 - computed) / rate)
    return found


def _takes(
    executor: Executor, device: DeviceDescriptor, model: Model, config: Mapping[str, Any]
) -> bool:
    try:
        return len(executor.query(device.name, model, config)) == len(model.nodes)
    except HeteroError:
        return False


@cache
def _identity(nbytes: int, stages: int = 1) -> Model:
    """Return a model of so many nodes that hand its input on."""
    values = ["given", *(f"inner{i}" for i in range(1, stages)), "made"]
    nodes = " ".join(f"{b} = Identity({a})" for a, b in itertools.pairwise(values))
    tensor = f"float[{nbytes // 4}]"
    return read_model(
        onnx.parser.parse_model(f"{HEADER} way ({tensor} given) => ({tensor} made) {{{nodes}}}")
    )
