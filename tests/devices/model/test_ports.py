"""Ports of a model: lookup, and the model's methods under OpenVINO's names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero.devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    ModelError,
    TensorNameError,
    TensorShapeError,
    UnsupportedOperationError,
)
from hetero.devices.model.element_type import Type
from hetero.devices.model.ports import find_port
from hetero.devices.model.reader import read_model
from hetero.devices.model.tensor_spec import TensorSpec

A, B = TensorSpec("Alpha", "tensor(float)", (2,)), TensorSpec("beta", "tensor(int64)", (3,))


def proto(*dimensions: Any) -> onnx.ModelProto:
    """Return y = Relu(Conv(x, w)) with two channels, and z = Shape(y)."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
        helper.make_node("Shape", ["y"], ["z"], name="shape"),
    ]
    ports = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [ports("x", TensorProto.FLOAT, dimensions)],
        [ports("y", TensorProto.FLOAT, None), ports("z", TensorProto.INT64, [4])],
        [onnx.numpy_helper.from_array(np.ones((5, 2, 3, 3), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(model, {"author": "me", "version": "3"})
    return model


@pytest.fixture
def model():
    return read_model(proto("n", 2, 8, 8))


@pytest.mark.parametrize(
    ("key", "port"),
    [("Alpha", A), ("beta", B), (0, A), (1, B), (-1, B), (-2, A), (np.int32(1), B), (A, A), (B, B)],
)
def test_port_is_found_by_name_position_or_object(key, port):
    assert find_port((A, B), key, "input") is port


def test_only_port_needs_no_key():
    assert find_port((B,), None, "output") is B


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        (
            None,
            TensorNameError,
            "expected the name or position of an input.*has 2: 'Alpha', 'beta'",
        ),
        ("alpa", TensorNameError, r"no input is named 'alpa'.*Did you mean 'Alpha'\?"),
        ("ALPHA", TensorNameError, r"Did you mean 'Alpha'\?"),
        ("xyz", TensorNameError, "the inputs are 'Alpha', 'beta'.$"),
        (2, TensorNameError, "input 2 is out of range; the model has 2 inputs"),
        (-3, TensorNameError, "input -3 is out of range"),
        (True, ArgumentTypeError, "got bool"),
        (1.0, ArgumentTypeError, "got float"),
    ],
)
def test_unknown_port_raises(key, kind, text):
    with pytest.raises(kind, match=text) as caught:
        find_port((A, B), key, "input")
    if kind is TensorNameError:
        assert caught.value.data["name"] == key
    with pytest.raises(TensorNameError, match="has 0: none"):
        find_port((), None, "output")


def test_model_finds_its_ports(model):
    assert model.input() is model.inputs[0] is model.input(0) is model.input(tensor_name="x")
    for port in (model.output(1), model.output("z"), model.output(index=1)):
        assert port is model.outputs[1]
    assert model.output(tensor_name="y") is model.output(index=0) is model.outputs[0]
    with pytest.raises(TensorNameError):
        model.output()


def test_model_has_openvino_methods(model):
    assert (model.friendly_name, model.get_name(), model.get_friendly_name()) == ("net",) * 3
    assert model.get_parameters() == model.parameters == [model.inputs[0]]
    assert model.get_results() == model.results == list(model.outputs)
    assert model.get_ops() == model.get_ordered_ops()
    assert [node.name for node in model.get_ops()] == ["conv", "relu", "shape"]
    assert (model.get_output_size(), model.get_output_shape(1)) == (2, (4,))
    assert str(model.get_output_partial_shape(1)) == "[4]"
    assert (model.get_output_element_type(1), model.get_output_op(1)) == (
        Type.i64,
        model.outputs[1],
    )
    assert [model.get_parameter_index(port) for port in (*model.inputs, A)] == [0, -1]
    assert [model.get_result_index(port) for port in (*model.outputs, A)] == [0, 1, -1]
    with pytest.raises(TensorNameError):
        model.get_result()
    single = model.replace(outputs=model.outputs[:1])
    assert single.get_result() is single.result is model.outputs[0]
    with pytest.raises(ArgumentError):
        model.get_output_shape(0)
    assert model.clone().content_hash == model.content_hash
    with pytest.raises(UnsupportedOperationError, match=r"model.replace\(name='other'\)"):
        model.set_friendly_name("other")


def test_metadata_is_runtime_information(model):
    assert model.rt_info == {"framework": {"author": "me", "version": "3"}}
    assert model.get_rt_info() == model.rt_info
    assert model.get_rt_info("framework") == model.rt_info["framework"]
    version = model.get_rt_info(["framework", "version"])
    assert (version, version.value, version.astype(int)) == ("3", "3", 3)
    paths = (
        "framework",
        ["framework", "author"],
        ["framework", "x"],
        "x",
        ["framework", "author", "x"],
    )
    assert [model.has_rt_info(path) for path in paths] == [True, True, False, False, False]


def test_model_is_displayed_as_a_table(model):
    html = model._repr_html_()
    assert "Model net: 3 nodes" in html
    assert "<th>port</th><th>name</th><th>type</th><th>layout</th>" in html
    assert "<td>input</td><td>x</td><td>tensor(float)[n, 2, 8, 8]</td>" in html
    assert "<td>output</td><td>z</td><td>tensor(int64)[4]</td>" in html


def test_inner_values_become_outputs(model):
    larger = model.add_outputs(["h", "y", "h"])
    assert [port.name for port in larger.outputs] == ["y", "z", "h"]
    assert larger.outputs[2].shape == ("n", 5, 6, 6)
    assert [port.name for port in model.outputs] == ["y", "z"]
    assert [port.name for port in model.add_outputs("h").outputs] == ["y", "z", "h"]
    for name in ("w", "x", "missing"):
        with pytest.raises(TensorNameError, match=f"has an output '{name}'") as caught:
            larger = model.add_outputs(name)
        assert caught.value.data["name"] == name


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([1, 2, 8, 8], ((1, 2, 8, 8), (1, 5, 6, 6))),
        ({"x": [3, 2, 5, 8]}, ((3, 2, 5, 8), (3, 5, 3, 6))),
        ({0: "k,2,4,4"}, (("k", 2, 4, 4), ("k", 5, 2, 2))),
    ],
)
def test_reshaped_model_has_the_shapes_of_its_nodes(model, shape, expected):
    other = model.reshape(shape)
    assert (other.inputs[0].shape, other.outputs[0].shape) == expected
    assert other.outputs[1].shape == (4,)
    assert model.inputs[0].shape == ("n", 2, 8, 8)
    assert other.is_dynamic() is other.dynamic is (None in expected[0] or "k" in expected[0])


def test_impossible_shapes_raise(model):
    with pytest.raises(TensorShapeError, match="expected 4 dimensions, got") as caught:
        model.reshape([1, 2, 8])
    assert caught.value.data["port"] == "x"
    with pytest.raises(ModelError, match=r"'conv' expects an input of 2 channels.*got 3"):
        model.reshape([1, 3, 8, 8])
    with pytest.raises(TensorNameError):
        model.reshape({"missing": [1]})


@pytest.mark.parametrize(
    ("operator", "weights", "group", "channels"),
    [
        ("Conv", (6, 2, 3, 3), 2, 4),
        ("Conv", (6, 4, 3, 3), 1, 4),
        ("ConvTranspose", (4, 3, 3, 3), 2, 4),
    ],
)
def test_channels_of_a_convolution_are_checked(operator, weights, group, channels):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"], name="conv", group=group)],
        "net",
        [value("x", TensorProto.FLOAT, ["n", "c", 8, 8])],
        [value("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones(weights, np.float32), "w")],
    )
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert model.reshape([1, channels, 8, 8]).inputs[0].shape == (1, channels, 8, 8)
    assert model.reshape([1, -1, 8, 8]).inputs[0].shape == (1, None, 8, 8)
    for wrong in (channels - 2, channels + 2):
        with pytest.raises(ModelError, match=f"input of {channels} channels.*got {wrong}"):
            model.reshape([1, wrong, 8, 8])


def test_ignored_result_of_a_change_is_a_warning(model):
    with pytest.warns(UserWarning, match=r"write model = model\.reshape\(\.\.\.\)"):
        model.reshape([1, 2, 8, 8])
    with pytest.warns(UserWarning, match=r"write model = model\.add_outputs\(\.\.\.\)"):
        model.add_outputs("h")
