"""Operators delegated to onnx.reference, in the suite, queries and runtime models."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from hetero.devices.conformance.onnx_suite import backend_cases
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.interpreter.delegate import DELEGATED
from hetero.devices.model.reader import read_model
from tests.support.small_models import compile_cpu, make_model, run_cpu

WORDS = np.array(["b", "a", "Monday", "c"], object)


def test_delegated_operators_are_in_the_backend_suite():
    models = (case.model() for case in backend_cases() if case.kind == "node")
    checked = {(node.domain, node.op_type) for model in models for node in model.graph.node}
    assert not DELEGATED.keys() - checked


def test_delegation_is_noted_in_query_and_runtime_model():
    node = helper.make_node("StringConcat", ["x", "x"], ["y"], name="b")
    model = make_model([node], {"x": WORDS}, ["y"], opset=20)
    assert CPUPlugin().query_model(read_model(model)).notes == {"b": "delegated to onnx.reference"}
    (executed,) = compile_cpu(model).executed_nodes()
    assert executed.implementation == "delegated to onnx.reference"


def test_delegation_of_an_older_version_is_refused():
    node = helper.make_node("StringConcat", ["x", "x"], ["y"], name="e")
    model = make_model([node], {"x": WORDS}, ["y"], opset=19)
    (refusal,) = CPUPlugin().query_model(read_model(model)).unsupported["e"].values()
    assert refusal.code == "no_kernel"


OPTIMIZERS = {
    "Adagrad": (3, {"norm_coefficient": 0.25}),
    "Adam": (4, {"norm_coefficient": 0.25}),
    "Momentum": (3, {"norm_coefficient": 0.25, "alpha": 0.9, "beta": 0.5, "mode": "standard"}),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
@pytest.mark.parametrize("op_type", OPTIMIZERS)
def test_optimizer_computes_in_the_type_of_each_tensor(dtype, tolerance, op_type):
    count, attributes = OPTIMIZERS[op_type]
    states = np.random.default_rng(0).random((count, 2, 5))
    first = _optimizer_model(op_type, attributes, states[:, :1], np.float64)
    second = _optimizer_model(op_type, attributes, states[:, 1:], np.float64)
    expected = [ReferenceEvaluator(model).run(None, inputs) for model, inputs in (first, second)]
    results = run_cpu(*_optimizer_model(op_type, attributes, states, dtype))
    assert {value.dtype for value in results} == {np.dtype(dtype)}
    interleaved = [value for values in zip(*expected, strict=True) for value in values]
    np.testing.assert_allclose(results, interleaved, rtol=tolerance)


def _optimizer_model(op_type, attributes, states, dtype):
    """Return a model that updates tensors, and its inputs; `states`: by kind and tensor."""
    kinds, number = states.shape[:2]
    values = [value.astype(dtype) for of_kind in states for value in of_kind]
    inputs = {"r": np.array(0.1, dtype), "t": np.array(3)}
    inputs |= {f"s{i}": value for i, value in enumerate(values)}
    outputs = [f"o{i}" for i in range((kinds - 1) * number)]
    domain = "ai.onnx.preview.training"
    node = helper.make_node(op_type, list(inputs), outputs, domain=domain, **attributes)
    return make_model([node], inputs, outputs, domains={domain: 1}), inputs
