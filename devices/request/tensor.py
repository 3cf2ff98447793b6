"""`Tensor`: the contents of a port of a request, in shared or own memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hetero.devices.errors import ArgumentTypeError, TensorShapeError, TensorTypeError
from hetero.devices.model.element_type import Type, element_type_name
from hetero.devices.model.partial_shape import Shape
from hetero.devices.model.property_getter import getter
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteTensor

#: Types of contents that become arrays.
_ARRAY_TYPES: Final = (np.ndarray, np.generic, int, float, complex, str)
#: OpenVINO's names of the `data` argument, in the order of its positional arguments.
_DATA_NAMES: Final = ("port", "array", "image", "other")


class Tensor:
    """The contents of a port of a request, with the constructor forms of OpenVINO's Tensor.

    Parameters
    ----------
    data : array, list, image, element type, port, other tensor, or another value
        One of:

        - the contents;
        - an element type or a port, to allocate memory of `shape` or of the port's shape;
        - a tensor, to share the memory of the region from `begin` to `end`.

        OpenVINO's names `array`, `image`, `port`, `other` and `type` are also valid.
    shared_memory : bool, default False
        Whether the tensor uses the array itself instead of a copy. As a positional argument, it may
        also be `shape`, `begin`, or the array that follows a port.
    end : sequence of int, optional
        End of a region, exclusive: ``Tensor(image, [0, 8, 8, 0], [1, 24, 24, 3])``. As a positional
        argument, it may also be `type`.
    type : element type, optional
        Element type of new memory, or of a view of an array's memory.
    shape : sequence of int, optional
        Shape of new memory, or of a view of an array's memory.
    begin : sequence of int, optional
        Begin of a region.

    Raises
    ------
    TensorShapeError
        The region exceeds the tensor, or the memory is too small for the shape.
    TensorTypeError
        The memory cannot be shared, because the array contains text or is not contiguous.
    """

    __slots__ = ("_data", "_memory", "_shared")

    def __init__(
        self,
        data: Any = None,
        shared_memory: Any = False,
        end: Any = None,
        *,
        type: Any = None,
        shape: Any = None,
        begin: Any = None,
        **contents: Any,
    ) -> None:
        if unknown_names := contents.keys() - _DATA_NAMES:
            raise ArgumentTypeError(
                f"Tensor: unknown arguments {', '.join(sorted(unknown_names))}."
            )
        sources = [value for value in (data, *map(contents.get, _DATA_NAMES)) if value is not None]
        if len(sources) > 1 and not isinstance(sources[0], TensorSpec):
            raise ArgumentTypeError(
                f"Tensor: expected one of data, {', '.join(_DATA_NAMES)}; got several."
            )
        source, kind = (sources[0], type) if sources else (type, None)
        if len(sources) > 1:
            shape = sources[1]
        if not isinstance(shared_memory, bool):
            shape, shared_memory = shared_memory, False
        shape = begin if shape is None else shape
        self._shared = True
        self._data: Value = None
        #: The complete memory, if the current shape uses only a part of it.
        self._memory: np.ndarray | None = None
        if isinstance(source, Tensor):
            self._data = source.content() if shape is None else _region(source, shape, end)
        elif isinstance(source, TensorSpec):
            self._data, self._shared = _port_memory(source, shape), shape is not None
        elif shape is None:
            self._set_content(source, shared_memory)
        elif isinstance(source, np.ndarray):
            self._data = _view(source, shape, end if kind is None else kind)
        else:
            self._data, self._shared = _zeros(Type(source), shape), False

    def _set_content(self, value: Any, is_shared: bool) -> None:
        """Set the contents: share or copy arrays, copy text, and store other values unchanged."""
        if isinstance(value, list | tuple):
            self._data = _list_content(value)
            return
        if hasattr(value, "__array_interface__") and not isinstance(value, _ARRAY_TYPES):
            value, is_shared = np.asarray(value), False  # an image
        if not isinstance(value, _ARRAY_TYPES):
            self._data = value
            return
        array = np.asarray(value)
        if array.dtype.kind in "SUT":
            if is_shared and isinstance(value, np.ndarray):
                raise TensorTypeError(
                    "memory of text cannot be shared; pass shared_memory=False to copy it."
                )
            array, is_shared = as_text(array), True
        self._data = array if is_shared else np.array(array)
        self._shared = is_shared

    @property
    def data(self) -> Value:
        """The contents: an array that shares the tensor's memory, or another value.

        Raises
        ------
        UnsupportedOperationError
            The contents are in a device's memory.
        """
        return self._data.data if isinstance(self._data, RemoteTensor) else self._data

    @property
    def str_data(self) -> np.ndarray:
        """A copy of the text as an array of str (numpy's ``U``).

        Assign as many str or bytes as the tensor has elements.
        """
        return self._text().astype(str)

    @str_data.setter
    def str_data(self, texts: Any) -> None:
        content = self._text()
        new = as_text(np.asarray(texts))
        if new.size != content.size:
            raise TensorShapeError(
                f"expected {content.size} texts, one per element of the tensor; got {new.size}."
            )
        content[...] = new.reshape(content.shape)

    @property
    def bytes_data(self) -> np.ndarray:
        """A copy of the text as an array of UTF-8 bytes (numpy's ``S``); assign as `str_data`."""
        return np.char.encode(self.str_data, "utf-8")

    @bytes_data.setter
    def bytes_data(self, texts: Any) -> None:
        self.str_data = texts

    @property
    def shape(self) -> Shape:
        """The shape of an array, the length of a sequence."""
        return Shape(np.shape(self._data)) if self.is_array else Shape((len(self._data),))

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        self.set_shape(shape)

    @property
    def element_type(self) -> Type | str:
        """The element type, which equals its ONNX name; empty if the value is not a tensor."""
        return Type(element_type_name(self._data.dtype)) if self.is_array else ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """Size of the elements in bytes."""
        return int(self._data.nbytes) if self.is_array else 0

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbouring elements, along each axis."""
        return tuple(self._array().strides)

    @property
    def is_array(self) -> bool:
        """Whether the contents are one tensor, on the host or on a device."""
        return isinstance(self._data, np.ndarray | RemoteTensor)

    def is_continuous(self) -> bool:
        """Return whether the elements are contiguous in memory."""
        return bool(self._array().flags.c_contiguous)

    def set_shape(self, shape: Sequence[int]) -> None:
        """Change the shape.

        The elements stay in memory if the new shape fits. Otherwise the tensor allocates new
        memory, filled with zeros.

        Raises
        ------
        TensorShapeError
            The memory is shared and too small.
        """
        array, lengths = self._array(), _lengths(shape)
        memory = array if self._memory is None else self._memory
        if math.prod(lengths) > memory.size:
            if self._shared:
                raise TensorShapeError(
                    f"expected a shape of at most {memory.size} elements, the size of the shared "
                    f"memory; got {list(lengths)}. Create a tensor of that shape."
                )
            memory = _zeros(Type(element_type_name(array.dtype)), lengths)
        self._data, self._memory = _view(memory, lengths, None), memory

    def copy_from(self, source_tensor: Any) -> None:
        """Copy elements and shape of another tensor or array of the same type.

        Raises
        ------
        TensorTypeError
            The source has another element type.
        """
        content, array = self._array(), np.asarray(source_tensor)
        if content.dtype == object:
            array = as_text(array)
        if array.dtype != content.dtype:
            raise TensorTypeError(
                f"expected elements of {content.dtype}, got {array.dtype}; convert them with "
                f"array.astype({content.dtype})."
            )
        if array.shape != content.shape:
            self.set_shape(array.shape)
        np.copyto(self._array(), array)

    def copy_to(self, target_tensor: Tensor) -> None:
        """Copy elements and shape to another tensor of the same type."""
        target_tensor.copy_from(self.data)

    get_shape = getter(shape)
    get_element_type = getter(element_type)
    get_size = getter(size)
    get_byte_size = getter(byte_size)
    get_strides = getter(strides)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        kind = f"{self.element_type}{list(self.shape)}" if self.is_array else type(self._data)
        return f"<Tensor {kind}>"

    def replace(self, value: Value) -> None:
        """Replace the contents; all references to the tensor see the new contents."""
        self._data, self._memory = value, None

    def content(self) -> Value:
        """Return the contents on the host or on a device."""
        return self._data

    def _array(self) -> np.ndarray:
        content = self.data
        if not isinstance(content, np.ndarray):
            raise TensorTypeError(f"expected a tensor with an array, got {self!r}; use `data`.")
        return content

    def _text(self) -> np.ndarray:
        content = self._array()
        if content.dtype != object:
            raise TensorTypeError(f"expected a tensor of text, got {content.dtype}; use `data`.")
        return content


def as_array(value: Any) -> np.ndarray:
    """Return a value as an array that shares the value's memory if possible, also by DLPack."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except (TypeError, RuntimeError):  # device memory; DLPack may be able to copy it
            pass
    return np.from_dlpack(value, device="cpu")


def as_text(array: np.ndarray) -> np.ndarray:
    """Return an array of str or UTF-8 bytes as an array of str objects.

    Raises TensorTypeError for any other element.
    """
    try:
        items = [i.decode() if isinstance(i, bytes) else i for i in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise TensorTypeError(f"expected UTF-8 text, got other bytes: {error}.") from error
    invalid = [i for i in items if not isinstance(i, str)]
    if invalid:
        raise TensorTypeError(f"expected an array of str or bytes, got {invalid[0]!r}.")
    texts = np.empty(len(items), object)
    texts[:] = items
    return texts.reshape(array.shape)


def empty_tensor(spec: TensorSpec) -> Tensor:
    """Return a tensor of zeros for a port.

    Dynamic dimensions have length 0, and a dynamic rank is 1.
    """
    if not spec.is_tensor or spec.dtype is None or not spec.element_type:
        tensor = Tensor()
        tensor.replace([] if spec.type.startswith("seq(") else None)
        return tensor
    sizes = (0,) if spec.shape is None else spec.shape
    return Tensor(spec.element_type, [n if isinstance(n, int) else 0 for n in sizes])


def _zeros(kind: Type, shape: Sequence[int]) -> np.ndarray:
    lengths = _lengths(shape)
    try:
        if kind is Type.string:
            return np.full(lengths, "", object)
        return np.zeros(lengths, kind.to_dtype())  # unwritten pages do not occupy memory
    except (MemoryError, ValueError) as error:
        raise TensorShapeError(
            f"not enough memory for a tensor {kind}{list(lengths)}: {error}. Set a smaller shape "
            "with model.reshape(...)."
        ) from error


def _lengths(shape: Any) -> tuple[int, ...]:
    lengths = tuple(int(n) for n in Shape(shape))
    if any(n < 0 for n in lengths):
        raise TensorShapeError(f"expected axes of 0 or more elements, got {list(lengths)}.")
    return lengths


def _list_content(items: Sequence[Any]) -> Value:
    """Return a list as an array, or as a sequence if its items have different shapes."""
    try:
        array = np.asarray(items)
    except ValueError:
        return list(items)
    if array.dtype.kind in "SUT":
        return as_text(array)
    return list(items) if array.dtype == object else array


def _port_memory(port: TensorSpec, array: np.ndarray | None) -> np.ndarray:
    """Return memory for a port: new memory, or the memory of an array."""
    empty_array: np.ndarray = empty_tensor(port).data
    if array is None:
        return empty_array
    memory = np.asarray(array)
    if memory.dtype != empty_array.dtype or memory.size < empty_array.size:
        raise TensorShapeError(
            f"port {port.name!r}: expected an array of the type and at least the size of {port}, "
            f"got {memory.dtype}{list(memory.shape)}."
        )
    if memory.size > empty_array.size:
        warnings.warn(
            f"port {port.name!r} is {port}: the tensor uses the first {empty_array.size} of the "
            f"array's {memory.size} elements.",
            RuntimeWarning,
            stacklevel=4,
        )
    return _view(memory, empty_array.shape, None)


def _view(array: np.ndarray, shape: Sequence[int], kind: Any) -> np.ndarray:
    """Return a view of an array's memory, or of its beginning, with another shape and type."""
    lengths = _lengths(shape)
    dtype = array.dtype if kind is None or kind is Type.dynamic else Type(kind).to_dtype()
    if not array.flags.c_contiguous:
        raise TensorTypeError("expected a contiguous array; pass np.ascontiguousarray(array).")
    flat = array.reshape(-1)
    if dtype != array.dtype:
        flat = flat.view(np.uint8)
        flat = flat[: len(flat) // dtype.itemsize * dtype.itemsize].view(dtype)
    if math.prod(lengths) > flat.size:
        raise TensorShapeError(
            f"expected memory of {math.prod(lengths)} elements for {dtype}{list(lengths)}, got "
            f"{flat.size}."
        )
    return flat[: math.prod(lengths)].reshape(lengths)


def _region(tensor: Tensor, begin: Sequence[int], end: Sequence[int]) -> np.ndarray:
    """Return a view of a region of a tensor."""
    array = np.asarray(tensor.data)
    corners = [*zip(begin, end, array.shape, strict=False)]
    is_complete = len(begin) == len(end) == array.ndim
    if not is_complete or any(not 0 <= first <= last <= size for first, last, size in corners):
        raise TensorShapeError(
            f"expected a region within shape {list(array.shape)}, with one begin and one end per "
            f"dimension; got {list(begin)} to {list(end)}."
        )
    return array[tuple(slice(first, last) for first, last, _ in corners)]
