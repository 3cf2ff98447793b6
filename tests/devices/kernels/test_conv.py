"""Convolution kernels against ONNX Runtime at each opset where the schema changed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import (
    NARROW,
    check,
    refuses,
    run_kernel,
    run_onnxruntime,
    run_reference,
)

RNG = np.random.default_rng(1)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [40, 112])
def test_conv_in_several_blocks_of_rows(size):
    x, w = floats(1, 32, size, size), floats(24, 32, 3, 3)
    check("Conv", [x, w], {"pads": [1, 1, 1, 1]}, 13, 1e-3, 1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_conv_of_half_width_floats_rounds_once(dtype):
    kind = NARROW.get(dtype, np.dtype(dtype) if dtype == "float16" else None)
    x, w, b = (floats(*s).astype(kind) for s in ((1, 3, 6, 6), (4, 3, 3, 3), (4,)))
    wide = [a.astype(np.float32) for a in (x, w, b)]
    (expected,) = run_kernel("Conv", wide, {}, 22)
    check("Conv", [x, w, b], {}, 22, expected=[expected.astype(kind)])


def test_conv_of_doubles():
    check(
        "Conv", [RNG.random((1, 3, 7, 7)), RNG.random((2, 3, 3, 3))], {}, 11, oracle=run_reference
    )


def test_conv_keeps_nan_and_infinity_in_their_windows():
    x = floats(1, 2, 9, 9)
    x[0, 0, 4, 4], x[0, 1, 0, 8] = np.nan, np.inf
    check("Conv", [x, floats(3, 2, 3, 3)], {"pads": [1, 1, 1, 1]}, 11, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((1, 3, 5, 5), (2, 4, 3, 3), {}, "channels"),
        ((1, 3, 5, 5), (2, 3, 7, 7), {}, "window that fits"),
        ((1, 3, 5, 5), (2, 3, 3), {}, "rank"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"pads": [1, 1]}, "pads"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"strides": [0, 1]}, "strides"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"kernel_shape": [2, 2]}, "kernel_shape"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"group": 2}, "group"),
    ],
)
def test_conv_refuses(x, w, attributes, message):
    refuses(ValueError, message, "Conv", [floats(*x), floats(*w)], attributes, 13)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("size", [9, 10, 11, 12])
def test_conv_transpose_into_a_given_shape(size, padding):
    attributes = {"strides": [2], "output_shape": [size], "output_padding": [padding]}
    check("ConvTranspose", [floats(1, 1, 5), floats(1, 1, 3)], attributes, 11, 1e-4, 1e-4)


@pytest.mark.parametrize("size", [13, 14])
def test_conv_transpose_refuses_a_shape_beyond_its_reach(size):
    attributes = {"strides": [2], "output_shape": [size]}
    inputs = [floats(1, 1, 5), floats(1, 1, 3)]
    with pytest.raises(Exception, match="output_shape is inconsistent"):
        run_onnxruntime("ConvTranspose", inputs, attributes, 11)
    refuses(
        ValueError,
        r"output_shape: expected at most \(12,\)",
        "ConvTranspose",
        inputs,
        attributes,
        11,
    )


def test_conv_transpose_refuses_padding_beyond_the_output():
    with pytest.raises(ValueError, match="padding"):
        run_kernel("ConvTranspose", [floats(1, 1, 1, 1), floats(1, 1, 2, 2)], {"pads": [2] * 4}, 11)


@pytest.mark.parametrize(
    "attributes",
    [{}, {"pads": [1, 1, 1, 1]}, {"strides": [2, 2]}, {"dilations": [2, 1]}, {"offset_group": 2}],
)
def test_deform_conv(attributes):
    x, w = floats(2, 4, 7, 8), floats(3, 4, 3, 2)
    height, width = run_kernel(
        "Conv", [x, w], {k: v for k, v in attributes.items() if k != "offset_group"}
    )[0].shape[2:]
    groups = attributes.get("offset_group", 1)
    offset, mask = floats(2, groups * 12, height, width), floats(2, groups * 6, height, width)
    check("DeformConv", [x, w, offset, floats(3), mask], attributes, 19, 1e-4, 1e-4)


def test_deform_conv_without_offsets_is_conv():
    x, w = floats(1, 4, 7, 8), floats(6, 2, 3, 3)
    zeros = np.zeros((1, 18, 5, 6), np.float32)
    check(
        "DeformConv",
        [x, w, zeros],
        {"group": 2},
        19,
        1e-4,
        1e-4,
        expected=run_kernel("Conv", [x, w], {"group": 2}),
    )
