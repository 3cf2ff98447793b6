"""Activations against ONNX Runtime, at each opset where one changed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.comparison import assert_close
from tests.support.kernel_oracle import NARROW, check, run_kernel, run_reference
from tests.support.rows import for_each_row

RNG = np.random.default_rng(21)
LARGE = np.array([0.0, -0.5, 30.0, -30.0, 90.0, -90.0, 1000.0, -1000.0], np.float32)

PLAIN = (
    "Relu",
    "LeakyRelu",
    "ThresholdedRelu",
    "Elu",
    "Selu",
    "Celu",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Softplus",
    "Softsign",
    "Mish",
    "Gelu",
    "Shrink",
)


@pytest.mark.parametrize("alpha", [1.0, 1.702])
def test_swish(alpha):
    x = RNG.uniform(-5, 5, (3, 4)).astype(np.float32)
    check("Swish", [x], {"alpha": alpha}, 24, oracle=run_reference)
    gate = run_kernel("Swish", [x], {"alpha": alpha}, 24)[0]
    check("SwiGLU", [x, x + 1], {"alpha": alpha}, 28, expected=[gate * (x + 1)])
    with pytest.raises(ValueError, match="of one shape"):
        run_kernel("SwiGLU", [x, x[:1]])


def test_prelu_slope_must_broadcast_to_x():
    with pytest.raises(ValueError, match="broadcast"):
        run_kernel("PRelu", [np.ones((3,), np.float32), np.ones((2, 3), np.float32)])
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    slope = np.array([0.1, 0.2, 0.3], np.float32)
    check("PRelu", [x, slope], opset=6, expected=[np.where(x < 0, slope[:, None] * x, x)])


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.float64])
def test_shrink_keeps_the_type(dtype):
    check("Shrink", [np.array([0, 1, 2, 9], dtype)], {"lambd": 1.5, "bias": 1.5}, 9)
    edges = np.array([-2, -1.5, 1.5, 2], np.float32)
    check("Shrink", [edges], {"lambd": 1.5, "bias": 0.5}, 9)


@for_each_row("name", ["float16", "bfloat16"])
@for_each_row("op_type", PLAIN[:-1])
def test_half_width_is_float32_rounded_once(op_type, name):
    x = RNG.uniform(-4, 4, (3, 4)).astype(NARROW.get(name, name))
    wide = run_kernel(op_type, [x.astype(np.float32)])[0]
    assert_close(run_kernel(op_type, [x])[0], wide.astype(x.dtype), 0, 0, op_type)


def test_bad_attributes_are_refused():
    with pytest.raises(ValueError, match="alpha"):
        run_kernel("Celu", [LARGE], {"alpha": 0.0})


@pytest.mark.parametrize("slope", [np.inf, -np.inf, np.nan])
def test_leaky_relu_of_special_slopes(slope):
    x = np.array([2, 0, -1, np.nan, np.inf, -np.inf], np.float32)
    check("PRelu", [x, np.full(1, slope, np.float32)], {}, 16)
    check("LeakyRelu", [x], {"alpha": slope}, 16)


def test_shrink_compares_with_an_exact_bound():
    x = np.array([0.29980469, 0.30004883, -0.30004883], np.float16)
    check("Shrink", [x], {"lambd": 0.3, "bias": 0.1}, 9, 0, 0)
