"""Concat, Split, Slice and Pad, against ONNX Runtime at each semantic version."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernel_oracle import NARROW, check, ints, refuses, run_kernel

RNG = np.random.default_rng(12)
X = RNG.standard_normal((5, 4, 3), dtype=np.float32)
BIG = 2**63 - 1


def test_concat_edges():
    check("Concat", [X, X[:0]], {"axis": -3}, 13)
    strings = np.array(["a", "bcd"], dtype=object)
    check("Concat", [strings, strings], {"axis": 0}, 13)
    narrow = np.arange(3).astype(NARROW["bfloat16"])
    (y,) = run_kernel("Concat", [narrow, narrow], {"axis": 0})
    assert y.dtype == narrow.dtype
    assert y.astype(np.float32).tolist() == [0, 1, 2, 0, 1, 2]


def test_concat_refuses():
    refuses(TypeError, "one element type", "Concat", [X, X.astype(np.float64)], {"axis": 0})
    refuses(ValueError, "along dimension 1", "Concat", [X, X[:, :2]], {"axis": 0})
    refuses(ValueError, "same number of dimensions", "Concat", [X, X[0]], {"axis": 0})


@pytest.mark.parametrize("opset", [7, 11, 13, 18])
def test_split_evenly(opset):
    number = {"num_outputs": 2} if opset >= 18 else {}
    check("Split", [X], {"axis": 1, **number}, opset, n_outputs=2)


def test_split_unevenly():
    check("Split", [X], {"num_outputs": 2}, 18, n_outputs=2)
    check("Split", [X], {"num_outputs": 3}, 18, n_outputs=3)


def test_split_refuses():
    refuses(ValueError, "multiple of 2", "Split", [X], {}, 13, n_outputs=2)
    refuses(ValueError, "sum to 5", "Split", [X, ints(2, 2)], {}, 13, n_outputs=2)
    refuses(ValueError, "sum to 5", "Split", [X, ints(-1, 6)], {}, 13, n_outputs=2)
    with pytest.raises(ValueError, match="exactly one"):
        run_kernel("Split", [X, ints(2, 3)], {"num_outputs": 2}, 18, n_outputs=2)


@given(
    bounds=st.lists(
        st.tuples(
            st.integers(-8, 8) | st.sampled_from([BIG, -BIG]),
            st.integers(-8, 8) | st.sampled_from([BIG, -BIG]),
            st.sampled_from([-3, -2, -1, 1, 2, 3]),
        ),
        min_size=1,
        max_size=2,
    ),
    first=st.sampled_from([0, 1, -3]),
    opset=st.sampled_from([10, 11, 13]),
)
def test_slice_inputs(bounds, first, opset):
    # An end of INT_MAX means "to the end" only forwards; in ONNX Runtime also backwards.
    bounds = [(a, min(b, 8) if step < 0 else b, step) for a, b, step in bounds]
    starts, ends, steps = (ints(*column) for column in zip(*bounds, strict=True))
    axes = ints(*([first, -1][: len(bounds)]))
    check("Slice", [X, starts, ends, axes, steps], {}, opset)


def test_slice_defaults_and_refusals():
    check("Slice", [X, ints(1, 1), ints(3, 2)], {}, 10)
    check("Slice", [X, ints(1).astype(np.int32), ints(3).astype(np.int32)], {}, 13)
    refuses(ValueError, "steps: expected", "Slice", [X, ints(0), ints(1), ints(0), ints(0)])
    refuses(IndexError, "axis 3", "Slice", [X, ints(0), ints(1), ints(3)])
    refuses(ValueError, "as many", "Slice", [X, ints(0, 0), ints(1), ints(0)])


@pytest.mark.parametrize("pads", [(1, 0, 2, 1), (7, 0, 11, 0), (0, -1, 0, 2)], ids=str)
def test_pad_wraps(pads):
    check("Pad", [X[:, :, 0], ints(*pads)], {"mode": "wrap"}, 19)


@pytest.mark.parametrize("mode", ["reflect", "wrap", "edge"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_pad_by_more_than_there_is(mode, size):
    x = X[0, :size, :2]
    expected = np.pad(x, [(9, 6), (0, 3)], mode=mode)
    check("Pad", [x, ints(9, 0, 6, 3)], {"mode": mode}, 19, expected=[expected])


def test_pad_axes():
    inputs = [X, ints(1, 2, 0, 1), np.array(7, np.float32), ints(-1, 0)]
    check("Pad", inputs, {}, 18)
    check("Pad", [X, ints(1, 1), None, ints(1).astype(np.int32)], {"mode": "edge"}, 18)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64, np.bool_, np.uint8])
def test_pad_types(dtype):
    check("Pad", [np.ones((2, 2), dtype), ints(1, 0, 0, 1)], {}, 13)


def test_pad_edges():
    check("Pad", [np.ones((0, 2), np.float32), ints(1, 0, 1, 0)], {}, 13)
    strings = np.array(["a", "b"], dtype=object)
    (y,) = run_kernel("Pad", [strings, ints(1, 1)])
    assert y.tolist() == ["", "a", "b", ""]
    narrow = np.arange(3).astype(NARROW["bfloat16"])
    (y,) = run_kernel("Pad", [narrow, ints(1, 0)])
    assert y.dtype == narrow.dtype
    assert y.astype(np.float32).tolist() == [0, 0, 1, 2]


def test_pad_refuses():
    with pytest.raises(ValueError, match="elements on every axis"):
        run_kernel("Pad", [X[:0], ints(1, 0, 0, 0, 0, 0)], {"mode": "reflect"})
    refuses(ValueError, "remove more", "Pad", [X, ints(-3, 0, 0, -3, 0, 0)])
    refuses(ValueError, "pads: expected 6", "Pad", [X, ints(1, 1)])
