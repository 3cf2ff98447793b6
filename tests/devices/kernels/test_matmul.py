"""Matrix product kernels against ONNX Runtime and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import NARROW, check, refuses, run_kernel, run_reference

RNG = np.random.default_rng(3)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((6, 1, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((2, 0, 4), (4, 5)),
    ((1, 1, 2, 3), (5, 4, 3, 2)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("opset", [7, 9, 13])
def test_matmul(a, b, opset):
    check("MatMul", [floats(*a), floats(*b)], {}, opset, 1e-4, 1e-5)


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


@pytest.mark.sampled(3, "c", "transpose", "opset")
@pytest.mark.parametrize("c", [(3, 5), (1, 5), (5,), (3, 1), (1,), (), None])
@pytest.mark.parametrize("transpose", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm(c, transpose, opset):
    if c is None and opset < 11:
        pytest.skip("C is optional from opset 11 on")
    a = floats(*((4, 3) if transpose[0] else (3, 4)))
    b = floats(*((5, 4) if transpose[1] else (4, 5)))
    attributes = {"transA": transpose[0], "transB": transpose[1], "alpha": 0.5, "beta": -2.0}
    inputs = [a, b] if c is None else [a, b, floats(*c)]
    check("Gemm", inputs, attributes, opset, 1e-4, 1e-5)


def test_gemm_of_integers():
    a, b, c = (RNG.integers(-9, 9, s).astype(np.int32) for s in ((3, 4), (4, 5), (5,)))
    check("Gemm", [a, b, c], {}, 13, expected=[a @ b + c])


def test_gemm_6_broadcasts_only_when_told():
    a, b, c = floats(3, 4), floats(4, 5), floats(5)
    check("Gemm", [a, b, c], {"broadcast": 1}, 6, 1e-4, 1e-5, expected=[a @ b + c])
    refuses(ValueError, "broadcast", "Gemm", [a, b, c], {}, 6)


EQUATIONS = {
    "ij,jk->ik": [(3, 4), (4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "ij->ji": [(3, 4)],
    "ii->i": [(4, 4)],
    "ii": [(4, 4)],
    "ij->": [(3, 4)],
    "i,j->ij": [(3,), (4,)],
    "bhid,bhjd->bhij": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 5)],
    "...ii->...i": [(2, 3, 3)],
    "bij, jk , bk -> bi": [(2, 3, 4), (4, 5), (2, 5)],
    "i,i": [(5,), (5,)],
    "bij,kj,bkl->lib": [(2, 3, 4), (5, 4), (2, 5, 6)],
    "abc,dcb->da": [(2, 3, 4), (5, 4, 3)],
    "ij,ik->i": [(3, 4), (3, 5)],
    "ij,jk->ki": [(3, 1), (4, 5)],
    "bqhd,bkhd->bhqk": [(2, 3, 4, 5), (2, 6, 4, 5)],
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation):
    inputs = [floats(*s) for s in EQUATIONS[equation]]
    check("Einsum", inputs, {"equation": equation}, 12, 1e-4, 1e-5)


def test_einsum_of_integers():
    inputs = [RNG.integers(-5, 5, s) for s in ((3, 4), (4, 5))]
    check("Einsum", inputs, {"equation": "ij,jk->ik"}, 12)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4, 4), (1, 1)])
@pytest.mark.parametrize("opset", [11, 22])
def test_det(shape, opset):
    check("Det", [floats(*shape)], {}, opset, 1e-4, 1e-5, oracle=run_reference)


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
