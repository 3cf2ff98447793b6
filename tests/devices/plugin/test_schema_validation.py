"""Schema validation: every device refuses invalid nodes, and only these.

ONNX Runtime, which validates types when it loads a model, is the reference.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import hetero
from hetero.devices import load_plugins, read_model
from hetero.devices.errors import ModelError, UnsupportedNodesError
from hetero.devices.plugin.schema_validation import schema_violations
from tests.support.rows import for_each_row
from tests.support.single_nodes import schemas, single_node_models

HEADER = '<ir_version: 8, opset_import: ["" : 17, "own" : 1, "ai.onnx.ml" : 3, "foreign" : 1]> '
PLUGINS = load_plugins(["hetero.examples.third_party_plugin:DensePlugin"])


def model_of(text: str) -> hetero.Model:
    return read_model(parser.parse_model(HEADER + text))


def graph_of(nodes: str, inputs: str = "float[2] x, int64[2] i, bool c") -> str:
    return f"g ({inputs}) => (y) {{ {nodes} }}"


INVALID_MODELS = {
    "input type": ("g (int64[2] x) => (int64[2] y) {y = Sin(x)}", "dtype"),
    "two types": ("g (float[2] x, double[2] z) => (y) {y = Add(x, z)}", "dtype"),
    "variadic of two types": ("g (float[2] x, int64[2] z) => (y) {y = Max(x, x, z)}", "dtype"),
    "inferred type": (graph_of("h = Cast<to = 7>(x) y = Sqrt(h)"), "dtype"),
    "sequence for tensor": (graph_of("s = SequenceConstruct(x) y = Relu(s)"), "dtype"),
    "tensor for sequence": (graph_of("y = SequenceLength(x)"), "dtype"),
    "map for tensor": (
        graph_of("m = ai.onnx.ml.ZipMap<classlabels_int64s = [1, 2]>(x) y = Relu(m)"),
        "dtype",
    ),
    "missing input": (graph_of('y = Add("", x)'), "attribute"),
    "too few inputs": (graph_of("y = Conv(x)"), "attribute"),
    "too many inputs": (graph_of("y = Relu(x, x)"), "attribute"),
    "too many outputs": (graph_of("y, z = Relu(x)"), "attribute"),
    "type of attribute": (graph_of("y = Softmax<axis = 1.5>(x)"), "attribute"),
    "name of attribute": (graph_of("y = Relu<odd = 1>(x)"), "attribute"),
    "missing required attribute": (graph_of("y = Cast(x)"), "attribute"),
    "branch without an output": (
        graph_of("y = If(c) <then_branch = a () => () {}, else_branch = b () => (q) {q = Neg(x)}>"),
        "attribute",
    ),
    "branch with an input": (
        graph_of(
            "y = If(c) <then_branch = a (float[2] z) => (o) {o = Abs(z)}, "
            "else_branch = b () => (q) {q = Neg(x)}>"
        ),
        "attribute",
    ),
    "loop with too few inputs": (
        graph_of(
            'y = Loop("", c, x) <body = b (int64 n, bool t) => (bool u, float[2] v) '
            "{u = Identity(t) v = Identity(x)}>"
        ),
        "attribute",
    ),
    "scan with too few outputs": (
        graph_of(
            "y, z = Scan<num_scan_inputs = 1, body = b (float a) => (float d) {d = Abs(a)}>(x)"
        ),
        "attribute",
    ),
    "loop with another input type": (
        graph_of(
            'y = Loop("", c, i) <body = b (int64 n, bool t, float[2] v) => (bool u, float[2] w) '
            "{u = Identity(t) w = Identity(v)}>"
        ),
        "dtype",
    ),
    "scan with another input type": (
        graph_of("y = Scan<num_scan_inputs = 1, body = b (float a) => (float d) {d = Abs(a)}>(i)"),
        "dtype",
    ),
    "sequence of another type": (
        graph_of("s = SequenceConstruct(x) y = SequenceInsert(s, i)"),
        "dtype",
    ),
    "removed operator": ("g (float[2] x, float[1] s) => (y) {y = Upsample(x, s)}", "opset"),
    "in a branch": (
        graph_of(
            "y = If(c) <then_branch = a () => (float[2] o) {h = Cast<to = 7>(x) k = Sqrt(h) "
            "o = Cast<to = 1>(k)}, else_branch = b () => (float[2] p) {p = Neg(x)}>"
        ),
        "dtype",
    ),
    "in a branch of a branch": (
        graph_of(
            "y = If(c) <then_branch = a () => (float[2] o) {o = If(c) <then_branch = d () => "
            "(float[2] q) {r = Sqrt(i) q = Cast<to = 1>(r)}, else_branch = e () => (float[2] t) "
            "{t = Neg(x)}>}, else_branch = b () => (float[2] p) {p = Neg(x)}>"
        ),
        "dtype",
    ),
    "in a function, by the type of its input": (
        graph_of("w = own.F(i) y = Cast<to = 1>(w)")
        + '<domain: "own", opset_import: ["" : 17]> F (a) => (b) {u = Sqrt(a) b = Neg(u)}',
        "dtype",
    ),
    "in a function, by the value of its attribute": (
        graph_of("w = own.F<to = 7>(x) y = Cast<to = 1>(w)")
        + '<domain: "own", opset_import: ["" : 17]> F <to>(a) => (b) '
        "{u = Cast<to = @to>(a) b = Sqrt(u)}",
        "dtype",
    ),
    "in a function that a function calls": (
        graph_of("w = own.G(i) y = Cast<to = 1>(w)")
        + '<domain: "own", opset_import: ["" : 17, "own" : 1]> G (a) => (b) {b = own.F(a)} '
        '<domain: "own", opset_import: ["" : 17]> F (a) => (b) {b = Sqrt(a)}',
        "dtype",
    ),
}


@pytest.mark.sampled(4, "case", "plugin")
@pytest.mark.parametrize("plugin", ["CPU", "ORT", "NULL", "DENSE"])
@pytest.mark.parametrize("case", INVALID_MODELS)
def test_invalid_node_is_refused_by_every_device(case, plugin):
    text, code = INVALID_MODELS[case]
    model = model_of(text)
    ((name, violation),) = schema_violations(model).items()
    assert violation.code == code
    device = PLUGINS[plugin].plugin
    (refusal,) = device.query_model(model).unsupported[name].values()
    assert refusal == violation
    with pytest.raises(UnsupportedNodesError, match="The model is invalid on every device"):
        device.compile_model(model)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("y = Relu<odd = 1>(x)", "Relu-14: unknown attribute 'odd'; ONNX defines none"),
        ("y = Gemm<odd = 1>(x, x)", "unknown attribute 'odd'; ONNX defines alpha, beta, transA,"),
        ("y = Softmax<axis = 1.5>(x)", "expected attribute 'axis' of type INT, got FLOAT"),
        ("y = Cast(x)", "Cast-13: the required attribute 'to' is missing"),
        ("y = Conv(x)", "Conv-11: expected 2 to 3 inputs, got 1"),
        ("y, z = Relu(x)", "Relu-14: expected 1 outputs, got 2"),
        ('y = Add("", x)', "Add-14: the required input 'A' is missing"),
        ("y = Sqrt(i)", "Sqrt-13: expected input 'X' of tensor("),
        ("h = Cast<to = 7>(x) y = Add(x, h)", "one type, got tensor(float) and tensor(int64)"),
    ],
)
def test_violation_names_the_ports_and_types(nodes, message):
    violations = schema_violations(model_of(graph_of(nodes)))
    assert [message in refusal.message for refusal in violations.values()] == [True]


def test_body_input_of_unknown_type_is_valid():
    model = model_of(
        graph_of(
            'w = own.Odd(x) y = Loop("", c, w) <body = b (int64 n, bool t, float[2] v) '
            "=> (bool u, float[2] z) {u = Not(t) z = Neg(v)}>"
        )
    )
    assert schema_violations(model) == {}


@pytest.mark.parametrize("case", INVALID_MODELS)
def test_onnxruntime_rejects_invalid_model(case):
    onnxruntime = pytest.importorskip("onnxruntime")
    data = parser.parse_model(HEADER + INVALID_MODELS[case][0]).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match=r"ONNXRuntimeError"):
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "opset", [*(pytest.param(opset, marks=pytest.mark.slow) for opset in (7, 13, 17)), 21]
)
def test_type_violations_equal_those_of_onnxruntime(opset):
    """Excludes operators that ONNX Runtime expands into functions, wrongly for some types."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    expanded = {"MeanVarianceNormalization", "SoftmaxCrossEntropyLoss", "CenterCropPad"}
    differences, count = [], 0
    for schema in schemas(opset):
        for proto in single_node_models(schema, opset, ["float", "int64", "string", "bfloat16"]):
            reference = ""
            try:
                onnxruntime.InferenceSession(
                    proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:  # an invalid model, or an operator without a kernel
                reference = str(error)
            try:
                violation = str(*schema_violations(read_model(proto)).values())
            except ModelError as error:  # type inference reports it first
                violation = str(error)
            count += 1
            has_type_error = (
                "Type Error" in reference or "INVALID_GRAPH" in reference
            ) and schema.name not in expanded
            if (violation and not reference) or (has_type_error and not violation):
                differences.append((schema.name, violation, reference))
    assert count > 350
    assert differences == []


def test_other_nodes_of_invalid_model_are_queried():
    model = model_of(
        "g (int64[2] x) => (z) {a = Abs(x) y = Sqrt(a) b = Cast<to = 1>(y) z = Relu(b)}"
    )
    for plugin in ("CPU", "ORT"):
        support = PLUGINS[plugin].plugin.query_model(model)
        assert set(support) == {"a", "b", "z"}
        assert set(support.unsupported) == {"y"}


def test_constant_node_read_by_invalid_node_is_unsupported():
    model = model_of("g (float[2] x) => (z) {one = Constant<value_int = 1>() z = Sqrt(one)}")
    assert set(PLUGINS["CPU"].plugin.query_model(model).unsupported) == {"one", "z"}


@pytest.mark.parametrize(
    ("node", "element_type", "is_supported"),
    [
        ("Col2Im(x, i, i)", "string", False),
        ("GridSample(x, g)", "bool", False),
        ("GridSample(x, g)", "string", False),
        ('GridSample<mode = "nearest">(x, g)', "string", True),
        ("GridSample(x, g)", "uint8", True),
    ],
)
def test_valid_type_without_defined_arithmetic_is_refused(node, element_type, is_supported):
    text = (
        f"g ({element_type}[N, C, H, W] x, float[N, A, B, 2] g, int64[2] i) => (y) {{y = {node}}}"
    )
    model = read_model(parser.parse_model('<ir_version: 8, opset_import: ["" : 20]> ' + text))
    unsupported = PLUGINS["CPU"].plugin.query_model(model).unsupported
    assert {r.code for by in unsupported.values() for r in by.values()} == (
        set() if is_supported else {"dtype"}
    )


def test_unknown_type_and_custom_operator_are_valid():
    model = model_of("g (float[2] x) => (y) {h = foreign.Odd<k = 1>(x, x, x) y = Sqrt(h)}")
    assert schema_violations(model) == {}


def test_root_of_integers_is_refused_before_the_run():
    """Otherwise ORT would receive doubles, because numpy's root of integers returns doubles."""
    model = model_of("g (int32[2] x) => (int32[2] y) {root = Sqrt(x) y = Add(root, x)}")
    with hetero.Core(executor="inprocess") as core:
        support = core.query_model(model, "HETERO:ORT,CPU")
        assert dict(support) == {"y": "ORT"}
        assert {r.code for r in support.unsupported["root"].values()} == {"dtype"}
        message = r"'root' \(Sqrt\): ORT, CPU: Sqrt-13: expected .* correct it"
        with pytest.raises(UnsupportedNodesError, match=message):
            core.compile_model(model, "HETERO:ORT,CPU")


@for_each_row("value", [None, 3, np.zeros(3), onnx.GraphProto()])
@for_each_row("plugin", ["CPU", "ORT", "NULL", "DENSE"])
def test_value_that_is_not_a_model_raises(plugin, value):
    for act in (PLUGINS[plugin].plugin.query_model, PLUGINS[plugin].plugin.compile_model):
        with pytest.raises(ModelError, match=type(value).__name__) as caught:
            act(value)
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Add(x)",
        "y = Loop(i) <body = b (int64 n, bool t) => (bool u, float v) {u = Not(t) v = Neg(x)}>",
        "y = unimported.Odd(x)",
    ],
)
def test_model_that_onnx_cannot_infer_raises(nodes):
    for plugin in ("CPU", "ORT"):
        with pytest.raises(ModelError, match="shapes and types contradict"):
            PLUGINS[plugin].plugin.query_model(model_of(graph_of(nodes)))


@pytest.mark.parametrize("plugin", ["CPU", "ORT"])
def test_deprecated_operator_with_valid_successor_is_supported(plugin):
    """GroupNormalization-18 is deprecated; version 21 has scales and biases per channel."""
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2,4,3] x, float[2] s, float[2] b) '
        "=> (float[2,4,3] y) {y = GroupNormalization<num_groups = 2>(x, s, b)}"
    )
    assert onnx.defs.get_schema("GroupNormalization", 18).deprecated
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", (2, 4, 3)), ("s", 2), ("b", 2))
    }
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, feeds)
    compiled = PLUGINS[plugin].plugin.compile_model(read_model(proto))
    np.testing.assert_allclose(
        compiled.run(list(feeds.values()))[0], expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Upsample", "float[1,1,2,2] x, float[4] s"),
        ("Scatter", "float[2] x, int64[1] i, float[1] u"),
    ],
)
def test_removed_operator_is_refused(op_type, inputs):
    names = ", ".join(port.split()[-1] for port in inputs.split(", "))
    model = model_of(f"g ({inputs}) => (y) {{y = {op_type}({names})}}")
    (refusal,) = schema_violations(model).values()
    assert refusal.code == "opset"
    assert "was removed in opset" in refusal.message
