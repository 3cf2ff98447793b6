"""Range analysis of integers, checked against runs of ONNX's reference implementation."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from hetero.devices import read_model
from hetero.devices.errors import ModelError
from hetero.devices.model.integer_ranges import LONGEST_DYNAMIC_AXIS, RANGES, value_ranges
from hetero.devices.model.model import header_with
from tests.support.rows import for_each_row

INT64 = np.iinfo(np.int64)


def parse(body, opset=18):
    return read_model(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {body}')
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(float[3,N] x) => (int64[2] y) {y = Shape(x)}", (0, LONGEST_DYNAMIC_AXIS)),
        ("(float[3,4] x) => (int64[2] y) {y = Shape(x)}", (0, 4)),
        ("(float[3,4] x) => (int64 y) {y = Size(x)}", (0, 12)),
        ("(float[3,4] x) => (int64[3] y) {y = ArgMax<axis=1, keepdims=0>(x)}", (0, 4)),
        ("(int32[2] x) => (int64[2] y) {y = Cast<to=7>(x)}", (-(2**31), 2**31 - 1)),
        ("(int64[2] x) => (int64[2] y) {y = Identity(x)}", (INT64.min, INT64.max)),
        ("(int8[2] x) => (int64[2] y) {a = Cast<to=7>(x) y = Mul(a, a)}", (-128 * 127, 128 * 128)),
        ("(float[N] x) => (int64[N] y) {y = Cast<to=7>(x)}", (INT64.min, INT64.max)),
    ],
)
def test_forward_range_of_output(body, expected):
    assert value_ranges(parse(body))["y"] == expected


# a is in -2..3 and b in 4..5, both of shape [2, 3]; p is a position in -1..1, u is unknown.
@for_each_row(
    "node, expected",
    [
        ("Abs(a)", (0, 3)),
        ("Abs(i)", (0, 2)),
        ("Neg(b)", (-5, -4)),
        ("Sign(b)", (-1, 1)),
        ("Add(a, b)", (2, 8)),
        ("Sub(a, b)", (-7, -1)),
        ("Mul(a, b)", (-10, 15)),
        ("Mul(a, a)", (-6, 9)),
        ("Div(a, b)", (-3, 3)),
        ("Div(b, b)", (0, 5)),
        ("Mod(a, b)", (-5, 5)),
        ("Mod(b, b)", (0, 5)),
        ("Max(a, b)", (4, 5)),
        ("Min(a, b, c)", (-2, 3)),
        ("Min(b, c)", (4, 5)),
        ("Range(i, j, i)", (-2, 5)),
        ("Clip(a, lowest, highest)", (0, 1)),
        ("Clip(a, lowest)", (0, 3)),
        ("Clip(a, , highest)", (-2, 1)),
        ("Clip(b, lowest)", (4, 5)),
        ("Clip(b, , highest)", (1, 1)),
        ("Pad(b, pads)", (0, 5)),
        ("Pad(b, pads, i)", (-2, 5)),
        ("Trilu(b)", (0, 5)),
        ("ReduceSum(a)", (-12, 18)),  # of six elements
        ("ReduceSum(b, last)", (0, 15)),
        ("ReduceSum(a, first)", (-4, 6)),
        ("CumSum(a, last)", (-6, 9)),
        ("CumSum(a, p)", (-12, 18)),
        ("Concat<axis=0>(a, b)", (-2, 5)),
        ("Where(go, a, b)", (-2, 5)),
        ("ScatterElements(b, zeros, a)", (-2, 5)),
        ("OneHot(zeros, depth, values)", (7, 9)),
        ("Transpose(a)", (-2, 3)),
        ("ReduceMax(a)", (-2, 3)),
        ("Cast<to=6>(b)", (4, 5)),
        ("ArgMin(a)", (0, 3)),
        ("NonZero(a)", (0, 3)),
        ("Add(a, u)", (INT64.min, INT64.max)),
        ("Concat<axis=0>(a, u)", (INT64.min, INT64.max)),
        ("Mul(a, huge)", (INT64.min, INT64.max)),  # it may overflow
        ("Constant<value_ints=[3, -4]>()", (-4, 3)),
        ("ConstantOfShape<value=int64[1] {7}>(pads)", (7, 7)),
        ("BitwiseXor(a, b)", (INT64.min, INT64.max)),  # without a rule
    ],
)
def test_range_follows_from_those_of_the_inputs(node, expected):
    model = parse(
        "(int64[2,3] a, int64[2,3] b, int64[2,3] c, int64[2,3] u, int64 i, int64 j, bool[2,3] go,"
        f" int64 p, float[3] f) => (y) <int64 lowest = {{0}}, int64 highest = {{1}}, int64[1] last"
        " = {-1}, int64[1] first = {0}, int64[2,3] zeros = {0,0,0,0,0,0},"
        " int64[4] pads = {1,1,1,1}, int64 depth = {3}, int64[2] values = {7,9},"
        f" int64 huge = {{{2**62}}}> {{y = {node}}}".replace("{{", "{").replace("}}", "}"),
        opset=18,
    )
    hints = {"a": (-2, 3), "b": (4, 5), "c": (6, 9), "i": (-2, -2), "j": (5, 5), "p": (-1, 1)}
    assert value_ranges(model, hints=hints)["y"] == expected


def test_backward_range_of_index_is_bounded():
    model = parse(
        "(int64[N] i, int64[N] j, float[9,2] w) => (float[N,2] y, int64[N] k)"
        " <int64[1] two = {2}> {a = Add(i, two) y = Gather(w, a) k = Add(j, two)}"
    )
    ranges = value_ranges(model)
    assert max(abs(end) for end in ranges["i"]) < 2**31
    assert ranges["j"] == (INT64.min, INT64.max)


@pytest.mark.parametrize(
    ("node", "is_bounded"),
    [
        ("Reshape(i, shape)", True),
        ("Concat<axis=0>(i, i)", True),
        ("ReduceMax<keepdims=1>(i)", False),  # the other elements may be as small as they like
        ("ReduceMin<keepdims=1>(i)", False),
    ],
)
def test_backward_range_passes_operators_that_keep_all_elements(node, is_bounded):
    model = parse(
        "(int64[N] i, float[9,2] w) => (float[M,2] y)"
        f" <int64[1] shape = {{-1}}> {{a = {node} y = Gather(w, a)}}"
    )
    ranges = value_ranges(model)
    assert (max(abs(end) for end in ranges["i"]) < 2**31) == is_bounded


def test_submodel_has_ranges_of_the_complete_model():
    model = parse("(float[N] x) => (int64[1] y) {s = Shape(x) a = Add(s, s) y = Sub(a, s)}")
    part = model.extract([1, 2], ["y"])
    assert part.integer_ranges["s"] == (0, LONGEST_DYNAMIC_AXIS)
    assert part.extract([1], ["y"]).integer_ranges["a"] == (0, 2 * LONGEST_DYNAMIC_AXIS)
    assert RANGES not in model.metadata


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
def test_submodel_has_ranges_of_wide_integers(kind):
    number = TensorProto.DataType.Value(kind.upper())
    model = parse(
        f"(float[3,8] x) => ({kind}[2] y) {{s = Shape(x) i = Cast<to={number}>(s) y = Add(i, i)}}"
    )
    assert model.extract([2], ["y"]).integer_ranges["y"] == (0, 16)


#: Operators on two tensors of one shape, and on one tensor.
BINARY = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Where", "Concat")
UNARY = ("Neg", "Abs", "Sign", "ReduceSum", "CumSum", "Slice", "Clip", "Pad", "ReduceMax")


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_values_of_reference_run_are_within_their_ranges(data):
    """Random integer graphs, run by onnx's reference implementation; checks all inner values."""
    draw = data.draw
    # Small constants: most graphs should not overflow 64 bits.
    limit = draw(st.sampled_from([3, 100, 2**20]))
    values, nodes, constants = ["x"], [], []

    def constant(array):
        name = f"c{len(constants)}"
        constants.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    for i in range(draw(st.integers(1, 6))):
        name, op = f"v{i}", draw(st.sampled_from(BINARY + UNARY))
        a = draw(st.sampled_from(values))
        b = draw(st.sampled_from([*values, constant(draw(st.integers(-limit, limit)))]))
        if op in ("Div", "Mod"):
            b = constant(draw(st.integers(1, limit)))
        attributes, inputs = {}, [a, b] if op in BINARY else [a]
        match op:
            case "Where":
                inputs = [constant(np.array([True, False, True])), *inputs]
            case "ReduceSum" | "ReduceMax":
                attributes = {"keepdims": 1}
            case "Concat":
                inputs = [a, a]
                attributes = {"axis": 0}
            case "CumSum":
                inputs = [a, constant(0)]
            case "Clip":
                inputs = [a, constant(draw(st.integers(-limit, 0))), constant(limit // 2)]
            case "Slice":
                inputs = [a, constant([0]), constant([draw(st.integers(1, 3))])]
            case "Pad":
                inputs = [a, constant([1, 0]), constant(draw(st.integers(-limit, limit)))]
        nodes.append(helper.make_node(op, inputs, [name], **attributes))
        if op in ("Concat", "Slice", "Pad", "ReduceSum", "ReduceMax"):
            continue  # the result has another length, so later operators do not read it
        values.append(name)
    outputs = [node.output[0] for node in nodes]
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.INT8, [3])],
            [helper.make_tensor_value_info(v, TensorProto.INT64, None) for v in outputs],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    wide = helper.make_node("Cast", ["x"], ["w"], to=TensorProto.INT64)
    for node in proto.graph.node:
        node.input[:] = ["w" if value == "x" else value for value in node.input]
    proto.graph.node.insert(0, wide)
    x = np.array(draw(st.lists(st.integers(-128, 127), min_size=3, max_size=3)), np.int8)
    ranges = value_ranges(read_model(proto))
    results = ReferenceEvaluator(proto).run(None, {"x": x})
    for name, array in zip(outputs, results, strict=True):
        low, high = ranges[name]
        assert low <= array.min(), (name, array)
        assert array.max() <= high, (name, array)


@pytest.mark.parametrize("text", ['{"x": [0, 1]}', "{", "[1]", '{"x": 1}', "[" * 10**5])
def test_ranges_in_a_file_are_ignored(text):
    proto = parse("(int64[2] x) => (int64[2] y) {y = Add(x, x)}").to_proto()
    proto.metadata_props.add(key=RANGES, value=text)
    model = read_model(proto)
    assert RANGES not in model.metadata
    assert model.integer_ranges["x"] == (INT64.min, INT64.max)


@pytest.mark.parametrize("text", ["{", "[1]", '{"x": 1}', '{"x": ["a", 1]}', '{"x": [1e400, 1]}'])
def test_damaged_ranges_of_a_stage_raise(text):
    model = parse("(int64[2] x) => (int64[2] y) {y = Add(x, x)}")
    header = header_with(model, {RANGES: text})
    with pytest.raises(ModelError, match=RANGES):
        _ = model.replace(header=header).integer_ranges
