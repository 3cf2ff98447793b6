"""The protocol's datatypes and numpy's dtypes for them; BF16 is Triton's addition."""

from __future__ import annotations

from typing import Final

import ml_dtypes
import numpy as np

from devices.model.tensor_spec import TensorSpec
from hetero.serve.errors import ProtocolError, refused

#: Datatype -> dtype; strings are arrays of objects.
DATATYPES: Final[dict[str, np.dtype]] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "UINT8": np.uint8,
        "UINT16": np.uint16,
        "UINT32": np.uint32,
        "UINT64": np.uint64,
        "INT8": np.int8,
        "INT16": np.int16,
        "INT32": np.int32,
        "INT64": np.int64,
        "FP16": np.float16,
        "FP32": np.float32,
        "FP64": np.float64,
        "BF16": ml_dtypes.bfloat16,
        "BYTES": object,
    }.items()
}
NAMES: Final = {dtype: name for name, dtype in DATATYPES.items()}


def datatype_of(port: TensorSpec) -> str:
    """Return the protocol's name of a port's element type.

    Raises
    ------
    ProtocolError
        The protocol has none: for sequences, maps, complex numbers, 4-bit and 8-bit floats.
    """
    if port.dtype is None or (name := NAMES.get(port.dtype)) is None:
        raise unknown_type(port)
    return name


def unknown_type(port: TensorSpec) -> ProtocolError:
    """Return the error of a port whose type the protocol does not have."""
    return refused(
        f"{port.name!r} is {port}: the protocol has only tensors of {', '.join(DATATYPES)}. Add a "
        "Cast (or SequenceAt) to the model, so that its inputs and outputs are of these.",
        501,
    )
