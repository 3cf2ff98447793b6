"""Normalisation kernels against ONNX Runtime, or ONNX's reference if that has no kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel, run_reference
from tests.support.rows import for_each_row

RNG = np.random.default_rng(4)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def statistics(*shape):
    """Return scale, bias, mean and (positive) variance."""
    return [floats(*shape), floats(*shape), floats(*shape), abs(floats(*shape)) + 0.1]


def test_batch_normalization_7_per_element():
    x = floats(2, 3, 4, 5)
    check("BatchNormalization", [x, *statistics(3, 4, 5)], {"spatial": 0}, 7, 1e-4, 1e-5)


def test_batch_normalization_in_training():
    inputs = [floats(4, 3, 5, 5), *statistics(3)]
    attributes = {"training_mode": 1, "momentum": 0.8}
    ours = check(
        "BatchNormalization", inputs, attributes, 15, 1e-4, 1e-5, n_outputs=3, oracle=run_reference
    )
    older = run_kernel("BatchNormalization", inputs, {"momentum": 0.8}, 9, n_outputs=5)
    for a, b in zip(ours, older[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    np.testing.assert_allclose(older[3], inputs[0].mean(axis=(0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_batch_normalization_of_half_width_data_with_float_statistics():
    x, (s, b, m, v) = floats(2, 3, 4), statistics(3)
    wide = run_kernel(
        "BatchNormalization", [x.astype(np.float16).astype(np.float32), s, b, m, v], {}
    )
    check(
        "BatchNormalization",
        [x.astype(np.float16), s, b, m, v],
        {},
        15,
        1e-3,
        1e-3,
        expected=[wide[0].astype(np.float16)],
    )


def test_layer_normalization_of_half_width_floats():
    x, scale, bias = (floats(*s).astype(np.float16) for s in ((4, 16), (16,), (16,)))
    check("LayerNormalization", [x, scale, bias], {}, 17, 5e-3, 5e-3, n_outputs=1)


def test_lrn_over_an_even_number_of_channels():
    x = floats(2, 7, 3, 3)
    squares = np.stack([(x[:, max(0, c - 1) : c + 3] ** 2).sum(axis=1) for c in range(7)], axis=1)
    expected = x / (1 + np.float32(0.1 / 4) * squares) ** 0.75
    check("LRN", [x], {"size": 4, "alpha": 0.1}, 13, expected=[expected.astype(np.float32)])


@for_each_row("p", [1, 2])
@for_each_row("axis", [-1, 0, 1])
@for_each_row("opset", [7, 22])
def test_lp_normalization(p, axis, opset):
    x = floats(3, 4, 5)
    x[1, 2], x[:, 2, 3], x[0, :, 0] = 0, 0, 0
    check("LpNormalization", [x], {"p": p, "axis": axis}, opset)


@pytest.mark.parametrize("axes", [None, [0, 2], [-1]])
@pytest.mark.parametrize("opset", [9, 13])
def test_mean_variance_normalization(axes, opset):
    attributes = {} if axes is None else {"axes": axes}
    check(
        "MeanVarianceNormalization",
        [floats(2, 3, 4, 5)],
        attributes,
        opset,
        1e-3,
        1e-4,
        oracle=run_reference if opset == 13 else _expected_mvn,
    )


def _expected_mvn(op_type, inputs, attributes, *rest):
    axes = tuple((attributes or {}).get("axes", (0, 2, 3)))
    (x,) = inputs
    return [(x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + np.float32(1e-9))]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("BatchNormalization", [floats(2, 3, 4), *statistics(4)], {}, "shape"),
        ("LayerNormalization", [floats(2, 3), floats(3)], {"axis": 2}, "axis 2"),
        (
            "GroupNormalization",
            [floats(2, 6, 4), floats(6), floats(6)],
            {"num_groups": 4},
            "num_groups",
        ),
        ("LRN", [floats(1, 3, 2, 2)], {"size": 0}, "size"),
        ("LpNormalization", [floats(2, 3)], {"axis": 5}, "axis 5"),
    ],
)
def test_refuses(op_type, inputs, attributes, message):
    error = IndexError if message.startswith("axis ") else ValueError  # as numpy's own
    refuses(error, message, op_type, inputs, attributes)
