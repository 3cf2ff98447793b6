"""Encodings of tensors, compared with json and numpy."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("orjson")
from hetero.apps.serve import tensors
from hetero.apps.serve.errors import ProtocolError
from hetero.apps.serve.tensors import (
    DATATYPES,
    decode_json,
    decode_raw,
    decode_values,
    encode_json,
    encode_raw,
)
from tests.support.rows import for_each_row

#: Datatype -> elements that it can represent.
ELEMENTS = {
    "BOOL": st.booleans(),
    "INT8": st.integers(-128, 127),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    "FP64": st.floats(allow_nan=False, allow_infinity=False),
    "BYTES": st.text(alphabet='a"\\[],:{} é', max_size=4),
}
SHAPES = st.lists(st.integers(0, 4), max_size=4)


def nested(elements: list[Any], shape: list[int]) -> Any:
    """Return a flat list as nested lists of a shape."""
    if not shape:
        return elements[0]
    step = math.prod(shape[1:])
    return [nested(elements[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data(), datatype=st.sampled_from([*ELEMENTS]), shape=SHAPES)
def test_json_is_decoded_flat_and_nested(data, datatype, shape):
    count = math.prod(shape)
    elements = data.draw(st.lists(ELEMENTS[datatype], min_size=count, max_size=count))
    dtype = DATATYPES[datatype].dtype
    expected = np.array(elements, dtype).reshape(shape)
    forms = [elements] if not shape else [elements, nested(elements, shape)]
    for form in forms:
        for separators in ((",", ":"), (" , ", ":")):
            text = json.dumps(form, separators=separators).encode()
            array = decode_json("x", datatype, shape, text)
            assert array.dtype == dtype
            np.testing.assert_array_equal(array, expected)
    decoded = np.array(json.loads(encode_json("x", expected)), dtype)
    np.testing.assert_array_equal(decoded, expected.ravel())
    raw = encode_raw(expected)
    np.testing.assert_array_equal(decode_raw("x", datatype, shape, raw), expected)


@for_each_row(
    "shape, text",
    [
        ([3], "[1,2]"),
        ([3], "[1,2,3,4]"),
        ([2, 2], "[[1,2],[3]]"),
        ([2, 2], "[[1],[2],[3],[4]]"),
        ([2, 2], "[[1,2,3,4]]"),
        ([2, 2], "[1,[2,3],4]"),
        ([4], "[[1,2],[3,4]]"),
        ([2], '["1","2"]'),
        ([2], "[1,null]"),
        ([2], "[1,true]"),
        ([1], '{"a":1}'),
        ([], "5"),
        ([0], "5"),
        ([2**55, 0], "[1]"),
        ([1], "[]"),
        ([0], "[1]"),
        ([2, 1], "[[1],[]]"),
        ([2, 1], "[[],[]]"),
        ([2, 0], "[[1],[]]"),
        ([2**60], "[]"),
    ],
)
def test_json_of_another_layout_is_refused(shape, text):
    with pytest.raises(ProtocolError, match="input 'x'"):
        decode_json("x", "INT64", shape, text.encode())


@pytest.mark.parametrize("count", [tensors._CHUNK - 1, tensors._CHUNK, 5 * tensors._CHUNK + 1])
def test_large_tensors_are_decoded_in_chunks(count):
    expected = np.random.default_rng(0).integers(-(10**9), 10**9, count)
    text = json.dumps(expected.tolist()).encode()
    np.testing.assert_array_equal(decode_json("x", "INT64", [count], text), expected)
    np.testing.assert_array_equal(decode_values("x", "INT64", [count], expected), expected)
    assert json.loads(encode_json("x", expected)) == expected.tolist()


def test_data_of_wrong_size_is_not_decoded(monkeypatch):
    def fail(*_: object) -> None:
        pytest.fail("the data is decoded")

    monkeypatch.setattr(tensors, "_decoder", fail)
    numbers = b"[" + b"0," * 10**6 + b"0]"
    for datatype, data in (("FP32", numbers), ("BYTES", numbers.replace(b"0", b'""'))):
        with pytest.raises(ProtocolError):
            decode_json("x", datatype, [3072], data)


@pytest.mark.parametrize(
    ("datatype", "element"),
    [
        ("INT8", 128),
        ("UINT8", -1),
        ("INT64", 2**63),
        ("FP16", 1e6),
        ("FP32", 1e300),
        ("BF16", 1e39),
        ("INT32", 1.5),
    ],
)
def test_elements_out_of_range_are_refused(datatype, element):
    with pytest.raises(ProtocolError, match=datatype):
        decode_json("x", datatype, [1], json.dumps([element]).encode())


def test_strings_are_bounded():
    count = tensors.MAX_STRINGS + 1
    for decode, data in (
        (decode_json, b"[" + b'"",' * (count - 1) + b'""]'),
        (decode_raw, bytes(4 * count)),
        (decode_values, [b""] * count),
    ):
        with pytest.raises(ProtocolError) as caught:
            decode("x", "BYTES", [count], data)
        assert caught.value.status == 413


def test_raw_strings_beyond_the_shape_are_refused():
    with pytest.raises(ProtocolError, match="2 elements"):
        decode_raw("x", "BYTES", [2], bytes(4 * 1000))


def test_bfloat16_in_json():
    array = decode_json("x", "BF16", [2], b"[0.5,-3e38]")
    np.testing.assert_array_equal(array, np.array([0.5, -3e38], ml_dtypes.bfloat16))
