"""Serialization of values and models between processes: every ONNX value survives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.errors import BlobError
from hetero.devices.model.light_models import light_model_inputs, light_model_names
from hetero.devices.model.reader import read_model
from hetero.devices.request.request import Request
from hetero.scheduler.channels import envelope
from hetero.scheduler.formats.model_parts import join_model, split_model
from hetero.scheduler.types.messages import Task, Values
from tests.scheduler.models import build
from tests.support.comparison import ELEMENT_TYPES, assert_identical
from tests.support.rows import for_each_row


def sent(value: Any) -> Any:
    """Serialize and parse a value."""
    task = Task(Request(deployment="key", id=1), 0)
    frames = [bytes(frame) for frame in envelope.to_frames(Values(task, {"x": value}))]
    message = envelope.from_frames(frames)
    assert isinstance(message, Values)
    return message.tensors["x"]


@for_each_row("dtype", ELEMENT_TYPES)
def test_tensors_of_every_element_type_survive(dtype):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    for case in (array, array.T, array[:, ::2], array[:0], array[0, 0], np.array(array[0, 0])):
        assert_identical(sent(case), case)


def test_nan_payloads_and_signed_zeros_keep_their_bits():
    bits = np.array([0x7FC00001, 0xFFC00000, 0x80000000, 0x7F800000], np.uint32)
    assert_identical(sent(bits.view(np.float32)), bits.view(np.float32))


def test_numpy_strings_in_object_tensors_become_strings():
    actual = sent(np.array([np.str_("a"), np.bytes_(b"b"), "c"], object))
    assert [*map(type, actual)] == [str, bytes, str]
    assert_identical(actual, np.array(["a", b"b", "c"], object))


def test_big_endian_tensors_become_native():
    actual = sent(np.arange(3, dtype=">i4"))
    assert_identical(actual, np.arange(3, dtype=np.int32))


@given(
    st.permutations(range(4)),
    st.tuples(*[st.integers(1, 3)] * 4),
    st.tuples(*[st.sampled_from([1, 2, -1])] * 4),
)
def test_tensors_keep_their_order_in_memory(axes, shape, steps):
    array = np.arange(6**4).reshape(6, 6, 6, 6)[tuple(slice(None, None, s) for s in steps)]
    array = array[tuple(slice(n) for n in shape)].transpose(axes)
    want = array.copy(order="K")
    actual = sent(array)
    np.testing.assert_array_equal(actual, array)
    wide = [i for i in range(4) if array.shape[i] > 1]
    assert [actual.strides[i] for i in wide] == [want.strides[i] for i in wide]


def test_models_keep_content_names_and_types():
    weights = {"w": np.ones(3, np.float32)}
    model = build(
        [("Add", "a", ("x", "w"), "y"), ("Neg", "b", ("y",), "z")], ["z", "x"], weights=weights
    )
    actual = join_model(split_model(model))
    assert actual.content_hash == model.content_hash
    assert actual.node_names == model.node_names
    assert (actual.inputs, actual.outputs) == (model.inputs, model.outputs)
    assert {v: actual.spec(v) for v in "xyzw"} == {v: model.spec(v) for v in "xyzw"}


def test_part_of_a_model_keeps_types_from_the_whole():
    name = light_model_names()[0]
    model = read_model(f"light:{name}")
    middle = len(model.nodes) // 2
    part = model.extract(range(middle, middle + 3), model.nodes[middle + 2].writes)
    actual = join_model(split_model(part))
    assert [actual.spec(v) for n in actual.nodes for v in n.reads] == [
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
def test_nested_values_survive(value):
    assert_identical(sent(value), value)


@pytest.mark.parametrize(
    "value",
    [object(), {1.5: 2}, np.array([object()]), np.zeros(2, "M8[s]"), {1, 2}],
    ids=["object", "float key", "objects", "dates", "set"],
)
def test_value_outside_onnx_is_refused(value):
    with pytest.raises(TypeError):
        sent(value)


def test_deep_nesting_is_refused():
    nested: Any = 1
    for _ in range(40):
        nested = [nested]
    with pytest.raises(BlobError, match="deeper"):
        sent(nested)
