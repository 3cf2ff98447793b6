"""Runs of the proofs of faults, in a separate process, because some crash it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.faults.fault import Proof
from hetero.devices.model.reader import read_model
from hetero.devices.model.worker_process import WorkerFailure
from hetero.devices.plugin.node_queries import QueryProcess
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import RunContext
from hetero.devices.plugin.registry import load_plugins
from tests.support.comparison import assert_close


def run_without_query(plugin: Plugin, proof: Proof) -> list[np.ndarray]:
    """Compile a proof's model without a query of its nodes, and run it."""
    config = plugin.effective_config({})
    model = plugin.transform_model(read_model(proof.model()), config)
    inputs = proof.inputs()
    program = plugin.compile(model, config)
    return list(program.run([inputs[port.name] for port in model.inputs], RunContext()))


def outputs(plugin_spec: str, table: str, index: int) -> list[tuple[str, list[int], bytes]] | None:
    """Return the outputs of a proof's run; None if it raises. Runs in the worker process."""
    (entry,) = load_plugins([plugin_spec], entry_points=False).values()
    assert entry.plugin is not None
    try:
        arrays = run_without_query(entry.plugin, proofs(table)[index])
    except Exception:
        return None
    return [(array.dtype.str, list(array.shape), array.tobytes()) for array in arrays]


def proofs(table: str) -> list[Proof]:
    """Return the proofs of a runtime's faults."""
    from hetero.devices.faults import onnxruntime, openvino

    faults = openvino.FAULTS.faults if table == "openvino" else onnxruntime.FAULTS
    return [fault.proof for fault in faults if fault.proof is not None]


_WORKER = QueryProcess("the runtime", outputs)


def is_wrong(plugin_spec: str, table: str, index: int, expected: list[np.ndarray]) -> bool:
    """Return whether a runtime crashes, raises or differs from `expected` on a proof."""
    result: Any = _WORKER.call(outputs, plugin_spec, table, index, count=100)
    if result is None or isinstance(result, WorkerFailure):
        return True
    arrays = [np.frombuffer(data, dtype).reshape(shape) for dtype, shape, data in result]
    try:
        assert_close(arrays, expected, rtol=1e-3, atol=1e-3)
    except AssertionError:
        return True
    return False
