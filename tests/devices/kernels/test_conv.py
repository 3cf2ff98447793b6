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


CASES = {
    "plain": ((2, 3, 9, 8), (4, 3, 3, 3), {}),
    "pads": ((1, 3, 9, 8), (4, 3, 3, 3), {"pads": [1, 0, 2, 1]}),
    "strides": ((1, 3, 11, 9), (5, 3, 3, 2), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    "dilations": ((1, 2, 12, 12), (3, 2, 3, 3), {"dilations": [2, 3], "pads": [2, 2, 2, 2]}),
    "strides and dilations": (
        (1, 2, 13, 12),
        (3, 2, 3, 3),
        {"strides": [3, 2], "dilations": [2, 2], "pads": [2, 1, 0, 3]},
    ),
    "groups": ((2, 6, 8, 8), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": ((2, 6, 8, 9), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    "depthwise strided": ((1, 4, 9, 9), (4, 1, 5, 3), {"group": 4, "strides": [2, 2]}),
    "depthwise with multiplier": ((1, 4, 9, 9), (8, 1, 3, 3), {"group": 4}),
    "depthwise dilated": ((1, 4, 9, 9), (4, 1, 3, 3), {"group": 4, "dilations": [2, 1]}),
    "pointwise": ((2, 5, 6, 6), (7, 5, 1, 1), {}),
    "pointwise strided": ((2, 5, 7, 6), (7, 5, 1, 1), {"strides": [2, 3]}),
    "pointwise grouped": ((1, 6, 5, 5), (4, 3, 1, 1), {"group": 2}),
    "pointwise padded": ((1, 3, 5, 5), (4, 3, 1, 1), {"pads": [1, 2, 1, 0]}),
    "many channels": ((1, 8, 10, 10), (600, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    "whole image": ((3, 4, 5, 5), (6, 4, 5, 5), {}),
    "same upper": ((1, 3, 10, 9), (2, 3, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same lower": ((1, 3, 10, 9), (2, 3, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    "valid": ((1, 3, 10, 9), (2, 3, 4, 3), {"auto_pad": "VALID"}),
    "one axis": ((2, 3, 20), (4, 3, 5), {"pads": [2, 1], "strides": [2]}),
    "one axis depthwise": ((2, 4, 20), (4, 1, 5), {"group": 4, "dilations": [2]}),
    "three axes": ((1, 2, 6, 7, 5), (3, 2, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 0]}),
    "three axes depthwise": ((1, 3, 6, 7, 5), (3, 1, 3, 2, 3), {"group": 3, "strides": [2, 1, 2]}),
    "empty batch": ((0, 3, 9, 8), (4, 3, 3, 3), {}),
}


@pytest.mark.sampled(3, "case", "opset")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opset", [7, 11, 22])
def test_conv(case, opset):
    x, w, attributes = CASES[case]
    check("Conv", [floats(*x), floats(*w), floats(w[0])], attributes, opset, 1e-4, 1e-4)
    if opset == 22:
        check("Conv", [floats(*x), floats(*w)], attributes, opset, 1e-4, 1e-4)


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


TRANSPOSED = {
    "plain": ((1, 3, 5, 6), (3, 2, 3, 3), {}),
    "strides": ((2, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 3]}),
    "pads": ((1, 3, 5, 6), (3, 2, 4, 3), {"strides": [2, 2], "pads": [1, 0, 2, 1]}),
    "output padding": ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [3, 2], "output_padding": [2, 1]}),
    "dilations": ((1, 3, 5, 6), (3, 2, 3, 3), {"dilations": [2, 1]}),
    "groups": ((1, 4, 5, 6), (4, 3, 3, 3), {"group": 2, "strides": [2, 2]}),
    "output shape": ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    "same upper": ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "same lower": ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    "one axis": ((1, 3, 5), (3, 2, 4), {"strides": [2]}),
    "empty batch": ((0, 3, 5), (3, 2, 4), {}),
    "three axes": ((1, 2, 3, 4, 3), (2, 2, 2, 3, 2), {"strides": [2, 1, 2]}),
}


@pytest.mark.parametrize("case", TRANSPOSED)
@pytest.mark.parametrize("opset", [7, 11, 22])
def test_conv_transpose(case, opset):
    x, w, attributes = TRANSPOSED[case]
    channels = w[1] * attributes.get("group", 1)
    check(
        "ConvTranspose", [floats(*x), floats(*w), floats(channels)], attributes, opset, 1e-4, 1e-4
    )


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
