"""Operators delegated to onnx.reference, in the suite, queries and runtime models."""

from __future__ import annotations

import numpy as np
from onnx import helper

from hetero.devices.conformance.onnx_suite import backend_cases
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.interpreter.delegate import DELEGATED
from hetero.devices.model.reader import read_model
from tests.support.small_models import compile_cpu, make_model

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
