"""Conversions of values for ports: kinds of numbers, their ranges, and shapes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero.devices.errors import ArgumentTypeError, TensorShapeError, TensorTypeError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.request.tensor import Tensor
from hetero.devices.request.tensor_conversion import check_tensor, convert
from tests.support.rows import for_each_row


def spec(kind: str, *shape: Any) -> TensorSpec:
    return TensorSpec("p", f"tensor({kind})", shape)


@for_each_row(
    "kind, value, dtype",
    [
        ("float", np.array([1, 2], np.int64), np.float32),
        ("float", np.array([True, False]), np.float32),
        ("float", np.array([0.5, 2], np.float64), np.float32),
        ("float", np.array([0.5, np.inf], np.float64), np.float32),
        ("float", np.array([0.5, 2], ">f4"), np.float32),
        ("bfloat16", np.array([0.5, 2], np.float32), ml_dtypes.bfloat16),
        ("float", np.array([0.5, 2], ml_dtypes.bfloat16), np.float32),
        ("int64", np.array([1, 2], np.uint8), np.int64),
        ("int8", np.array([-128, 127], np.int64), np.int8),
        ("uint8", np.array([0, 255], np.int64), np.uint8),
        ("uint64", np.array([0, 5], np.int64), np.uint64),
        ("int4", np.array([-8, 7], np.int64), ml_dtypes.int4),
        ("complex64", np.array([1, 2], np.float64), np.complex64),
        ("bool", np.array([True, False]), np.bool_),
    ],
)
def test_array_is_cast_without_loss(kind, value, dtype):
    result = convert(value, spec(kind, 2), copy=False)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.astype(np.complex128), value.astype(np.complex128))


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("int64", np.array([1.0, 2.0]), "would lose information"),
        ("bool", np.array([0, 1]), "would lose information"),
        ("float", np.array([1j, 2j]), "would lose information"),
        ("int64", np.array([1, 2], ml_dtypes.bfloat16), "would lose information"),
        ("float", np.array(["a", "b"]), "would lose information"),
        ("int8", np.array([0, 128]), "outside the range of int8"),
        ("int8", np.array([-129, 0]), "outside the range of int8"),
        ("uint8", np.array([-1, 0]), "outside the range of uint8"),
        ("uint64", np.array([-1, 0]), "outside the range of uint64"),
        ("int64", np.array([0, 2**63], np.uint64), "outside the range of int64"),
        ("float", np.array([0, 1e300]), "outside the range of float32"),
    ],
)
def test_lossy_array_is_refused(kind, value, reason):
    with pytest.raises(
        TensorTypeError, match=f"input 'p'.*dtype {value.dtype}.*{reason}"
    ) as caught:
        convert(value, spec(kind, 2), copy=False)
    assert caught.value.data["port"] == "p"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int8", "numpy.int8"), ("bfloat16", "ml_dtypes.bfloat16"), ("bool", "numpy.bool")],
)
def test_message_names_the_type_to_convert_to(kind, text):
    with pytest.raises(TensorTypeError, match=rf"array\.astype\({text}\)"):
        convert(np.array([1j, 2j]), spec(kind, 2), copy=False)
    with pytest.raises(TensorTypeError, match=rf"output 'p'.*array\.astype\({text}\)") as caught:
        check_tensor(np.array([1j, 2j]), spec(kind, 2), "output")
    assert caught.value.data["port"] == "p"


def test_lists_and_numbers_get_the_type_of_the_port():
    for kind, value in (
        ("float", [1, 2]),
        ("int8", [1, 2]),
        ("float", (1.5, 2)),
        ("bool", [True] * 2),
    ):
        assert convert(value, spec(kind, 2), copy=True).tolist() == list(value)
    assert convert([], spec("int64", 0), copy=True).dtype == np.int64
    with pytest.raises(TensorTypeError):
        convert(np.array([]), spec("int64", 0), copy=True)
    assert convert(3, spec("float"), copy=True).shape == ()


@pytest.mark.parametrize("copy", [True, False])
def test_copy_of_an_array(copy):
    values: list[Any] = [np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)[:, ::-1]]
    values.append(Tensor(values[0], shared_memory=True))
    for value in values:
        result = convert(value, spec("float", 2, 2), copy=copy)
        source = value.content() if isinstance(value, Tensor) else value
        assert result.flags.c_contiguous
        is_shared = np.shares_memory(result, source)
        assert is_shared == (not copy and source.flags.c_contiguous)


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (np.zeros((2,), np.float32), "Add or remove dimensions"),
        (np.zeros((1, 2, 3), np.float32), "Add or remove dimensions"),
        (np.zeros((2, 4), np.float32), "Resize the data"),
        (np.zeros((3, 2), np.float32), "Reshape the array"),
    ],
)
def test_wrong_shape_with_its_fix(value, fix):
    with pytest.raises(TensorShapeError) as caught:
        convert(value, spec("float", 2, 3), copy=False)
    text = f"got shape {list(value.shape)}. {fix}"
    assert text in str(caught.value)
    assert caught.value.data["port"] == "p"


def test_wrong_size_beside_an_open_one():
    with pytest.raises(TensorShapeError, match=r"got shape \[2, 4\]\. Reshape the array"):
        convert(np.zeros((2, 4), np.float32), spec("float", "N", 3), copy=False)
    with pytest.raises(TensorShapeError, match=r"got shape \[1\]\. Add or remove"):
        convert(np.zeros((1,), np.float32), spec("float"), copy=False)


@pytest.mark.parametrize(
    ("value", "error", "reason"),
    [
        (None, TensorTypeError, "got None"),
        ([[1, 2], [3]], TensorShapeError, "irregular shape"),
    ],
)
def test_value_that_is_no_array(value, error, reason):
    with pytest.raises(error, match=f"input 'p'.*{reason}") as caught:
        convert(value, spec("float", 2, 2), copy=True)
    assert caught.value.data["port"] == "p"


def test_optional_and_sequence_values():
    optional = TensorSpec("p", "optional(tensor(float))", (2,))
    assert convert(None, optional, copy=True) is None
    assert convert([1, 2], optional, copy=True).dtype == np.float32
    sequence = TensorSpec("p", "seq(tensor(float))", None)
    result = convert([[1, 2], np.ones(3, np.float32)], sequence, copy=True)
    assert [item.tolist() for item in result] == [[1, 2], [1, 1, 1]]
    for bad in ("text", 3, {1: 2}):
        with pytest.raises(TensorTypeError, match=r"input 'p'.*as a list"):
            convert(bad, sequence, copy=True)
    with pytest.raises(TensorTypeError, match=r"input 'p\[1\]'"):
        convert([[1, 2], None], sequence, copy=True)


def test_text():
    port = spec("string", 2)
    for value in (
        ["a", "b"],
        np.array(["a", "b"]),
        np.array([b"a", b"b"]),
        np.array(["a", "b"], "O"),
    ):
        result = convert(value, port, copy=True)
        assert result.dtype == object
        assert result.tolist() == ["a", "b"]
    with pytest.raises(TensorTypeError, match=r"input 'p'.*array of str") as caught:
        convert(np.array([1, 2]), port, copy=True)
    assert caught.value.data["port"] == "p"
    assert check_tensor(np.array(["a", "b"]), port, "input").dtype.kind == "U"
    texts = Tensor(["a", "b"]).str_data
    assert (texts.dtype.kind, texts.tolist()) == ("U", ["a", "b"])
    assert Tensor(["a", "é"]).bytes_data.tolist() == [b"a", "é".encode()]


def test_shared_value_that_is_no_array():
    sequence = TensorSpec("p", "seq(tensor(float))", None)
    assert check_tensor([], sequence, "output") == []
    for port in (sequence, spec("float", 2)):
        with pytest.raises(TensorTypeError, match=r"output 'p'"):
            check_tensor(None, port, "output")
    assert check_tensor([1.5, 2], spec("double", 2), "output").tolist() == [1.5, 2]
    with pytest.raises(TensorTypeError, match=r"output 'p': expected .*float"):
        check_tensor([1, 2], spec("float", 2), "output")


def test_list_becomes_an_array_or_remains_a_sequence():
    assert Tensor([1, 2]).data.tolist() == [1, 2]
    assert Tensor([None, 1.0]).data == [None, 1.0]
    assert Tensor([[1], [1, 2]]).data == [[1], [1, 2]]


def test_several_sources_of_a_tensor_raise():
    array = np.zeros(2, np.float32)
    with pytest.raises(ArgumentTypeError, match="expected one of data, port, array"):
        Tensor(array, array=array)
    assert np.shares_memory(Tensor(spec("float", 2), array).data, array)


# Tensors.


def test_shape_of_a_tensor_that_owns_its_memory():
    tensor = Tensor(np.arange(4, dtype=np.float32))
    tensor.shape = (2, 2)
    assert tensor.data.tolist() == [[0, 1], [2, 3]]
    tensor.shape = (1, 2)
    tensor.shape = (4,)
    assert tensor.data.tolist() == [0, 1, 2, 3]
    tensor.shape = (2, 3)
    assert tensor.data.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_shape_of_a_tensor_with_shared_memory():
    memory = np.arange(4, dtype=np.float32)
    tensor = Tensor(memory, shared_memory=True)
    tensor.shape = (2, 2)
    tensor.data[1, 1] = 9
    assert memory[3] == 9
    with pytest.raises(TensorShapeError, match=r"at most 4 elements.*got \[5\]"):
        tensor.shape = (5,)


def test_tensor_of_a_port_checks_type_and_size():
    port = spec("float", 2)
    memory = np.arange(3, dtype=np.float32)
    with pytest.warns(RuntimeWarning, match=r"port 'p'.*first 2 of the array's 3 elements"):
        shared = Tensor(port, memory)
    shared.data[0] = 7
    assert (memory[0], shared.data.shape) == (7, (2,))
    assert Tensor(port).data.shape == (2,)
    for bad in (np.arange(3, dtype=np.float64), np.arange(1, dtype=np.float32)):
        with pytest.raises((TensorTypeError, TensorShapeError)):
            Tensor(port, bad)


def test_region_of_a_tensor():
    memory = np.arange(12, dtype=np.float32).reshape(3, 4)
    region = Tensor(Tensor(memory, shared_memory=True), [1, 1], [3, 3])
    assert region.data.tolist() == [[5, 6], [9, 10]]
    region.data[0, 0] = -1
    assert memory[1, 1] == -1
    for begin, end in (([1], [2]), ([0, 0], [4, 4]), ([2, 2], [1, 1])):
        with pytest.raises(TensorShapeError):
            Tensor(Tensor(memory, shared_memory=True), begin, end)
