"""Literals: the value of a `Constant` node."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from devices.attributes import attribute_value
from devices.model import Node

#: Attribute of `Constant` -> element type of the array that it stands for.
_TYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}


def literal_value(node: Node) -> np.ndarray:
    """Return the value of a `Constant`, read-only."""
    (attribute,) = node.proto.attribute
    if attribute.name == "sparse_value":
        array = _dense(attribute.sparse_tensor)
    else:
        array = np.asarray(attribute_value(attribute), _TYPES.get(attribute.name))
    array.setflags(write=False)
    return array


def _dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    """Return a sparse tensor as a dense one; indices are flat, or one row for each value."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense
