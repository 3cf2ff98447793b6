"""Nodes that break ONNX's definition of their operator are refused by every device, and no others.

ONNX Runtime, which checks types when it loads a model, says which do.
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
from tests.support.single_nodes import schemas, single_node_models

HEADER = '<ir_version: 8, opset_import: ["" : 17, "own" : 1, "ai.onnx.ml" : 3, "foreign" : 1]> '
PLUGINS = load_plugins(["hetero.examples.third_party_plugin:DensePlugin"])


def model_of(text: str) -> hetero.Model:
    return read_model(parser.parse_model(HEADER + text))


def typed(nodes: str, inputs: str = "float[2] x, int64[2] i, bool c") -> str:
    return f"g ({inputs}) => (y) {{ {nodes} }}"


BROKEN = {
    "input type": ("g (int64[2] x) => (int64[2] y) {y = Sin(x)}", "dtype"),
    "two types": ("g (float[2] x, double[2] z) => (y) {y = Add(x, z)}", "dtype"),
    "variadic of two types": ("g (float[2] x, int64[2] z) => (y) {y = Max(x, x, z)}", "dtype"),
    "inferred type": (typed("h = Cast<to = 7>(x) y = Sqrt(h)"), "dtype"),
    "sequence for tensor": (typed("s = SequenceConstruct(x) y = Relu(s)"), "dtype"),
    "tensor for sequence": (typed("y = SequenceLength(x)"), "dtype"),
    "map for tensor": (
        typed("m = ai.onnx.ml.ZipMap<classlabels_int64s = [1, 2]>(x) y = Relu(m)"),
        "dtype",
    ),
    "input left out": (typed('y = Add("", x)'), "attribute"),
    "one input less": (typed("y = Conv(x)"), "attribute"),
    "one input more": (typed("y = Relu(x, x)"), "attribute"),
    "one output more": (typed("y, z = Relu(x)"), "attribute"),
    "kind of attribute": (typed("y = Softmax<axis = 1.5>(x)"), "attribute"),
    "name of attribute": (typed("y = Relu<odd = 1>(x)"), "attribute"),
    "no required attribute": (typed("y = Cast(x)"), "attribute"),
    "branch without an output": (
        typed("y = If(c) <then_branch = a () => () {}, else_branch = b () => (q) {q = Neg(x)}>"),
        "attribute",
    ),
    "branch with an input": (
        typed(
            "y = If(c) <then_branch = a (float[2] z) => (o) {o = Abs(z)}, "
            "else_branch = b () => (q) {q = Neg(x)}>"
        ),
        "attribute",
    ),
    "loop that carries too little": (
        typed(
            'y = Loop("", c, x) <body = b (int64 n, bool t) => (bool u, float[2] v) '
            "{u = Identity(t) v = Identity(x)}>"
        ),
        "attribute",
    ),
    "scan that makes too little": (
        typed("y, z = Scan<num_scan_inputs = 1, body = b (float a) => (float d) {d = Abs(a)}>(x)"),
        "attribute",
    ),
    "loop that carries another type": (
        typed(
            'y = Loop("", c, i) <body = b (int64 n, bool t, float[2] v) => (bool u, float[2] w) '
            "{u = Identity(t) w = Identity(v)}>"
        ),
        "dtype",
    ),
    "scan of another type": (
        typed("y = Scan<num_scan_inputs = 1, body = b (float a) => (float d) {d = Abs(a)}>(i)"),
        "dtype",
    ),
    "sequence of another type": (
        typed("s = SequenceConstruct(x) y = SequenceInsert(s, i)"),
        "dtype",
    ),
    "operator that is gone": ("g (float[2] x, float[1] s) => (y) {y = Upsample(x, s)}", "opset"),
    "in a branch": (
        typed(
            "y = If(c) <then_branch = a () => (float[2] o) {h = Cast<to = 7>(x) k = Sqrt(h) "
            "o = Cast<to = 1>(k)}, else_branch = b () => (float[2] p) {p = Neg(x)}>"
        ),
        "dtype",
    ),
    "in a branch of a branch": (
        typed(
            "y = If(c) <then_branch = a () => (float[2] o) {o = If(c) <then_branch = d () => "
            "(float[2] q) {r = Sqrt(i) q = Cast<to = 1>(r)}, else_branch = e () => (float[2] t) "
            "{t = Neg(x)}>}, else_branch = b () => (float[2] p) {p = Neg(x)}>"
        ),
        "dtype",
    ),
    "in a function, by the type of its input": (
        typed("w = own.F(i) y = Cast<to = 1>(w)")
        + '<domain: "own", opset_import: ["" : 17]> F (a) => (b) {u = Sqrt(a) b = Neg(u)}',
        "dtype",
    ),
    "in a function, by the value of its attribute": (
        typed("w = own.F<to = 7>(x) y = Cast<to = 1>(w)")
        + '<domain: "own", opset_import: ["" : 17]> F <to>(a) => (b) '
        "{u = Cast<to = @to>(a) b = Sqrt(u)}",
        "dtype",
    ),
    "in a function that a function calls": (
        typed("w = own.G(i) y = Cast<to = 1>(w)")
        + '<domain: "own", opset_import: ["" : 17, "own" : 1]> G (a) => (b) {b = own.F(a)} '
        '<domain: "own", opset_import: ["" : 17]> F (a) => (b) {b = Sqrt(a)}',
        "dtype",
    ),
}


@pytest.mark.parametrize("plugin", ["CPU", "ORT", "NULL", "DENSE"])
@pytest.mark.parametrize("what", BROKEN)
def test_every_device_refuses_what_breaks_a_definition_in_the_same_words(what, plugin):
    text, code = BROKEN[what]
    model = model_of(text)
    ((name, said),) = schema_violations(model).items()
    assert said.code == code
    device = PLUGINS[plugin].plugin
    (refusal,) = device.query_model(model).unsupported[name].values()
    assert refusal == said
    with pytest.raises(
        UnsupportedNodesError, match=r"ONNX defines|was removed in|wants a|hands tensor"
    ):
        device.compile_model(model)


@pytest.mark.parametrize("what", BROKEN)
def test_onnx_runtime_does_not_load_what_breaks_a_definition(what):
    onnxruntime = pytest.importorskip("onnxruntime")
    data = parser.parse_model(HEADER + BROKEN[what][0]).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match=r"ONNXRuntimeError"):
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "opset", [7, *(pytest.param(opset, marks=pytest.mark.slow) for opset in (13, 17)), 21]
)
def test_types_are_refused_where_onnx_runtime_finds_them_wrong_and_nowhere_else(opset):
    """Operators that ONNX Runtime itself takes apart, wrongly for some types, are left out."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    apart = {"MeanVarianceNormalization", "SoftmaxCrossEntropyLoss", "CenterCropPad"}
    wrong, judged = [], 0
    for schema in schemas(opset):
        for proto in single_node_models(schema, opset, ["float", "int64", "string", "bfloat16"]):
            said = ""
            try:
                onnxruntime.InferenceSession(
                    proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:  # what is wrong with the model, or not implemented
                said = str(error)
            try:
                ours = str(*schema_violations(read_model(proto)).values())
            except ModelError as error:  # inference found it before
                ours = str(error)
            judged += 1
            ill_typed = (
                "Type Error" in said or "INVALID_GRAPH" in said
            ) and schema.name not in apart
            if (ours and not said) or (ill_typed and not ours):
                wrong.append((schema.name, ours, said))
    assert judged > 350
    assert wrong == []


def test_the_rest_of_a_broken_model_is_asked_about():
    """A node before and one after the broken one are judged as ever; fusions stop at it."""
    model = model_of(
        "g (int64[2] x) => (z) {a = Abs(x) y = Sqrt(a) b = Cast<to = 1>(y) z = Relu(b)}"
    )
    for plugin in ("CPU", "ORT"):
        support = PLUGINS[plugin].plugin.query_model(model)
        assert set(support) == {"a", "b", "z"}
        assert set(support.unsupported) == {"y"}


def test_a_node_that_only_broken_nodes_need_is_taken_alone():
    model = model_of("g (float[2] x) => (z) {one = Constant<value_int = 1>() z = Sqrt(one)}")
    assert set(PLUGINS["CPU"].plugin.query_model(model).unsupported) == {"one", "z"}


@pytest.mark.parametrize(
    ("node", "element_type", "taken"),
    [
        ("Col2Im(x, i, i)", "string", False),
        ("GridSample(x, g)", "bool", False),
        ("GridSample(x, g)", "string", False),
        ('GridSample<mode = "nearest">(x, g)', "string", True),
        ("GridSample(x, g)", "uint8", True),
    ],
)
def test_what_a_definition_allows_and_no_arithmetic_gives_a_meaning(node, element_type, taken):
    text = (
        f"g ({element_type}[N, C, H, W] x, float[N, A, B, 2] g, int64[2] i) => (y) {{y = {node}}}"
    )
    model = read_model(parser.parse_model('<ir_version: 8, opset_import: ["" : 20]> ' + text))
    refused = PLUGINS["CPU"].plugin.query_model(model).unsupported
    assert {r.code for by in refused.values() for r in by.values()} == (
        set() if taken else {"dtype"}
    )


def test_unknown_types_and_operators_of_others_fit_everywhere():
    model = model_of("g (float[2] x) => (y) {h = foreign.Odd<k = 1>(x, x, x) y = Sqrt(h)}")
    assert schema_violations(model) == {}


def test_a_sum_of_a_root_of_integers_is_refused_before_it_runs():
    """ONNX Runtime would have been given the doubles that a numpy root makes of integers."""
    model = model_of("g (int32[2] x) => (int32[2] y) {root = Sqrt(x) y = Add(root, x)}")
    with hetero.Core(executor="inprocess") as core:
        support = core.query_model(model, "HETERO:ORT,CPU")
        assert dict(support) == {"y": "ORT"}
        assert {r.code for r in support.unsupported["root"].values()} == {"dtype"}
        said = r"'root' \(Sqrt\): ORT, CPU: ONNX defines Sqrt-13 .* correct the model"
        with pytest.raises(UnsupportedNodesError, match=said):
            core.compile_model(model, "HETERO:ORT,CPU")


@pytest.mark.parametrize("what", [None, 3, np.zeros(3), onnx.GraphProto()])
@pytest.mark.parametrize("plugin", ["CPU", "ORT", "NULL", "DENSE"])
def test_what_is_no_model_is_a_typed_error(plugin, what):
    for act in (PLUGINS[plugin].plugin.query_model, PLUGINS[plugin].plugin.compile_model):
        with pytest.raises(ModelError, match=type(what).__name__) as caught:
            act(what)
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Add(x)",
        "y = Loop(i) <body = b (int64 n, bool t) => (bool u, float v) {u = Not(t) v = Neg(x)}>",
        "y = unimported.Odd(x)",
    ],
)
def test_what_onnx_cannot_even_infer_is_a_model_error(nodes):
    for plugin in ("CPU", "ORT"):
        with pytest.raises(ModelError, match="shapes and types contradict"):
            PLUGINS[plugin].plugin.query_model(model_of(typed(nodes)))


@pytest.mark.parametrize("plugin", ["CPU", "ORT"])
def test_deprecated_operator_whose_later_version_is_not_is_taken(plugin):
    """GroupNormalization-18 gave way to 21, whose scale and bias are per channel."""
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
    (wanted,) = session.run(None, feeds)
    compiled = PLUGINS[plugin].plugin.compile_model(read_model(proto))
    np.testing.assert_allclose(compiled.run(list(feeds.values()))[0], wanted, rtol=1e-5, atol=1e-6)


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
    assert "was removed in operator set" in refusal.message
