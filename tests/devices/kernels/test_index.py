"""Operators on indices, against ONNX Runtime at each semantic version."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import NARROW, check, ints, refuses, run_kernel
from tests.support.rows import for_each_row

RNG = np.random.default_rng(13)
X = RNG.standard_normal((4, 3, 5), dtype=np.float32)


def indices(shape, low, high, dtype=np.int64):
    return RNG.integers(low, high, shape).astype(dtype)


def test_gather_of_other_types():
    for data in (np.array(["a", "b"], dtype=object), np.array([True, False]), ints(4, 5)):
        check("Gather", [data, ints(1, 0, 1)], {"axis": -1}, 13)
    narrow = np.arange(4).astype(NARROW["bfloat16"])
    (y,) = run_kernel("Gather", [narrow, np.array(2)])
    assert isinstance(y, np.ndarray)
    assert y.dtype == narrow.dtype
    assert float(y) == 2


@pytest.mark.parametrize("bad", [3, -4])
def test_gathers_refuse_bad_indices(bad):
    data = np.ones((3, 3), np.float32)
    message = f"index {bad} is out of .* 3"
    refuses(IndexError, message, "Gather", [data, np.array(bad)])
    refuses(IndexError, message, "Gather", [data, ints(0, bad)], {"axis": 1})
    refuses(IndexError, message, "GatherElements", [data, ints(0, bad)[None]])
    refuses(IndexError, message, "GatherND", [data, ints(0, bad)])


def test_gather_from_nothing():
    refuses(IndexError, "empty axes", "Gather", [np.ones((0, 2), np.float32), ints(0)])


def test_gather_elements_of_a_smaller_block():
    check("GatherElements", [X, indices((2, 2, 3), -3, 3)], {"axis": 1}, 13)
    refuses(
        ValueError,
        "indices: expected at most",
        "GatherElements",
        [X, indices((5, 3, 5), 0, 2)],
        {"axis": 1},
    )
    refuses(ValueError, "indices: expected at most", "GatherElements", [X, ints(0)])


def test_gather_nd_refuses():
    refuses(ValueError, "batch_dims 3", "GatherND", [X, ints(0)], {"batch_dims": 3})
    refuses(ValueError, "do not fit", "GatherND", [X, ints(0, 0, 0, 0)])


def test_one_hot_outside_its_depth():
    check("OneHot", [ints(0, 3, -4, 7), np.array(3, np.int64), ints(0, 1)], {}, 11)
    floats = np.array([0, 2], np.float32)
    check("OneHot", [floats, np.array(3, np.int64), ints(5, 6)], {}, 11)
    refuses(ValueError, "positive depth", "OneHot", [ints(0), np.array(0), ints(0, 1)])


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int64])
def test_non_zero(opset, dtype):
    check("NonZero", [indices((3, 4), 0, 2).astype(dtype)], {}, opset)
    check("NonZero", [np.zeros((2, 0), dtype)], {}, opset)
    check("NonZero", [np.ones((2, 1, 2), dtype)], {}, opset)


def test_non_zero_of_nan_and_a_scalar():
    check("NonZero", [np.array([np.nan, 0, -0.0, np.inf], np.float32)], {}, 13)
    (y,) = run_kernel("NonZero", [np.array(3.0, np.float32)])
    assert y.shape == (0, 1)


def test_compress_refuses():
    refuses(IndexError, "position 3", "Compress", [X, np.ones(4, bool)], {"axis": 1})


def test_reverse_sequence_refuses():
    refuses(ValueError, "from 0 to 4", "ReverseSequence", [X, ints(1, 5, 1)])
    refuses(
        ValueError,
        "batch_axis and time_axis 0 and 1",
        "ReverseSequence",
        [X, ints(1, 1, 1)],
        {"batch_axis": 2},
    )


def test_trilu_drops_nan():
    x = np.full((2, 2), np.nan, np.float32)
    check("Trilu", [x], {}, 14)
    check("Trilu", [np.ones((0, 3), np.int64)], {}, 14)
    check("Trilu", [np.ones((2, 3), bool)], {}, 14)


def test_unique_edges():
    strings = np.array(["b", "a", "b"], dtype=object)
    expected = [strings[:2], ints(0, 1), ints(0, 1, 0), ints(2, 1)]
    check("Unique", [strings], {"sorted": 0}, 11, n_outputs=4, expected=expected)
    check("Unique", [np.array(["a", "a\0", "b", "a"], dtype=object)], {}, 11, n_outputs=4)
    check("Unique", [np.zeros(0, np.float32)], {}, 11, n_outputs=4)
    check("Unique", [ints(3, 3)], {}, 11)


@for_each_row("largest", [0, 1])
@for_each_row("length", [6, 200])
@for_each_row("dtype", [np.float32, np.int64, np.uint8, np.float16])
def test_top_k_prefers_the_lower_index(dtype, length, largest):
    x = indices((3, length), 0, 4).astype(dtype)
    check("TopK", [x, ints(5)], {"largest": largest}, 11, n_outputs=2, oracle=_sorted_top_k)


def _sorted_top_k(op_type, inputs, attributes, *_):
    x, k = inputs
    sign = -1 if attributes["largest"] else 1
    order = np.array(
        [sorted(range(len(row)), key=lambda i: (sign * row[i], i))[: k[0]] for row in x.tolist()]
    )
    return [np.take_along_axis(x, order, -1), order]


def test_top_k_of_infinities_and_nan():
    x = np.array([[0, np.inf, -np.inf, 5], [np.inf, 3, np.inf, -1]], np.float32)
    check("TopK", [x, ints(3)], {}, 11, n_outputs=2)
    long = np.zeros((1, 64), np.float32)
    long[0, 7], long[0, 9] = np.nan, 3
    values, places = run_kernel("TopK", [long, ints(2)], {}, 11, n_outputs=2)
    assert places.tolist() == [[7, 9]]
    assert np.isnan(values[0, 0])


def test_top_k_edges():
    check("TopK", [X, ints(0)], {}, 11, n_outputs=2)
    refuses(
        ValueError, "k: expected a number from 0 to 5", "TopK", [X, ints(6)], {}, 11, n_outputs=2
    )


def test_trilu_of_strings_fills_with_empty_strings():
    x = np.array([["a", "b"], ["c", "d"]], object)
    check("Trilu", [x], {}, 14, expected=[np.array([["a", "b"], ["", "d"]])])
