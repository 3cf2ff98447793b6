"""Matrix products by cuBLAS, with CuPy's handle.

CuPy's own products cannot be recorded in a CUDA graph, convert batches of float16 to float32, and
build tables of pointers for operands that broadcast.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, Final

import cupy
import numpy as np

#: cudaDataType, cublasComputeType_t and the type of the factors by element type.
_TYPES: Final = {
    "float16": (2, 68, ctypes.c_float),
    "float32": (0, 68, ctypes.c_float),
    "float64": (1, 70, ctypes.c_double),
}
_NO_TRANSPOSE: Final = 0
_TRANSPOSE: Final = 1
_DEFAULT_ALGORITHM: Final = -1


class MatrixProduct:
    """The function `matmul` of CuPy for floats, as one launch of cuBLAS."""

    def __init__(self) -> None:
        cupy.cuda.device.get_cublas_handle()  # loads the library
        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        library = ctypes.CDLL(f"libcublas.so.{major}")
        self._set_stream = library.cublasSetStream_v2
        self._set_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._multiply = library.cublasGemmStridedBatchedEx
        pointer, number, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
        matrix: list[Any] = [pointer, number, number, stride]
        options: list[Any] = [number] * 5  # transpositions and sizes
        factor: list[Any] = [pointer]
        self._multiply.argtypes = [
            *(pointer, *options, *factor, *matrix, *matrix, *factor, *matrix),
            *(number, number, number),  # of matrices, of the type and of the algorithm
        ]

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the matrix product over the last two axes; the others broadcast."""
        if not _is_supported(a, b):
            return cupy.matmul(a, b, out=out)
        y = out
        if out is None or not out.flags.c_contiguous or out.dtype != a.dtype:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            y = cupy.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
        self._launch(a, b, y, 0)
        if out is not None and y is not out:
            out[...] = y
        return y if out is None else out

    def add(self, a: Any, b: Any, y: Any) -> bool:
        """Add the matrix product to y (C-contiguous), rounding once; return whether it is done.

        Types and sizes that cuBLAS does not multiply here leave y unchanged.
        """
        if not _is_supported(a, b) or y.dtype != a.dtype or not y.flags.c_contiguous:
            return False
        self._launch(a, b, y, 1)
        return True

    def _launch(self, a: Any, b: Any, y: Any, factor_of_y: int) -> None:
        """Write the product of a and b, plus y times a factor, to y."""
        rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
        if b.shape[-2] != depth:
            raise ValueError(f"expected equal inner sizes, got shapes {a.shape} and {b.shape}")
        batch = y.shape[:-2]
        a, a_transposed, a_stride = _operand(a, batch)
        b, b_transposed, b_stride = _operand(b, batch)
        data_type, compute_type, factor = _TYPES[a.dtype.name]
        of_product, of_y = factor(1), factor(factor_of_y)
        handle = cupy.cuda.device.get_cublas_handle()
        status = self._set_stream(handle, cupy.cuda.get_current_stream().ptr)
        # cuBLAS reads columns first, in which memory holds the transposes: y.T = b.T @ a.T.
        status = status or self._multiply(
            *(handle, b_transposed, a_transposed, columns, rows, depth, ctypes.byref(of_product)),
            *(b.data.ptr, data_type, depth if b_transposed else columns, b_stride),
            *(a.data.ptr, data_type, rows if a_transposed else depth, a_stride),
            *(ctypes.byref(of_y), y.data.ptr, data_type, columns, rows * columns),
            *(prod(batch), compute_type, _DEFAULT_ALGORITHM),
        )
        if status:
            raise RuntimeError(f"cuBLAS: status {status} of a product with shape {y.shape}")


def _is_supported(a: Any, b: Any) -> bool:
    """Return whether cuBLAS multiplies two arrays: of one type of floats, and not empty."""
    is_same_type = a.dtype == b.dtype and a.dtype.name in _TYPES
    return is_same_type and min(a.ndim, b.ndim) >= 2 and bool(a.size * b.size)


def _operand(x: Any, batch: tuple[int, ...]) -> tuple[Any, int, int]:
    """Return an array that cuBLAS can read, whether it is transposed, and its matrices' distance.

    The distance is 0 if one matrix serves the whole batch.
    """
    if prod(x.shape[:-2]) == 1:
        x, stride = x.reshape(x.shape[-2:]), 0
    else:
        stride = x.shape[-2] * x.shape[-1]
        if x.shape[:-2] != batch:
            x = cupy.broadcast_to(x, (*batch, *x.shape[-2:]))
    if x.flags.c_contiguous:
        return x, _NO_TRANSPOSE, stride
    if x.swapaxes(-1, -2).flags.c_contiguous:
        return x, _TRANSPOSE, stride
    return cupy.ascontiguousarray(x), _NO_TRANSPOSE, stride
