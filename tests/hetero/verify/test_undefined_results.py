"""Inputs for which ONNX defines no result."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

from hetero.devices.model.reader import read_model
from hetero.verify.undefined_results import has_large_window, undefined_reason

SMALLEST = np.iinfo(np.int32).min


@pytest.mark.parametrize(
    ("node", "kind", "values", "reason"),
    [
        ("Cast<to = 3>(a)", "float", ([3.0, 127.0], [0.0, 0.0]), None),
        ("Cast<to = 3>(a)", "float", ([3.0, 128.0], [0.0, 0.0]), "cast of a float"),
        ("Div(a, b)", "int32", ([3, 4], [1, -1]), None),
        ("Div(a, b)", "int32", ([3, 4], [1, 0]), "by zero"),
        ("Mod(a, b)", "int32", ([SMALLEST, 4], [1, -1]), "smallest integer"),
        ("Add(a, b)", "float", ([1.0, np.nan], [0.0, 0.0]), "not finite"),
        ("Pow(a, b)", "int32", ([10, 2], [20, 1]), "power of an integer"),
        ("Pow(a, b)", "int32", ([10, 2], [3, 1]), None),
        ("RNN<hidden_size = 1>(a, a, a, , b)", "int32", ([1, 1], [0, 2]), "without steps"),
        ("RNN<hidden_size = 1>(a, a, a, , b)", "int32", ([1, 1], [1, 2]), None),
    ],
)
def test_undefined_result_has_a_reason(node, kind, values, reason):
    output = "int8" if "Cast" in node else kind
    model = read_model(
        parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            one ({kind}[2] a, {kind}[2] b) => ({output}[2] y) {{ y = {node} }}"""
        )
    )
    dtype = np.float32 if kind == "float" else np.int32
    a, b = (np.asarray(v, dtype) for v in values)
    message = undefined_reason(
        model, {"a": a, "b": b, "y": np.zeros(2, output if "Cast" in node else dtype)}
    )
    assert (message is None) == (reason is None)
    assert reason is None or (message is not None and reason in message)


@pytest.mark.parametrize(("edges", "is_defined"), [((0.0, 8.0), True), ((3.0, 9.0), False)])
def test_mel_weights_beyond_the_spectrum_are_undefined(edges, is_defined):
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            mel (int64 bins, int64 length, int64 rate, float low, float high) => (float[N, M] y)
            { y = MelWeightMatrix(bins, length, rate, low, high) }"""
        )
    )
    values = {"bins": np.int64(2), "length": np.int64(8), "rate": np.int64(16)}
    values |= dict(zip(("low", "high"), map(np.float32, edges), strict=True))
    arrays = {name: np.asarray(value) for name, value in values.items()}
    assert (undefined_reason(model, arrays) is None) == is_defined


@pytest.mark.parametrize(("length", "is_defined"), [(4, True), (3, False), (7, False)])
def test_limited_cache_is_undefined_after_its_last_token(length, is_defined):
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["com.microsoft": 1]>
            gqa (float[1,1,8] q, float[1,1,4,8] past, int32[1] last, int32 total)
            => (float[1,1,8] y, float[1,1,4,8] k, float[1,1,4,8] v) {
                y, k, v = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1,
                    local_window_size = 2, sliding_window_cache = 1> (q, q, q, past, past, last,
                    total)
            }"""
        )
    )
    values = {"past": np.zeros((1, 1, 4, 8), np.float32), "total": np.int32(length)}
    values["last"] = np.array([length - 1], np.int32)
    assert (undefined_reason(model, values) is None) == is_defined


@pytest.mark.parametrize(
    ("mode", "pads", "is_defined"),
    [("reflect", [2, 2], True), ("reflect", [3, 0], False), ("edge", [3, 0], True)],
)
def test_reflection_beyond_the_data_is_undefined(mode, pads, is_defined):
    """OpenVINO and ONNX Runtime refuse it."""
    model = read_model(
        parse_model(
            f"""<ir_version: 8, opset_import: ["": 18]>
            pad (float[2,N] x, int64[2] pads) => (float[2,M] y) {{
                axes = Constant <value_ints = [1]> ()
                y = Pad <mode = "{mode}"> (x, pads, , axes)
            }}"""
        )
    )
    values = {"x": np.zeros((2, 3), np.float32), "pads": np.array(pads)}
    values |= {"axes": np.array([1]), "y": np.zeros((2, 6), np.float32)}
    assert (undefined_reason(model, values) is None) == is_defined


@pytest.mark.parametrize(("length", "is_defined"), [(2, True), (1, False)])
def test_window_larger_than_the_data_is_undefined(length, is_defined):
    """ONNX Runtime returns one element, ONNX's formula gives none, and OpenVINO refuses it."""
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 18]>
            pool (float[1,1,N] x) => (float[1,1,M] y) {
                y = MaxPool <kernel_shape = [2], strides = [2]> (x)
            }"""
        )
    )
    values = {"x": np.zeros((1, 1, length), np.float32)}
    values["y"] = np.zeros((1, 1, 1), np.float32)
    assert (undefined_reason(model, values) is None) == is_defined


@pytest.mark.parametrize(
    ("node", "size", "is_large"),
    [
        ("MaxPool<kernel_shape = [3, 3]>(x)", 3, False),
        ("MaxPool<kernel_shape = [3, 3]>(x)", 2, True),
        ("MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)", 2, False),
        ('MaxPool<kernel_shape = [3, 3], auto_pad = "SAME_UPPER">(x)', 2, False),
        ("Conv(x, w)", 3, False),
        ("Conv(x, w)", 2, True),
        ("Conv<dilations = [2, 2]>(x, w)", 4, True),
        ("Relu(x)", 1, False),
    ],
)
def test_windows_larger_than_the_data_are_found_by_shapes(node, size, is_large):
    model = read_model(
        parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            g (float[1,1,{size},{size}] x, float[1,1,3,3] w) => (float[a,b,c,d] y) {{y = {node}}}"""
        )
    )
    assert has_large_window(model) == is_large
