"""What tensors take from device to device: chains of two small stages, run through the executor."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import onnx

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.planning.cost.costs import Line, Transfer
from hetero.planning.cost.timing import deployed, look, saturate
from hetero.scheduler.executor import Executor

#: Bytes of the tensors that are measured: a line needs two of them.
SIZES: Final = (4_096, 4_194_304)
#: Requests in flight while a chain is measured under load.
JOBS: Final = 8
#: Seconds of one request at a time, and of many in flight, at most.
MOST_S: Final = 0.25
#: Assumed where nothing can be measured: a shared-memory hand-over between processes.
ASSUMED: Final = Transfer(Line(1e-3, 2e-10, "estimated"), Line(2e-4, 2e-10, "estimated"))


def measure_transfer(
    executor: Executor,
    sender: str,
    receiver: str,
    configs: Mapping[str, Mapping[str, Any]],
    until_s: float,
) -> Transfer:
    """Measure tensors that go from one device to another, until the clock is at `until_s`.

    Raises HeteroError: a device fails, or does not take the operators of a chain.
    """
    latencies_s, busy_s = [], []
    for place, nbytes in enumerate(SIZES):
        each_s = max(0.0, until_s - time.monotonic()) / (len(SIZES) - place) / 2
        each_s = min(MOST_S, each_s)
        inputs = {"shape": np.array([nbytes // 4])}
        affinity = {"make": sender, "take": receiver}
        with deployed(executor, _chain(nbytes), affinity, configs) as deployment:
            alone = look(deployment, inputs, time.monotonic() + each_s)
            (full,) = saturate([(deployment, inputs)], JOBS, each_s)
        latencies_s.append(alone.between_s)
        busy_s.append(full.period_s - max(full.runs_s))
    # What a call costs whatever it carries is the device's overhead, not the wire's.
    return Transfer(_line(*latencies_s), Line(0.0, _line(*busy_s).b, "calibrated"))


def _line(small_s: float, large_s: float) -> Line:
    """Return the line through both sizes' seconds."""
    small, large = SIZES
    per_byte = max(0.0, large_s - small_s) / (large - small)
    return Line(max(0.0, small_s - small * per_byte), per_byte, "calibrated")


@cache
def _chain(nbytes: int) -> Model:
    """Return a model whose first node makes a tensor of so many bytes, and whose second reads it.

    Neither it nor anything else of that size goes between them and the client.
    """
    return read_model(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 13]> '
            f"transfer (int64[1] shape) => (int64[1] out) <float[{nbytes // 4}] wire> "
            "{ [make] wire = ConstantOfShape(shape) [take] out = Shape(wire) }"
        )
    )
