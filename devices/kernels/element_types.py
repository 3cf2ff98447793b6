"""Element types: conversions for computing, checks, and ONNX's type numbers.

16-bit floats are rounded once per operator, not once per step: kernels of several steps compute in
float32, by the decorator `in_float32` or by `to_float32`. bfloat16, float8 and types narrower than
a byte are numpy extension types, whose kind is ``"V"``.
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
    """Tell whether the elements are floats of less than 32 bits or extension integers."""
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
    """Tell whether the host can read the elements without waiting for a device.

    Kernels skip checks of values that are on a device: the host would have to wait for all earlier
    work of that device.
    """
    return bool(array.device == "cpu")


def zeros(xp: Xp, shape: int | Sequence[int], dtype: Any) -> Array:
    """Return an array of zeros, or of empty strings if the type is strings."""
    return xp.full(shape, "", dtype=object) if dtype.kind in "OUST" else xp.zeros(shape, dtype)


def element_type(number: int) -> Any:
    """Return the array element type of a `TensorProto.DataType`; ValueError if there is none."""
    if number == TensorProto.UNDEFINED or number not in TensorProto.DataType.values():
        raise ValueError(
            "element type: expected a number of TensorProto.DataType from 1 (float) to "
            f"{max(TensorProto.DataType.values())}, got {number}"
        )
    return helper.tensor_dtype_to_np_dtype(number)


def in_float32(kernel: Kernel) -> Kernel:
    """Decorate a kernel to receive float32 instead of float16 or bfloat16.

    Its float32 results are rounded to the first input's type.
    """

    @wraps(kernel)
    def kernel_in_float32(xp: Xp, x: Array, *inputs: Any, **keywords: Any) -> Any:
        if not is_narrow_float(x):
            return kernel(xp, x, *inputs, **keywords)
        narrow = x.dtype
        singles = [
            y.astype(xp.float32) if y is not None and is_narrow_float(y) else y for y in inputs
        ]
        result = kernel(xp, x.astype(xp.float32), *singles, **keywords)
        if isinstance(result, tuple):
            return tuple(r.astype(narrow) if r.dtype == xp.float32 else r for r in result)
        return result.astype(narrow) if result.dtype == xp.float32 else result

    return kernel_in_float32


def to_float32(xp: Xp, *arrays: Array | None) -> tuple[Array, ...]:
    """Return the arrays with floats of less than 32 bits as float32; None stays None."""
    return tuple(a if a is None or not is_narrow_float(a) else a.astype(xp.float32) for a in arrays)


def to_stash_type(xp: Xp, array: Array, stash_type: int) -> Array:
    """Return the array in the type in which a normalisation computes.

    `stash_type` 11 is float64; 1 (float32), 10 and 16 (16-bit floats) compute in float32.
    """
    return array.astype(xp.float64 if stash_type == 11 else xp.float32, copy=False)


def to_integers(xp: Xp, x: Array, dtype: Any) -> Array:
    """Return interpolated values as an integer type, rounded to even and clipped to its range."""
    if x.dtype == dtype:
        return x
    limits = xp.iinfo(dtype)
    return xp.clip(xp.rint(x), limits.min, limits.max).astype(dtype)


def check_same_type(*arrays: Array) -> None:
    """Raise TypeError unless all element types are equal; ONNX does not promote types."""
    first = arrays[0].dtype
    for array in arrays:
        if array.dtype != first:
            names = ", ".join(str(a.dtype) for a in arrays)
            raise TypeError(f"expected one element type, got {names}; cast the inputs to one type")
