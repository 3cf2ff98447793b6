"""What tensors take from device to device: chains of two small stages, run through the executor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import onnx

from devices.model.model import Model
from devices.model.reader import read_model
from devices.plugin.program import Value
from hetero.planning.cost.costs import Line, Transfer
from hetero.planning.cost.timing import deployed, look, saturate
from hetero.planning.cost.work import nonnegative
from scheduler.executor import Executor
from scheduler.vocabulary.rows import DeviceDescriptor

#: (wires, bytes of each) that are measured. A line needs the first two; the others improve it.
SAMPLES: Final = ((1, 4_096), (1, 4_194_304), (4, 4_096), (1, 262_144))
LEAST_SAMPLES: Final = 2
#: Requests in flight while a chain is measured under load.
JOBS: Final = 8
#: Seconds of one request at a time, and of many in flight, at most.
MOST_S: Final = 0.25
#: Assumed where nothing can be measured: a shared-memory hand-over between processes.
ASSUMED: Final = Transfer(Line(1e-3, 2e-10, "estimated"), Line(2e-4, 2e-10, "estimated"))
#: Begins the text of a model that is measured with.
HEADER: Final = '<ir_version: 8, opset_import: ["" : 13]>'


def measure_transfer(
    executor: Executor,
    sender: DeviceDescriptor,
    receiver: DeviceDescriptor,
    configs: Mapping[str, Mapping[str, Any]],
    until_s: float,
) -> Transfer:
    """Measure tensors that go from one device to another, until the clock is at `until_s`.

    Returns: ``calibrated``: lines fitted to measurements; the assumed one where time was too short
        for a line.
    Raises HeteroError: a device fails, or does not take the operators of a chain.
    """
    gaps, busy, rows = [], [], []
    for place, (wires, nbytes) in enumerate(SAMPLES):
        if time.monotonic() >= until_s:
            break
        model, affinity, inputs = _chain(wires, nbytes, sender.name, receiver.name)
        with deployed(executor, model, affinity, configs) as deployment:
            now_s = time.monotonic()
            each_s = max(0.0, until_s - now_s) / (len(SAMPLES) - place) / 2
            alone = look(deployment, inputs, now_s + min(MOST_S, each_s))
            (full,) = saturate([(deployment, inputs)], JOBS, min(MOST_S, each_s))
        gaps.append(max(1e-7, alone.between_s))
        busy.append(max(1e-7, full.period_s - max(full.runs_s)))
        rows.append((1.0, float(wires), float(wires * nbytes)))
    if len(rows) < LEAST_SAMPLES:
        return ASSUMED
    start, each, per_byte = fit(rows, gaps)
    # What a call costs whatever it carries is the device's overhead, not the wire's.
    _, each_busy, per_byte_busy = fit(rows, busy)
    return Transfer(
        Line(start + each, per_byte, "calibrated"), Line(each_busy, per_byte_busy, "calibrated")
    )


def fit(rows: Sequence[tuple[float, ...]], seconds: list[float]) -> tuple[float, ...]:
    """Coefficients of least relative error."""
    target = np.array(seconds)
    table = np.array(rows) / target[:, None]
    return tuple(map(float, nonnegative(table, np.ones_like(target))))


def _chain(
    wires: int, nbytes: int, sender: str, receiver: str
) -> tuple[Model, dict[str, str], dict[str, Value]]:
    """Return a model, its nodes' devices, and inputs for it."""
    model = _chain_model(wires, nbytes)
    affinity = {n: sender if n.startswith("wire") else receiver for n in model.node_names}
    return model, affinity, {"shape": np.array([nbytes // 4])}


@cache
def _chain_model(wires: int, nbytes: int) -> Model:
    """Return a model whose nodes ``wire0``, ... give tensors to its nodes ``out0``, ..."""
    outputs = ", ".join(f"int64[1] out{i}" for i in range(wires))
    inner = ", ".join(f"float[{nbytes // 4}] wire{i}" for i in range(wires))
    nodes = " ".join(
        f"wire{i} = ConstantOfShape(shape) out{i} = Shape(wire{i})" for i in range(wires)
    )
    text = f"transfer (int64[1] shape) => ({outputs}) <{inner}> {{{nodes}}}"
    return read_model(onnx.parser.parse_model(f"{HEADER} {text}"))
