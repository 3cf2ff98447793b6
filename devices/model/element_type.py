"""Element types of tensors: ONNX's names, numpy's dtypes, and `Type` with OpenVINO's names."""

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
#: Dtypes of the ml_dtypes package, which numpy cannot compute with; kernels widen them.
EXTENDED_DTYPES: Final = frozenset(
    np.dtype(getattr(ml_dtypes, name))
    for name in dir(ml_dtypes)
    if name.startswith(("bfloat", "float", "int", "uint"))
    and isinstance(getattr(ml_dtypes, name), type)
)
#: Element types narrower than a byte, with their widths in bits. onnx has float6 since 1.23.
NARROW_BITS: Final = {
    name: bits
    for name, bits in {
        "int2": 2,
        "uint2": 2,
        "int4": 4,
        "uint4": 4,
        "float4e2m1": 4,
        "float6e2m3": 6,
        "float6e3m2": 6,
    }.items()
    if name in TYPE_NUMBERS
}


class Type(StrEnum):
    """Element types under OpenVINO's names; each equals its ONNX name.

    For example ``hetero.Type.f32 == "float"``, the value of `TensorSpec.element_type`. The
    constructor accepts any name of an element type: ``Type("f32")``, ``Type("float32")``,
    ``Type(np.float32)``, ``Type(str)``.
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
    #: Unknown element type, or a value that is not a tensor.
    dynamic = "dynamic"

    @classmethod
    def _missing_(cls, value: object) -> Type:
        if isinstance(value, str) and value in cls.__members__:
            return cls.__members__[value]
        try:
            # numpy reads None as float64.
            return cls(element_type_name(np.dtype("none" if value is None else value)))  # type: ignore[call-overload]  # any object: numpy refuses the others
        except (TypeError, ValueError) as error:
            names = ", ".join(name for name in cls.__members__ if name != "dynamic")
            raise ArgumentError(
                f"unknown element type {value!r}; expected one of {names}, an ONNX name or a numpy "
                "dtype."
            ) from error

    def to_dtype(self) -> np.dtype:
        """Return the numpy dtype: object for strings.

        Raises
        ------
        ArgumentError
            The type is dynamic.
        """
        if self is Type.dynamic:
            raise ArgumentError("element type 'dynamic' is unknown and has no numpy dtype.")
        return DTYPES[TYPE_NUMBERS[self.value]]

    @property
    def bitwidth(self) -> int:
        """Bits of an element; 0 if elements vary in size."""
        if self in (Type.dynamic, Type.string):
            return 0
        return NARROW_BITS.get(self.value, self.to_dtype().itemsize * 8)

    @property
    def size(self) -> int:
        """Bytes of an element, at least 1; 0 if elements vary in size."""
        return (self.bitwidth + 7) // 8

    @property
    def type_name(self) -> str:
        """OpenVINO's name, such as ``f32``."""
        return self.name

    @property
    def real(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.name.startswith(("f", "bf"))

    @property
    def integral(self) -> bool:
        """Whether elements are not floating-point numbers; strings count, as in OpenVINO."""
        return not self.real

    @property
    def signed(self) -> bool:
        """Whether elements may be negative; as in OpenVINO, this includes booleans."""
        return self.real or self.name.startswith("i") or self is Type.boolean

    @property
    def quantized(self) -> bool:
        """Whether quantised models use the type."""
        return self in _QUANTIZED

    @property
    def integral_number(self) -> bool:
        """Whether elements are integers."""
        return self.name[0] in "iu" and self.name[1:].isdigit()

    def is_static(self) -> bool:
        """Return whether the type is known."""
        return self is not Type.dynamic

    def is_dynamic(self) -> bool:
        """Return whether the type is unknown."""
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
        """Return whether the types are equal, or one of them is dynamic."""
        return self.merge(other) is not None

    def merge(self, other: Type) -> Type | None:
        """Return the more specific of two compatible types; None if the types contradict."""
        if other is Type.dynamic or self is other:
            return self
        return other if self is Type.dynamic else None


_QUANTIZED: Final = frozenset(
    {Type.i4, Type.i8, Type.i32, Type.u8, Type.f4e2m1, Type.f8e4m3, Type.f8e5m2, Type.f8e8m0}
)


def element_type_name(dtype: np.dtype | type) -> str:
    """Return the ONNX name of a numpy dtype, such as ``float`` for float32.

    Raises TypeError if ONNX has no such element type.
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "OUST":
        return "string"
    try:
        return TYPE_NAMES[onnx.helper.np_dtype_to_tensor_dtype(dtype)]
    except (KeyError, ValueError) as error:
        raise TypeError(f"numpy dtype {dtype} is not an ONNX element type") from error
