"""Matrix products: MatMul, Gemm, Einsum and Det."""

from __future__ import annotations

from hetero.devices.kernels.element_types import (
    Array,
    Xp,
    check_same_type,
    in_float32,
    is_on_host,
    to_float32,
)
from hetero.devices.kernels.registry import op


def _product(xp: Xp, a: Array, b: Array) -> Array:
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"MatMul: expected no scalars, got shapes {a.shape} and {b.shape}")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(f"expected equal inner sizes, got shapes {a.shape} and {b.shape}")
    check_same_type(a, b)
    if is_on_host(a):  # GPUs multiply float16 by themselves: they add in float32 and round once
        a, b = to_float32(xp, a, b)
    if a.ndim > 2 and b.ndim == 2 and a.size:
        # One product of all rows is faster than one per matrix, even if it copies a.
        return xp.matmul(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[1])
    return xp.matmul(a, b)


@op("MatMul", since=1)
def matmul_1(xp: Xp, a: Array, b: Array) -> Array:
    """Return the matrix product over the last two axes; the other axes broadcast."""
    return _product(xp, a, b).astype(a.dtype, copy=False)


@op("Gemm", since=1)
def gemm_1(
    xp: Xp,
    a: Array,
    b: Array,
    c: Array,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Return ``alpha * a @ b + beta * c``; c broadcasts only with `broadcast`."""
    y = gemm_7(xp, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    if not broadcast and c.shape != y.shape:
        raise ValueError(f"C: expected shape {y.shape} without broadcast=1, got {c.shape}")
    return y


@op("Gemm", since=(7, 11))
def gemm_7(
    xp: Xp,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Return ``alpha * a @ b + beta * c`` of matrices; c broadcasts to the product."""
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"Gemm: expected matrices, got shapes {a.shape} and {b.shape}")
    dtype = a.dtype
    y = _product(xp, a.T if transA else a, b.T if transB else b)
    y, c = to_float32(xp, y, c)
    if alpha != 1:
        y = _scale(xp, y, alpha)
    if c is not None and beta != 0:
        padded = (1,) * (y.ndim - c.ndim) + c.shape
        if c.ndim > y.ndim or any(n not in (1, m) for n, m in zip(padded, y.shape, strict=True)):
            raise ValueError(f"C: expected a shape that broadcasts to {y.shape}, got {c.shape}")
        xp.add(y, c if beta == 1 else _scale(xp, c, beta), out=y)
    return y.astype(dtype, copy=False)


def _scale(xp: Xp, y: Array, factor: float) -> Array:
    """Return y times a real factor, in y's type; integers are truncated towards zero."""
    return (y * factor).astype(y.dtype, copy=False)


@op("Einsum", since=12)
def einsum_12(xp: Xp, *inputs: Array, equation: str) -> Array:
    """Return the sum of products given by `equation`; `...` are broadcast axes."""
    dtype = inputs[0].dtype
    check_same_type(*inputs)
    y = xp.einsum(equation.replace(" ", ""), *to_float32(xp, *inputs), optimize=len(inputs) > 1)
    return xp.asarray(y).astype(dtype, copy=False)


@op("Det", since=11)
@in_float32
def det_11(xp: Xp, x: Array) -> Array:
    """Return the determinant of each matrix in the last two axes."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"expected square matrices, got shape {x.shape}")
    return xp.asarray(xp.linalg.det(x)).astype(x.dtype, copy=False)
