"""Faults of OpenVINO: their proofs are refused, and still wrong on the tested version."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from hetero.devices.faults.fault import Proof
from hetero.devices.faults.openvino import FAULTS
from tests.support.comparison import assert_close
from tests.support.core_fixtures import core_fixture
from tests.support.fault_proofs import case_is_wrong, is_wrong, proofs, refusal_messages, suite_case

openvino = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")

PLUGIN = "hetero.devices.openvino.plugin:OpenVinoPlugin"
ROWS = [fault for fault in FAULTS.faults if fault.proof is not None]
CASES = [fault for fault in FAULTS.faults if fault.suite_case]
#: The version that the proofs were tested on; others may have fewer faults.
TESTED_VERSION = "2026.4"


core = core_fixture("module")


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row.description for row in ROWS])
def test_proof_is_refused_and_runs_on_another_device(core, index):
    row = ROWS[index]
    model, inputs = row.proof.model(), row.proof.inputs()
    support = core.query_model(model, "HETERO:OV,ORT,CPU")
    refusals = [
        refusal.message
        for refusals in support.refusals.values()
        for device, refusal in refusals.items()
        if device.startswith("OV")
    ]
    assert any(message.endswith(row.description) for message in refusals), refusals
    expected = _expected_outputs(model, inputs)
    results = core.compile_model(model, "HETERO:OV,ORT,CPU")(inputs)
    assert_close(list(results.to_tuple()), list(expected), rtol=1e-4, atol=1e-5)


def test_reduction_is_supported_if_only_other_axes_are_open(core):
    """A reduction of an axis that always has elements is right, also without results."""
    graph = Proof("(float[a,4] x) => (float[a] y) {y = ReduceMax<axes = [-1], keepdims = 0>(x)}")
    with core.compile_model(graph.model(), "HETERO:OV,CPU") as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ["OV.CPU"]
        assert compiled({"x": np.zeros((0, 4), np.float32)})[0].shape == (0,)
        rows = np.array([[1, 5, 2, 3], [-2, -1, -4, -8]], np.float32)
        assert compiled({"x": rows})[0].tolist() == [5, -1]


def _expected_outputs(model, inputs):
    """Return ONNX Runtime's outputs, or those of ONNX's evaluator if the former cannot run it."""
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
    except Exception:
        return ReferenceEvaluator(model).run(None, inputs)
    return session.run(None, inputs)


#: Models that OpenVINO computes wrong on some processors -> the operator that is refused.
PROCESSOR_DEPENDENT = {
    """(float[1,1,2,2] x) => (float[1,1,2,2] y)
    <float s = {0.1}, uint8 z = {3}, int8[1,1,1,1] w = {6}>
    {q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s)
    c = Conv(d, v) r = QuantizeLinear(c, s, z) e = DequantizeLinear(r, s, z) f = Softmax(c)
    y = Add(e, f)}""": "Conv",
    """(float[1] x) => (float[1,2] y)
    <int8[2,2] t = {1, 2, 3, 4}, float[2] s = {1, 10}, float[1,2] a = {1, 2}>
    {d = DequantizeLinear<axis = 1>(t, s) m = MatMul(a, d) y = Add(m, x)}""": "MatMul",
}


@pytest.mark.parametrize(("graph", "operator"), PROCESSOR_DEPENDENT.items())
def test_processor_dependent_fault_is_refused(core, graph, operator):
    model = core.read_model(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> g {graph}')
    )
    support = core.query_model(model, "HETERO:OV,ORT,CPU")
    (name,) = (node.name for node in model.nodes if node.op_type == operator)
    assert support[name].startswith("ORT")


@pytest.mark.slow
@pytest.mark.skipif(
    not openvino.__version__.startswith(TESTED_VERSION),
    reason=f"faults are those of OpenVINO {TESTED_VERSION}",
)
@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row.description for row in ROWS])
def test_proof_is_still_wrong(core, index):
    """If this fails, OpenVINO has fixed the fault: remove its row."""
    proof = proofs("openvino")[index]
    results = core.compile_model(proof.model(), "CPU")(proof.inputs())
    assert is_wrong(PLUGIN, "openvino", index, list(results.to_tuple()))


def test_every_row_has_a_proof():
    without = [row for row in FAULTS.faults if row.proof is None and not row.suite_case]
    operators = {operator for row in without for operator in row.operators.split()}
    # ONNX Runtime, the oracle, does not run GlobalLpPool without spatial dimensions either.
    assert operators - {"Gemm", "GlobalLpPool"} == set(PROCESSOR_DEPENDENT.values())


@pytest.mark.slow  # onnx generates its suite
@pytest.mark.parametrize("row", CASES, ids=[row.description for row in CASES])
def test_suite_case_is_refused(core, row):
    messages = refusal_messages(core, row, "HETERO:OV,ORT,CPU")
    assert any(message.endswith(row.description) for message in messages), messages


@pytest.mark.slow
@pytest.mark.skipif(
    not openvino.__version__.startswith(TESTED_VERSION),
    reason=f"faults are those of OpenVINO {TESTED_VERSION}",
)
@pytest.mark.parametrize("row", CASES, ids=[row.description for row in CASES])
def test_suite_case_is_still_wrong(row):
    """If this fails, the runtime has fixed the fault: remove its row."""
    assert case_is_wrong(PLUGIN, suite_case(row.suite_case))
