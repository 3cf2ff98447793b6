"""Conversion of TensorProtos into arrays, with inline or external contents."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from hetero.devices.errors import ExternalDataError, ModelError
from hetero.devices.model.element_type import DTYPES, NARROW_BITS, TYPE_NUMBERS
from hetero.devices.model.tensor_spec import check_text

#: Element types that files store packed -> width in bits.
_PACKED: Final = {TYPE_NUMBERS[name]: bits for name, bits in NARROW_BITS.items()}
#: Maximum size of a protobuf message.
PROTOBUF_NBYTES: Final = 2**31 - 1


def tensor_array(
    tensor: onnx.TensorProto, context: str = "the model", file: Path | None = None
) -> np.ndarray:
    """Return the contents of a tensor as a read-only array; external contents are memory-mapped.

    Parameters
    ----------
    tensor : onnx.TensorProto
        The tensor.
    context : str
        The model or node that contains the tensor, for error messages.
    file : Path, optional
        The model's file: external data is in the same folder. Without it, the tensor's contents
        must be inline.

    Raises
    ------
    ModelError
        ONNX does not define the element type, or the contents do not match type and shape.
    ExternalDataError
        The external data file is missing, too short or outside the model's folder, or the element
        type cannot be external.
    """
    label = f"{context}: tensor {tensor.name!r}"
    shape = tuple(tensor.dims)
    check_tensor(tensor, context)
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = _external_array(tensor, label, file)
        else:
            array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"{label}: the contents do not match shape {shape} of {DTYPES[tensor.data_type]}: "
            f"{error}. Export the model again."
        ) from error
    array.setflags(write=False)
    return array


def check_tensor(tensor: onnx.TensorProto, context: str) -> None:
    """Raise ModelError if the name, element type or shape of a tensor is invalid."""
    check_text((tensor.name,), context)
    if tensor.data_type not in DTYPES:
        raise ModelError(
            f"{context}: tensor {tensor.name!r}: ONNX does not define element type "
            f"{tensor.data_type}. Export the model again."
        )
    if min(tensor.dims, default=0) < 0:
        raise ModelError(
            f"{context}: tensor {tensor.name!r}: expected sizes of 0 or more, got "
            f"{tuple(tensor.dims)}."
        )


def dense_array(
    sparse: onnx.SparseTensorProto, context: str = "the model", file: Path | None = None
) -> np.ndarray:
    """Return a sparse tensor as a dense array.

    The indices are either flat or one row of coordinates per value. Parameters and errors are those
    of `tensor_array`; an index outside the shape raises ModelError.
    """
    values = tensor_array(sparse.values, context, file)
    indices = tensor_array(sparse.indices, context, file)
    shape = tuple(sparse.dims)
    nbytes = math.prod(shape) * values.dtype.itemsize
    if nbytes > PROTOBUF_NBYTES:
        raise ModelError(
            f"{context}: sparse tensor {sparse.values.name!r} of shape {shape}: expected at most "
            f"{PROTOBUF_NBYTES} bytes as a dense tensor, got {nbytes}. Make it a dense tensor with "
            "external data."
        )
    try:
        dense = np.zeros(shape, values.dtype)
        flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
        dense.reshape(-1)[flat] = values
    except (ValueError, TypeError, IndexError, MemoryError) as error:
        raise ModelError(
            f"{context}: sparse tensor {sparse.values.name!r}: the contents do not match shape "
            f"{shape}: {error}. Export the model again."
        ) from error
    dense.setflags(write=False)
    return dense


def _external_array(tensor: onnx.TensorProto, label: str, file: Path | None) -> np.ndarray:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    label = f"{label} is in external file {location!r}"
    if tensor.data_type == TensorProto.STRING:
        raise ExternalDataError(f"{label}, but strings must be inline. Export the model again.")
    path = _external_path(location, label, file)
    dtype, shape = DTYPES[tensor.data_type], tuple(tensor.dims)
    count = math.prod(shape)
    expected = (count * _PACKED.get(tensor.data_type, dtype.itemsize * 8) + 7) // 8
    available = path.stat().st_size
    try:
        offset = int(entries.get("offset") or 0)
        nbytes = int(entries.get("length") or 0) or expected  # 0 also means "as many as needed"
    except ValueError as error:
        raise ExternalDataError(f"{label}; its offset or length is not a number.") from error
    if nbytes != expected:
        raise ExternalDataError(
            f"{label}: expected {expected} bytes for shape {shape} of {dtype}, got {nbytes}."
        )
    if offset < 0 or offset + nbytes > available:
        raise ExternalDataError(
            f"{label}: expected bytes {offset} to {offset + nbytes}, the file has {available}."
        )
    if not count:
        return np.zeros(shape, dtype)
    if tensor.data_type in _PACKED:
        packed_bytes = np.memmap(path, np.uint8, "r", offset, (nbytes,))
        inline = TensorProto(
            data_type=tensor.data_type, dims=shape, raw_data=packed_bytes.tobytes()
        )
        return numpy_helper.to_array(inline)
    array = np.memmap(path, dtype, "r", offset, shape or (1,)).reshape(shape)
    # Runtimes use the array's memory directly, and their vector instructions require alignment.
    return array if array.flags.aligned else array.copy()


def _external_path(location: str, label: str, file: Path | None) -> Path:
    """Return the path of an external data file in the folder of the model's file."""
    if file is None:
        raise ExternalDataError(
            f"{label}, but the model was not read from a file. Read the model by its path, or load "
            "its external data first (onnx.load_external_data_for_model)."
        )
    if "\0" in location:
        raise ExternalDataError(f"{label}, which is not a file name.")
    try:
        root, home = file.parent.resolve(), file.resolve().parent
        path = (root / location).resolve()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        raise ExternalDataError(f"{label}, which cannot be opened: {error}.") from error
    if path == root:
        raise ExternalDataError(f"{label}, which is not a file name in {root}.")
    # In a download cache, the model's folder contains links to files in another folder.
    normalized_path = Path(os.path.normpath(root / location))
    is_inside = path.is_relative_to(root) or path.parent == home
    if not (is_inside and normalized_path.is_relative_to(root)) or Path(location).is_absolute():
        raise ExternalDataError(
            f"{label}; expected a file inside the model's folder {root}. Move the file there."
        )
    if not is_file:
        problem = "is a folder" if is_folder else "does not exist"
        raise ExternalDataError(f"{label}, which {problem} in {root}.")
    return path
