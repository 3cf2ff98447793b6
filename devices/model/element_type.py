"""Element types: ONNX's words for them, numpy's dtypes, and `Type` with OpenVINO's names."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import ml_dtypes
import numpy as np
import onnx

from hetero.devices.errors import ArgumentError
from hetero.devices.model.property_getter import getter

#: ONNX element type -> numpy dtype; strings are object arrays.
DTYPES: Final[dict[int, np.dtype]] = {
    number: np.dtype(object) if name == "STRING" else onnx.helper.tensor_dtype_to_np_dtype(number)
    for name, number in onnx.TensorProto.DataType.items()
    if name != "UNDEFINED"
}
#: ONNX element type -> its name in type strings, as ``tensor(float)``.
TYPE_NAMES: Final[dict[int, str]] = {
    number: name.lower() for name, number in onnx.TensorProto.DataType.items()
}
TYPE_NUMBERS: Final = {name: number for number, name in TYPE_NAMES.items()}
#: Names of the element types that a tensor may have.
ELEMENT_TYPES: Final = frozenset(TYPE_NUMBERS) - {"undefined"}
#: numpy dtypes that numpy itself cannot compute on; kernels widen these.
EXTENDED_DTYPES: Final = frozenset(
    np.dtype(getattr(ml_dtypes, name))
    for name in dir(ml_dtypes)
    if name.startswith(("bfloat", "float", "int", "uint"))
    and isinstance(getattr(ml_dtypes, name), type)
)
#: Element types narrower than a byte, with their widths in bits.
NARROW_BITS: Final = {
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4e2m1": 4,
    "float6e2m3": 6,
    "float6e3m2": 6,
}


class Type(StrEnum):
    """Element types under OpenVINO's names; each equals ONNX's own word for it.

    ``hetero.Type.f32 == "float"``, which is what `TensorSpec.element_type` says. Made of anything
    that names one: ``Type("f32")``, ``Type("float32")``, ``Type(np.float32)``, ``Type(str)``.
    """

    boolean = "bool"
    bf16 = "bfloat16"
    f16 = "float16"
    f32 = "float"
    f64 = "double"
    f4e2m1 = "float4e2m1"
    f8e4m3 = "float8e4m3fn"
    f8e4m3fnuz = "float8e4m3fnuz"
    f8e5m2 = "float8e5m2"
    f8e5m2fnuz = "float8e5m2fnuz"
    f8e8m0 = "float8e8m0"
    i2 = "int2"
    i4 = "int4"
    i8 = "int8"
    i16 = "int16"
    i32 = "int32"
    i64 = "int64"
    u2 = "uint2"
    u4 = "uint4"
    u8 = "uint8"
    u16 = "uint16"
    u32 = "uint32"
    u64 = "uint64"
    complex64 = "complex64"
    complex128 = "complex128"
    string = "string"
    #: Not known: what is open, or no tensor.
    dynamic = "dynamic"

    @classmethod
    def _missing_(cls, value: object) -> Type:
        if isinstance(value, str) and value in cls.__members__:
            return cls.__members__[value]
        try:
            # numpy takes None for double.
            return cls(element_type_name(np.dtype("none" if value is None else value)))  # type: ignore[call-overload]  # any object: numpy refuses the others
        except (TypeError, ValueError) as error:
            names = ", ".join(name for name in cls.__members__ if name != "dynamic")
            raise ArgumentError(
                f"element type {value!r} is none; valid ones are {names}, ONNX's names and "
                "numpy's dtypes."
            ) from error

    def to_dtype(self) -> np.dtype:
        """Return the numpy dtype of such elements; of strings that of arrays of objects.

        Raises
        ------
        ArgumentError
            The type is not known.
        """
        if self is Type.dynamic:
            raise ArgumentError("element type 'dynamic' has no numpy dtype; it is not known yet.")
        return DTYPES[TYPE_NUMBERS[self.value]]

    @property
    def bitwidth(self) -> int:
        """Bits of an element; 0 where they vary."""
        if self in (Type.dynamic, Type.string):
            return 0
        return NARROW_BITS.get(self.value, self.to_dtype().itemsize * 8)

    @property
    def size(self) -> int:
        """Bytes of an element, at least 1; 0 where they vary."""
        return (self.bitwidth + 7) // 8

    @property
    def type_name(self) -> str:
        """OpenVINO's name: ``f32``."""
        return self.name

    @property
    def real(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.name.startswith(("f", "bf"))

    @property
    def integral(self) -> bool:
        """Whether elements are none: whole numbers, truth values, or strings, as OpenVINO says."""
        return not self.real

    @property
    def signed(self) -> bool:
        """Whether elements may be negative; OpenVINO counts truth values as such."""
        return self.real or self.name.startswith("i") or self is Type.boolean

    @property
    def quantized(self) -> bool:
        """Whether quantised models compute in it."""
        return self in _QUANTIZED

    @property
    def integral_number(self) -> bool:
        """Whether elements are whole numbers."""
        return self.name[0] in "iu" and self.name[1:].isdigit()

    def is_static(self) -> bool:
        """Return whether the type is known."""
        return self is not Type.dynamic

    def is_dynamic(self) -> bool:
        """Return whether the type is not known."""
        return self is Type.dynamic

    is_real = getter(real)
    is_integral = getter(integral)
    is_integral_number = getter(integral_number)
    is_signed = getter(signed)
    is_quantized = getter(quantized)
    get_type_name = getter(type_name)
    to_string = getter(type_name)
    get_size = getter(size)
    get_bitwidth = getter(bitwidth)

    def compatible(self, other: Type) -> bool:
        """Return whether a value may be of both types."""
        return self.merge(other) is not None

    def merge(self, other: Type) -> Type | None:
        """Return the type that says as much as both; None if they contradict each other."""
        if other is Type.dynamic or self is other:
            return self
        return other if self is Type.dynamic else None


_QUANTIZED: Final = frozenset(
    {Type.i4, Type.i8, Type.i32, Type.u8, Type.f4e2m1, Type.f8e4m3, Type.f8e5m2, Type.f8e8m0}
)


def element_type_name(dtype: np.dtype | type) -> str:
    """Return the ONNX name of a numpy dtype: ``float`` for float32; strings are ``string``.

    TypeError if ONNX has no such element type.
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "OUST":
        return "string"
    try:
        return TYPE_NAMES[onnx.helper.np_dtype_to_tensor_dtype(dtype)]
    except (KeyError, ValueError) as error:
        raise TypeError(f"numpy dtype {dtype} is not an ONNX element type") from error
