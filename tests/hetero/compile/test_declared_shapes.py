"""Declared shapes of outputs and inner values are hints, as in ONNX Runtime."""

from __future__ import annotations

import re
import warnings

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, parser

import hetero
from hetero.devices import Plugin, Program
from hetero.devices.errors import InferenceError, TensorTypeError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
FIVE_ROWS = np.ones((5, 3), np.float32)
#: Assigns the nodes to ORT and CPU by turns.
ALTERNATING = "alternating"
DEVICES = ("CPU", "ORT", "HETERO:ORT,CPU", ALTERNATING)

#: Graph, its inputs, and the outputs of which a warning is expected.
MODELS = {
    "rank": (
        "g (float[n, 3] x) => (float out_rank) {a = Neg(x) out_rank = Relu(a)}",
        {"x": X},
        ["out_rank"],
    ),
    "rank-above": (
        ("g (float[n, 3] x) => (float[1, m, 3] out_above) {a = Neg(x) out_above = Abs(a)}"),
        {"x": X},
        ["out_above"],
    ),
    "size": (
        "g (float[n, 3] x) => (float[7, 3] out_size) {a = Neg(x) out_size = Relu(a)}",
        {"x": X},
        ["out_size"],
    ),
    "known-size": (
        "g (float[2, 3] x) => (float[7, 4] out_known) {a = Neg(x) out_known = Relu(a)}",
        {"x": X},
        ["out_known"],
    ),
    "inner-size": (
        "g (float[2, 3] x) => (float[2, 3] y) <float[7, 4] a> {a = Neg(x) y = Relu(a)}",
        {"x": X},
        [],
    ),
    "inner-rank": (
        "g (float[n, 3] x) => (float[m, 3] y) <float[7] a> {a = Neg(x) y = Relu(a)}",
        {"x": X},
        [],
    ),
    "inner-and-output": (
        ("g (float[n, 3] x) => (float[m, 3] y, float both) {both = Neg(x) y = Relu(both)}"),
        {"x": X},
        ["both"],
    ),
    "not-inferred": (
        (
            "g (float[n, 3] x, int64[k] s) => (float[2, 3] out_open) <float[7] a> "
            "{a = Reshape(x, s) out_open = Abs(a)}"
        ),
        {"x": X, "s": np.array([1, 3, 2])},
        ["out_open"],
    ),
    "branch": (
        (
            "g (float[n, 3] x, bool c) => (float[4] out_if) {a = Neg(x) out_if = If(c) <"
            "then_branch = t () => (float[9] p) {p = Abs(a)}, "
            "else_branch = e () => (float[9] q) {q = Exp(a)}>}"
        ),
        {"x": X, "c": np.array(True)},
        ["out_if"],
    ),
    "one-symbol": (
        (
            "g (float[n, 3] x, float[n, 3] z) => (float[n, 3] y, float[n, 3] w) "
            "{a = Exp(x) b = Exp(z) y = Abs(a) w = Abs(b)}"
        ),
        {"x": X, "z": FIVE_ROWS},
        [],
    ),
    "unknown-symbols": (
        "g (float[?, ?] x) => (float[?, ?] y) {a = Neg(x) y = Relu(a)}",
        {"x": X},
        [],
    ),
}
#: A Loop whose carried value grows, although its body declares the shape of the first iteration.
GROWING = (
    "g (float[1, 3] x, int64 count) => (float[1, 3] grown) <bool yes = {1}> {"
    "a = Neg(x) grown = Loop(count, yes, a) <body = b (int64 i, bool go, float[1, 3] kept) => "
    "(bool on, float[1, 3] next) {on = Identity(go) next = Concat<axis = 0>(kept, x)}>}"
)
MODELS["loop"] = (GROWING, {"x": X[:1], "count": np.array(3)}, ["grown"])


def parse(text: str) -> ModelProto:
    """Parse a model with `?` as an unknown dimension, which the text form does not have."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> ' + text.replace("?", "question_mark")
    )
    for port in (*model.graph.input, *model.graph.output):
        for dimension in port.type.tensor_type.shape.dim:
            if dimension.dim_param == "question_mark":
                dimension.dim_param = "?"
    return model


@pytest.mark.sampled(4, "devices", "name")
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_wrong_declared_shape_warns(core, name, devices):
    graph, feeds, warned_outputs = MODELS[name]
    model = parse(graph)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feeds)
    pins = None
    if devices == ALTERNATING:
        nodes = core.read_model(model).node_names
        pins = {node: ("ORT", "CPU")[i % 2] for i, node in enumerate(nodes)}
        devices = "HETERO:ORT,CPU"
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("default")
        compiled = core.compile_model(model, devices, affinity=pins)
        for _ in range(2):
            results = compiled(feeds)
            for output, array in zip(results.values(), expected, strict=True):
                np.testing.assert_allclose(output, array, rtol=1e-6)
                assert output.shape == array.shape
    messages = [str(record.message) for record in records]
    assert [re.findall("output '(.*?)'", text)[0] for text in messages] == warned_outputs


@pytest.mark.parametrize("device", ["CPU", "ORT", "HETERO:ORT,CPU"])
def test_wrong_declared_type_is_rejected(core, device):
    model = parse("g (float[2, 3] x) => (float16[2, 3] y) {a = Neg(x) y = Relu(a)}")
    with pytest.raises(hetero.HeteroError, match=r"(?i)type"):
        core.compile_model(model, device)
    with pytest.raises(TensorTypeError):
        core.compile_model(parse(MODELS["rank"][0]), device)({"x": X.astype(np.complex64)})


class Transposing(Plugin):
    """A plugin that returns outputs of the right rank and a wrong shape."""

    name = "TRANSPOSING"

    def refuse(self, node, model, config):
        return None

    def compile(self, model, config):
        return type(
            "TransposingProgram", (Program,), {"run": lambda _, inputs, __: [-inputs[0].T]}
        )()


@pytest.mark.parametrize("declared", ["[2, 3]", "[n, m]", "[3, 2]"])
def test_output_shape_that_contradicts_inference_is_rejected(declared):
    model = parse(f"g (float[2, 3] x) => (float{declared} y) {{a = Neg(x) y = Relu(a)}}")
    with hetero.Core(executor="inprocess", plugins=[Transposing]) as core:
        pins = {"a": "TRANSPOSING", "y": "CPU"}
        compiled = core.compile_model(model, "HETERO:TRANSPOSING,CPU", affinity=pins)
        with pytest.raises(InferenceError, match=r"TRANSPOSING.*'a'.*got float32\[3, 2\]"):
            compiled({"x": X})
        single_device_model = core.compile_model(
            parse(f"g (float[2, 3] x) => (float{declared} y) {{y = Neg(x)}}"), "TRANSPOSING"
        )
        with pytest.raises(InferenceError, match=r"output 'y'.*got float32\[3, 2\]"):
            single_device_model({"x": X})


@pytest.mark.parametrize(
    "line", ["GroupNormalization<num_groups = 2>(x, s, s)", "MeanVarianceNormalization(x)"]
)
def test_normalization_keeps_the_input_shape(line):
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[n,4,5] x, float[4] s) => (float[] y) '
        f"{{ a = {line} y = Relu(a) }}"
    )
    with hetero.Core(executor="inprocess") as core:
        model = core.read_model(parser.parse_model(text))
        assert [model.spec(value).shape for value in ("a", "y")] == [("n", 4, 5)] * 2
