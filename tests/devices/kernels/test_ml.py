"""Classical models of `ai.onnx.ml`, as scikit-learn's converter writes them, on ONNX Runtime."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper

import hetero
from hetero.devices.kernels import ml_trees
from tests.support.comparison import assert_close
from tests.support.kernel_oracle import check, refuses, run_kernel, run_onnxruntime
from tests.support.rows import for_each_row
from tests.support.small_models import compile_cpu, make_model

RNG = np.random.default_rng(31)
X = RNG.standard_normal((5, 3)).astype(np.float32)
WORDS = np.array([["a", "b"], ["c", "a"]], object)
CODES = np.array([[1, 2], [3, 1]])

check_ml = partial(check, domain="ai.onnx.ml", rtol=1e-3, atol=1e-4)

#: The value of 0.1 in an attribute.
TENTH = float(np.float32(0.1))

POST_TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
LABELS = {"classlabels_ints": [3, 7, 5, 9], "classlabels_strings": ["n", "p", "q", "r"]}


def numbers(count: int) -> list[float]:
    return RNG.standard_normal(count).astype(np.float32).tolist()


def labels(count: int, kind: str = "classlabels_strings") -> dict[str, Any]:
    return {kind: LABELS[kind][:count]}


@pytest.mark.parametrize("post", POST_TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2])
def test_linear_regressor(post, targets):
    attributes = {"coefficients": numbers(3 * targets), "targets": targets}
    check_ml("LinearRegressor", [X], attributes, 1)  # without intercepts
    attributes |= {"intercepts": numbers(targets), "post_transform": post}
    if targets > 1:
        check_ml("LinearRegressor", [X], attributes, 1)
    elif post == "LOGISTIC":  # ONNX Runtime ignores it for one target
        plain = run_kernel(
            "LinearRegressor", [X], attributes | {"post_transform": "NONE"}, 1, "ai.onnx.ml"
        )[0]
        check_ml("LinearRegressor", [X], attributes, 1, expected=[1 / (1 + np.exp(-plain))])


@for_each_row("post", POST_TRANSFORMS)
@for_each_row("rows", [1, 2, 3])
@for_each_row("kind", LABELS)
def test_linear_classifier(post, rows, kind):
    attributes = {"coefficients": numbers(3 * rows), "intercepts": numbers(rows)}
    attributes |= {"post_transform": post, **labels(max(rows, 2), kind)}
    check_ml("LinearClassifier", [X], attributes, 1, n_outputs=2)
    check_ml("LinearClassifier", [X[0]], attributes, 1, n_outputs=2)


def test_probit():
    attributes = {"coefficients": [0.0, 0.1, 0.2, 0.0, 0.0, 0.1], "targets": 2}
    attributes |= {"intercepts": [0.5, 0.4], "post_transform": "PROBIT"}
    check_ml("LinearRegressor", [X], attributes, 1)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel, one_class):
    attributes = {
        "kernel_type": kernel,
        "kernel_params": [0.5, 0.3, 3.0],
        "coefficients": numbers(4),
        "support_vectors": numbers(12),
        "n_supports": 4,
        "rho": [0.2],
        "one_class": one_class,
    }
    check_ml("SVMRegressor", [X], attributes, 1)


@for_each_row("post", POST_TRANSFORMS)
@for_each_row("classes", [2, 3, 4])
@for_each_row("probabilities", [False, True])
def test_svm_classifier(post, classes, probabilities):
    counts = [2, 1, 3, 2][:classes]
    pairs = classes * (classes - 1) // 2
    attributes = {
        "kernel_type": "RBF",
        "kernel_params": [0.5, 0.0, 3.0],
        "vectors_per_class": counts,
        "coefficients": numbers(sum(counts) * (classes - 1)),
        "rho": numbers(pairs),
        "support_vectors": numbers(3 * sum(counts)),
        "post_transform": post,
        **labels(classes),
    }
    if probabilities:
        attributes |= {"prob_a": [-abs(a) for a in numbers(pairs)], "prob_b": numbers(pairs)}
    check_ml("SVMClassifier", [X], attributes, 1, n_outputs=2)


def test_linear_svm_classifier():
    attributes = {"coefficients": numbers(9), "rho": [0.1], "kernel_params": [0.0, 0.0, 0.0]}
    attributes |= {"kernel_type": "LINEAR", **labels(3)}
    check_ml("SVMClassifier", [X], attributes, 1, n_outputs=2)


MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
#: Values equal to thresholds, and missing values.
ROWS = np.array(
    [[0, 1, -1], [np.nan, 0.5, 2], [-0.5, np.nan, 0], [1, 0, 0.5], [0.5, -1, np.nan]], np.float32
)


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


FEATURES: list[tuple[str, int, list[Any], dict[str, Any]]] = [
    *(
        ("Scaler", 1, [(X * 3).astype(t)], {"offset": [0.5], "scale": [0.5, 2.0, 3.0][:n]})
        for t, n in product((np.float32, np.float64, np.int64, np.int32), (1,))
    ),
    ("Scaler", 1, [X], {"offset": [0.5, 0.0, 1.0], "scale": [0.5, 2.0, 3.0]}),
    *(
        ("Normalizer", 1, [(X * 3).astype(t)], {"norm": norm})
        for t, norm in product((np.float32, np.float64, np.int64), ("MAX", "L1", "L2"))
    ),
    ("Normalizer", 1, [np.zeros((2, 3), np.float32)], {"norm": "L2"}),
    ("FeatureVectorizer", 1, [CODES, CODES[:, :1]], {"inputdimensions": [2, 1]}),
    ("FeatureVectorizer", 1, [X, X[:, :2].copy()], {"inputdimensions": [2, 3]}),
    ("Binarizer", 1, [X], {"threshold": 0.2}),
    (
        "Imputer",
        1,
        [ROWS],
        {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": np.nan},
    ),
    ("Imputer", 1, [ROWS], {"imputed_value_floats": [1.5], "replaced_value_float": 0.5}),
    ("Imputer", 1, [CODES], {"imputed_value_int64s": [8], "replaced_value_int64": 1}),
    ("ArrayFeatureExtractor", 1, [X, np.array([[2, 0]])], {}),
    ("ArrayFeatureExtractor", 1, [X[0], np.array([2])], {}),
    ("LabelEncoder", 1, [WORDS], {"classes_strings": ["b", "a"]}),
    ("LabelEncoder", 1, [CODES], {"classes_strings": ["b", "a", "x"], "default_string": "?"}),
    *(
        ("LabelEncoder", version, [x], {**keys, **values})
        for version in (2, 4)
        for x, keys in (
            (WORDS, {"keys_strings": ["a", "b"]}),
            (CODES, {"keys_int64s": [3, 1]}),
            (ROWS, {"keys_floats": [0.5, np.nan]}),
        )
        for values in (
            {"values_strings": ["u", "v"], "default_string": "no"},
            {"values_int64s": [7, 8], "default_int64": -7},
            {"values_floats": [0.5, 0.25], "default_float": 2.5},
        )
    ),
    (
        "LabelEncoder",
        4,
        [CODES],
        {
            "keys_tensor": np.array([3, 1]),
            "values_tensor": np.array([5, 6]),
            "default_tensor": np.array([9]),
        },
    ),
    ("CategoryMapper", 1, [WORDS], {"cats_int64s": [3, 1], "cats_strings": ["a", "b"]}),
    ("CategoryMapper", 1, [CODES], {"cats_int64s": [3, 1], "cats_strings": ["a", "b"]}),
    ("OneHotEncoder", 1, [WORDS], {"cats_strings": ["b", "a"]}),
    ("OneHotEncoder", 1, [CODES.astype(np.float32)], {"cats_int64s": [3, 1, 2], "zeros": 0}),
]


@for_each_row(
    "op_type, version, inputs, attributes",
    FEATURES,
    lambda op_type, version, inputs, attributes: f"{op_type} at version {version}, {attributes}",
)
def test_features(op_type, version, inputs, attributes):
    check_ml(op_type, inputs, attributes, version)


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
