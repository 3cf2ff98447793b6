"""Small models that tests of the top layer share."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def branches(opset: int = 17) -> onnx.ModelProto:
    """Return x -> relu -> (tanh | neg -> abs) -> add -> y over a dynamic batch, with weights."""
    weight = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], "matmul"),
        helper.make_node("Relu", ["product"], ["positive"], "relu"),
        helper.make_node("Tanh", ["positive"], ["left"], "tanh"),
        helper.make_node("Neg", ["positive"], ["negative"], "neg"),
        helper.make_node("Abs", ["negative"], ["right"], "abs"),
        helper.make_node("Add", ["left", "right"], ["y"], "add"),
    ]
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def branches_output(x: np.ndarray) -> np.ndarray:
    """Return what `branches` computes, in plain numpy."""
    weight = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    positive = np.maximum(x @ weight, 0)
    return np.tanh(positive) + positive


def unknown_ops() -> onnx.ModelProto:
    """Return a model with two nodes that no device can know."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Frobnicate", ["a"], ["b"], "first", domain="org.example"),
        helper.make_node("Defenestrate", ["b"], ["y"], "second", domain="org.example"),
    ]
    graph = helper.make_graph(
        nodes,
        "unknown",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def dense() -> onnx.ModelProto:
    """Return x + x over two by three, for devices with few operators."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"], "add")], "dense", ports[:1], ports[1:]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
