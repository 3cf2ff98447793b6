"""ONNX's tensors as arrays: contents inside, or in a file beside the model."""

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

#: Element types that files hold packed, with their widths in bits.
_PACKED: Final = {TYPE_NUMBERS[name]: bits for name, bits in NARROW_BITS.items()}
#: protobuf refuses messages of 2 GiB and more.
PROTOBUF_NBYTES: Final = 2**31 - 1


def tensor_array(
    tensor: onnx.TensorProto, where: str = "the model", file: Path | None = None
) -> np.ndarray:
    """Return a tensor's contents, read-only; those in a file are memory-mapped.

    `where` says in errors what it is part of; beside the model's `file` are those with contents,
    which must be inside the tensor without it. ModelError for an element type that ONNX does not
    define, or contents that do not fit; ExternalDataError for a file that is missing, short,
    outside the model's folder, or cannot hold such elements.
    """
    what = f"{where}: tensor {tensor.name!r}"
    shape = tuple(tensor.dims)
    check_tensor(tensor, where)
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = _external(tensor, what, file)
        else:
            array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"{what}, shape {shape} of {DTYPES[tensor.data_type]}, is damaged: {error}. Export "
            "the model again."
        ) from error
    array.setflags(write=False)
    return array


def check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    """Check a tensor's name, element type and shape, not its contents, or raise ModelError."""
    check_text((tensor.name,), where)
    if tensor.data_type not in DTYPES:
        raise ModelError(
            f"{where}: tensor {tensor.name!r} has element type {tensor.data_type}, which ONNX does "
            "not define. Export the model again."
        )
    if min(tensor.dims, default=0) < 0:
        raise ModelError(
            f"{where}: tensor {tensor.name!r} has shape {tuple(tensor.dims)}; sizes are not "
            "negative."
        )


def dense_array(
    sparse: onnx.SparseTensorProto, where: str = "the model", file: Path | None = None
) -> np.ndarray:
    """Return a sparse tensor as a dense array; its indices are flat, or one row for each value.

    Arguments and errors are those of `tensor_array`; indices outside the shape are a ModelError.
    """
    values = tensor_array(sparse.values, where, file)
    indices = tensor_array(sparse.indices, where, file)
    shape = tuple(sparse.dims)
    nbytes = math.prod(shape) * values.dtype.itemsize
    if nbytes > PROTOBUF_NBYTES:
        raise ModelError(
            f"{where}: sparse tensor {sparse.values.name!r} of shape {shape} has {nbytes} bytes "
            f"when it is dense, {PROTOBUF_NBYTES} at most are taken. Make it a dense tensor."
        )
    try:
        dense = np.zeros(shape, values.dtype)
        places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
        dense.reshape(-1)[places] = values
    except (ValueError, TypeError, IndexError, MemoryError) as error:
        raise ModelError(
            f"{where}: sparse tensor {sparse.values.name!r} of shape {shape} is damaged: {error}. "
            "Export the model again."
        ) from error
    dense.setflags(write=False)
    return dense


def _external(tensor: onnx.TensorProto, what: str, file: Path | None) -> np.ndarray:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    what = f"{what} lies in external file {location!r}"
    if tensor.data_type == TensorProto.STRING:
        raise ExternalDataError(f"{what}, but strings are never outside. Export the model again.")
    path = _file(location, what, file)
    dtype, shape = DTYPES[tensor.data_type], tuple(tensor.dims)
    count = math.prod(shape)
    wanted = (count * _PACKED.get(tensor.data_type, dtype.itemsize * 8) + 7) // 8
    available = path.stat().st_size
    try:
        offset = int(entries.get("offset") or 0)
        nbytes = int(entries.get("length") or wanted)
    except ValueError as error:
        raise ExternalDataError(f"{what}; its offset or length is not a number.") from error
    if nbytes != wanted:
        raise ExternalDataError(
            f"{what}: {nbytes} bytes there, {wanted} wanted for shape {shape} of {dtype}."
        )
    if offset < 0 or offset + nbytes > available:
        raise ExternalDataError(
            f"{what}: bytes {offset} to {offset + nbytes} are wanted, the file has {available}."
        )
    if not count:
        return np.zeros(shape, dtype)
    if tensor.data_type in _PACKED:
        packed = np.memmap(path, np.uint8, "r", offset, (nbytes,))
        inside = TensorProto(data_type=tensor.data_type, dims=shape, raw_data=packed.tobytes())
        return numpy_helper.to_array(inside)
    array = np.memmap(path, dtype, "r", offset, shape or (1,)).reshape(shape)
    # Runtimes take an array's address as it is, and their vector instructions want it aligned.
    return array if array.flags.aligned else array.copy()


def _file(location: str, what: str, file: Path | None) -> Path:
    """Return what is at `location` in the folder of the model's file; refuse any other."""
    if file is None:
        raise ExternalDataError(
            f"{what}, but there is no folder to look in. Read the model by its path, or load its "
            "external data first (onnx.load_external_data_for_model)."
        )
    if "\0" in location:
        raise ExternalDataError(f"{what}, which does not name a file.")
    try:
        root, home = file.parent.resolve(), file.resolve().parent
        path = (root / location).resolve()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        raise ExternalDataError(f"{what}, which cannot be opened: {error}.") from error
    if path == root:
        raise ExternalDataError(f"{what}, which does not name a file in {root}.")
    # A download cache has links in that folder, to where the model's own file really is.
    named = Path(os.path.normpath(root / location))
    is_inside = path.is_relative_to(root) or path.parent == home
    if not (is_inside and named.is_relative_to(root)) or Path(location).is_absolute():
        raise ExternalDataError(
            f"{what}, outside the model's folder {root}; refused. Keep a model's files together."
        )
    if not is_file:
        fault = "is a folder" if is_folder else "does not exist"
        raise ExternalDataError(f"{what}, which {fault} in {root}.")
    return path
