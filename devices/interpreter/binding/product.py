"""Bindings of matrix products: one call of BLAS each, and what is added to it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from devices.cpu.threads import alone
from devices.interpreter.binding.copies import copy_call
from devices.interpreter.binding.registry import Call, Scratch, binds
from devices.kernels.einsum import pairs


def _product(scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[Call] | None:
    """Return the calls that put a @ b into y; None if the kernel has to look at the arrays."""
    if a.dtype != b.dtype or a.dtype.kind != "f" or a.dtype.itemsize < 4:
        return None
    if a.ndim < 2 or b.ndim < 2 or not a.size or not b.size or a.shape[-1] != b.shape[-2]:
        return None
    calls = list[Call]()
    if a.ndim > 2 and b.ndim == 2:
        if not a.flags.c_contiguous:
            rows = scratch(a.shape, a.dtype)
            calls.append(copy_call(rows, a))
            a = rows
        count = prod(a.shape[:-1])  # one product of all rows instead of one per matrix
        a, y = a.reshape(count, a.shape[-1]), y.reshape(count, b.shape[1])
    if a.size == a.shape[-1]:
        return [*calls, partial(alone, np.matmul, a, b, y)]
    return [*calls, partial(np.matmul, a, b, y)]


def product_calls(
    scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray, terms: int
) -> list[Call] | None:
    """Return the calls that put a @ b into y, `terms` products of an element's at a time."""
    if terms >= a.shape[-1]:
        return _product(scratch, y, a, b)
    part, calls = scratch(y.shape, y.dtype), list[Call]()
    for start in range(0, a.shape[-1], terms):
        left, right = a[..., start : start + terms], b[..., start : start + terms, :]
        added = _product(scratch, part if start else y, left, right)
        if added is None:
            return None
        calls += [*added, partial(np.add, y, part, y)] if start else added
    return calls


def _added(y: np.ndarray, c: np.ndarray | None) -> list[Call]:
    return [] if c is None else [partial(np.add, y, c, y)]


@binds("MatMul", 1)
def bind_matmul(
    scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray
) -> Sequence[Call] | None:
    """Bind a @ b."""
    return _product(scratch, y, a, b)


@binds("FusedMatMul", 1, domain="hetero")
def bind_fused_matmul(
    scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None
) -> Sequence[Call] | None:
    """Bind a @ b + c."""
    calls = _product(scratch, y, a, b)
    return calls and calls + _added(y, c)


@binds("Gemm", 7)
def bind_gemm(
    scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None, *,
    alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind a @ b + c of matrices, either of them transposed."""
    if alpha != 1 or beta != 1:
        return None
    calls = _product(scratch, y, a.T if transA else a, b.T if transB else b)
    return calls and calls + _added(y, c)


@binds("Einsum", 12, any_order=True)
def bind_einsum(
    scratch: Scratch, y: np.ndarray, *inputs: np.ndarray, equation: str
) -> Sequence[Call] | None:
    """Bind the products of two tensors at a time, where the equation is made of such."""
    products = pairs(equation.replace(" ", ""), [x.shape for x in inputs])
    if products is None or any(x.dtype != y.dtype or x.dtype.itemsize < 4 for x in inputs):
        return None
    calls = list[Call]()
    result, *others = inputs
    for i, (pair, other) in enumerate(zip(products, others, strict=True)):
        a, b, shape = pair.stacks(result, other)
        operands = list[np.ndarray]()
        for given, stack in ((result, a), (other, b)):
            if np.may_share_memory(given, stack):
                operands.append(stack)
                continue
            operands.append(scratch(stack.shape, stack.dtype))
            axes = pair.axes[len(operands) - 1]
            read = given.transpose(axes)
            calls.append(copy_call(operands[-1].reshape(read.shape), read))
        if i == len(products) - 1:
            made = y.transpose(np.argsort(pair.order))
        else:
            made = scratch(shape, y.dtype)
        if not made.flags.c_contiguous:
            return None
        to = made.reshape(*a.shape[:-1], b.shape[-1])
        calls.append(partial(np.matmul, *operands, to))
        result = made if i == len(products) - 1 else made.transpose(pair.order)
    return calls
