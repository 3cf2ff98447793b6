"""Runs of the proofs of faults, in a separate process, because some crash it."""

from __future__ import annotations

from typing import Any

import numpy as np

import hetero
from hetero.devices.conformance.onnx_suite import Case, backend_cases
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
    return list(map(_packed, arrays))


def proofs(table: str) -> list[Proof]:
    """Return the proofs of a runtime's faults."""
    from hetero.devices.faults import onnxruntime, openvino

    match table:
        case "openvino":
            faults = openvino.FAULTS.faults
        case "onnxruntime":
            faults = onnxruntime.FAULTS
        case "onnxruntime 1.30":
            faults = onnxruntime.faults_of((1, 30))[len(onnxruntime.FAULTS) :]
        case _:
            raise ValueError(table)
    return [fault.proof for fault in faults if fault.proof is not None]


def case_outputs(
    plugin_spec: str, model: bytes, inputs: dict[str, tuple[str, list[int], bytes]]
) -> list[tuple[str, list[int], bytes]] | None:
    """Return the outputs of a model; None if its run raises. Runs in the worker process."""
    (entry,) = load_plugins([plugin_spec], entry_points=False).values()
    assert entry.plugin is not None
    plugin, source = entry.plugin, read_model(model)
    config = plugin.effective_config({})
    try:
        transformed = plugin.transform_model(source, config)
        program = plugin.compile(transformed, config)
        values = [_array(inputs[port.name]) for port in transformed.inputs]
        return list(map(_packed, program.run(values, RunContext())))
    except Exception:
        return None


def _packed(array: np.ndarray) -> tuple[str, list[int], bytes]:
    return array.dtype.str, list(array.shape), array.tobytes()


def _array(packed: Any) -> np.ndarray:
    dtype, shape, data = packed
    return np.frombuffer(data, dtype).reshape(shape)


_WORKER = QueryProcess("the runtime", outputs)


def is_wrong(plugin_spec: str, table: str, index: int, expected: list[np.ndarray]) -> bool:
    """Return whether a runtime crashes, raises or differs from `expected` on a proof."""
    result: Any = _WORKER.call(outputs, plugin_spec, table, index, count=100)
    if result is None or isinstance(result, WorkerFailure):
        return True
    arrays = list(map(_array, result))
    try:
        assert_close(arrays, expected, rtol=1e-3, atol=1e-3)
    except AssertionError:
        return True
    return False


def suite_case(name: str) -> Case:
    """Return a case of ONNX's backend suite."""
    return next(case for case in backend_cases() if case.name == name)


def refusal_messages(core: hetero.Core, row: Any, devices: str) -> list[str]:
    """Return the refusals of the suite's case of a fault."""
    support = core.query_model(suite_case(row.suite_case).model(), devices)
    return [r.message for of in support.refusals.values() for r in of.values()]


def case_is_wrong(plugin_spec: str, case: Case) -> bool:
    """Return whether a runtime crashes, raises or differs from a case's outputs."""
    proto = case.model()
    names = [port.name for port in proto.graph.input]
    for inputs, expected in case.data_sets(proto):
        values = {name: _packed(np.asarray(x)) for name, x in zip(names, inputs, strict=True)}
        data = proto.SerializeToString()
        result: Any = _WORKER.call(case_outputs, plugin_spec, data, values, count=100)
        if result is None or isinstance(result, WorkerFailure):
            return True
        try:
            case.compare(list(map(_array, result)), expected)
        except AssertionError:
            return True
    return False
