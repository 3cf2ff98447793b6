"""`OperatorPlugin`: refusals, runs with attributes and several outputs, and errors."""

from typing import ClassVar

import numpy as np
import pytest
from onnx import parser

import hetero
from hetero.devices import OperatorFunction, OperatorPlugin, read_model
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import KernelError, PluginLoadError
from hetero.devices.testing import check_device
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.small_models import run_onnxruntime


def leaky_relu(x, *, alpha=0.01):
    return np.where(x < 0, x * np.float32(alpha), x)


class MixedPlugin(OperatorPlugin):
    """Operators with optional inputs, attributes and several outputs, in two element types."""

    name = "MIXED"
    element_types = ("float", "int64")
    since = 13
    operators: ClassVar = {
        "Clip": lambda x, low=None, high=None: np.clip(x, low, high),
        "Identity": lambda x: x,
        "LeakyRelu": leaky_relu,
        "Relu": lambda x: np.maximum(x, 0),
        "TopK": lambda x, k: (-np.sort(-x)[: k[0]], np.argsort(-x, kind="stable")[: k[0]]),
    }


class CustomDomainPlugin(OperatorPlugin):
    """Operators of a custom domain."""

    name = "FOREIGN"
    domain = "own"
    element_types = ("float",)
    since = 1
    operators: ClassVar = {"Relu": lambda x: x + 100}


def model_of(graph, imports='"" : 17, "own" : 1'):
    return read_model(parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> g {graph}"))


def refusals(plugin, graph, imports='"" : 17, "own" : 1'):
    unsupported = plugin.query_model(model_of(graph, imports)).unsupported
    return {name: refusal.code for name, by in unsupported.items() for refusal in by.values()}


@pytest.mark.parametrize(
    ("graph", "imports", "code"),
    [
        ("(float[2] x) => (float[2] y) {y = own.Relu(x)}", '"" : 17, "own" : 1', "no_kernel"),
        ("(float[2] x) => (float[2] y) {y = own.Relu(x)}", '"own" : 1', "no_kernel"),
        ("(float[2] x) => (float[2] y) {y = Sigmoid(x)}", '"" : 17', "no_kernel"),
        ("(float[2] x) => (float[2] y) {y = Relu(x)}", '"" : 6', "opset"),
        ("(double[2] x) => (double[2] y) {y = Relu(x)}", '"" : 17', "dtype"),
        ("(float[2] x) => (y) {h = own.Odd(x) y = Relu(h)}", '"" : 17, "own" : 1', "dtype"),
    ],
)
def test_node_outside_the_table_is_refused(graph, imports, code):
    assert refusals(DensePlugin(), graph, imports)["y"] == code


def test_misspelled_operator_raises_with_suggestions():
    class MisspelledPlugin(DensePlugin):
        operators: ClassVar = {**DensePlugin.operators, "Sigmod": np.tanh}

    with pytest.raises(PluginLoadError, match=r"DENSE.*'Sigmod'.*mean Sigmoid or"):
        MisspelledPlugin()
    with hetero.Core(executor="inprocess", plugins=[MisspelledPlugin]) as core:
        (row,) = [d for d in core.device_descriptors if d.plugin == "DENSE"]
        assert "'Sigmod'" in row.error


def test_operator_runs_on_the_plugin_of_its_domain():
    graph = "(float[2] x) => (float[2] y) <float[2] h> {h = own.Relu(x) y = Relu(h)}"
    assert refusals(CustomDomainPlugin(), graph) == {"y": "no_kernel"}
    assert refusals(DensePlugin(), graph) == {"h": "no_kernel"}
    x = np.array([-1, 2], np.float32)
    with hetero.Core(executor="inprocess", plugins=[CustomDomainPlugin, DensePlugin]) as core:
        compiled = core.compile_model(model_of(graph), "HETERO:FOREIGN,DENSE")
        np.testing.assert_array_equal(compiled({"x": x})["y"], x + 100)


def test_attributes_optional_inputs_and_several_outputs_run():
    model = model_of(
        "(float[3] x) => (float[2] v, int64[2] i) {two = Constant<value_ints = [2]>() "
        'one = Constant<value_float = 1.0>() a = LeakyRelu<alpha = 0.5>(x) b = Clip(a, "", one) '
        "v, i = TopK(b, two)}"
    )
    compiled = PluginSubject(MixedPlugin()).compile_model(model, {"PERF_COUNT": True})
    results = compiled({"x": np.array([-1, 3, 0.5], np.float32)})
    np.testing.assert_array_equal(results["v"], np.float32([1, 0.5]))
    np.testing.assert_array_equal(results["i"], [1, 2])
    rows = compiled.get_runtime_model().nodes
    assert [row.op_type for row in rows] == ["LeakyRelu", "Clip", "TopK"]
    assert all(float(row.metadata["execTimeMcs"]) > 0 for row in rows)


def test_attribute_without_parameter_is_refused():
    assert (
        refusals(MixedPlugin(), "(float[2] x) => (float[2] y) {y = LeakyRelu<alpha = 0.5>(x)}")
        == {}
    )
    graph = "(float[4] x, int64[1] k) => (v, i) {v, i = TopK<largest = 0>(x, k)}"
    assert refusals(MixedPlugin(), graph) == {"v": "attribute"}


def test_refused_attribute_names_the_missing_keyword_only_parameter():
    class SlopePlugin(MixedPlugin):
        operators: ClassVar = {"LeakyRelu": lambda x, alpha=0.01: np.where(x < 0, alpha * x, x)}

    model = model_of("(float[2] x) => (float[2] y) {y = LeakyRelu<alpha = 0.5>(x)}")
    refusal = SlopePlugin().refuse(model.nodes[0], model, {})
    assert refusal is not None
    assert "no keyword-only parameter of that name (`lambda x, *, alpha=...: ...`)" in str(refusal)


def test_output_that_aliases_input_is_copied():
    graph = "(float[2] x) => (float[2] y, float[2] z) {y = Identity(x) z = Identity(y)}"
    x = np.array([1, 2], np.float32)
    results = MixedPlugin().compile_model(model_of(graph))({"x": x})
    results["y"][...] = -1
    assert (x.tolist(), results["z"].tolist()) == ([1, 2], [1, 2])


def test_exception_of_function_names_the_node():
    model = model_of("(float[N] a, float[M] b) => (y) {h = Relu(a) y = Add(h, b)}")
    compiled = DensePlugin().compile_model(model)
    with pytest.raises(KernelError, match=r"node 'y' \(Add\) on DENSE: ValueError") as caught:
        compiled({"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)})
    assert (caught.value.node, caught.value.op_type) == ("y", "Add")


@pytest.mark.parametrize("plugin", [DensePlugin, MixedPlugin])
def test_operator_plugin_passes_conformance_suite(plugin):
    assert all(result.error is None for result in check_device(plugin()))


def softmax_of_rows(x, *, axis=1):
    """Softmax before opset 13: over all dimensions from `axis`."""
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    return softmax(rows).reshape(x.shape)


def softmax(x, *, axis=-1):
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


class VersionsPlugin(OperatorPlugin):
    """Operators with their own opsets and element types."""

    name = "VERSIONS"
    element_types = ("float",)
    since = 7
    operators: ClassVar = {
        "Gather": lambda x, i, *, axis=0: np.take(x, i, axis),
        "Less": np.less,
        "Neg": OperatorFunction(np.negative, element_types=("float", "int32")),
        "Relu": lambda x: np.maximum(x, 0),
        "Reshape": lambda x, shape: x.reshape(shape),
        "Softmax": (
            OperatorFunction(softmax_of_rows, since=1),
            OperatorFunction(softmax, since=13),
        ),
        "Mod": OperatorFunction(np.mod, since=13),
    }


@pytest.mark.parametrize("opset", [9, 13])
def test_function_is_chosen_by_opset(opset):
    model = model_of(
        "(float[2,3,4] x) => (float[2,3,4] y) {h = Relu(x) y = Softmax<axis = 1>(h)}",
        f'"" : {opset}',
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    plugin = VersionsPlugin()
    result = plugin.compile_model(model)({"x": x})["y"]
    expected = run_onnxruntime(model.to_proto(), {"x": x})[0]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_newer_function_excludes_only_its_operator():
    graph = "(float[2] x) => (float[2] z) {y = Relu(x) z = Mod(y, x)}"
    assert refusals(VersionsPlugin(), graph, '"" : 10') == {"z": "opset"}
    assert refusals(VersionsPlugin(), graph, '"" : 13') == {}


def test_element_types_apply_to_data_of_their_operator():
    plugin = VersionsPlugin()
    for graph in (
        "(int32[2] x) => (int32[2] y) {y = Neg(x)}",
        "(float[2] x, int64[1] s) => (float[1,2] y) {y = Reshape(x, s)}",
        "(float[2] x, int32[1] i) => (float[1] y) {y = Gather(x, i)}",
        "(float[2] x) => (bool[2] y) {y = Less(x, x)}",
    ):
        assert refusals(plugin, graph) == {}, graph
    assert refusals(plugin, "(int32[2] x) => (int32[2] y) {y = Relu(x)}") == {"y": "dtype"}
    assert refusals(plugin, "(int64[2] x) => (bool[2] y) {y = Less(x, x)}") == {"y": "dtype"}


@pytest.mark.parametrize("name", ["float", "float32", "f32", hetero.Type.f32])
def test_element_types_have_any_usual_name(name):
    class Named(OperatorPlugin):
        name = "NAMED"
        since = 7
        operators: ClassVar = {"Tanh": np.tanh}

    Named.element_types = (name,)
    assert refusals(Named(), "(float[2] x) => (float[2] y) { y = Tanh(x) }") == {}
    assert refusals(Named(), "(double[2] x) => (double[2] y) { y = Tanh(x) }") == {"y": "dtype"}


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"element_types": ("float",)}, "plugin BARE, operator Tanh: .* got no `since`; add"),
        ({"since": 7}, "got no `element_types`; add them, such as since = 7"),
        ({"since": 7, "element_types": ("flot",)}, "element_types: .*'flot'"),
    ],
)
def test_incomplete_table_is_refused_when_the_plugin_is_loaded(attributes, words):
    plugin = type("Bare", (OperatorPlugin,), {"name": "BARE", "operators": {"Tanh": np.tanh}})
    with pytest.raises(PluginLoadError, match=words):
        type("Bare", (plugin,), attributes)()


def test_opset_and_types_of_functions_suffice():
    class Own(OperatorPlugin):
        name = "OWN"
        operators: ClassVar = {
            "Tanh": OperatorFunction(np.tanh, since=7, element_types=("float32",))
        }

    assert refusals(Own(), "(float[2] x) => (float[2] y) { y = Tanh(x) }") == {}
