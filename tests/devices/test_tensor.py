"""Values that are given become what a port wants, or a typed error says why not."""

import array

import ml_dtypes
import numpy as np
import pytest

from hetero.devices import Tensor, TensorSpec
from hetero.devices.errors import TensorShapeError, TensorTypeError
from hetero.devices.request.tensor import empty_tensor
from hetero.devices.request.tensor_conversion import convert
from tests.support.array_likes import OnlyArray, OnlyDLPack

FLOAT = TensorSpec("p", "tensor(float)", (2,))


def port(kind, shape=(2,)):
    return TensorSpec("p", f"tensor({kind})", shape)


@pytest.mark.parametrize(
    ("kind", "value", "want"),
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
def test_what_is_converted(kind, value, want):
    got = convert(value, port(kind), copy=False)
    assert got.dtype == want.dtype
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("int64", [1.5, 2.0], r"astype\(numpy\.int64\)"),
        ("int64", np.float32([1, 2]), "lose"),
        ("int8", [1, 200], "cannot hold"),
        ("uint8", np.int64([-1, 2]), "cannot hold"),
        ("int4", [8, 0], "cannot hold"),
        ("bool", [1, 0], "lose"),
        ("float", [1j, 2], "lose"),
        ("float", ["1", "2"], "lose"),
        ("string", [1, 2], "strings"),
        ("string", np.array(["a", 3], object), "strings, got 3"),
        ("int64", np.array([1, 2], ml_dtypes.bfloat16), "lose"),
        ("bfloat16", [1j, 2], r"ml_dtypes\.bfloat16"),
        ("float", None, "None"),
        ("uint64", np.int64([-1, 2]), "cannot hold"),
        ("int64", np.uint64([2**63, 2]), "cannot hold"),
        ("uint4", np.int8([-1, 2]), "cannot hold"),
        ("float16", np.float32([1e9, 2]), "cannot hold"),
        ("float16", [70_000, 2], "cannot hold"),
        ("float", np.float64([1e300, 2]), "cannot hold"),
        ("complex64", np.complex128([1e300j, 2]), "cannot hold"),
        ("float8e4m3fn", np.float32([1e9, 2]), "cannot hold"),
        ("string", np.array([b"\xff", b"a"]), "UTF-8"),
    ],
)
def test_what_would_lose_something_is_refused(kind, value, says):
    with pytest.raises(TensorTypeError, match=says):
        convert(value, port(kind), copy=False)


@pytest.mark.parametrize("value", [1.0, [1.0], [[1.0, 2.0]], [1.0, 2.0, 3.0], [[1.0], [2.0, 3.0]]])
def test_shapes_that_do_not_fit(value):
    with pytest.raises(TensorShapeError, match="'p'"):
        convert(value, FLOAT, copy=False)


@pytest.mark.parametrize(
    ("shape", "given"), [((), ()), (("N",), (0,)), (("N", None), (3, 4)), (None, (1, 2, 3))]
)
def test_shapes_that_fit(shape, given):
    value = np.ones(given, np.float32)
    assert convert(value, port("float", shape), copy=False).shape == given


def test_sharing():
    value = np.float32([1, 2])
    assert convert(value, FLOAT, copy=False) is value
    assert not np.shares_memory(convert(value, FLOAT, copy=True), value)
    strided = np.zeros(4, np.float32)[::2]
    assert convert(strided, FLOAT, copy=False).flags.c_contiguous


class OnDevice(OnlyDLPack):
    """An array that numpy may not read in place, but that copies itself to the host: CuPy's."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("implicit conversion")


class OutOfReach(OnDevice):
    def __dlpack__(self, **keywords):
        raise BufferError("it is in memory of a device")


GIVEN = [
    np.asarray,
    lambda a: array.array("f", a.tolist()),
    memoryview,
    OnlyArray,
    OnlyDLPack,
    OnDevice,
    Tensor,
    lambda a: Tensor(a, shared_memory=True),
]


@pytest.mark.parametrize("give", GIVEN)
def test_whatever_holds_numbers_is_read_and_copied_where_it_is_to_be(give):
    given = give(np.float32([1, 2]))
    kept = convert(given, FLOAT, copy=True)
    read = convert(given, FLOAT, copy=False)
    for got in (kept, read):
        np.testing.assert_array_equal(got, np.float32([1, 2]))
    assert not np.shares_memory(kept, read)
    assert kept.flags.writeable


def test_memory_that_is_out_of_reach_is_a_typed_error():
    with pytest.raises(TensorTypeError, match="OutOfReach that numpy cannot read"):
        convert(OutOfReach(np.float32([1, 2])), FLOAT, copy=False)


def test_maps_are_copied_where_they_are_to_be():
    mapping = {"a": 1.0}
    assert convert(mapping, TensorSpec("m", "map(string,tensor(float))"), copy=True) is not mapping


def test_sequences_optionals_and_maps():
    sequence = TensorSpec("s", "seq(tensor(float))")
    got = convert([[1, 2], np.float64([3])], sequence, copy=False)
    assert [item.dtype for item in got] == [np.float32, np.float32]
    with pytest.raises(TensorTypeError, match=r"s\[1\]"):
        convert([[1.0], ["a"]], sequence, copy=False)
    for wrong in ("text", 3, np.float32([1])):
        with pytest.raises(TensorTypeError, match="give a list"):
            convert(wrong, sequence, copy=False)
    optional = TensorSpec("o", "optional(tensor(float))", (2,))
    assert convert(None, optional, copy=False) is None
    assert convert([1, 2], optional, copy=False).dtype == np.float32
    mapping = {"a": 1.0}
    assert convert(mapping, TensorSpec("m", "map(string,tensor(float))"), copy=False) is mapping


def test_tensor():
    mine = np.float32([[1, 2, 3]])
    copied, shared = Tensor(mine), Tensor(mine, shared_memory=True)
    mine[0, 0] = 7
    assert copied.data[0, 0] == 1
    assert shared.data[0, 0] == 7
    assert (shared.shape, shared.size, shared.byte_size) == ((1, 3), 3, 12)
    assert shared.element_type == "float"
    np.testing.assert_array_equal(np.asarray(shared), mine)


def test_empty_tensors():
    assert empty_tensor(port("float", (2, "N"))).shape == (2, 0)
    assert empty_tensor(port("string", (2,))).data.tolist() == ["", ""]
    assert empty_tensor(port("float", ())).shape == ()
    assert empty_tensor(TensorSpec("s", "seq(tensor(float))")).data == []
    assert empty_tensor(port("bfloat16", None)).element_type == "bfloat16"


@pytest.mark.parametrize("kind", ["float", "string", "int4"])
def test_a_shape_that_no_memory_holds_is_a_typed_error(kind):
    with pytest.raises(TensorShapeError, match=r"no memory for .*1048576, 1048576"):
        empty_tensor(port(kind, (2**20, 2**20, 2**20)))
    with pytest.raises(TensorShapeError, match="no memory for"):
        Tensor(kind, [2**62, 2**62])
