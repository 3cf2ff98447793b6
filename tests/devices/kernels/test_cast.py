"""Conversions: against ONNX Runtime, ONNX's evaluator, and the tables of the specification."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.comparison import assert_close
from tests.support.kernel_oracle import NARROW, check, run_kernel, run_reference

NATIVE = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]
EVERY = [*NATIVE, *NARROW]
FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


def dtype(name: str) -> Any:
    return NARROW[name] if name in NARROW else np.dtype(name)


def number(name: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype(name)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("opset", [7, 9, 13])
@pytest.mark.parametrize(("source", "target"), list(product(NATIVE, NATIVE)))
def test_native(source, target, opset):
    x = np.array([0, 1, 2, 100], np.float32).astype(source)
    check("Cast", [x], {"to": number(target)}, opset)
    check("Cast", [x[:0].reshape(0, 2)], {"to": number(target)}, opset)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("source", "target"), list(product(EVERY, EVERY)))
def test_every_pair(source, target):
    # Every type has 0 and 1, except float8_e8m0, which has no 0.
    values = [1, 1] if "float8_e8m0fnu" in (source, target) else [0, 1]
    x = np.array(values, np.float32).astype(dtype(source))
    expected = np.array(values, np.float32).astype(dtype(target))
    check("Cast", [x], {"to": number(target)}, 25, expected=[expected])
    check("CastLike", [x, expected], {}, 25, expected=[expected])


@pytest.mark.parametrize(
    ("source", "target", "values", "expected"),
    [
        ("int16", "int8", [200, -200], [-56, 56]),
        ("int32", "int4", [8, -9, 17], [-8, 7, 1]),
        ("int32", "uint4", [17, -1], [1, 15]),
        ("int8", "int2", [2, 3, -3], [-2, -1, 1]),
        ("float32", "int32", [1.9, -1.9, 2.5], [1, -1, 2]),
        ("float32", "int4", [1.9, -1.9, -7.5], [1, -1, -7]),
        ("float32", "bool", [0.0, -0.0, 0.1, np.nan], [False, False, True, True]),
        ("bfloat16", "bool", [0.0, 0.5], [False, True]),
        ("float64", "float16", [1e6, -1e6, 0.1], [np.inf, -np.inf, 0.1]),
    ],
)
def test_rules(source, target, values, expected):
    x = np.array(values, np.float32 if "float" in source else np.int32).astype(dtype(source))
    result = np.array(expected).astype(dtype(target))
    check("Cast", [x], {"to": number(target)}, 25, expected=[result])


def test_bfloat16_rounds_to_nearest_even():
    # One unit in the last place of bfloat16 at 1 is 2**-7.
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
    actual = run_kernel("Cast", [x], {"to": TensorProto.BFLOAT16}, 13)[0]
    np.testing.assert_array_equal(actual.astype(np.float32), [1, 1 + 2**-6, 1 + 2**-7])


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_saturates(name):
    largest = {"float8_e4m3fn": 448, "float8_e4m3fnuz": 240}.get(name, 57344)
    x = np.array([np.inf, -np.inf, 1e9, -1e9, np.nan, 0.1], np.float32)
    near = np.float32(0.1).astype(dtype(name)).astype(np.float32)
    expected = np.array([largest, -largest, largest, -largest, np.nan, near], np.float32)
    check("Cast", [x], {"to": number(name)}, 19, expected=[expected.astype(dtype(name))])
    check("CastLike", [x, x.astype(dtype(name))], {}, 19, expected=[expected.astype(dtype(name))])

    over = np.inf if name == "float8_e5m2" else np.nan
    expected = np.array([over, -over, over, -over, np.nan, near], np.float32)
    attributes = {"to": number(name), "saturate": 0}
    for inputs in (x, x.astype(str).astype(object)):
        check("Cast", [inputs], attributes, 19, expected=[expected.astype(dtype(name))])


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_from_other_floats(name):
    x = np.random.default_rng(24).normal(0, 100, 400).astype(np.float32)
    for source in ("float32", "float16", "bfloat16"):
        inputs = [x.astype(dtype(source))]
        check("Cast", inputs, {"to": number(name)}, 19, oracle=run_reference)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("up", [1, 2, 2, 2, 0.5]), ("down", [1, 1, 1, 1, 0.5]), ("nearest", [1, 1, 2, 2, 0.5])],
)
def test_float8_e8m0_rounds_to_powers_of_two(mode, expected):
    x = np.array([1, 1.25, 1.5, 1.75, 0.5], np.float32)
    actual = run_kernel("Cast", [x], {"to": TensorProto.FLOAT8E8M0, "round_mode": mode}, 24)[0]
    np.testing.assert_array_equal(actual.astype(np.float32), expected)


@pytest.mark.parametrize("mode", ["up", "down"])
def test_float8_e8m0_of_negative_numbers(mode):
    x = np.array([-1, -1.25, -1.75, -1e6, -3e-20], np.float32)
    attributes = {"to": TensorProto.FLOAT8E8M0, "round_mode": mode}
    check("Cast", [x], attributes, 24, oracle=run_reference)


@pytest.mark.parametrize(
    ("saturate", "mode", "codes"),
    [(1, "up", [0, 255, 254, 254, 0]), (0, "nearest", [255, 255, 255, 255, 0])],
)
def test_float8_e8m0_at_its_ends(saturate, mode, codes):
    x = np.array([0, np.nan, np.inf, 3e38, 2.0**-127], np.float32)
    attributes = {"to": TensorProto.FLOAT8E8M0, "round_mode": mode, "saturate": saturate}
    actual = run_kernel("Cast", [x], attributes, 24)[0]
    np.testing.assert_array_equal(actual.view(np.uint8), codes)


@pytest.mark.parametrize("target", ["float32", "float64", "int32", "int64"])
def test_from_strings(target):
    text = ["3", "-17", "1000"]
    if "float" in target:
        text += ["3.14", "1e-5", "1E8", "INF", "+INF", "-INF", "NaN"]
    check("Cast", [np.array(text, object)], {"to": number(target)}, 9)


def test_from_strings_beside_the_numbers():
    exact = np.array(["9007199254740993", "-3"], object)
    expected = np.array([9007199254740993, -3], np.int64)
    check("Cast", [exact], {"to": TensorProto.INT64}, 13, expected=[expected])
    fraction = np.array(["100.5"], object)
    check("Cast", [fraction], {"to": TensorProto.INT32}, 13, expected=[np.array([100], np.int32)])
    with pytest.raises(ValueError, match="Hello"):
        run_kernel("Cast", [np.array(["Hello"], object)], {"to": TensorProto.FLOAT})


@pytest.mark.parametrize("source", ["float32", "float64", "int32", "uint8", "bfloat16"])
def test_strings_read_back_the_same(source):
    x = np.array([0, 1, 2.5, 100.125], np.float32).astype(dtype(source))
    text = run_kernel("Cast", [x], {"to": TensorProto.STRING}, 13)[0]
    assert text.dtype == object
    assert all(isinstance(item, str) for item in text)
    check("Cast", [text], {"to": number(source)}, 13, expected=[x])


def test_bit_cast():
    x = np.array([1.0, -2.5], np.float32)
    check("BitCast", [x], {"to": TensorProto.INT32}, 26, expected=[x.view(np.int32)])
    signed = np.array([-1, -8, 7], np.int8).astype(NARROW["int4"])
    unsigned = np.array([15, 8, 7], np.uint8).astype(NARROW["uint4"])
    check("BitCast", [signed], {"to": TensorProto.UINT4}, 26, expected=[unsigned])
    check("BitCast", [unsigned], {"to": TensorProto.INT4}, 26, expected=[signed])
    with pytest.raises(ValueError, match="32 bits"):
        run_kernel("BitCast", [x], {"to": TensorProto.INT64})
    with pytest.raises(TypeError, match="string"):
        run_kernel("BitCast", [x], {"to": TensorProto.STRING})


@pytest.mark.parametrize("to", [0, 99])
def test_unknown_types_are_refused(to):
    with pytest.raises(ValueError, match=f"element type: .*got {to}"):
        run_kernel("Cast", [np.ones(1, np.float32)], {"to": to})


def test_identity():
    x = np.ones((2, 0), np.float32)
    for opset in (7, 13, 14, 16):
        check("Identity", [x], {}, opset)
    pair = run_kernel("Identity", [[x, x]])[0]
    assert_close(pair, [x, x], 0, 0, "Identity of a sequence")


@pytest.mark.parametrize("name", NARROW)
def test_narrow_types_to_strings(name):
    x = np.array([1, 0, 1], np.float32).astype(dtype(name))
    plain = x.astype(np.float32).tolist()
    expected = [str(v) if "float" in name else str(int(v)) for v in plain]
    check("Cast", [x], {"to": TensorProto.STRING}, expected=[np.array(expected, object)])
