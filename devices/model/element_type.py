"""Element types as a user writes them: OpenVINO's names, ONNX's, or numpy's."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import numpy as np

from devices.errors import ArgumentError
from devices.model.tensor_spec import ELEMENT_TYPES, element_type_name


class Type(StrEnum):
    """Element types under OpenVINO's names; each equals ONNX's own name.

    ``hetero.Type.f32 == "float"``, which is what `TensorSpec.element_type` says.
    """

    boolean = "bool"
    bf16 = "bfloat16"
    f16 = "float16"
    f32 = "float"
    f64 = "double"
    f8e4m3 = "float8e4m3fn"
    f8e5m2 = "float8e5m2"
    i4 = "int4"
    i8 = "int8"
    i16 = "int16"
    i32 = "int32"
    i64 = "int64"
    u4 = "uint4"
    u8 = "uint8"
    u16 = "uint16"
    u32 = "uint32"
    u64 = "uint64"
    string = "string"


_SHORT: Final = {member.name: member.value for member in Type}


def element_type(given: Any) -> str:
    """Return ONNX's name of an element type: of ``u8``, ``uint8``, `Type.u8` or ``numpy.uint8``.

    ArgumentError if there is none of that name.
    """
    if isinstance(given, str):
        name = _SHORT.get(given, given)
        if name in ELEMENT_TYPES:
            return str(name)
    try:
        # numpy takes None for double.
        return element_type_name(np.dtype("none" if given is None else given))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"element type {given!r} is none; valid ones are {', '.join(_SHORT)}, ONNX's names "
            "and numpy's dtypes."
        ) from error
