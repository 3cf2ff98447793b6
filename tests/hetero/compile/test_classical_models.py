"""Classical models, as scikit-learn's converter writes them, partitioned at each node.

Only their inputs and outputs have types, and onnx cannot infer most types of domain ai.onnx.ml.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import hetero

FEATURES = [[0.5, -1.0, 2.0], [float("nan"), 0.0, -3.0], [0.25, 3.0, 1.0], [-0.5, -0.5, 0.0]]
LEAVES = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.1, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
CLASSES = {
    "class_treeids": [0, 0],
    "class_nodeids": [1, 2],
    "class_ids": [0, 2],
    "class_weights": [0.75, 0.5],
    "classlabels_strings": ["a", "b", "c"],
}
TARGETS = {
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 1],
    "target_weights": [1.5, -2.5],
    "n_targets": 2,
}
SUPPORT_VECTOR_MACHINE = {
    "coefficients": [1.0, -1.0],
    "support_vectors": [0.5, 0.0, 1.0, 0.0, 1.0, 0.5],
    "kernel_type": "RBF",
    "kernel_params": [0.5, 0.0, 3.0],
    "rho": [0.25],
}


def model() -> ModelProto:
    """Return a model with each operator whose output types onnx cannot infer."""
    nodes = [
        ("Imputer", "x", "filled", {"imputed_value_floats": [0.0], "replaced_value_float": np.nan}),
        ("Scaler", "filled", "scaled", {"offset": [0.5, 0.0, 1.0], "scale": [0.5, 2.0, 3.0]}),
        ("Normalizer", "scaled", "rows", {"norm": "L2"}),
        ("FeatureVectorizer", "rows scaled", "both", {"inputdimensions": [3, 3]}),
        ("TreeEnsembleClassifier", "rows", "label scores", LEAVES | CLASSES),
        ("ZipMap", "scores", "named", {"classlabels_strings": ["a", "b", "c"]}),
        (
            "SVMClassifier",
            "rows",
            "side sides",
            SUPPORT_VECTOR_MACHINE | {"classlabels_ints": [4, 7], "vectors_per_class": [1, 1]},
        ),
        ("ZipMap", "sides", "by_side", {"classlabels_int64s": [4, 7]}),
        ("TreeEnsembleRegressor", "rows", "leaves", LEAVES | TARGETS),
        ("SVMRegressor", "rows", "distance", SUPPORT_VECTOR_MACHINE | {"n_supports": 2}),
        ("LinearRegressor", "both", "sum", {"coefficients": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}),
    ]
    protos = [
        helper.make_node(
            op, inputs.split(), results.split(), domain="ai.onnx.ml", name=f"n{i}", **attributes
        )
        for i, (op, inputs, results, attributes) in enumerate(nodes)
    ]
    protos += [
        helper.make_node("Add", ["leaves", "distance"], ["part"], name="part"),
        helper.make_node("Add", ["part", "sum"], ["y"], name="whole"),
    ]
    outputs = {"label": TensorProto.STRING, "side": TensorProto.INT64, "y": TensorProto.FLOAT}
    sequences = [
        helper.make_value_info(
            name,
            helper.make_sequence_type_proto(
                helper.make_map_type_proto(
                    key, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
                )
            ),
        )
        for name, key in (("named", TensorProto.STRING), ("by_side", TensorProto.INT64))
    ]
    tensors = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(protos, "g", [x], [*tensors, *sequences])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run_reference(feeds: dict[str, np.ndarray]) -> list[object]:
    session = onnxruntime.InferenceSession(
        model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def compare(compiled: hetero.CompiledModel, feeds: dict[str, np.ndarray]) -> None:
    for actual, expected in zip(compiled(feeds).values(), run_reference(feeds), strict=True):
        if isinstance(expected, list):
            assert [row.keys() for row in actual] == [row.keys() for row in expected]
            actual, expected = (
                np.array([[*row.values()] for row in rows]) for rows in (actual, expected)
            )
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("count", [1, 4])
def test_every_alternation_of_two_devices(count):
    feeds = {"x": np.array(FEATURES[:count], np.float32)}
    with hetero.Core(executor="inprocess") as core:
        names = core.read_model(model()).node_names
        for first, second in product(("CPU", "ORT"), repeat=2):
            pins = {name: (first, second)[i % 2] for i, name in enumerate(names)}
            compare(core.compile_model(model(), "HETERO:ORT,CPU", affinity=pins), feeds)


@pytest.mark.slow
@pytest.mark.ray
def test_partition_over_actors(local_ray):
    feeds = {"x": np.array(FEATURES, np.float32)}
    with hetero.Core(executor="ray") as core:
        names = core.read_model(model()).node_names
        pins = {name: ("CPU", "ORT")[i % 2] for i, name in enumerate(names)}
        compare(core.compile_model(model(), "HETERO:ORT,CPU", affinity=pins), feeds)
