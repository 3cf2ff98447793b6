"""Base class of plugins: queries mapped to original nodes, errors, properties and export."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero.devices import ExecutedNode, Node, Plugin, Program, Property, Refusal, Support
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import (
    BlobError,
    InferenceError,
    PropertyError,
    UnknownDeviceError,
    UnknownPropertyError,
    UnsupportedNodesError,
    UnsupportedOperationError,
)
from hetero.devices.plugin.program import Payload
from hetero.devices.plugin.properties import COMMON_PROPERTIES
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.networks import DOUBLE, X, model

CHAIN = model(
    "(float[2] x) => (float[2] y) <float[2] a, float[2] b>"
    " {k = Constant<value_float = 2.0>() a = Mul(x, k) b = Relu(a) c = Tanh(b) y = Sub(c, k)}"
)


class FusingPlugin(Plugin):
    """Fuses Mul and Relu, drops Tanh, and refuses the operators in its property REFUSED."""

    name = "FUSE"
    properties = COMMON_PROPERTIES.extended(
        Property("REFUSED", tuple, (), True, "Operators."),
        Property("LEVEL", str, "LOW", True, "Level.", choices=("LOW", "HIGH")),
        Property("SIZES", dict, {}, True, "Sizes.", minimum=0),
        Property("KIND", str, "a1", True, "Kind.", pattern=r"[a-z]\d"),
        Property("RATE", float, 1.0, True, "Rate."),
    )

    def transform_model(self, model, config):
        fused = helper.make_node("MulRelu", ["x", "k"], ["b"], name="fused", domain="own")
        sub = helper.make_node("Sub", ["b", "k"], ["y"], name="y")
        k = model.nodes[model.index_of["k"]]
        return model.replace(
            nodes=[k, Node.from_proto(fused, covers=("a", "b")), Node.from_proto(sub)]
        )

    def refuse(self, node, model, config):
        if node.op_type in config["REFUSED"]:
            return Refusal("no_kernel", f"{node.op_type} is in REFUSED")
        return None

    def note(self, node, model, config):
        return "fused" if node.name == "fused" else None

    def compile(self, model, config):
        return FusedProgram()


class FusedProgram(Program):
    def run(self, inputs, context):
        context.record("fused", 0.5)
        return [np.maximum(inputs[0] * 2, 0) - 2]

    def executed_nodes(self):
        return (
            ExecutedNode("fused", "MulRelu", 0, "own", ("a", "b")),
            ExecutedNode("y", "Sub", 1, "numpy", ("y",)),
        )


def test_plugin_computes_and_is_automatic_by_default():
    attributes = ("automatic", "computes", "leaves_outputs", "rank")
    assert [getattr(FusingPlugin, name) for name in attributes] == [True, True, False, 50]


def test_query_returns_original_node_names():
    support = FusingPlugin().query_model(CHAIN)
    assert list(support) == ["k", "a", "b", "c", "y"]
    assert dict(support.notes) == {"a": "fused", "b": "fused"}


def test_refused_fused_node_refuses_all_covered_nodes():
    support = FusingPlugin().query_model(CHAIN, {"REFUSED": "MulRelu"})
    assert list(support) == ["k", "c", "y"]
    assert {n: dict(r)["FUSE.0"].code for n, r in support.unsupported.items()} == {
        "a": "no_kernel",
        "b": "no_kernel",
    }


def test_constant_node_follows_its_readers():
    # One supported reader is enough.
    assert "k" in FusingPlugin().query_model(CHAIN, {"REFUSED": "Constant,Sub"})
    one_reader = model(
        "(float[2] x) => (float[2] y) {k = Constant<value_float = 2.0>() y = Mul(x, k)}"
    )
    support = DensePlugin().query_model(
        model("(float[2] x) => (float[2] y) {k = Constant<value_float = 2.0>() y = Pow(x, k)}")
    )
    assert set(support.unsupported) == {"k", "y"}
    assert set(DensePlugin().query_model(one_reader)) == {"k", "y"}


def test_compile_error_lists_unsupported_nodes():
    with pytest.raises(UnsupportedNodesError) as caught:
        FusingPlugin().compile_model(CHAIN, {"REFUSED": "MulRelu,Sub"})
    text = str(caught.value)
    assert "4 of 5 nodes of model 'g'" in text
    for name in ("k (Constant)", "a (Mul)", "b (Relu)", "y (Sub)"):
        assert name in text
    assert set(caught.value.unsupported) == {"k", "a", "b", "y"}


@pytest.mark.parametrize("count", [20, 21])
def test_compile_error_lists_twenty_nodes(count):
    nodes = " ".join(f"h{i + 1} = Asinh(h{i})" for i in range(count))
    chain = model(f"(float[2] h0) => (float[2] h{count}) {{{nodes}}}")
    with pytest.raises(UnsupportedNodesError) as caught:
        DensePlugin().compile_model(chain)
    assert f"does not support {count} of {count} nodes" in str(caught.value)
    assert (str(caught.value).count("(Asinh)"), len(caught.value.unsupported)) == (20, count)
    assert ("and 1 more" in str(caught.value)) == (count == 21)


def test_support_is_hashed_by_its_devices():
    support = {text: Support(dict.fromkeys(text, "X")) for text in ("ab", "ac")}
    assert hash(support["ab"]) == hash(Support({"a": "X", "b": "X"}))
    assert len({hash(one) for one in (*support.values(), Support({"a": "Y", "b": "X"}))}) == 3


def test_runtime_model_has_executed_nodes_and_times():
    compiled = PluginSubject(FusingPlugin()).compile_model(CHAIN, {"PERF_COUNT": True})
    before = compiled.get_runtime_model()
    assert [n.name for n in before.nodes] == ["fused", "y"]
    assert [n.op_type for n in before.nodes] == ["MulRelu", "Sub"]
    # The Constant node and the dropped node are listed with the executed node that reads them.
    assert [n.metadata["originalLayersNames"] for n in before.nodes] == ["k,a,b", "c,y"]
    assert before.nodes[1].inputs == before.nodes[0].outputs == ("b",)
    assert {n.metadata["execTimeMcs"] for n in before.nodes} == {"not_executed"}
    for _ in range(2):
        compiled(np.float32([1, -1]))
    after = compiled.get_runtime_model()
    assert [n.metadata["execTimeMcs"] for n in after.nodes] == ["500000.000", "not_executed"]
    assert after.inputs == CHAIN.inputs
    onnx.load_model_from_string(after.to_bytes())


def test_wrong_number_of_outputs_raises():
    class Short(FusingPlugin):
        def compile(self, model, config):
            program = FusedProgram()
            program.run = lambda inputs, context: []
            return program

    with pytest.raises(InferenceError, match=r"expected 1 outputs of model 'g' .* got 0"):
        Short().compile_model(CHAIN)(np.float32([1, 2]))


def test_plugin_without_export_raises():
    plugin = DensePlugin()
    compiled = plugin.compile_model(DOUBLE)
    with pytest.raises(UnsupportedOperationError):
        compiled.export_model()
    with pytest.raises(UnsupportedOperationError, match="DENSE does not import"):
        plugin.import_model(Payload({}, {}), DOUBLE)
    assert "EXPORT_IMPORT" not in plugin.get_property("OPTIMIZATION_CAPABILITIES")


def test_exception_during_import_raises_blob_error():
    class Importing(FusingPlugin):
        def load(self, payload, model, config):
            return payload.header["missing"]

    with pytest.raises(BlobError, match="KeyError") as caught:
        Importing().import_model(Payload({}, {}), CHAIN)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "EXPORT_IMPORT" in Importing().get_property("OPTIMIZATION_CAPABILITIES")


def test_closed_model_raises():
    compiled = DensePlugin().compile_model(DOUBLE)
    compiled.close()
    with pytest.raises(InferenceError, match="is closed"):
        compiled(X)


@pytest.mark.parametrize("device_id", ["10", "l0", ""])
def test_unknown_device_id_raises(device_id):
    with pytest.raises(UnknownDeviceError, match="its devices are 0"):
        DensePlugin().query_model(DOUBLE, {"DEVICE_ID": device_id})


def test_unknown_property_error_suggests_similar_name():
    with pytest.raises(UnknownPropertyError, match="Did you mean NUM_STREAMS"):
        DensePlugin().set_property({"NUM_STREAM": 2})


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("PERF_COUNT", "YES", True),
        ("PERF_COUNT", "false", False),
        ("NUM_STREAMS", "4", 4),
        ("NUM_STREAMS", 4.0, 4),
        ("LEVEL", "high", "HIGH"),
        ("SIZES", '{"a": 1}', {"a": 1}),
        ("SIZES", {"a": 10**400}, {"a": 10**400}),
        ("CACHE_DIR", Path("/a/b"), "/a/b"),
        ("REFUSED", "Add, Mul", ("Add", "Mul")),
        ("REFUSED", ["Add"], ("Add",)),
    ],
)
def test_property_value_is_converted(name, value, parsed):
    plugin = FusingPlugin()
    plugin.set_property({name: value})
    assert plugin.get_property(name) == parsed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUM_STREAMS", "many"),
        ("NUM_STREAMS", 1.5),
        ("NUM_STREAMS", True),
        ("LEVEL", "loud"),
        ("NUM_STREAMS", 0),
        ("REFUSED", 3),
        ("CACHE_DIR", 3),
        ("NUM_STREAMS", float("inf")),
        ("NUM_STREAMS", 10**400),
        ("RATE", float("nan")),
        ("RATE", "inf"),
        ("RATE", 10**400),
        ("SIZES", {"a": -1}),
        ("SIZES", {"a": float("nan")}),
        pytest.param("SIZES", "[" * 100_000, id="deep JSON"),
        ("SIZES", {"a": "x"}),
        ("SIZES", "[1]"),
        ("KIND", "a12"),
    ],
)
def test_invalid_property_value_raises_and_sets_nothing(name, value):
    plugin = FusingPlugin()
    with pytest.raises(PropertyError, match=name):
        plugin.set_property({"PERF_COUNT": True, name: value})
    assert plugin.get_property("PERF_COUNT") is False


def test_plugin_is_thread_safe():
    plugin = DensePlugin()

    def use(i):
        plugin.set_property({"NUM_STREAMS": 1 + i % 3})
        assert plugin.get_property("NUM_STREAMS") in (1, 2, 3)
        assert not plugin.query_model(DOUBLE).unsupported
        return plugin.compile_model(DOUBLE)(X + i)["y"]

    with ThreadPoolExecutor(8) as pool:
        for i, output in enumerate(pool.map(use, range(100))):
            np.testing.assert_array_equal(output, (X + i) * 2)
