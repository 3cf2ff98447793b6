"""A test whether a value is a float tensor, of any of ONNX's float types."""

from __future__ import annotations

import numpy as np

from hetero.devices.plugin.program import Value


def is_float(value: Value) -> bool:
    """Return whether a value is a tensor of floats, including bfloat16 and the 8-bit formats."""
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return False
    return value.dtype.kind == "f" or (value.dtype.kind == "V" and "float" in value.dtype.name)
