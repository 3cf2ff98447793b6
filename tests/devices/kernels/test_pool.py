"""Pooling kernels against ONNX Runtime at each opset where the schema changed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, run_kernel, run_reference

RNG = np.random.default_rng(2)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_max_pool_indices_of_ties():
    check(
        "MaxPool",
        [np.ones((1, 2, 5, 5), np.float32)],
        {"kernel_shape": [3, 3], "pads": [1] * 4},
        12,
        n_outputs=2,
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float64])
def test_max_pool_of_other_types(dtype):
    x = RNG.integers(-100 if dtype != np.uint8 else 0, 100, (1, 2, 7, 7)).astype(dtype)
    check("MaxPool", [x], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 12)


def test_max_pool_of_infinities():
    x = floats(1, 1, 6, 6)
    x[0, 0, :3], x[0, 0, 5, 5] = -np.inf, np.inf
    check("MaxPool", [x], {"kernel_shape": [2, 2]}, 12)


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_pool_window_too_large_by_less_than_a_stride(op_type, opset):
    attributes = {"kernel_shape": [3, 5], "strides": [3, 3]}
    check(op_type, [floats(1, 2, 3, 3)], attributes, opset, 1e-5, 1e-6)


@pytest.mark.parametrize("opset", [9, 11])
def test_max_unpool_undoes_max_pool(opset):
    x = floats(2, 2, 8, 6)
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, indices = run_kernel("MaxPool", [x], attributes, 12, n_outputs=2)
    check("MaxUnpool", [y, indices], attributes, opset)
    check("MaxUnpool", [y, indices, np.array([2, 2, 8, 6])], attributes, opset)


def test_max_unpool_into_a_larger_shape():
    y, indices = floats(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check("MaxUnpool", [y, indices, np.array([1, 1, 5, 5])], attributes, 11, oracle=run_reference)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("MaxPool", [floats(1, 1, 3, 3)], {"kernel_shape": [4, 4]}, "window that fits"),
        ("MaxPool", [floats(1, 1, 3, 3)], {"kernel_shape": [2]}, "kernel_shape"),
        (
            "MaxPool",
            [floats(1, 1, 3, 3)],
            {"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]},
            "pads: expected less",
        ),
        ("AveragePool", [floats(3, 3)], {"kernel_shape": [2]}, "spatial"),
        ("GlobalAveragePool", [floats(3, 3)], {}, "spatial"),
        (
            "MaxUnpool",
            [floats(1, 1, 1, 1), np.array([[[[4]]]])],
            {"kernel_shape": [2, 2]},
            "expected indices from 0",
        ),
        (
            "MaxUnpool",
            [floats(1, 1, 1, 1), np.array([[[[-1]]]])],
            {"kernel_shape": [2, 2]},
            "expected indices from 0",
        ),
    ],
)
def test_refuses(op_type, inputs, attributes, message):
    with pytest.raises((ValueError, IndexError), match=message):
        run_kernel(op_type, inputs, attributes, 13)
