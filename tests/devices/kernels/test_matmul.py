"""Matrix product kernels against ONNX Runtime and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import NARROW, check, refuses, run_kernel

RNG = np.random.default_rng(3)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float64])
def test_matmul_of_other_types(dtype):
    a, b = (RNG.integers(0, 50, s).astype(dtype) for s in ((2, 3, 4), (4, 5)))
    check("MatMul", [a, b], {}, 13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matmul_of_half_width_floats_rounds_once(dtype):
    kind = NARROW.get(dtype, np.float16)
    a, b = floats(3, 40).astype(kind), floats(40, 5).astype(kind)
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(kind)
    check("MatMul", [a, b], {}, 13, 1e-2, expected=[expected])


def test_gemm_of_integers():
    a, b, c = (RNG.integers(-9, 9, s).astype(np.int32) for s in ((3, 4), (4, 5), (5,)))
    check("Gemm", [a, b, c], {}, 13, expected=[a @ b + c])


def test_gemm_6_broadcasts_only_when_told():
    a, b, c = floats(3, 4), floats(4, 5), floats(5)
    check("Gemm", [a, b, c], {"broadcast": 1}, 6, 1e-4, 1e-5, expected=[a @ b + c])
    refuses(ValueError, "broadcast", "Gemm", [a, b, c], {}, 6)


def test_einsum_of_integers():
    inputs = [RNG.integers(-5, 5, s) for s in ((3, 4), (4, 5))]
    check("Einsum", inputs, {"equation": "ij,jk->ik"}, 12)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "error"),
    [
        ("MatMul", [floats(3, 4), floats(3, 4)], {}, ValueError),
        ("MatMul", [floats(), floats(3, 4)], {}, ValueError),
        ("MatMul", [floats(3, 4), floats(4, 4).astype(np.float64)], {}, TypeError),
        ("Gemm", [floats(2, 3, 4), floats(4, 5)], {}, ValueError),
        ("Gemm", [floats(3, 4), floats(4, 5), floats(2, 3, 5)], {}, ValueError),
        ("Einsum", [floats(3, 4), floats(3, 4)], {"equation": "ij,jk->ik"}, ValueError),
        ("Det", [floats(3, 4)], {}, ValueError),
    ],
)
def test_refuses(op_type, inputs, attributes, error):
    with pytest.raises(error):
        run_kernel(op_type, inputs, attributes, 13)


@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_gemm_without_c_does_not_read_it(special):
    c = np.full((3, 5), special, np.float32)
    check("Gemm", [floats(3, 4), floats(4, 5), c], {"beta": 0.0}, 13, 1e-4, 1e-5)
