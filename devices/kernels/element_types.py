"""Which element type an operator computes in, and what ONNX's type numbers mean.

Half-width floats are rounded once per operator, not once per step: a kernel of several steps is
decorated with `in_float32`, or makes its arrays `wide`, and then sees float32. Types narrower than
a byte, float8 and bfloat16 arrive as numpy extension types, whose kind is ``"V"``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from onnx import TensorProto, helper

#: An array namespace (numpy or CuPy), and an array of it.
Xp = Any
Array = Any

Kernel = Callable[..., Any]


def is_narrow_float(array: Array) -> bool:
    """Tell whether the elements are floats of less than 32 bits (or an extension integer)."""
    return array.dtype.itemsize < 4 and array.dtype.kind in "fV"


def is_float_type(dtype: Any) -> bool:
    """Tell whether an element type is floating point, extension types included."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def is_float(array: Array) -> bool:
    """Tell whether the elements are floating point, extension types included."""
    return is_float_type(array.dtype)


def is_string(array: Array) -> bool:
    """Tell whether the elements are strings."""
    return array.dtype.kind in "OUST"


def is_on_host(array: Array) -> bool:
    """Tell whether the host can look at an element, or whether any are odd, without waiting.

    A kernel that only looks whether its inputs are in range leaves that out elsewhere: the host
    would wait for all that the device was given to do before.
    """
    return bool(array.device == "cpu")


def zeros(xp: Xp, shape: int | Sequence[int], dtype: Any) -> Array:
    """Return an array of zeros; of empty strings where the elements are strings."""
    return xp.full(shape, "", dtype=object) if dtype.kind in "OUST" else xp.zeros(shape, dtype)


def element_type(number: int) -> Any:
    """Return the array element type of a `TensorProto.DataType`; ValueError if there is none."""
    if number == TensorProto.UNDEFINED or number not in TensorProto.DataType.values():
        raise ValueError(
            f"element type {number} is not one of TensorProto.DataType's: give 1 (float) to "
            f"{max(TensorProto.DataType.values())}"
        )
    return helper.tensor_dtype_to_np_dtype(number)


def in_float32(kernel: Kernel) -> Kernel:
    """Make a kernel of floats see float32 where the tensors are float16 or bfloat16.

    The result, or each result of a tuple, is rounded to the first input's type at the end.
    """

    @wraps(kernel)
    def widened(xp: Xp, x: Array, *inputs: Any, **keywords: Any) -> Any:
        if not is_narrow_float(x):
            return kernel(xp, x, *inputs, **keywords)
        narrow = x.dtype
        wide = [y.astype(xp.float32) if y is not None and is_narrow_float(y) else y for y in inputs]
        result = kernel(xp, x.astype(xp.float32), *wide, **keywords)
        if isinstance(result, tuple):
            return tuple(r.astype(narrow) if r.dtype == xp.float32 else r for r in result)
        return result.astype(narrow) if result.dtype == xp.float32 else result

    return widened


def wide(xp: Xp, *arrays: Array | None) -> tuple[Array, ...]:
    """Return the arrays, floats under 32 bits as float32; None stays None."""
    return tuple(a if a is None or not is_narrow_float(a) else a.astype(xp.float32) for a in arrays)


def stash(xp: Xp, array: Array, stash_type: int) -> Array:
    """Return the array in the type that a normalisation computes in.

    `stash_type` 1 is float32, 11 float64; 10 and 16 (16-bit floats) compute in float32.
    """
    return array.astype(xp.float64 if stash_type == 11 else xp.float32, copy=False)


def to_integers(xp: Xp, x: Array, dtype: Any) -> Array:
    """Return interpolated values as an integer type: rounded to even, kept within its range."""
    if x.dtype == dtype:
        return x
    limits = xp.iinfo(dtype)
    return xp.clip(xp.rint(x), limits.min, limits.max).astype(dtype)


def same_type(*arrays: Array) -> None:
    """Raise TypeError unless all element types are equal: ONNX promotes nothing."""
    first = arrays[0].dtype
    for array in arrays:
        if array.dtype != first:
            names = ", ".join(str(a.dtype) for a in arrays)
            raise TypeError(f"element types differ: {names}; cast them to one type first")
