"""Nodes with OpenVINO's methods, compared with those of OpenVINO."""

from __future__ import annotations

from typing import Any

import onnx.parser
import pytest

from hetero.devices.errors import TensorNameError, UnsupportedOperationError
from hetero.devices.model.model_node import ModelNode
from hetero.devices.model.ports import OpenVinoModelMethods
from hetero.devices.model.reader import read_model

TEXT = """<ir_version: 10, opset_import: ["" : 17]>
g (float[2, 3] x) => (float[2, 3] y) {
  [relu] h = Relu(x)
  [add] y = Add(h, x)
}"""


@pytest.fixture
def model():
    return read_model(onnx.parser.parse_model(TEXT))


@pytest.mark.parametrize(
    "expression",
    [
        "op.get_type_name()",
        "op.get_type_info().name",
        "op.get_input_size()",
        "op.get_output_size()",
        "len(op.inputs())",
        "len(op.outputs())",
        "list(op.get_output_shape(0))",
        "list(op.shape)",
        "op.get_element_type().get_type_name()",
        "op.get_input_element_type(0).get_type_name()",
        "op.get_output_element_type(0).get_type_name()",
        "str(op.get_output_partial_shape(0))",
        "str(op.input(0).get_partial_shape())",
        "op.input_value(0).get_element_type().get_type_name()",
        "op.output(0).get_any_name()",
    ],
)
def test_node_equals_openvinos(model, expression):
    ov = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
    theirs = ov.Core().read_model(model.to_bytes()).get_ordered_ops()
    nodes = {o.output(0).get_any_name(): o for o in theirs if o.get_type_name() != "Result"}
    for op in model.get_ordered_ops():
        counterpart = nodes[op.output(0).get_any_name()]
        assert eval(expression, {"op": op}) == eval(expression, {"op": counterpart})


def test_runtime_information_belongs_to_one_model(model):
    model.get_ops()[0].get_rt_info()["affinity"] = "CPU"
    copy = model.clone()
    assert copy.get_ops()[0].rt_info == {"affinity": "CPU"}
    copy.get_ops()[0].set_rt_info("ORT", "affinity")
    assert model.get_ops()[0].rt_info == {"affinity": "CPU"}
    assert model.get_ops()[1].rt_info == {}


def test_nodes_are_equal_within_a_model(model):
    first, second = model.get_ops()
    assert first == model.get_ops()[0] != second
    assert first != model.clone().get_ops()[0]
    assert len({first, model.get_ops()[0], second}) == 2
    assert [op.get_instance_id() for op in (first, second)] == [0, 1]


def test_port_out_of_range_raises(model):
    with pytest.raises(TensorNameError, match=r"node 'relu' \(Relu\): expected an input from 0"):
        model.get_ops()[0].input(1)


@pytest.mark.parametrize("name", ["set_attribute", "set_friendly_name", "evaluate"])
def test_change_of_a_node_raises_with_the_reason(model, name):
    node: Any = model.get_ops()[0]
    with pytest.raises(UnsupportedOperationError, match=rf"ModelNode.{name}: (a model is|compile)"):
        getattr(node, name)("alpha", 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("add_results", "a model is immutable"),
        ("get_variables", "ONNX has no sinks or variables"),
        ("evaluate", "compile the model for device CPU"),
        ("validate_nodes_and_infer_types", "types are inferred when the model is read"),
    ],
)
def test_change_of_a_model_raises_with_the_reason(model, name, reason):
    with pytest.raises(UnsupportedOperationError, match=rf"Model\.{name}: {reason}"):
        getattr(model, name)([])


def test_refused_methods_are_openvinos():
    openvino = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
    refused = [
        [
            name
            for name, method in vars(kind).items()
            if str(method.__doc__).startswith("Raise UnsupportedOperationError")
        ]
        for kind in (OpenVinoModelMethods, ModelNode)
    ]
    assert all(refused)
    assert [name for name in refused[0] if not hasattr(openvino.Model, name)] == []
    assert [name for name in refused[1] if not hasattr(openvino.Node, name)] == []
