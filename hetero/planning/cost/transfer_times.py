"""Measurement of transfer times between devices, with chains of two small stages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import onnx

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.planning.cost.costs import LinearCost, Transfer
from hetero.planning.cost.timing import measure_latency, measure_throughput, temporary_deployment
from hetero.scheduler.executor import Executor

#: Bytes of the measured tensors: two sizes determine a line.
SIZES: Final = (4_096, 4_194_304)
#: Requests in flight during the throughput measurement.
JOBS: Final = 8
#: Maximum seconds of the latency measurement, and of the throughput measurement.
MAX_RUN_S: Final = 0.25
#: Default if nothing can be measured: a transfer by shared memory between processes.
DEFAULT_TRANSFER: Final = Transfer(
    LinearCost(1e-3, 2e-10, "estimated"), LinearCost(2e-4, 2e-10, "estimated")
)


def measure_transfer(
    executor: Executor,
    sender: str,
    receiver: str,
    configs: Mapping[str, Mapping[str, Any]],
    until_s: float,
) -> Transfer:
    """Measure the transfer of tensors from one device to another.

    `until_s`: ``time.monotonic()`` at which to end.
    Raises HeteroError: a device fails, or does not support the operators of the chain.
    """
    latencies_s, busy_s = [], []
    for index, nbytes in enumerate(SIZES):
        run_s = max(0.0, until_s - time.monotonic()) / (len(SIZES) - index) / 2
        run_s = min(MAX_RUN_S, run_s)
        inputs = {"shape": np.array([nbytes // 4])}
        affinity = {"make": sender, "take": receiver}
        with temporary_deployment(executor, _chain(nbytes), affinity, configs) as deployment:
            latency = measure_latency(deployment, inputs, time.monotonic() + run_s)
            (throughput,) = measure_throughput([(deployment, inputs)], JOBS, run_s)
        latencies_s.append(latency.transfer_s)
        busy_s.append(throughput.period_s - max(throughput.runs_s))
    # The part that does not depend on the size is call overhead, which counts for the device.
    return Transfer(_line(*latencies_s), LinearCost(0.0, _line(*busy_s).b, "calibrated"))


def _line(small_s: float, large_s: float) -> LinearCost:
    """Return the line through the times of both sizes."""
    small, large = SIZES
    per_byte = max(0.0, large_s - small_s) / (large - small)
    return LinearCost(max(0.0, small_s - small * per_byte), per_byte, "calibrated")


@cache
def _chain(nbytes: int) -> Model:
    """Return a model of two nodes with a tensor of `nbytes` bytes between them.

    The tensors between the client and the model are small.
    """
    return read_model(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 13]> '
            f"transfer (int64[1] shape) => (int64[1] out) <float[{nbytes // 4}] wire> "
            "{ [make] wire = ConstantOfShape(shape) [take] out = Shape(wire) }"
        )
    )
