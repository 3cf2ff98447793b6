"""Conversion of `Constant` nodes into constants, for every attribute that holds a value."""

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero.devices import read_model
from hetero.devices.model.constant_nodes import lift_constant_nodes


def model_with_constant_node(**attribute):
    kind = onnx.TensorProto.STRING if "string" in next(iter(attribute)) else onnx.TensorProto.FLOAT
    node = helper.make_node("Constant", [], ["k"], **attribute)
    identity = helper.make_node("Identity", ["k"], ["y"])
    graph = helper.make_graph(
        [node, identity], "g", [], [helper.make_tensor_value_info("y", kind, None)]
    )
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": onnx.numpy_helper.from_array(np.int8([[1, 2]]))}, np.int8([[1, 2]])),
        ({"value_float": 1.5}, np.float32(1.5)),
        ({"value_floats": [1.5, 2.5]}, np.float32([1.5, 2.5])),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, 4]}, np.int64([3, 4])),
        ({"value_string": "a"}, np.array("a", object)),
        ({"value_strings": ["a", "β"]}, np.array(["a", "β"], object)),
    ],
)
def test_value_attribute_becomes_constant(attribute, expected):
    model = model_with_constant_node(**attribute)
    lifted = lift_constant_nodes(model)
    assert lifted.node_names == ("y",)
    array = lifted.constants["k"].array
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(array, expected)
    assert not array.flags.writeable
    assert model.node_names == ("k", "y"), "the original model has changed"


def test_sparse_value_becomes_dense_constant():
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("k", onnx.TensorProto.FLOAT, [1], [5.0]),
        helper.make_tensor("i", onnx.TensorProto.INT64, [1], [2]),
        [4],
    )
    lifted = lift_constant_nodes(model_with_constant_node(sparse_value=sparse))
    np.testing.assert_array_equal(lifted.constants["k"].array, np.float32([0, 0, 5, 0]))


def test_model_without_constant_nodes_is_returned_unchanged():
    model = model_with_constant_node(value_float=1.0)
    lifted = lift_constant_nodes(model)
    assert lift_constant_nodes(lifted) is lifted
