"""Tensors of a request: the holder that a port keeps, and the checks that its contents pass."""

from __future__ import annotations

import copy as copying
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from devices.errors import TensorShapeError, TensorTypeError
from devices.model.element_type import element_type
from devices.model.tensor_spec import EXTENDED_DTYPES, TensorSpec, element_type_name
from devices.plugin.program import Value
from devices.plugin.remote import RemoteTensor

#: Kind of element -> the kinds it may become.
_CASTABLE: Final = {"b": "bif", "i": "if", "f": "fc", "c": "c"}


#: What numpy reads into memory of its own; all else may share its memory with the array.
_ALWAYS_READ: Final = (list, tuple, int, float, complex, str, bytes)
#: What a tensor holds as an array.
_ARRAYS: Final = (np.ndarray, np.generic, int, float, complex, str)


class Tensor:
    """What a request holds for one port: the same object before and after a run.

    Parameters
    ----------
    data : array, another value, an element type, or another tensor
        Its contents; with a shape, what the elements of new memory are; with the corners of a
        region, the tensor whose memory is shared.
    shared_memory : bool or sequence of int
        Whether to hold `data` itself rather than a copy; or the shape of a tensor of zeros; or
        where the region begins, as ``Tensor(image, [0, 8, 8, 0], [1, 24, 24, 3])``.
    end : sequence of int, optional
        Where the region ends, exclusive.

    Raises
    ------
    TensorShapeError
        The region is not within the tensor.
    """

    __slots__ = ("_data",)

    def __init__(
        self,
        data: Any,
        shared_memory: bool | Sequence[int] = False,
        end: Sequence[int] | None = None,
    ) -> None:
        if end is not None and not isinstance(shared_memory, bool):
            data, shared_memory = _region(data, shared_memory, end), True
        if isinstance(data, Tensor):
            data = data.data
        if not isinstance(shared_memory, bool):
            kind = f"tensor({element_type(data)})"
            data, shared_memory = empty_tensor(TensorSpec("", kind, (*shared_memory,))).data, True
        if isinstance(data, _ARRAYS):
            data = np.asarray(data) if shared_memory else np.array(data)
        self._data: Value = data

    @property
    def data(self) -> Value:
        """The contents: an array that shares the tensor's memory, or the value as it is.

        Raises
        ------
        UnsupportedOperationError
            If the contents are in a device's memory.
        """
        return self._data.data if isinstance(self._data, RemoteTensor) else self._data

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an array, the length of a sequence."""
        return tuple(np.shape(self._data)) if self.is_array else (len(self._data),)

    @property
    def element_type(self) -> str:
        """ONNX's name of the element type; empty if the value is not a tensor."""
        return element_type_name(self._data.dtype) if self.is_array else ""

    @property
    def size(self) -> int:
        """How many elements there are."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def byte_size(self) -> int:
        """How many bytes the elements take."""
        return int(self._data.nbytes) if self.is_array else 0

    @property
    def is_array(self) -> bool:
        """Whether the contents are one tensor, here or on a device."""
        return isinstance(self._data, np.ndarray | RemoteTensor)

    def get_shape(self) -> tuple[int, ...]:
        """Return `shape`."""
        return self.shape

    def get_element_type(self) -> str:
        """Return `element_type`."""
        return self.element_type

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        kind = f"{self.element_type}{list(self.shape)}" if self.is_array else type(self._data)
        return f"<Tensor {kind}>"

    def replace(self, value: Value) -> None:
        """Hold `value` instead; who has the tensor sees it."""
        self._data = value

    def held(self) -> Value:
        """Return the contents as they are, on whatever device."""
        return self._data


def _region(tensor: Tensor, begin: Sequence[int], end: Sequence[int]) -> np.ndarray:
    """Return a view of a part of a tensor."""
    array = np.asarray(tensor.data)
    corners = [*zip(begin, end, array.shape, strict=False)]
    whole = len(begin) == len(end) == array.ndim
    if not whole or any(not 0 <= first <= last <= size for first, last, size in corners):
        raise TensorShapeError(
            f"a tensor of shape {list(array.shape)} has no region from {list(begin)} to "
            f"{list(end)}; give both corners, a number for each dimension."
        )
    return array[tuple(slice(first, last) for first, last, _ in corners)]


def empty_tensor(spec: TensorSpec) -> Tensor:
    """Return a tensor of zeros for a port; open dimensions are 0 long, and an open rank is 1."""
    if not spec.is_tensor or spec.dtype is None:
        return Tensor([] if spec.type.startswith("seq(") else None, shared_memory=True)
    sizes = (0,) if spec.shape is None else spec.shape
    shape = tuple(size if isinstance(size, int) else 0 for size in sizes)
    if spec.dtype == object:
        return Tensor(np.full(shape, "", dtype=object), shared_memory=True)
    return Tensor(np.zeros(shape, spec.dtype), shared_memory=True)


def check_tensor(value: Any, spec: TensorSpec, role: str) -> Value:
    """Return `value` if it fits the port exactly, without any conversion: for shared memory.

    Raises
    ------
    TensorTypeError, TensorShapeError
        Naming the port, what it has and what was given.
    """
    if value is None:
        raise TensorTypeError(
            f"{role} {spec.name!r} wants {spec}, got None; give an array.", port=spec.name
        )
    if not spec.is_tensor:
        return value
    array = value if isinstance(value, np.ndarray | RemoteTensor) else _read(value, spec, role)
    if array.dtype != spec.dtype and not (spec.dtype == object and array.dtype.kind in "UST"):
        raise TensorTypeError(
            f"{role} {spec.name!r} is {spec}, got dtype {array.dtype}; memory that is shared is "
            f"not converted. Give array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    _check_shape(array, spec, role)
    return array


def convert(value: Any, spec: TensorSpec, *, copy: bool) -> Value:
    """Return `value` as a run wants it: native, dense, of the port's type and shape.

    Numbers and lists take the port's type; arrays are cast where the kind of number stays and
    no value becomes another, rounding apart: another integer that holds every value, another
    float or an integer as a float, in which no number becomes infinite.

    An array is whatever has ``__array__``, a buffer, or ``__dlpack__``. With `copy` the result
    shares no memory with `value`.

    Raises TensorTypeError, TensorShapeError: naming the port, what it wants, what was given and
    how to fix it.
    """
    if isinstance(value, Tensor):
        value = value.held()
    if type(value) is np.ndarray:
        dtype = spec.dtype
        if (
            dtype is not None
            and value.dtype == dtype
            and not dtype.hasobject
            and (value.shape == spec.shape or spec.accepts(value.shape))
            and value.flags.c_contiguous
        ):
            return value.copy() if copy else value
    elif isinstance(value, RemoteTensor):
        return check_tensor(value, spec, "input")
    if spec.type.startswith("optional("):
        inner = TensorSpec(spec.name, spec.type[len("optional(") : -1], spec.shape)
        return None if value is None else convert(value, inner, copy=copy)
    if spec.type.startswith("seq("):
        return _sequence(value, spec, copy)
    if not spec.is_tensor or spec.dtype is None:
        return copying.deepcopy(value) if copy else value
    if value is None:
        raise TensorTypeError(
            f"input {spec.name!r} wants {spec}, got None; give an array.", port=spec.name
        )
    read = _read(value, spec, "input")
    array = _cast(read, spec, from_array=hasattr(value, "dtype"))
    _check_shape(array, spec, "input")
    # np.ascontiguousarray would make a scalar one-dimensional.
    dense = np.asarray(array, order="C")
    if copy and not isinstance(value, _ALWAYS_READ) and np.may_share_memory(dense, read):
        dense = dense.copy()
    return dense


def _sequence(value: Any, spec: TensorSpec, copy: bool) -> Value:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TensorTypeError(
            f"input {spec.name!r} wants {spec.type}, got {type(value).__name__}; give a list.",
            port=spec.name,
        )
    inner = spec.type[len("seq(") : -1]
    return [
        convert(item, TensorSpec(f"{spec.name}[{i}]", inner), copy=copy)
        for i, item in enumerate(value)
    ]


def _read(value: Any, spec: TensorSpec, role: str) -> np.ndarray:
    """Return a value as an array, sharing its memory where it has some."""
    try:
        return _array(value)
    except ValueError as error:
        raise TensorShapeError(
            f"{role} {spec.name!r} wants {spec}, got a nested list that is not an array: {error}.",
            port=spec.name,
        ) from error
    except (TypeError, RuntimeError, BufferError) as error:
        raise TensorTypeError(
            f"{role} {spec.name!r} wants {spec}, got a {type(value).__name__} that numpy cannot "
            f"read: {error}. Give a copy in the host's memory.",
            port=spec.name,
        ) from error


def _array(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except (TypeError, RuntimeError):  # in memory of a device; DLPack may bring it here
            pass
    return np.from_dlpack(value, device="cpu")


def _cast(array: np.ndarray, spec: TensorSpec, *, from_array: bool) -> np.ndarray:
    dtype = spec.dtype
    assert dtype is not None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == dtype and dtype.kind != "O":
        return array
    if dtype.kind == "O":
        return _strings(array, spec)
    got, want = _kind(array.dtype), _kind(dtype)
    if array.size == 0 and not from_array:  # an empty list is of no type
        return array.astype(dtype)
    if want not in _CASTABLE.get(got, ""):
        raise TensorTypeError(
            f"input {spec.name!r} wants {spec}, got dtype {array.dtype}, which would lose what it "
            f"says. If that is meant, give array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if not np.can_cast(array.dtype, dtype) and not _holds(cast, array, want):
        raise TensorTypeError(
            f"input {spec.name!r} wants {spec}, got dtype {array.dtype} with values that "
            f"{dtype} cannot hold. If that is meant, give array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    return cast


def _holds(cast: np.ndarray, array: np.ndarray, kind: str) -> bool:
    """Whether a cast to a kind of number kept each value, but for rounding."""
    if kind == "i":
        same_sign = np.array_equal(cast < 0, array < 0)
        return same_sign and np.array_equal(cast.astype(array.dtype), array)
    finite = np.isfinite(cast)
    return bool(finite.all()) or np.array_equal(finite, np.isfinite(array))


def _strings(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype.kind == "S" or array.dtype == object:
        try:
            items = [i.decode() if isinstance(i, bytes) else i for i in array.ravel().tolist()]
        except UnicodeDecodeError as error:
            raise TensorTypeError(
                f"input {spec.name!r} wants strings, got bytes that are not UTF-8: {error}.",
                port=spec.name,
            ) from error
        wrong = [i for i in items if not isinstance(i, str)][:1]
        if not wrong:
            out = np.empty(len(items), object)
            out[:] = items
            return out.reshape(array.shape)
    else:
        wrong = [array.dtype]
    raise TensorTypeError(
        f"input {spec.name!r} wants strings, got {wrong[0]!r}; give an array of str.",
        port=spec.name,
    )


def _kind(dtype: np.dtype) -> str:
    if dtype in EXTENDED_DTYPES:
        return "i" if dtype.name.startswith(("int", "uint")) else "f"
    return "i" if dtype.kind == "u" else dtype.kind


def _check_shape(array: np.ndarray | RemoteTensor, spec: TensorSpec, role: str) -> None:
    if not spec.accepts(array.shape):
        same_rank = len(array.shape) == len(spec.shape or ())
        fix = "reshape it" if same_rank else "give it every dimension"
        raise TensorShapeError(
            f"{role} {spec.name!r} wants {spec}, got shape {list(array.shape)}; {fix}, as in "
            "array.reshape(...) or array[None].",
            port=spec.name,
        )


def _dtype_text(spec: TensorSpec) -> str:
    assert spec.dtype is not None
    if spec.dtype == object:
        return "object"
    return f"ml_dtypes.{spec.dtype}" if spec.dtype in EXTENDED_DTYPES else f"numpy.{spec.dtype}"
