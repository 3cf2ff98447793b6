"""Graph transformations: patterns, their conditions, and equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from benchmarks.networks import bert
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.light_models import light_model_names
from hetero.devices.model.reader import read_model
from hetero.devices.transforms import transform
from tests.support.small_models import make_model, run_cpu, run_reference
from tests.support.transform_checks import check, check_covers, floats, node, operators

#: Networks with many weights or nodes; only slow runs test them.
LARGE = ("bvlc_alexnet", "densenet121", "resnet50", "vgg19", "zfnet512")


X4 = floats(1, 4, 6, 6)
CONV = node("Conv", "x k b", "c", pads=[1, 1, 1, 1])
NORM = node("BatchNormalization", "c s t m v", "n")
WEIGHTS: dict[str, Any] = {
    "k": floats(4, 4, 3, 3),
    "b": floats(4),
    "s": floats(4),
    "t": floats(4),
    "m": floats(4),
    "v": floats(4),
    "per_channel": floats(4, 1, 1),
    "k11": floats(4, 4, 1, 1) / 4,
    "zero": np.float32(0),
    "six": np.float32(6),
    "row": floats(6),
}

#: Nodes and the operators after transformation; the last node's output is the graph's output.
PATTERNS: dict[str, tuple[list[onnx.NodeProto], list[str]]] = {
    "conv_batchnorm": ([CONV, NORM], ["Conv"]),
    "conv_batchnorm_scale_shift_relu": (
        [
            CONV,
            NORM,
            node("Mul", "n per_channel", "p"),
            node("Add", "b3 p", "q"),
            node("Relu", "q", "y"),
        ],
        ["Conv", "Relu"],
    ),
    "conv_residual_relu": (
        [CONV, node("Add", "x c", "a"), node("Relu", "a", "y")],
        ["Conv", "Add", "Relu"],
    ),
    "conv_clip": ([CONV, node("Clip", "c zero six", "y")], ["Conv", "Clip"]),
    "conv_last_axis_product": ([CONV, node("Mul", "c row", "y")], ["Conv", "Mul"]),
    "conv_sum_of_other_shape": (
        [CONV, node("GlobalAveragePool", "x", "g"), node("Add", "c g", "y")],
        ["Conv", "GlobalAveragePool", "Add"],
    ),
    "batchnorm_relu_before_padded": (
        [
            node("Relu", "x", "c"),
            NORM,
            node("Relu", "n", "p"),
            node("Conv", "p k1", "y", pads=[1, 1, 1, 1]),
        ],
        ["Relu", "BatchNormalization", "Relu", "Conv"],
    ),
    "identity_and_dropout": (
        [node("Identity", "x", "i"), node("Dropout", "i", "d"), node("Exp", "d", "y")],
        ["Exp"],
    ),
    "constants_fold": (
        [
            node("Shape", "x", "s1"),
            node("Gather", "s1 first", "s2"),
            node("Unsqueeze", "s2 axes", "s3"),
            node("Concat", "s3 minus", "s4", axis=0),
            node("Reshape", "x s4", "y"),
        ],
        ["Reshape"],
    ),
    "dead": ([node("Exp", "x", "dead"), node("Relu", "x", "y")], ["Relu"]),
}

CONSTANTS: dict[str, Any] = WEIGHTS | {
    "k1": floats(5, 4, 1, 1),
    "b3": floats(4, 1, 1),
    "w6": floats(6, 6),
    "axes": np.array([0], np.int64),
    "first": np.array(0, np.int64),
    "minus": np.array([-1], np.int64),
}


def pattern_model(nodes: list[onnx.NodeProto], *, outputs: tuple[str, ...] = ()) -> Any:
    names = {name for n in nodes for name in n.input}
    weights = {name: value for name, value in CONSTANTS.items() if name in names}
    return make_model(nodes, {"x": X4}, [nodes[-1].output[0], *outputs], weights)


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_is_transformed(name):
    nodes, expected = PATTERNS[name]
    model = pattern_model(nodes)
    assert operators(model) == expected
    check(model, {"x": X4 - 1})


@pytest.mark.parametrize("name", [n for n, (nodes, _) in PATTERNS.items() if len(nodes) > 1])
def test_inner_value_of_pattern_can_be_an_output(name):
    nodes, _ = PATTERNS[name]
    for inner in nodes[:-1]:
        if inner.op_type in ("Shape", "Gather", "Unsqueeze", "Concat"):
            continue
        check(pattern_model(nodes, outputs=(inner.output[0],)), {"x": X4 - 1})


def test_inner_value_of_pattern_can_have_another_reader():
    nodes, _ = PATTERNS["conv_batchnorm"]
    for inner in nodes[:-1]:
        all_nodes = [*nodes, node("Neg", inner.output[0], "other")]
        model = make_model(
            all_nodes,
            {"x": X4},
            [nodes[-1].output[0], "other"],
            {k: v for k, v in CONSTANTS.items() if any(k in n.input for n in all_nodes)},
        )
        check(model, {"x": X4 - 1})


def test_value_captured_by_subgraph_keeps_its_name():
    graph = helper.make_graph(
        [helper.make_node("Neg", ["c"], ["t"])],
        "body",
        [],
        [helper.make_empty_tensor_value_info("t")],
    )
    branch = helper.make_node("If", ["on"], ["z"], then_branch=graph, else_branch=graph)
    nodes = [CONV, node("Relu", "c", "r"), branch, node("Add", "r z", "y")]
    feeds = {"x": X4, "on": np.array(True)}
    model = make_model(nodes, feeds, ["y"], {"k": WEIGHTS["k"], "b": WEIGHTS["b"]})
    check(model, feeds)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_pattern_of_other_float_types_is_transformed(dtype):
    nodes, expected = PATTERNS["conv_batchnorm"]
    names = {value for n in nodes for value in n.input}
    weights: dict[str, Any] = {k: np.asarray(v, dtype) for k, v in CONSTANTS.items() if k in names}
    model = make_model(nodes, {"x": X4.astype(dtype)}, [nodes[-1].output[0]], weights)
    assert operators(model) == expected
    x: np.ndarray = (X4 - 1).astype(dtype)
    exact = make_model(
        nodes,
        {"x": X4.astype(np.float64)},
        [nodes[-1].output[0]],
        {k: v.astype(np.float64) for k, v in weights.items()},
    )
    (result,) = run_cpu(model, {"x": x})
    (reference,) = run_reference(exact, {"x": x.astype(np.float64)})
    assert result.dtype == dtype
    tolerance = 1e-2 if dtype is np.float16 else 1e-7
    np.testing.assert_allclose(result.astype(np.float64), reference, rtol=tolerance, atol=tolerance)


def test_declared_shape_of_inner_value_is_ignored():
    nodes = [node("Relu", "x", "r"), node("Shape", "r", "s1"), node("Identity", "s1", "y")]
    model = make_model(nodes, {"x": X4}, ["y"])
    dimension = model.graph.input[0].type.tensor_type.shape.dim[0]
    dimension.dim_param = "batch"
    model.graph.value_info.append(helper.make_tensor_value_info("r", 1, [1, 4, 6, 6]))
    x = np.concatenate([X4] * 3)
    assert run_cpu(model, {"x": x})[0].tolist() == [3, 4, 6, 6]


def test_pattern_below_opset_7_is_not_transformed():
    """Before opset 7, Mul and Add broadcast along the axis in their attribute."""
    old = {"broadcast": 1, "axis": 0}
    nodes = [
        node("ReduceMean", "x", "m", axes=[-1]),
        node("Sub", "x m", "d", broadcast=1),
        node("Mul", "d d", "q"),
        node("ReduceMean", "q", "v", axes=[-1]),
        node("Add", "v e", "w", broadcast=1),
        node("Sqrt", "w", "r"),
        node("Div", "d r", "n", broadcast=1),
        node("Mul", "n s", "p", **old),
        node("Add", "p t", "y", **old),
    ]
    weights = {"e": np.full(1, 1e-5, np.float32), "s": floats(4), "t": floats(4)}
    x = floats(4, 4)
    model = make_model(nodes, {"x": x}, ["y"], weights, opset=6)
    assert operators(model) == [n.op_type for n in nodes]
    d = x - x.mean(-1, keepdims=True)
    expected = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
    expected = expected * weights["s"][:, None] + weights["t"][:, None]
    np.testing.assert_allclose(run_cpu(model, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_scalar_of_higher_rank_is_not_folded():
    nodes = [CONV, node("Mul", "c six", "y")]
    weights = {k: np.asarray(CONSTANTS[k]) for k in ("k", "b", "six")}
    for shape, expected in (((), ["Conv"]), ((1,) * 5, ["Conv", "Mul"])):
        weights["six"] = weights["six"].reshape(shape)
        model = make_model(nodes, {"x": X4}, ["y"], weights)
        assert operators(model) == expected
        check(model, {"x": X4 - 1}, run_reference)


def random_graph() -> onnx.GraphProto:
    random_node = helper.make_node("RandomNormal", [], ["r"], shape=[50])
    return helper.make_graph([random_node], "g", [], [helper.make_tensor_value_info("r", 1, [50])])


LOOP_BODY = helper.make_graph(
    [
        helper.make_node("RandomNormal", [], ["r"], shape=[50]),
        helper.make_node("Identity", ["going"], ["again"]),
    ],
    "g",
    [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("going", 9, [])],
    [helper.make_tensor_value_info("again", 9, []), helper.make_tensor_value_info("r", 1, [50])],
)


@pytest.mark.parametrize(
    "random_node",
    [
        helper.make_node("RandomNormal", [], ["t"], shape=[50]),
        helper.make_node("Dice", [], ["t"], domain="own"),
        helper.make_node(
            "If", ["on"], ["t"], then_branch=random_graph(), else_branch=random_graph()
        ),
        helper.make_node("Loop", ["two", ""], ["t"], body=LOOP_BODY),
    ],
    ids=lambda random_node: random_node.op_type,
)
def test_random_numbers_differ_between_runs(random_node):
    function = helper.make_function(
        "own",
        "Dice",
        [],
        ["b"],
        [helper.make_node("RandomNormal", [], ["a"], shape=[50]), node("Neg", "a", "b")],
        [helper.make_opsetid("", 17)],
    )
    constants = {"on": np.array(True), "two": np.array(2)}
    model = make_model(
        [random_node, node("Add", "x t", "y")],
        {"x": np.zeros(1, np.float32)},
        ["y"],
        {k: v for k, v in constants.items() if k in random_node.input},
        functions=[function],
        domains={"own": 1},
    )
    compiled = CPUPlugin().compile_model(read_model(model), {})
    x = np.zeros(1, np.float32)
    assert not np.array_equal(compiled.run([x])[0], compiled.run([x])[0])


def test_executed_nodes_cover_all_nodes_of_bert():
    model = read_model(bert(layers=1, width=64, length=8))
    names = {name for n in transform(model).nodes for name in n.covers}
    assert names == set(model.node_names)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LARGE else [])
        for name in light_model_names()
    ],
)
def test_light_model_executed_nodes_cover_original_nodes(name):
    model = read_model(f"light:{name}")
    check_covers(model)
    names = {name for n in transform(model).nodes for name in n.covers}
    missing = {model.nodes[model.index_of[n]].op_type for n in set(model.node_names) - names}
    assert missing <= {"Constant", "ConstantOfShape", "Dropout", "Reshape", "Unsqueeze"}


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a network of fusable nodes in random order, with some inner values as outputs."""
    nodes: list[onnx.NodeProto] = []
    values = ["x"]
    pieces: list[Callable[[str, str], onnx.NodeProto]] = [
        lambda v, o: node("Conv", f"{v} k b", o, pads=[1, 1, 1, 1]),
        lambda v, o: node("Conv", f"{v} k", o, pads=[1, 1, 1, 1]),
        lambda v, o: node("Conv", f"{v} k11 b", o),
        lambda v, o: node("BatchNormalization", f"{v} s t m v", o),
        lambda v, o: node("Mul", f"{v} per_channel", o),
        lambda v, o: node("Add", f"b3 {v}", o),
        lambda v, o: node("Relu", v, o),
        lambda v, o: node("Sigmoid", v, o),
        lambda v, o: node("Clip", f"{v} zero six", o),
        lambda v, o: node("Identity", v, o),
        lambda v, o: node("Dropout", v, o),
        lambda v, o: node("Transpose", v, o, perm=[0, 1, 3, 2]),
        lambda v, o: node("MatMul", f"{v} w6", o),
        lambda v, o: node("Add", f"{v} row", o),
        lambda v, o: node("Tanh", v, o),
    ]
    for i in range(draw(st.integers(1, 14))):
        output = f"o{i}"
        latest = values[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(values))
        if draw(st.integers(0, 5)) == 0:
            other = draw(st.sampled_from(values))
            op_type = draw(st.sampled_from(["Add", "Mul", "Sum"]))
            nodes.append(node(op_type, f"{latest} {other}", output))
        else:
            nodes.append(draw(st.sampled_from(pieces))(latest, output))
        # Tanh limits the values, so that one tolerance suits every network.
        nodes.append(node("Tanh", output, f"h{i}")) if draw(st.integers(0, 2)) == 0 else None
        values.append(nodes[-1].output[0])
    outputs = {values[-1], *draw(st.lists(st.sampled_from(values[1:]), max_size=2))}
    names = {name for n in nodes for name in n.input}
    weights = {k: v / 4 if k == "k" else v for k, v in CONSTANTS.items() if k in names}
    return make_model(nodes, {"x": X4}, sorted(outputs), weights)


@given(networks())
def test_transformed_random_network_equals_original(model):
    feeds = {"x": X4 - 1}
    references = run_cpu(model, feeds, DISABLE_TRANSFORMATIONS=True)
    for result, expected in zip(run_cpu(model, feeds), references, strict=True):
        scale = float(np.abs(expected).max()) + 1e-3
        np.testing.assert_allclose(result / scale, expected / scale, rtol=1e-3, atol=1e-4)
    check_covers(read_model(model))


def test_loop_with_constant_inputs_is_not_folded():
    body = onnx.parser.parse_graph(
        "b (int64 i, bool c, float v) => (bool d, float o) { d = Identity(c) o = Neg(v) }"
    )
    nodes = [helper.make_node("Loop", ["n", "", "k"], ["t"], body=body), node("Neg", "t", "y")]
    constants = {"n": np.int64(2**62), "k": np.float32(1)}
    assert operators(make_model(nodes, {}, ["y"], constants)) == ["Loop", "Neg"]


@pytest.mark.parametrize(("bias", "scale", "mean"), [(4, 3, 3), (3, 16, 3), (3, 3, 4)])
def test_batchnorm_with_mismatched_channels_is_not_folded(bias, scale, mean):
    sizes = {"b": bias, "s": scale, "m": mean, "v": scale}
    constants = {"w": floats(3, 2, 1, 1)} | {name: floats(size) for name, size in sizes.items()}
    nodes = [node("Conv", "x w b", "c"), node("BatchNormalization", "c s s m v", "y")]
    model = make_model(nodes, {"x": floats(1, 2, 4, 4)}, ["y"], constants)
    assert transform(read_model(model).replace(specs={})).node_names == ("n_c", "n_y")
