"""The codec: every value of ONNX survives it, no damage gets through it, and its form is fixed."""

from __future__ import annotations

import contextlib
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.errors import BlobError
from devices.model.light import light_model_inputs, light_model_names
from devices.model.reader import read_model
from devices.model.tensor_spec import DTYPES
from scheduler import CodecLimits, decode, encode
from scheduler.formats.codec import VERSION
from scheduler.formats.memory_order import packed, unpacked
from scheduler.formats.model_parts import join_model, split_model
from tests.scheduler.models import build

GOLDEN = Path(__file__).parent / "golden" / "message_v3.bin"

ELEMENT_TYPES = sorted({d for d in DTYPES.values() if d.kind != "O"}, key=str)


def golden_value() -> list[Any]:
    """What the golden message holds: one of each tag."""
    return [
        None,
        True,
        -7,
        2**70,
        1.5,
        "text",
        b"bytes",
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.arange(6, dtype=np.int16).reshape(1, 2, 3).transpose(2, 0, 1),
        np.arange(3).astype(ml_dtypes.bfloat16),
        np.float32(2.5),
        np.array([["a", "ü"]], object),
        {"k": [np.zeros((0, 4), np.float32)], 3: {}},
    ]


def check_equal(got: Any, want: Any) -> None:
    if isinstance(want, np.ndarray):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert got.tolist() == want.tolist() if want.dtype == object else _same(got, want)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            check_equal(got[key], want[key])
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check_equal(one, other)
    elif isinstance(want, np.generic):
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()
    else:
        assert type(got) is type(want)
        assert got == want


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    return got.tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("dtype", ELEMENT_TYPES, ids=str)
def test_tensors_of_every_element_type(dtype: np.dtype) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    for case in (array, array.T, array[:, ::2], array[:0], array[0, 0], np.array(array[0, 0])):
        check_equal(decode(encode(case)), case)


def test_nan_payloads_and_signed_zeros_keep_their_bits() -> None:
    bits = np.array([0x7FC00001, 0xFFC00000, 0x80000000, 0x7F800000], np.uint32)
    check_equal(decode(encode(bits.view(np.float32))), bits.view(np.float32))


def test_big_endian_tensors_arrive_as_native_ones() -> None:
    got = decode(encode(np.arange(3, dtype=">i4")))
    check_equal(got, np.arange(3, dtype=np.int32))


def test_golden_message_is_read_and_written_the_same() -> None:
    data = GOLDEN.read_bytes()
    check_equal(decode(data), golden_value())
    assert encode(golden_value()) == data


def test_the_version_before_is_refused_by_name() -> None:
    with pytest.raises(BlobError, match="version 2"):
        decode((GOLDEN.parent / "message_v2.bin").read_bytes())


@given(
    st.permutations(range(4)),
    st.tuples(*[st.integers(1, 3)] * 4),
    st.tuples(*[st.sampled_from([1, 2, -1])] * 4),
)
def test_tensors_keep_their_order_in_memory(
    axes: list[int], shape: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    array = np.arange(6**4).reshape(6, 6, 6, 6)[tuple(slice(None, None, s) for s in steps)]
    array = array[tuple(slice(n) for n in shape)].transpose(axes)
    want = array.copy(order="K")
    for got in (decode(encode(array)), unpacked(pickle.loads(pickle.dumps(packed(array))))):
        np.testing.assert_array_equal(got, array)
        wide = [i for i in range(4) if array.shape[i] > 1]
        assert [got.strides[i] for i in wide] == [want.strides[i] for i in wide]


def test_lists_of_tensors_keep_their_order_in_memory() -> None:
    array = np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0)
    (got, text) = unpacked(packed([array, "text"]))
    assert got.strides == array.strides
    assert text == "text"


@pytest.mark.parametrize("order", [[0, 0], [1], [2, 1], [-1, 0], [1, "0"], 7])
def test_an_order_that_is_none_is_refused(order: Any) -> None:
    message = encode(np.arange(6).reshape(2, 3).T)
    head = msgpack.packb([2, "int64", [3, 2], 0, order])
    prefix = struct.pack("<3sBIQ", b"HTW", VERSION, len(head), 64)
    with pytest.raises(BlobError):
        decode((prefix + head).ljust(64, b"\0") + message[64:])


def test_decoded_tensors_are_aligned_read_only_views() -> None:
    data = encode([np.arange(5, dtype=np.uint8), np.arange(5, dtype=np.float64)])
    for array in decode(data):
        assert not array.flags.writeable
        assert not array.flags.owndata
    offsets = [a.__array_interface__["data"][0] for a in decode(data)]
    assert (offsets[1] - offsets[0]) % 64 == 0


def test_models_keep_content_names_and_types() -> None:
    weights = {"w": np.ones(3, np.float32)}
    model = build(
        [("Add", "a", ("x", "w"), "y"), ("Neg", "b", ("y",), "z")], ["z", "x"], weights=weights
    )
    got = join_model(split_model(model))
    assert got.content_hash == model.content_hash
    assert got.node_names == model.node_names
    assert (got.inputs, got.outputs) == (model.inputs, model.outputs)
    assert {v: got.spec(v) for v in "xyzw"} == {v: model.spec(v) for v in "xyzw"}


def test_a_part_of_a_model_keeps_types_that_it_could_not_infer_alone() -> None:
    name = light_model_names()[0]
    model = read_model(f"light:{name}")
    middle = len(model.nodes) // 2
    part = model.extract(range(middle, middle + 3), model.nodes[middle + 2].writes)
    got = join_model(split_model(part))
    assert [got.spec(v) for n in got.nodes for v in n.reads] == [
        model.spec(v) for n in part.nodes for v in n.reads
    ]
    assert light_model_inputs(model)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
arrays = st.builds(
    lambda shape, dtype: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([np.float32, np.int64, np.bool_, ml_dtypes.float8_e4m3fn, np.complex64]),
)
values = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(-9, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_any_nesting_survives(value: Any) -> None:
    check_equal(decode(encode(value)), value)


@given(st.data())
def test_damage_is_a_typed_error_or_another_value(data: st.DataObject) -> None:
    message = bytearray(encode(golden_value()))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    message = message[: data.draw(st.integers(0, len(message)))]
    with contextlib.suppress(BlobError):
        decode(message)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BlobError):
        decode(data)


def test_every_cut_is_refused() -> None:
    message = encode(golden_value())
    for length in range(len(message)):
        with pytest.raises(BlobError):
            decode(message[:length])


def test_another_version_is_refused_by_its_number() -> None:
    message = bytearray(encode(1))
    message[3] = 9
    with pytest.raises(BlobError, match="version 9"):
        decode(message)


def test_depth_and_size_are_bounded() -> None:
    nested: Any = 1
    for _ in range(40):
        nested = [nested]
    with pytest.raises(BlobError, match="deeper"):
        encode(nested)
    deep = encode(nested, limits=CodecLimits(depth=50))
    with pytest.raises(BlobError, match="deeper"):
        decode(deep)
    with pytest.raises(BlobError, match="at most 10"):
        decode(encode(np.zeros(9)), limits=CodecLimits(nbytes=10))


@pytest.mark.parametrize(
    "value",
    [object(), {1.5: 2}, np.array([object()]), np.zeros(2, "M8[s]"), {1, 2}],
    ids=["object", "float key", "objects", "dates", "set"],
)
def test_what_is_no_value_of_onnx_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(value)


def test_a_head_that_claims_more_items_than_there_are_reserves_nothing() -> None:
    nbytes = 200_000
    claims = (b"\xdd" + struct.pack(">I", nbytes)) * 400  # arrays inside each other, all too long
    head = claims.ljust(nbytes, b"\xc0")
    start = -(-(16 + nbytes) // 64) * 64
    message = (struct.pack("<3sBIQ", b"HTW", VERSION, nbytes, start) + head).ljust(start, b"\0")
    tracemalloc.start()
    try:
        with pytest.raises(BlobError, match="cut short"):
            decode(message)
        _, peak_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_nbytes < 10 * nbytes
