"""Constants, ranges and windows, against ONNX Runtime at each semantic version."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero.devices.errors import ModelError
from hetero.devices.model.constant_nodes import constant_node_value
from hetero.devices.model.model import Node
from tests.support.comparison import assert_close
from tests.support.kernel_oracle import (
    NARROW,
    check,
    one_node_model,
    refuses,
    run_kernel,
    run_onnxruntime,
    run_reference,
)
from tests.support.rows import for_each_row

X = np.arange(6, dtype=np.float64).reshape(2, 3)


def literal(attributes, opset):
    (node,) = one_node_model("Constant", [], attributes, opset).graph.node
    return constant_node_value(Node.from_proto(node))


def check_constant(attributes, opset):
    (expected,) = run_onnxruntime("Constant", [], attributes, opset)
    assert_close(literal(attributes, opset), expected, 0, 0, f"{attributes} at opset {opset}")


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 21])
def test_constant(opset):
    check_constant({"value": X}, opset)


@for_each_row(
    "attributes",
    [
        {"value_float": 1.5},
        {"value_floats": (1.5, 2.5)},
        {"value_int": 7},
        {"value_ints": (1, 2, 3)},
        {"value_string": "a"},
        {"value_strings": ("a", "bc")},
    ],
)
@for_each_row("opset", [12, 13])
def test_constant_of_plain_values(opset, attributes):
    check_constant(attributes, opset)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["flat", "by axis"])
def test_sparse_constant(indices):
    values = helper.make_tensor("v", onnx.TensorProto.FLOAT, [2], [3.0, 4.0])
    places = helper.make_tensor(
        "i", onnx.TensorProto.INT64, np.shape(indices), np.ravel(indices).tolist()
    )
    sparse = helper.make_sparse_tensor(values, places, [2, 3])
    expected = np.array([[0, 3, 0], [0, 0, 4]], np.float32)
    assert_close(literal({"sparse_value": sparse}, 11), expected, 0, 0, "sparse_value")


def test_constant_refuses():
    for attributes in ({"value_int": 1, "value_float": 1.0}, {}):
        node = Node.from_proto(helper.make_node("Constant", [], ["y"], **attributes))
        with pytest.raises(ModelError, match="exactly one value"):
            constant_node_value(node)


@for_each_row("shape", [(), (2, 3), (0, 2)])
@for_each_row("dtype", [np.float32, np.int64, np.bool_, np.uint8])
def test_constant_of_shape(shape, dtype):
    expected = np.array(shape, np.int64)
    check("ConstantOfShape", [expected], {"value": np.array([1], dtype)}, 9)
    check("ConstantOfShape", [expected], {}, 20)


def test_constant_of_shape_edges():
    value = np.array([1.5]).astype(NARROW["bfloat16"])
    (y,) = run_kernel("ConstantOfShape", [np.array([2])], {"value": value})
    assert y.dtype == value.dtype
    assert y.astype(np.float32).tolist() == [1.5, 1.5]
    refuses(ValueError, "negative", "ConstantOfShape", [np.array([2, -1])])


RANGES = [(3, 9, 3), (10, 4, -2), (0, 7, 2), (5, 5, 1), (5, 1, 1), (1, 5, -1), (-3, 3, 4)]


@for_each_row("bounds", RANGES)
@for_each_row("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64])
def test_range(dtype, bounds):
    check("Range", [np.array(n, dtype) for n in bounds], {}, 11)


def test_range_of_fractions_and_large_integers():
    check("Range", [np.array(n, np.float32) for n in (0, 1, 0.1)], {}, 11)
    big = 2**60 + 1
    bounds = [np.array(n, np.int64) for n in (big, big + 5, 2)]
    check("Range", bounds, {}, 11, expected=[np.array([big, big + 2, big + 4])])


def test_range_of_half_floats():
    for dtype in (np.dtype(np.float16), NARROW["bfloat16"]):
        bounds = [np.array(n).astype(dtype) for n in (0, 1000, 3)]
        (y,) = run_kernel("Range", bounds, {}, 27)
        assert y.dtype == dtype
        assert np.array_equal(y, np.arange(0, 1000, 3).astype(dtype)[: y.size])


def test_range_refuses():
    refuses(ValueError, "delta: expected", "Range", [np.array(n) for n in (0, 5, 0)])
    with pytest.raises(ValueError, match="finite numbers"):
        run_kernel("Range", [np.array(n, np.float32) for n in (0, np.inf, 1)])
    refuses(TypeError, "one element type", "Range", [np.array(0), np.array(5), np.array(1.0)])


@for_each_row("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@for_each_row("periodic", [0, 1])
@for_each_row("size", [0, 2, 9, 10])
def test_window(op_type, periodic, size):
    attributes = {"periodic": periodic}
    check(op_type, [np.array(size, np.int64)], attributes, 17, atol=1e-6)
    attributes["output_datatype"] = onnx.TensorProto.DOUBLE
    check(op_type, [np.array(size, np.int32)], attributes, 17, 1e-6, 1e-6, oracle=run_reference)
