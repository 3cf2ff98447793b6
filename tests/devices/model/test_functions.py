"""Functions of ONNX and of models, tensors in sparse form, and models with separate weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero.devices.errors import ModelError
from hetero.devices.model.functions import (
    function_key,
    function_opsets,
    instantiate,
    standard_function,
)
from hetero.devices.model.html_table import html_table
from hetero.devices.model.model import Node
from hetero.devices.model.reader import read_model
from hetero.devices.model.stub_model import attach_weights
from hetero.devices.model.tensor_proto import dense_array


def node(operator: str, **attributes: Any) -> Node:
    return Node.from_proto(helper.make_node(operator, ["x"], ["y"], name="n", **attributes))


def test_function_of_an_operator_has_its_default_attributes():
    elu = standard_function(node("Elu"), 22)
    assert elu is not None
    defaults = {a.name: helper.get_attribute_value(a) for a in elu.attribute_proto}
    assert defaults == {"alpha": 1.0}
    assert function_opsets(elu)[""] <= 22
    for operator, opset in (("Relu", 5), ("Conv", 22), ("Missing", 22), ("Elu", 5)):
        assert standard_function(node(operator), opset) is None
    # The body of Elu calls operators of opset 18; that of HardSwish exists since opset 14.
    assert standard_function(node("Elu"), 17) is None
    older = standard_function(node("HardSwish"), 14)
    assert older is not None
    assert function_opsets(older)[""] == 14


def function() -> onnx.FunctionProto:
    """Return y = Elu<alpha = @a>(If c then LeakyRelu<alpha = @b>(x)) with the default a = 3."""
    inner = helper.make_node("LeakyRelu", ["x"], ["t"])
    inner.attribute.add(name="alpha", ref_attr_name="b", type=onnx.AttributeProto.FLOAT)
    body = helper.make_graph([inner], "then", [], [onnx.ValueInfoProto(name="t")])
    branch = helper.make_node("If", ["c"], ["h"], then_branch=body, else_branch=body)
    outer = helper.make_node("Elu", ["h"], ["y"])
    outer.attribute.add(name="alpha", ref_attr_name="a", type=onnx.AttributeProto.FLOAT)
    result = helper.make_function(
        "local", "F", ["x", "c"], ["y"], [branch, outer], [helper.make_opsetid("ai.onnx", 17)]
    )
    result.attribute.append("b")
    result.attribute_proto.append(helper.make_attribute("a", 3.0))
    return result


@pytest.mark.parametrize(
    ("arguments", "expected_a", "expected_b"),
    [({}, 3.0, None), ({"a": 4.0}, 4.0, None), ({"a": 4.0, "b": 5.0, "c": 6.0}, 4.0, 5.0)],
)
def test_call_of_a_function_substitutes_its_attributes(arguments, expected_a, expected_b):
    definition = function()
    call = helper.make_node("F", ["p", "q"], ["r"], domain="local", **arguments)
    branch, outer = instantiate(definition, call)
    assert [(a.name, a.f, a.ref_attr_name) for a in outer.attribute] == [("alpha", expected_a, "")]
    for attribute in branch.attribute:
        (inner,) = attribute.g.node
        values = {a.name: a.f for a in inner.attribute}
        assert values == ({} if expected_b is None else {"alpha": expected_b})
    assert definition == function()  # unchanged
    assert function_opsets(definition) == {"": 17}
    wrapped = Node.from_proto(call)
    assert function_key(wrapped) == ("local", "F", "")


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([1, 5], [[0, 7, 0], [0, 0, 8]]),
        ([[0, 1], [1, 2]], [[0, 7, 0], [0, 0, 8]]),
        ([[1, 0], [0, 0]], [[8, 0, 0], [7, 0, 0]]),
    ],
)
def test_sparse_tensor_becomes_dense(indices, expected):
    values = numpy_helper.from_array(np.float32([7, 8]), "v")
    sparse = helper.make_sparse_tensor(
        values, numpy_helper.from_array(np.array(indices, np.int64), "i"), [2, 3]
    )
    dense = dense_array(sparse)
    assert (dense.tolist(), dense.dtype, dense.flags.writeable) == (expected, np.float32, False)


@pytest.mark.parametrize("indices", [[1, 6], [1], [[0, 1], [2, 0]], [[0, 0, 0], [0, 0, 1]]])
def test_sparse_tensor_with_wrong_indices_raises(indices):
    values = numpy_helper.from_array(np.float32([7, 8, 9]), "v")
    sparse = helper.make_sparse_tensor(
        values, numpy_helper.from_array(np.array(indices, np.int64), "i"), [2, 3]
    )
    with pytest.raises(ModelError, match="node n: sparse tensor 'v': the contents do not match"):
        dense_array(sparse, "node n")


def test_model_with_separate_weights_equals_the_whole():
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["h"], name="add"), node("Neg").proto],
        "net",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.float32([1, 2]), "w")],
    )
    graph.node[1].input[0] = "h"
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    proto = model.to_proto(weights="stub")
    arrays = {"w": model.constants["w"].array}
    again = attach_weights(proto, arrays, {"add": ["first", "second"]})
    assert again.content_hash == model.content_hash
    assert [n.covers for n in again.nodes] == [("first", "second"), ("n",)]
    assert again.constants["w"].array is arrays["w"]
    assert not again.header.graph.node
    inline = attach_weights(model.to_proto(), {})
    assert inline.content_hash == model.content_hash
    assert [n.covers for n in inline.nodes] == [("add",), ("n",)]


def test_table_escapes_texts_and_counts_the_rest():
    html = html_table("a < b", ("p&q",), [(f"<{i}>",) for i in range(53)])
    assert "<p>a &lt; b</p>" in html
    assert "<th>p&amp;q</th>" in html
    assert (html.count("<td>"), "&lt;49&gt;" in html, "&lt;50&gt;" in html) == (50, True, False)
    assert "and 3 more" in html
    assert "more" not in html_table("c", ("h",), [("x",)] * 50)
