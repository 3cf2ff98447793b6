"""Models: their hash by component, graph queries, submodels, and ONNX forms."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero.devices.errors import ModelError
from hetero.devices.model.attributes import (
    attribute_value,
    body_values,
    captured_names,
    is_random,
    with_bodies,
)
from hetero.devices.model.model import Constant, Model, Node, header_with
from hetero.devices.model.reader import read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.unique_names import UniqueNames
from tests.support.rows import for_each_row

PORT = helper.make_tensor_value_info
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def proto() -> onnx.ModelProto:
    """Return h = x * w, y = Clip(h, max), z = h + h, with the optional input max."""
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "w"], ["h"], name="mul"),
            helper.make_node("Clip", ["h", "", "max"], ["y"], name="clip"),
            helper.make_node("LeakyRelu", ["h"], ["z"], name="leaky", alpha=0.5),
        ],
        "net",
        [PORT("x", TensorProto.FLOAT, ["n", 3]), PORT("max", TensorProto.FLOAT, [])],
        [PORT("y", TensorProto.FLOAT, None), PORT("z", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(WEIGHT, "w"),
            numpy_helper.from_array(np.array(9, np.float32), "max"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(model, {"author": "me"})
    return model


def changed(change: Callable[[onnx.ModelProto], object]) -> Model:
    model = proto()
    change(model)
    return read_model(model)


def set_weight(array: np.ndarray) -> Callable[[onnx.ModelProto], object]:
    return lambda m: m.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))


def rename_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "v"


def reorder(model: onnx.ModelProto) -> None:
    nodes = [model.graph.node[i] for i in (0, 2, 1)]
    copies = [copy.deepcopy(node) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


@for_each_row(
    "change",
    {
        "weight": set_weight(WEIGHT + 1),
        "weight's type": set_weight(WEIGHT.astype(np.float64)),
        "weight's shape": set_weight(WEIGHT.reshape(2, 3, 1)),
        "weight's name": rename_weight,
        "attribute": lambda m: m.graph.node[2].attribute[0].__setattr__("f", 0.25),
        "operator": lambda m: m.graph.node[2].__setattr__("op_type", "Elu"),
        "node's name": lambda m: m.graph.node[2].__setattr__("name", "other"),
        "order of nodes": reorder,
        "input's shape": lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].Clear(),
        "input's type": lambda m: m.graph.input[0].type.tensor_type.__setattr__("elem_type", 11),
        "input's layout": lambda m: (
            m.graph.input[0].type.tensor_type.shape.dim[0].__setattr__("denotation", "DATA_BATCH")
        ),
        "outputs": lambda m: m.graph.output.pop(),
        "optional input": lambda m: m.graph.input.pop(),
        "opset": lambda m: m.opset_import[0].__setattr__("version", 18),
        "IR version": lambda m: m.__setattr__("ir_version", 8),
        "metadata": lambda m: m.metadata_props[0].__setattr__("value", "you"),
    }.items(),
)
def test_hash_depends_on_each_component(change):
    assert changed(change[1]).content_hash != read_model(proto()).content_hash


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.__setattr__("producer_name", "other"),
        lambda m: m.__setattr__("producer_version", "2"),
        lambda m: m.__setattr__("doc_string", "text"),
        lambda m: m.graph.__setattr__("name", "other"),
        lambda m: m.graph.initializer.reverse(),
    ],
)
def test_hash_ignores_names_texts_and_order(change):
    assert changed(change).content_hash == read_model(proto()).content_hash


def test_digest_of_a_constant_separates_texts():
    def digest(*texts: Any) -> bytes:
        return Constant("c", np.array(texts, object)).digest

    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", "b") == digest(b"a", b"b")
    assert digest("a", "b") != digest("b", "a")
    empty = [Constant("c", np.zeros(shape, np.float32)).digest for shape in ((0,), (0, 2), (2, 0))]
    assert len(set(empty)) == 3
    rows = np.arange(6, dtype=np.int64).reshape(2, 3)
    columns = Constant("c", np.asfortranarray(rows))
    assert columns.digest == Constant("d", rows).digest  # neither the strides nor the name


def test_queries_of_the_graph():
    model = read_model(proto())
    assert model.node_names == ("mul", "clip", "leaky")
    assert model.index_of == {"mul": 0, "clip": 1, "leaky": 2}
    assert model.producers == {"h": 0, "y": 1, "z": 2}
    assert model.consumers == {"x": (0,), "w": (0,), "h": (1, 2), "max": (1,)}
    assert [model.producer(v) and model.producer(v).name for v in ("h", "z", "x", "w")] == [  # type: ignore[union-attr]
        *("mul", "leaky"),
        *(None, None),
    ]
    assert [node.name for node in model.readers(model.nodes[0])] == ["clip", "leaky"]
    assert (model.opset_imports, model.metadata) == ({"": 17}, {"author": "me"})
    assert model.weight_nbytes == 24 + 4
    assert repr(model) == "<Model 'net': 3 nodes, 2 constants>"
    clip = model.nodes[1]
    assert (clip.inputs, clip.reads, clip.writes) == (("h", "", "max"), ("h", "max"), ("y",))
    assert (clip.friendly_name, clip.get_friendly_name(), clip.get_type_name()) == (
        *("clip", "clip"),
        "Clip",
    )
    assert model.nodes[2].attributes == {"alpha": 0.5}
    assert (model.spec("h").type, model.spec("w").shape) == ("tensor(float)", (2, 3))
    assert model.spec("missing") == TensorSpec("missing", "")
    assert copy.deepcopy(model).content_hash == model.content_hash


def test_values_without_inputs_differ_if_they_are_random():
    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["w"], ["constant"]),
            helper.make_node("RandomNormal", [], ["random"], shape=[2]),
            helper.make_node("Add", ["constant", "random"], ["sum"]),
            helper.make_node("Abs", ["x"], ["y"]),
        ],
        "net",
        [PORT("x", TensorProto.FLOAT, [2])],
        [PORT(name, TensorProto.FLOAT, None) for name in ("y", "sum")],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert model.request_dependent == {"x", "y", "random", "sum"}


def test_optional_input_becomes_required():
    model = read_model(proto())
    assert [port.name for port in model.inputs] == ["x"]
    assert [port.name for port in model.optional_inputs] == ["max"]
    same, required = model.with_inputs([]), model.with_inputs(["max"])
    assert [port.name for port in required.inputs] == ["x", "max"]
    assert (set(required.constants), required.optional_inputs) == ({"w"}, ())
    assert (set(same.constants), len(same.optional_inputs)) == ({"w", "max"}, 1)


def test_submodel_has_the_values_that_cross_its_border():
    model = read_model(proto())
    part = model.extract([2, 1, 1], ["z", "max"])
    assert part.node_names == ("clip", "leaky")
    assert [port.name for port in part.inputs] == ["h"]
    assert [(port.name, port.type) for port in part.outputs] == [
        ("z", "tensor(float)"),
        ("max", "tensor(float)"),
    ]
    assert set(part.constants) == {"max"}
    assert part.constants["max"] is model.constants["max"]
    assert (part.name, part.specs) == ("net", model.specs)
    passing = model.extract([], ["x", "w"])
    assert ([p.name for p in passing.inputs], set(passing.constants)) == (["x"], {"w"})


def test_submodel_has_ports_of_unknown_type():
    graph = helper.make_graph(
        [
            helper.make_node("Unknown", ["x"], ["u"], name="u", domain="acme"),
            helper.make_node("Identity", ["u"], ["y"], name="y"),
        ],
        "net",
        [PORT("x", TensorProto.FLOAT, [2])],
        [PORT("y", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    part = read_model(helper.make_model(graph, opset_imports=imports)).extract([0], ["u"])
    assert part.outputs == (TensorSpec("u", ""),)


def test_weights_are_inline_or_stubs(monkeypatch):
    model = read_model(proto())
    inline = {t.name: numpy_helper.to_array(t) for t in model.to_proto().graph.initializer}
    assert {name: array.tolist() for name, array in inline.items()} == {
        "w": WEIGHT.tolist(),
        "max": 9,
    }
    stubs = {t.name: t for t in model.to_proto(weights="stub", keep_nbytes=4).graph.initializer}
    assert [stubs[n].data_location for n in ("w", "max")] == [
        TensorProto.EXTERNAL,
        TensorProto.DEFAULT,
    ]
    stub = stubs["w"]
    assert (list(stub.dims), stub.data_type, len(stub.raw_data)) == ([2, 3], TensorProto.FLOAT, 0)
    assert [(e.key, e.value) for e in stub.external_data] == [("location", "w")]
    # A file lists the optional input; a runtime would be slower with it.
    assert [port.name for port in model.to_proto().graph.input] == ["x"]
    from_file = onnx.ModelProto.FromString(model.to_bytes())
    assert [port.name for port in from_file.graph.input] == ["x", "max"]
    monkeypatch.setattr("hetero.devices.model.model.PROTOBUF_NBYTES", 27)
    with pytest.raises(ModelError, match=r"at most 27 bytes of weights.*got 28"):
        model.to_proto()
    assert model.to_proto(weights="stub").graph.initializer
    monkeypatch.setattr("hetero.devices.model.model.PROTOBUF_NBYTES", 28)
    assert model.to_proto().graph.initializer


def test_metadata_entries_are_replaced_and_removed():
    model = read_model(proto())
    assert header_with(model, {"author": "me", "missing": None}) is model.header
    header = header_with(model, {"author": None, "b": "2", "a": "1"})
    assert [(e.key, e.value) for e in header.metadata_props] == [("b", "2"), ("a", "1")]
    header = header_with(model, {"a": "1"})
    assert [(e.key, e.value) for e in header.metadata_props] == [("author", "me"), ("a", "1")]
    assert model.metadata == {"author": "me"}


def test_pickled_model_is_equal_and_read_only():
    model = read_model(proto())
    again: Model = pickle.loads(pickle.dumps(model))
    assert again.content_hash == model.content_hash
    assert (again.name, again.node_names, again.specs) == (
        model.name,
        model.node_names,
        model.specs,
    )
    assert not again.constants["w"].array.flags.writeable


def node_with_bodies() -> onnx.NodeProto:
    inner = helper.make_graph(
        [helper.make_node("Add", ["p", "outer2"], ["q"])], "inner", [], [PORT("q", 1, None)]
    )
    then = helper.make_graph(
        [
            helper.make_node("Mul", ["outer", "k"], ["p"]),
            helper.make_node("If", ["c2"], ["r"], then_branch=inner, else_branch=inner),
        ],
        "then",
        [],
        [PORT("r", 1, None)],
        [numpy_helper.from_array(np.ones(1), "k")],
    )
    other = helper.make_graph([], "else", [], [PORT("outer3", 1, None)])
    return helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)


def test_bodies_capture_outer_values():
    node = node_with_bodies()
    # onnx.helper sorts the attributes: the else branch comes first.
    assert captured_names(node) == ("outer3", "outer", "c2", "outer2")
    assert body_values(node) == {"k", "p", "q", "r"}
    assert [inner.op_type for inner in with_bodies(node)] == ["If", "Mul", "If", "Add", "Add"]
    wrapped = Node.from_proto(node, name="if", covers=("a", "b"))
    assert (wrapped.reads, wrapped.covers, node.name) == (
        ("c", *captured_names(node)),
        ("a", "b"),
        "if",
    )
    assert Node.from_proto(helper.make_node("Neg", ["x"], ["y"], domain="ai.onnx")).domain == ""


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (helper.make_node("Multinomial", ["x"], ["y"]), True),
        (helper.make_node("Multinomial", ["x"], ["y"], domain="other"), False),
        (helper.make_node("Dropout", ["x"], ["y"]), False),
        (helper.make_node("Dropout", ["x", "ratio"], ["y"]), False),
        (helper.make_node("Dropout", ["x", "", "training"], ["y"]), True),
        (helper.make_node("Dropout", ["x", "", ""], ["y"]), False),
        (node_with_bodies(), False),
    ],
)
def test_random_nodes(node, expected):
    assert is_random(node) == expected
    body = helper.make_graph([node], "body", [], [])
    loop = helper.make_node("Loop", ["n", "c"], [], body=body)
    assert is_random(loop) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (0.5, 0.5),
        ("text", "text"),
        (b"\xff", b"\xff"),
        ([1, 2], (1, 2)),
        (["a", "b"], ("a", "b")),
    ],
)
def test_attributes_are_python_values(value, expected):
    assert attribute_value(helper.make_attribute("a", value)) == expected


def test_attribute_without_a_value_raises():
    tensor = helper.make_attribute("a", numpy_helper.from_array(np.arange(3)))
    assert attribute_value(tensor).tolist() == [0, 1, 2]
    reference = onnx.AttributeProto(name="a", type=onnx.AttributeProto.INT, ref_attr_name="b")
    unknown = onnx.AttributeProto(name="a")
    for attribute in (reference, unknown):
        with pytest.raises(ModelError, match="attribute 'a' of type"):
            attribute_value(attribute)


def test_unique_names_count_up():
    names = UniqueNames(["a", "a_1"])
    assert [names.make(name) for name in ("a", "a", "b", "b")] == ["a_2", "a_3", "b", "b_1"]
    values = UniqueNames.of_values(read_model(proto()))
    assert [values.make(n) for n in ("x", "max", "w", "h", "y", "net")] == [
        *("x_1", "max_1", "w_1", "h_1", "y_1"),
        "net",
    ]
