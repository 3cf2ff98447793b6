"""Faults of ONNX Runtime: their proofs are refused, and still wrong on the tested version."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from scipy.special import ndtri

from hetero.devices.faults.fault import FaultTable, NodeView
from hetero.devices.faults.onnxruntime import FAULTS, faults_of
from hetero.devices.model.reader import read_model
from tests.support.comparison import assert_close
from tests.support.core_fixtures import core_fixture
from tests.support.fault_proofs import case_is_wrong, is_wrong, proofs, refusal_messages, suite_case

onnxruntime = pytest.importorskip("onnxruntime")

PLUGIN = "hetero.devices.ort.plugin:ORTPlugin"
ROWS = [fault for fault in FAULTS if fault.proof is not None]
CASES = [fault for fault in FAULTS if fault.suite_case]
#: The version that the proofs were tested on; others may have fewer faults.
TESTED_VERSION = "1.32"


def _resize_with_positive_axes(inputs):
    """Return ONNX Runtime's outputs of the same model with positive axes."""
    (proof,) = (row.proof for row in ROWS if row.operators == "Resize")
    graph = proof.graph.replace("axes = [-2, -1]", "axes = [2, 3]")
    model = replace(proof, graph=graph).model()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, inputs)


def _logistic_regression(inputs):
    return [1 / (1 + np.exp(-inputs["x"] @ np.float32([[0.1], [0.2], [0.3]])))]


def _probit_classes(inputs):
    scores = inputs["x"] @ [0.1, 0.2, 0.3] + 0.1
    probits = ndtri(scores).astype(np.float32)
    return [np.where(scores > 0.5, 5, 3), np.stack([-probits, probits], 1)]


#: Expected outputs of proofs that ONNX's evaluator does not run.
EXPECTED = {
    "the lowest integer divided by -1 crashes the process": lambda inputs: [inputs["x"]],
    # Only the first three 1-grams, 2, 3 and 5, have an index.
    "fewer ngram_indexes than n-grams crash the process": lambda inputs: [
        np.float32([[0, 3, 0], [0, 0, 1]])
    ],
    "keep_aspect_ratio_policy is ignored with negative axes": _resize_with_positive_axes,
    "the post_transform of a single target is not applied": _logistic_regression,
    "PROBIT with a single score of two classes leaves scores undefined": _probit_classes,
}


core = core_fixture("module")


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row.description for row in ROWS])
def test_proof_is_refused_and_runs_on_another_device(core, index):
    row = ROWS[index]
    model, inputs = row.proof.model(), row.proof.inputs()
    support = core.query_model(model, "HETERO:ORT,CPU")
    messages = [refusals["ORT"].message for refusals in support.refusals.values()]
    assert any(message.endswith(row.description) for message in messages), messages
    formula = EXPECTED.get(row.description)
    expected = formula(inputs) if formula else ReferenceEvaluator(model).run(None, inputs)
    results = core.compile_model(model, "HETERO:ORT,CPU")(inputs)
    assert_close(list(results.to_tuple()), list(expected), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    not onnxruntime.__version__.startswith(TESTED_VERSION),
    reason=f"faults are those of ONNX Runtime {TESTED_VERSION}",
)
@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row.description for row in ROWS])
def test_proof_is_still_wrong(core, index):
    """If this fails, ONNX Runtime has fixed the fault: remove its row."""
    proof = proofs("onnxruntime")[index]
    results = core.compile_model(proof.model(), "CPU")(proof.inputs())
    assert is_wrong(PLUGIN, "onnxruntime", index, list(results.to_tuple()))


@pytest.mark.parametrize("operator", ["Pad", "STFT"])
def test_fault_is_refused_on_the_versions_that_have_it(operator):
    (row,) = (row for row in faults_of((1, 30)) if row.operators == operator)
    model = read_model(row.proof.model())
    view = NodeView(model.nodes[-1], model)
    assert FaultTable("ONNX Runtime", faults_of((1, 30))).refusal(view) is not None
    assert FaultTable("ONNX Runtime", faults_of((1, 31))).refusal(view) is None


def test_other_spectra_are_not_refused_on_older_versions():
    (row,) = (row for row in faults_of((1, 30)) if row.operators == "STFT")
    changes = (("y =", "y ="), ("40,2]", "40,1]"), ("= 0", "= 1"), ("step, w", "step"))
    for old, new in changes:
        proof = replace(row.proof, graph=row.proof.graph.replace(old, new, 1))
        model = read_model(proof.model())
        assert bool(row.condition(NodeView(model.nodes[-1], model))) == (old == new)


@pytest.mark.slow
@pytest.mark.skipif(
    not onnxruntime.__version__.startswith("1.30"), reason="faults are those of ONNX Runtime 1.30"
)
@pytest.mark.parametrize("index", range(2))
def test_proof_is_wrong_on_older_versions(core, index):
    proof = proofs("onnxruntime 1.30")[index]
    results = core.compile_model(proof.model(), "CPU")(proof.inputs())
    assert is_wrong(PLUGIN, "onnxruntime 1.30", index, list(results.to_tuple()))


def test_every_row_has_a_proof():
    assert all(row.proof is not None or row.suite_case for row in FAULTS)


@pytest.mark.slow  # onnx generates its suite
@pytest.mark.parametrize("row", CASES, ids=[row.description for row in CASES])
def test_suite_case_is_refused(core, row):
    messages = refusal_messages(core, row, "HETERO:ORT,CPU")
    assert any(message.endswith(row.description) for message in messages), messages


@pytest.mark.slow
@pytest.mark.skipif(
    not onnxruntime.__version__.startswith(TESTED_VERSION),
    reason=f"faults are those of ONNX Runtime {TESTED_VERSION}",
)
@pytest.mark.parametrize("row", CASES, ids=[row.description for row in CASES])
def test_suite_case_is_still_wrong(row):
    """If this fails, the runtime has fixed the fault: remove its row."""
    assert case_is_wrong(PLUGIN, suite_case(row.suite_case))
