"""Operators delegated to onnx.reference compute what ONNX Runtime computes at the same opset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from devices.cpu.delegate import DELEGATED
from devices.cpu.plugin import CPUPlugin
from devices.model_reader import read_model
from tests.backend_suite.cases import backend_cases
from tests.cpu.models import compile_cpu, make_model, run_cpu, run_onnxruntime

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
WORDS = np.array(["b", "a", "Monday", "c"], object)
#: A tree that splits on feature 0, then on feature 1.
TREE: dict[str, Any] = {
    "nodes_treeids": [0] * 5,
    "nodes_nodeids": [0, 1, 2, 3, 4],
    "nodes_featureids": [0, 1, 0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],
    "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 3, 0, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0],
}
VECTORS: dict[str, Any] = {
    "kernel_type": "RBF",
    "kernel_params": [0.5, 0.0, 3.0],
    "support_vectors": X[:2].ravel().tolist(),
    "coefficients": [0.7, -0.4],
    "rho": [0.3],
}

#: Operator, version of its schema, inputs, attributes, count of outputs.
CASES: list[tuple[str, int, list[Any], dict[str, Any], int]] = [
    ("ArrayFeatureExtractor", 1, [X, np.array([2, 0])], {}, 1),
    ("Binarizer", 1, [X], {"threshold": 0.2}, 1),
    ("FeatureVectorizer", 1, [X, X[:, :2].copy()], {"inputdimensions": [4, 2]}, 1),
    ("Imputer", 1, [X], {"imputed_value_floats": [1.5], "replaced_value_float": float(X[0, 0])}, 1),
    ("LabelEncoder", 2, [WORDS], {"keys_strings": ["a", "c"], "values_int64s": [7, 9]}, 1),
    ("LabelEncoder", 4, [WORDS], {"keys_strings": ["a", "c"], "values_floats": [7.5, 9.5]}, 1),
    (
        "LinearClassifier", 1, [X],
        {"coefficients": X.ravel().tolist(), "intercepts": [0.1, 0.2, 0.3],
         "classlabels_ints": [5, 6, 7], "post_transform": "SOFTMAX"}, 2,
    ),
    (
        "LinearRegressor", 1, [X],
        {"coefficients": X[0].tolist(), "intercepts": [0.5], "targets": 1}, 1,
    ),
    ("OneHotEncoder", 1, [np.array([1, 3, 2])], {"cats_int64s": [1, 2, 3]}, 1),
    ("Scaler", 1, [X], {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [2.0, 3.0, 4.0, 5.0]}, 1),
    ("SVMRegressor", 1, [X], {**VECTORS, "n_supports": 2}, 1),
    (
        "TreeEnsembleRegressor", 3, [X],
        {**TREE, "n_targets": 1, "target_treeids": [0] * 3, "target_nodeids": [2, 3, 4],
         "target_ids": [0] * 3, "target_weights": [1.0, 2.0, 3.0]}, 1,
    ),
    (
        "TreeEnsembleClassifier", 3, [X],
        {**TREE, "classlabels_int64s": [0, 1, 2], "class_treeids": [0] * 3,
         "class_nodeids": [2, 3, 4], "class_ids": [0, 1, 2], "class_weights": [1.0, 1.0, 1.0]}, 2,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[3].get('norm', '')}".rstrip("-")
)
def test_agrees_with_onnxruntime(case: tuple[str, int, list[Any], dict[str, Any], int]) -> None:
    op_type, version, inputs, attributes, count = case
    feeds = {f"x{i}": value for i, value in enumerate(inputs)}
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(op_type, list(feeds), outputs, domain="ai.onnx.ml", **attributes)
    model = make_model([node], feeds, outputs, domains={"ai.onnx.ml": version})
    got, wanted = run_cpu(model, feeds), run_onnxruntime(model, feeds)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert np.array_equal(a, b)


def test_every_delegated_operator_is_checked() -> None:
    here = {("ai.onnx.ml", case[0], case[1]) for case in CASES}
    for case in backend_cases():
        if case.kind != "node":
            continue
        model = case.model()
        imports = {entry.domain: entry.version for entry in model.opset_import}
        for node in model.graph.node:
            if (node.domain, node.op_type) in DELEGATED:
                here.add((node.domain, node.op_type, imports[node.domain]))
    checked = {(domain, op_type) for domain, op_type, _ in here}
    assert not DELEGATED.keys() - checked


def test_delegation_is_said_in_query_and_runtime_model() -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], name="b", domain="ai.onnx.ml")
    model = make_model([node], {"x": X}, ["y"], domains={"ai.onnx.ml": 1})
    assert CPUPlugin().query_model(read_model(model)).notes == {"b": "delegated to onnx.reference"}
    (executed,) = compile_cpu(model).executed_nodes()
    assert executed.implementation == "delegated to onnx.reference"


def test_an_older_version_than_checked_is_refused() -> None:
    node = helper.make_node("LabelEncoder", ["x"], ["y"], name="e", domain="ai.onnx.ml")
    model = make_model([node], {"x": WORDS}, ["y"], domains={"ai.onnx.ml": 1})
    (refusal,) = CPUPlugin().query_model(read_model(model)).unsupported["e"].values()
    assert refusal.code == "no_kernel"
