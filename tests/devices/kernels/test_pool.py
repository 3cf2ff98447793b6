"""Pooling kernels against ONNX Runtime at each opset where the schema changed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, run_kernel, run_onnxruntime, run_reference

RNG = np.random.default_rng(2)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


WINDOWS = {
    "plain": ((2, 3, 9, 8), {"kernel_shape": [3, 2]}),
    "strides": ((1, 3, 11, 9), {"kernel_shape": [3, 3], "strides": [2, 3]}),
    "pads": ((1, 3, 9, 8), {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "strides": [2, 2]}),
    "same upper": (
        (1, 2, 10, 9),
        {"kernel_shape": [3, 4], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
    "same lower": (
        (1, 2, 10, 9),
        {"kernel_shape": [3, 4], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
    ),
    "valid": ((1, 2, 10, 9), {"kernel_shape": [3, 4], "auto_pad": "VALID", "strides": [2, 2]}),
    "one axis": ((2, 3, 20), {"kernel_shape": [4], "strides": [3]}),
    "three axes": ((1, 2, 6, 7, 5), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]}),
    "one element": ((1, 2, 5, 5), {"kernel_shape": [1, 1], "strides": [2, 2]}),
}
CEILED = {
    "ceil": ((1, 3, 10, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "ceil with pads": (
        (1, 3, 10, 11),
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1] * 4},
    ),
    "ceil drops a window in the padding": (
        (1, 1, 3, 3),
        {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [0, 0, 1, 1]},
    ),
}
DILATED = {
    "dilations": ((1, 3, 12, 11), {"kernel_shape": [3, 2], "dilations": [2, 3]}),
    "dilations and strides": (
        (1, 3, 12, 11),
        {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [2, 2], "pads": [1, 1, 2, 0]},
    ),
}


def cases(opsets, *groups):
    return [
        pytest.param(opset, shape, attributes, id=f"{opset}-{name}")
        for opset in opsets
        for group in groups
        for name, (shape, attributes) in group.items()
    ]


@pytest.mark.parametrize(
    ("opset", "shape", "attributes"),
    cases([7, 8], WINDOWS) + cases([10, 12, 22], WINDOWS, CEILED, DILATED),
)
def test_max_pool(opset, shape, attributes):
    check("MaxPool", [floats(*shape)], attributes, opset)


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(
    ("opset", "shape", "attributes"),
    cases([8], {k: WINDOWS[k] for k in ("plain", "pads")}) + cases([12], WINDOWS, CEILED, DILATED),
)
def test_max_pool_indices(opset, shape, attributes, storage_order):
    if storage_order and len(shape) != 4:
        storage_order = 0
    attributes = attributes | {"storage_order": storage_order}
    check("MaxPool", [floats(*shape)], attributes, opset, n_outputs=2)


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


@pytest.mark.sampled(3, "opset", "include", "attributes")
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    ("opset", "shape", "attributes"),
    cases([7], WINDOWS)
    + cases([10, 11], WINDOWS, CEILED)
    + cases([19, 22], WINDOWS, CEILED, DILATED),
)
def test_average_pool(opset, shape, attributes, include):
    attributes = attributes | {"count_include_pad": include}
    check("AveragePool", [floats(*shape)], attributes, opset)


@pytest.mark.sampled(3, "opset", "p", "attributes")
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    ("opset", "shape", "attributes"),
    cases([7, 11], WINDOWS) + cases([18], WINDOWS, DILATED),
)
def test_lp_pool(opset, shape, attributes, p):
    check("LpPool", [floats(*shape)], attributes | {"p": p}, opset, 1e-4, 1e-5)


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_pool_window_too_large_by_less_than_a_stride(op_type, opset):
    attributes = {"kernel_shape": [3, 5], "strides": [3, 3]}
    check(op_type, [floats(1, 2, 3, 3)], attributes, opset, 1e-5, 1e-6)


@pytest.mark.parametrize("op_type", ["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (1, 2, 3, 4, 5), (0, 3, 4, 4)])
@pytest.mark.parametrize("opset", [7, 22])
def test_global_pool(op_type, shape, opset):
    x = floats(*shape)
    # ONNX Runtime does not support GlobalLpPool of opset 22, which only added types.
    older = min(opset, 21) if op_type == "GlobalLpPool" else opset
    check(op_type, [x], {}, opset, 1e-5, 1e-5, expected=run_onnxruntime(op_type, [x], {}, older))


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
