"""The protocol's datatypes: one row each; BF16 is Triton's addition."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

from hetero.apps.serve.errors import refused
from hetero.devices.model.tensor_spec import TensorSpec


class Datatype(NamedTuple):
    """What stands for a datatype.

    `dtype`: numpy's; strings are arrays of objects.
    `element`: what an element is in JSON; whole numbers are floats, too.
    `contents`: gRPC's field of its elements; empty where they come as raw bytes only.
    """

    dtype: np.dtype
    element: type
    contents: str


_ROWS: tuple[tuple[str, Any, type, str], ...] = (
    ("BOOL", np.bool_, bool, "bool_contents"),
    ("UINT8", np.uint8, int, "uint_contents"),
    ("UINT16", np.uint16, int, "uint_contents"),
    ("UINT32", np.uint32, int, "uint_contents"),
    ("UINT64", np.uint64, int, "uint64_contents"),
    ("INT8", np.int8, int, "int_contents"),
    ("INT16", np.int16, int, "int_contents"),
    ("INT32", np.int32, int, "int_contents"),
    ("INT64", np.int64, int, "int64_contents"),
    ("FP16", np.float16, float, ""),
    ("FP32", np.float32, float, "fp32_contents"),
    ("FP64", np.float64, float, "fp64_contents"),
    ("BF16", ml_dtypes.bfloat16, float, ""),
    ("BYTES", object, str, "bytes_contents"),
)
DATATYPES: Final = {
    name: Datatype(np.dtype(dtype), element, contents) for name, dtype, element, contents in _ROWS
}
NAMES: Final = {row.dtype: name for name, row in DATATYPES.items()}


def datatype_of(port: TensorSpec) -> str:
    """Return the protocol's name of a port's element type.

    It has none for sequences, maps, complex numbers, 4-bit and 8-bit floats.
    """
    if port.dtype is None or (name := NAMES.get(port.dtype)) is None:
        raise refused(
            f"{port.name!r} is {port}: the protocol has only tensors of {', '.join(DATATYPES)}. "
            "Add a Cast (or SequenceAt) to the model, so that its inputs and outputs are of these.",
            501,
        )
    return name
