"""Operators that write at indices, against ONNX Runtime at each semantic version."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import NARROW, check, ints, refuses, run_kernel, run_reference
from tests.support.rows import for_each_row

RNG = np.random.default_rng(14)
X = RNG.standard_normal((4, 3, 5), dtype=np.float32)


REDUCTIONS = [(16, "add"), (16, "mul"), (18, "add"), (18, "mul"), (18, "max"), (18, "min")]


@for_each_row("opset, reduction", REDUCTIONS)
@for_each_row("dtype", [np.float32, np.int64])
def test_scatter_reduces_repeated_indices(opset, reduction, dtype):
    data = (10 * X).astype(dtype)
    places = RNG.integers(-3, 3, (4, 9, 5))
    updates = (10 * RNG.standard_normal((4, 9, 5))).astype(dtype)
    attributes = {"axis": 1, "reduction": reduction}
    check("ScatterElements", [data, places, updates], attributes, opset, rtol=1e-4)
    tuples = RNG.integers(-3, 3, (6, 2))
    updates = (10 * RNG.standard_normal((6, 5))).astype(dtype)
    check("ScatterND", [data, tuples, updates], {"reduction": reduction}, opset, rtol=1e-4)


def test_scatters_copy_their_input():
    (y,) = run_kernel("ScatterND", [X, np.zeros((0, 1), np.int64), X[:0]])
    assert np.array_equal(y, X)
    strings = np.array(["a", "b"], dtype=object)
    (y,) = run_kernel("ScatterElements", [strings, ints(1), np.array(["z"], dtype=object)])
    assert y.tolist() == ["a", "z"]
    assert strings.tolist() == ["a", "b"]


def test_scatter_adds_half_floats_with_one_rounding():
    for dtype in (np.dtype(np.float16), NARROW["bfloat16"]):
        data = np.zeros(1, dtype)
        updates = np.full(4096, 1, dtype)
        (y,) = run_kernel(
            "ScatterElements",
            [data, np.zeros(4096, np.int64), updates],
            {"reduction": "add"},
        )
        assert y.dtype == dtype
        assert float(y[0]) == 4096


def test_scatters_refuse():
    one = np.ones((1, 1), np.float32)
    data = np.ones((3, 3), np.float32)
    with pytest.raises(IndexError, match="index 3 is out of range for a dimension of 3"):
        run_kernel("ScatterElements", [data, ints(3)[None], one])
    with pytest.raises(IndexError, match="index -4 is out of range for a dimension of 3"):
        run_kernel("ScatterND", [data, ints(0, -4), np.float32(1)])
    refuses(ValueError, "updates: expected shape", "ScatterElements", [data, ints(0, 1)[None], one])
    refuses(ValueError, "updates: expected shape", "ScatterND", [data, ints(0)[None], one])
    refuses(
        TypeError,
        "one element type",
        "ScatterElements",
        [data, ints(0)[None], one.astype(np.float64)],
    )


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 2, 6, 4), -2), ((3, 6, 4), 1), ((3, 6), -1)])
def test_tensor_scatter(mode, shape, axis):
    cache = RNG.standard_normal(shape, dtype=np.float32)
    update = np.take(cache, [0, 1], axis=axis) + 100
    starts = ints(0, 3, 4) if mode == "linear" else ints(5, 11, 0)
    attributes = {"mode": mode, "axis": axis}
    check("TensorScatter", [cache, update, starts], attributes, 24, oracle=run_reference)
    check("TensorScatter", [cache, update], attributes, 24, oracle=run_reference)


def test_tensor_scatter_refuses():
    cache = np.zeros((2, 4, 3), np.float32)
    refuses(IndexError, "steps from 0 to 3", "TensorScatter", [cache, cache[:, :2], ints(0, 3)])
    refuses(
        ValueError,
        "update: expected shape",
        "TensorScatter",
        [cache, np.zeros((2, 5, 3), np.float32)],
    )
