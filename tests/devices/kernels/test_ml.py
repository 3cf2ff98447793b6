"""Tree ensembles of `ai.onnx.ml` against ONNX Runtime, and edges of its other operators.

The table of operators has the cases of the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import helper

import hetero
from hetero.devices.kernels import ml_trees
from tests.support.comparison import assert_close
from tests.support.kernel_oracle import check, refuses, run_kernel, run_onnxruntime
from tests.support.ml_operators import CODES, POST_TRANSFORMS, ROWS, WORDS, X, labels, numbers
from tests.support.small_models import compile_cpu, make_model

RNG = np.random.default_rng(31)

check_ml = partial(check, domain="ai.onnx.ml", rtol=1e-3, atol=1e-4)

#: The value of 0.1 in an attribute.
TENTH = float(np.float32(0.1))


def test_linear_regressor_of_one_target_transforms_its_result():
    """ONNX Runtime ignores the transformation."""
    attributes = {"coefficients": numbers(3), "intercepts": numbers(1), "targets": 1}
    plain = run_kernel("LinearRegressor", [X], attributes, 1, "ai.onnx.ml")[0]
    attributes |= {"post_transform": "LOGISTIC"}
    check_ml("LinearRegressor", [X], attributes, 1, expected=[1 / (1 + np.exp(-plain))])


def test_label_encoder_with_tensors():
    keys, values, default = np.array([3, 1]), np.array([5, 6]), np.array([9])
    attributes = {"keys_tensor": keys, "values_tensor": values, "default_tensor": default}
    check_ml("LabelEncoder", [CODES], attributes, 4)


MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def forest(modes: list[str], trees: int = 4) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Return the nodes of random trees of depth 1 to 3, and their leaves as (tree, node)."""
    names = (
        "treeids",
        "nodeids",
        "featureids",
        "modes",
        "values",
        "truenodeids",
        "falsenodeids",
        "missing_value_tracks_true",
    )
    nodes: list[list[Any]] = []
    leaves = []

    def grow(tree: int, first: int, depth: int) -> int:
        node, place = len(nodes) - first, len(nodes)
        if depth == 0 or (depth < 3 and RNG.random() < 0.3):
            nodes.append([tree, node, 0, "LEAF", 0.0, 0, 0, 0])
            leaves.append((tree, node))
            return node
        split, mode = float(RNG.integers(-1, 3) / 2), modes[RNG.integers(len(modes))]
        row = [tree, node, int(RNG.integers(3)), mode, split, 0, 0, int(RNG.integers(2))]
        nodes.append(row)
        row[5] = grow(tree, first, depth - 1)
        row[6] = grow(tree, first, depth - 1)
        assert nodes[place] is row
        return node

    for tree in range(trees):
        grow(tree, len(nodes), 3)
    return {
        f"nodes_{k}": list(v) for k, v in zip(names, zip(*nodes, strict=True), strict=True)
    }, leaves


def test_tree_ensemble_is_built_once_for_all_runs(monkeypatch):
    built: list[ml_trees.Trees] = []

    def build(*fields: Any) -> ml_trees.Trees:
        built.append(trees := Trees(*fields))
        return trees

    Trees = ml_trees.Trees
    monkeypatch.setattr(ml_trees, "Trees", build)
    attributes = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "n_targets": 1,
    }
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor",
            ["x"],
            [name],
            domain="ai.onnx.ml",
            nodes_values=[split, 0.0, 0.0],
            target_weights=[split, -split],
            **attributes,
        )
        for name, split in (("y", 0.25), ("z", 0.75))
    ]
    model = make_model(nodes, {"x": X[:, :1]}, ["y", "z"], domains={"ai.onnx.ml": 1})
    compiled = compile_cpu(model)
    for x in (np.array([[0.5]], np.float32), np.array([[0.0]], np.float32)):
        y, z = compiled.run([np.repeat(x, 5, 0)])
        assert y[0] == (0.25 if x <= 0.25 else -0.25)
        assert z[0] == 0.75
    assert len(built) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("modes", [[mode] for mode in MODES] + [MODES], ids="-".join)
def test_tree_ensemble_regressor(version, aggregate, targets, modes):
    nodes, leaves = forest(modes)
    weighed = [(*leaf, target) for leaf in leaves for target in range(targets)]
    ids = dict(
        zip(
            ("target_treeids", "target_nodeids", "target_ids"),
            map(list, zip(*weighed, strict=True)),
            strict=True,
        )
    )
    attributes = (
        nodes
        | ids
        | {
            "target_weights": numbers(len(weighed)),
            "n_targets": targets,
            "aggregate_function": aggregate,
            "base_values": numbers(targets),
        }
    )
    check_ml("TreeEnsembleRegressor", [ROWS], attributes, version)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("post", POST_TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_tree_ensemble_classifier(post, classes, positive, dtype):
    """Check two classes with one score, as scikit-learn's converter writes them."""
    nodes, leaves = forest(MODES)
    scored = range(1 if classes == 2 else classes)
    weighed = [(*leaf, c) for leaf in leaves for c in scored]
    ids = dict(
        zip(
            ("class_treeids", "class_nodeids", "class_ids"),
            map(list, zip(*weighed, strict=True)),
            strict=True,
        )
    )
    weights = [abs(w) if positive else w for w in numbers(len(weighed))]
    attributes = nodes | ids | {"class_weights": weights, "post_transform": post}
    attributes |= labels(classes)
    x = np.nan_to_num(ROWS).round().astype(dtype) if dtype is np.int64 else ROWS.astype(dtype)
    check_ml("TreeEnsembleClassifier", [x], attributes, 1, n_outputs=2)
    attributes |= {"base_values": numbers(len(scored))}
    check_ml("TreeEnsembleClassifier", [x], attributes, 3, n_outputs=2)


def test_tree_classifier_of_two_scored_classes():
    """ONNX Runtime returns 0 and 1 here, which are no labels of the model."""
    leaf = {
        "nodes_treeids": [0],
        "nodes_nodeids": [0],
        "nodes_featureids": [0],
        "nodes_modes": ["LEAF"],
        "nodes_values": [0.0],
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [0],
    }
    scores = {
        "class_treeids": [0, 0],
        "class_nodeids": [0, 0],
        "class_ids": [0, 1],
        "class_weights": [0.7, 0.2],
    }
    expected = [np.array([3]), np.array([[0.7, 0.2]], np.float32)]
    attributes = leaf | scores | {"classlabels_int64s": [3, 7]}
    check_ml("TreeEnsembleClassifier", [X[:1]], attributes, 1, expected=expected, n_outputs=2)


def test_tree_ensemble_adds_trees_in_order():
    """Half of the trees vote for each class; in 64 bits five tenths add up to more than 0.5."""
    count, votes = 10, 5
    forest = {
        "nodes_treeids": [*range(count)],
        "nodes_nodeids": [0] * count,
        "nodes_featureids": [0] * count,
        "nodes_modes": ["LEAF"] * count,
        "nodes_values": [0.0] * count,
        "nodes_truenodeids": [0] * count,
        "nodes_falsenodeids": [0] * count,
    }
    weights = [TENTH] * votes + [0.0] * votes
    scores = {
        "class_treeids": [*range(count)],
        "class_nodeids": [0] * count,
        "class_ids": [0] * count,
        "class_weights": weights,
    }
    attributes = forest | scores | labels(2)
    check_ml("TreeEnsembleClassifier", [X[:1]], attributes, 1, n_outputs=2)


def test_tree_ensemble_refuses_unknown_nodes():
    nodes, _ = forest(MODES)
    attributes = nodes | {
        "n_targets": 1,
        "target_ids": [0],
        "target_weights": [1.0],
        "target_treeids": [9],
        "target_nodeids": [0],
    }
    with pytest.raises(ValueError, match=r"no node .*\(9, 0\)"):
        run_kernel("TreeEnsembleRegressor", [ROWS], attributes, 1, "ai.onnx.ml")


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("OneHotEncoder", [WORDS], {"cats_strings": ["b"], "zeros": 0}, "values of the categories"),
        ("ArrayFeatureExtractor", [X, np.array([3])], {}, "from 0 to 2"),
        ("Imputer", [X], {"imputed_value_int64s": [1]}, "imputed values"),
        ("LinearClassifier", [X], {"coefficients": [1.0] * 3}, "labels"),
        (
            "LinearRegressor",
            [X],
            {"coefficients": [1.0], "targets": 1},
            r"multiple of 3 \(features\)",
        ),
    ],
)
def test_refuses(op_type, inputs, attributes, message):
    refuses((ValueError, IndexError), message, op_type, inputs, attributes, 1, "ai.onnx.ml")


@pytest.mark.parametrize("kind", ["classlabels_int64s", "classlabels_strings"])
def test_zip_map_crosses_devices(kind):
    names: dict[str, Any] = {
        "classlabels_int64s": [3, 5, 7],
        "classlabels_strings": ["a", "b", "c"],
    }
    attributes = {kind: names[kind]}
    node = helper.make_node("ZipMap", ["s"], ["z"], domain="ai.onnx.ml", name="zip", **attributes)
    model = make_model(
        [helper.make_node("Abs", ["x"], ["s"], name="abs"), node],
        {"x": X},
        ["z"],
        domains={"ai.onnx.ml": 1},
    )
    (expected,) = run_onnxruntime("ZipMap", [abs(X)], attributes, 1, "ai.onnx.ml")
    with (
        hetero.Core(executor="inprocess") as core,
        core.compile_model(model, "HETERO:CPU,ORT", affinity={"abs": "ORT"}) as compiled,
    ):
        actual = compiled({"x": X})[0]
    assert [list(row) for row in actual] == [list(row) for row in expected]
    assert_close(
        np.array([[*row.values()] for row in actual]),
        np.array([[*row.values()] for row in expected]),
        1e-6,
        0,
        "ZipMap",
    )


def test_maps_become_rows():
    scores = {"a": 1.5, "c": 2.0}
    (row,) = run_kernel(
        "DictVectorizer", [scores], {"string_vocabulary": ["c", "b", "a"]}, 1, "ai.onnx.ml"
    )
    assert_close(row, np.array([[2, 0, 1.5]], np.float32), 0, 0, "DictVectorizer")
    forms: list[tuple[dict[str, Any], np.ndarray]] = [
        ({"cast_to": "TO_FLOAT"}, np.array([[1.5, 2]], np.float32)),
        (
            {"cast_to": "TO_STRING", "map_form": "SPARSE", "max_map": 3},
            np.array([["", "1.5", ""]], object),
        ),
    ]
    for attributes, expected in forms:
        (row,) = run_kernel("CastMap", [{4: 2.0, 1: 1.5}], attributes, 1, "ai.onnx.ml")
        assert_close(row, expected, 0, 0, "CastMap")


def test_query_prefers_cpu_for_faults_of_onnxruntime():
    """ONNX Runtime's result of each model differs from the specification, so CPU has to run it."""
    linear = {"coefficients": [1.0, 2.0, 3.0], "post_transform": "LOGISTIC"}
    leaf: dict[str, Any] = {"nodes_modes": ["LEAF"], "nodes_values": [0.0]} | {
        f"nodes_{name}": [0]
        for name in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    }
    scores = {
        "class_treeids": [0, 0],
        "class_nodeids": [0, 0],
        "class_ids": [0, 1],
        "class_weights": [0.7, 0.2],
        "classlabels_int64s": [3, 7],
    }
    with hetero.Core(executor="inprocess") as core:
        for op_type, attributes, outputs in (
            ("LinearRegressor", linear, ["y"]),
            ("TreeEnsembleClassifier", leaf | scores, ["y", "z"]),
        ):
            node = helper.make_node(op_type, ["x"], outputs, domain="ai.onnx.ml", **attributes)
            model = make_model([node], {"x": X}, outputs, domains={"ai.onnx.ml": 1})
            assert list(core.query_model(model, "HETERO:ORT,CPU").values()) == ["CPU"]
