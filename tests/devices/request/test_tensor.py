"""Conversion of user values for ports: lossless casts, shapes, shared memory and typed errors."""

import array

import ml_dtypes
import numpy as np
import pytest

from hetero.devices import Tensor, TensorSpec
from hetero.devices.errors import TensorShapeError, TensorTypeError
from hetero.devices.request.tensor import empty_tensor
from hetero.devices.request.tensor_conversion import convert
from tests.support.array_likes import OnlyArray, OnlyDLPack
from tests.support.rows import for_each_row

FLOAT = TensorSpec("p", "tensor(float)", (2,))


def port(kind, shape=(2,)):
    return TensorSpec("p", f"tensor({kind})", shape)


@for_each_row(
    "kind, value, expected",
    [
        ("float", [1, 2], np.float32([1, 2])),
        ("float", [True, False], np.float32([1, 0])),
        ("float", np.float64([0.1, 2]), np.float32([0.1, 2])),
        ("float", np.arange(2), np.float32([0, 1])),
        ("float", np.array([1, 2], ml_dtypes.bfloat16), np.float32([1, 2])),
        ("float16", [0.1, 2], np.float16([0.1, 2])),
        ("double", np.float16([1, 2]), np.float64([1, 2])),
        ("bfloat16", [1.5, 2], np.array([1.5, 2], ml_dtypes.bfloat16)),
        ("float8e4m3fn", [1.5, 2.0], np.array([1.5, 2], ml_dtypes.float8_e4m3fn)),
        ("int4", [-8, 7], np.array([-8, 7], ml_dtypes.int4)),
        ("int64", np.int8([-1, 2]), np.int64([-1, 2])),
        ("int32", np.int64([-1, 2**31 - 1]), np.int32([-1, 2**31 - 1])),
        ("uint8", [0, 255], np.uint8([0, 255])),
        ("int64", [True, False], np.int64([1, 0])),
        ("bool", [True, False], np.array([True, False])),
        ("complex64", [1.0, 2.0], np.complex64([1, 2])),
        ("string", ["a", "β"], np.array(["a", "β"], object)),
        ("string", np.array([b"a", "β".encode()], object), np.array(["a", "β"], object)),
        ("string", np.array([b"a", b"b"]), np.array(["a", "b"], object)),
        ("float", np.float32([1, 2]).astype(">f4"), np.float32([1, 2])),
        ("float16", np.float32([np.inf, 65519]), np.float16([np.inf, 65504])),
        ("float16", np.float64([np.nan, -np.inf]), np.float16([np.nan, -np.inf])),
        ("int64", np.uint64([2**63 - 1, 0]), np.int64([2**63 - 1, 0])),
        ("uint64", np.int64([2**63 - 1, 0]), np.uint64([2**63 - 1, 0])),
    ],
)
def test_value_is_converted_without_loss(kind, value, expected):
    result = convert(value, port(kind), copy=False)
    assert result.dtype == expected.dtype
    assert result.dtype.isnative
    np.testing.assert_array_equal(result, expected)


@for_each_row(
    "kind, value, message",
    [
        ("int64", [1.5, 2.0], r"astype\(numpy\.int64\)"),
        ("int64", np.float32([1, 2]), "lose"),
        ("int8", [1, 200], "outside the range"),
        ("uint8", np.int64([-1, 2]), "outside the range"),
        ("int4", [8, 0], "outside the range"),
        ("bool", [1, 0], "lose"),
        ("float", [1j, 2], "lose"),
        ("float", ["1", "2"], "lose"),
        ("string", [1, 2], "array of str"),
        ("string", np.array(["a", 3], object), "array of str or bytes, got 3"),
        ("int64", np.array([1, 2], ml_dtypes.bfloat16), "lose"),
        ("bfloat16", [1j, 2], r"ml_dtypes\.bfloat16"),
        ("float", None, "None"),
        ("uint64", np.int64([-1, 2]), "outside the range"),
        ("int64", np.uint64([2**63, 2]), "outside the range"),
        ("uint4", np.int8([-1, 2]), "outside the range"),
        ("float16", np.float32([1e9, 2]), "outside the range"),
        ("float16", [70_000, 2], "outside the range"),
        ("float", np.float64([1e300, 2]), "outside the range"),
        ("complex64", np.complex128([1e300j, 2]), "outside the range"),
        ("float8e4m3fn", np.float32([1e9, 2]), "outside the range"),
        ("string", np.array([b"\xff", b"a"]), "UTF-8"),
    ],
)
def test_lossy_conversion_raises(kind, value, message):
    with pytest.raises(TensorTypeError, match=message):
        convert(value, port(kind), copy=False)


@pytest.mark.parametrize("value", [1.0, [1.0], [[1.0, 2.0]], [1.0, 2.0, 3.0], [[1.0], [2.0, 3.0]]])
def test_shape_mismatch_raises(value):
    with pytest.raises(TensorShapeError, match="'p'"):
        convert(value, FLOAT, copy=False)


@pytest.mark.parametrize(
    ("shape", "actual"), [((), ()), (("N",), (0,)), (("N", None), (3, 4)), (None, (1, 2, 3))]
)
def test_matching_shape_is_accepted(shape, actual):
    value = np.ones(actual, np.float32)
    assert convert(value, port("float", shape), copy=False).shape == actual


def test_copy_controls_shared_memory():
    value = np.float32([1, 2])
    assert convert(value, FLOAT, copy=False) is value
    assert not np.shares_memory(convert(value, FLOAT, copy=True), value)
    strided = np.zeros(4, np.float32)[::2]
    assert convert(strided, FLOAT, copy=False).flags.c_contiguous


class OnDevice(OnlyDLPack):
    """An array like CuPy's: numpy cannot read it in place, but DLPack copies it to the host."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("implicit conversion")


class Unreadable(OnDevice):
    def __dlpack__(self, **keywords):
        raise BufferError("it is in memory of a device")


WRAPPERS = [
    np.asarray,
    lambda a: array.array("f", a.tolist()),
    memoryview,
    OnlyArray,
    OnlyDLPack,
    OnDevice,
    Tensor,
    lambda a: Tensor(a, shared_memory=True),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_array_like_is_read_and_copied_on_request(wrap):
    value = wrap(np.float32([1, 2]))
    copied = convert(value, FLOAT, copy=True)
    shared = convert(value, FLOAT, copy=False)
    for result in (copied, shared):
        np.testing.assert_array_equal(result, np.float32([1, 2]))
    assert not np.shares_memory(copied, shared)
    assert copied.flags.writeable


def test_unreadable_device_memory_raises():
    with pytest.raises(TensorTypeError, match="Unreadable that numpy cannot read"):
        convert(Unreadable(np.float32([1, 2])), FLOAT, copy=False)


def test_map_is_copied_on_request():
    mapping = {"a": 1.0}
    assert convert(mapping, TensorSpec("m", "map(string,tensor(float))"), copy=True) is not mapping


def test_sequence_optional_and_map_are_converted():
    sequence = TensorSpec("s", "seq(tensor(float))")
    items = convert([[1, 2], np.float64([3])], sequence, copy=False)
    assert [item.dtype for item in items] == [np.float32, np.float32]
    with pytest.raises(TensorTypeError, match=r"s\[1\]"):
        convert([[1.0], ["a"]], sequence, copy=False)
    for invalid in ("text", 3, np.float32([1])):
        with pytest.raises(TensorTypeError, match="as a list"):
            convert(invalid, sequence, copy=False)
    optional = TensorSpec("o", "optional(tensor(float))", (2,))
    assert convert(None, optional, copy=False) is None
    assert convert([1, 2], optional, copy=False).dtype == np.float32
    mapping = {"a": 1.0}
    assert convert(mapping, TensorSpec("m", "map(string,tensor(float))"), copy=False) is mapping


def test_tensor_shares_memory_on_request():
    source = np.float32([[1, 2, 3]])
    copied, shared = Tensor(source), Tensor(source, shared_memory=True)
    source[0, 0] = 7
    assert copied.data[0, 0] == 1
    assert shared.data[0, 0] == 7
    assert (shared.shape, shared.size, shared.byte_size) == ((1, 3), 3, 12)
    assert shared.element_type == "float"
    np.testing.assert_array_equal(np.asarray(shared), source)


def test_empty_tensor_of_each_kind():
    assert empty_tensor(port("float", (2, "N"))).shape == (2, 0)
    assert empty_tensor(port("string", (2,))).data.tolist() == ["", ""]
    assert empty_tensor(port("float", ())).shape == ()
    assert empty_tensor(TensorSpec("s", "seq(tensor(float))")).data == []
    assert empty_tensor(port("bfloat16", None)).element_type == "bfloat16"


@pytest.mark.parametrize("kind", ["float", "string", "int4"])
def test_too_large_shape_raises(kind):
    with pytest.raises(TensorShapeError, match=r"not enough memory for .*1048576, 1048576"):
        empty_tensor(port(kind, (2**20, 2**20, 2**20)))
    with pytest.raises(TensorShapeError, match="not enough memory for"):
        Tensor(kind, [2**62, 2**62])
