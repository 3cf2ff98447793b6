"""The tensor that a port of a request holds, with the memory it shares or owns."""

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

#: What a tensor holds as an array.
_ARRAYS: Final = (np.ndarray, np.generic, int, float, complex, str)
#: OpenVINO's names of the contents, after which an array may follow a port.
_NAMES: Final = ("port", "array", "image", "other")


class Tensor:
    """What a request holds for one port: the same object before and after a run.

    Parameters
    ----------
    data : array, list, image, element type, port, other tensor, or another value
        The contents; with a shape, the type of new memory; a port makes memory of its type and
        shape; with the corners of a region, the tensor whose memory is shared. Also under
        OpenVINO's names of it: `array`, `image`, `port`, `other`, and `type` without any of these.
    shared_memory : bool, default False
        Whether to hold the array itself rather than a copy of it. By position also `shape`,
        `begin`, or the array after a port.
    end : sequence of int, optional
        Where a region ends, exclusive: ``Tensor(image, [0, 8, 8, 0], [1, 24, 24, 3])``. By
        position also `type`.
    type : element type, optional
        Of new memory, or that an array's memory is seen as.
    shape : sequence of int, optional
        Of new memory, or that an array's memory is seen in.
    begin : sequence of int, optional
        Where a region begins.

    Raises
    ------
    TensorShapeError
        The region is not within the tensor, or the memory is too small for the shape.
    TensorTypeError
        Memory cannot be shared: text, or an array that is not contiguous.
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
        if unknown := contents.keys() - _NAMES:
            raise ArgumentTypeError(f"a tensor takes no {', '.join(sorted(unknown))}.")
        named = [given for given in (data, *map(contents.get, _NAMES)) if given is not None]
        if len(named) > 1 and not isinstance(named[0], TensorSpec):
            raise ArgumentTypeError("a tensor has one contents; got several, under several names.")
        held, kind = (named[0], type) if named else (type, None)
        if len(named) > 1:
            shape = named[1]
        if not isinstance(shared_memory, bool):
            shape, shared_memory = shared_memory, False
        shape = begin if shape is None else shape
        self._shared = True
        self._data: Value = None
        #: All of the memory, where a smaller shape shows less of it.
        self._memory: np.ndarray | None = None
        if isinstance(held, Tensor):
            self._data = held.held() if shape is None else _region(held, shape, end)
        elif isinstance(held, TensorSpec):
            self._data, self._shared = _of_port(held, shape), shape is not None
        elif shape is None:
            self._fill(held, shared_memory)
        elif isinstance(held, np.ndarray):
            self._data = _seen(held, shape, end if kind is None else kind)
        else:
            self._data, self._shared = _zeros(Type(held), shape), False

    def _fill(self, given: Any, shared: bool) -> None:
        """Hold a value: arrays shared or copied, text always copied, what is no array as it is."""
        if isinstance(given, list | tuple):
            self._data = _of_list(given)
            return
        if hasattr(given, "__array_interface__") and not isinstance(given, _ARRAYS):
            given, shared = np.asarray(given), False  # an image
        if not isinstance(given, _ARRAYS):
            self._data = given
            return
        array = np.asarray(given)
        if array.dtype.kind in "SUT":
            if shared and isinstance(given, np.ndarray):
                raise TensorTypeError(
                    "text is copied, it cannot be shared: use shared_memory=False."
                )
            array, shared = as_text(array), True
        self._data = array if shared else np.array(array)
        self._shared = shared

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
    def str_data(self) -> np.ndarray:
        """Text as an array of numpy's ``U``; a copy. Set: as many texts or bytes as elements."""
        return self._text().astype(str)

    @str_data.setter
    def str_data(self, texts: Any) -> None:
        held = self._text()
        new = as_text(np.asarray(texts))
        if new.size != held.size:
            raise TensorShapeError(
                f"the tensor has {held.size} elements, got {new.size} texts; give one for each."
            )
        held[...] = new.reshape(held.shape)

    @property
    def bytes_data(self) -> np.ndarray:
        """Text in UTF-8 as an array of numpy's ``S``; a copy. Set as `str_data`."""
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
        """The element type, which equals ONNX's word; empty if the value is not a tensor."""
        return Type(element_type_name(self._data.dtype)) if self.is_array else ""

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """How many bytes the elements take."""
        return int(self._data.nbytes) if self.is_array else 0

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, along each axis."""
        return tuple(self._array().strides)

    @property
    def is_array(self) -> bool:
        """Whether the contents are one tensor, here or on a device."""
        return isinstance(self._data, np.ndarray | RemoteTensor)

    def is_continuous(self) -> bool:
        """Return whether the elements lie one after the other in memory."""
        return bool(self._array().flags.c_contiguous)

    def set_shape(self, shape: Sequence[int]) -> None:
        """Give the tensor another shape.

        As many as the memory has stay in it. For more the tensor gets memory of its own, of zeros.

        Raises
        ------
        TensorShapeError
            The memory is another's and is too small.
        """
        held, wanted = self._array(), _lengths(shape)
        memory = held if self._memory is None else self._memory
        if math.prod(wanted) > memory.size:
            if self._shared:
                raise TensorShapeError(
                    f"shape {list(wanted)} failed: the memory is shared and holds {memory.size} "
                    "elements. Make a tensor of that shape."
                )
            memory = _zeros(Type(element_type_name(held.dtype)), wanted)
        self._data, self._memory = _seen(memory, wanted, None), memory

    def copy_from(self, source_tensor: Any) -> None:
        """Copy the elements, and the shape, of another tensor or array of the same type.

        Raises
        ------
        TensorTypeError
            The source has another element type.
        """
        held, array = self._array(), np.asarray(source_tensor)
        if held.dtype == object:
            array = as_text(array)
        if array.dtype != held.dtype:
            raise TensorTypeError(
                f"a tensor of {held.dtype} cannot take elements of {array.dtype}; convert them "
                f"with array.astype({held.dtype})."
            )
        if array.shape != held.shape:
            self.set_shape(array.shape)
        np.copyto(self._array(), array)

    def copy_to(self, target_tensor: Tensor) -> None:
        """Copy the elements, and the shape, to another tensor of the same type."""
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
        """Hold `value` instead; who has the tensor sees it."""
        self._data, self._memory = value, None

    def held(self) -> Value:
        """Return the contents as they are, on whatever device."""
        return self._data

    def _array(self) -> np.ndarray:
        held = self.data
        if not isinstance(held, np.ndarray):
            raise TensorTypeError(f"{self!r} is no array; its contents are in `data`.")
        return held

    def _text(self) -> np.ndarray:
        held = self._array()
        if held.dtype != object:
            raise TensorTypeError(
                f"the tensor is {held.dtype}, not text; its contents are in `data`."
            )
        return held


def array_of(value: Any) -> np.ndarray:
    """Return a value as an array, on its memory where it has some: also by DLPack."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except (TypeError, RuntimeError):  # in memory of a device; DLPack may bring it here
            pass
    return np.from_dlpack(value, device="cpu")


def as_text(array: np.ndarray) -> np.ndarray:
    """Return text, or its bytes in UTF-8, as an array of str objects.

    TensorTypeError if an element is neither.
    """
    try:
        items = [i.decode() if isinstance(i, bytes) else i for i in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise TensorTypeError(f"wanted strings, got bytes that are not UTF-8: {error}.") from error
    wrong = [i for i in items if not isinstance(i, str)]
    if wrong:
        raise TensorTypeError(f"wanted strings, got {wrong[0]!r}; give an array of str or bytes.")
    out = np.empty(len(items), object)
    out[:] = items
    return out.reshape(array.shape)


def empty_tensor(spec: TensorSpec) -> Tensor:
    """Return a tensor of zeros for a port; open dimensions are 0 long, and an open rank is 1."""
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
        return np.zeros(lengths, kind.to_dtype())  # pages that nobody writes take no memory
    except (MemoryError, ValueError) as error:
        raise TensorShapeError(
            f"no memory for a tensor {kind}{list(lengths)}: {error}. Give the model a shape that "
            "fits, with model.reshape(...)."
        ) from error


def _lengths(shape: Any) -> tuple[int, ...]:
    lengths = tuple(int(n) for n in Shape(shape))
    if any(n < 0 for n in lengths):
        raise TensorShapeError(f"shape {list(lengths)}: a tensor's axes have 0 elements or more.")
    return lengths


def _of_list(items: Sequence[Any]) -> Value:
    try:
        array = np.asarray(items)
    except ValueError:  # items of many shapes: a sequence
        return list(items)
    if array.dtype.kind in "SUT":
        return as_text(array)
    return list(items) if array.dtype == object else array


def _of_port(port: TensorSpec, array: np.ndarray | None) -> np.ndarray:
    """Return memory for a port: an array's where one is given."""
    empty: np.ndarray = empty_tensor(port).data
    if array is None:
        return empty
    held = np.asarray(array)
    if held.dtype != empty.dtype or held.size < empty.size:
        raise TensorShapeError(
            f"port {port.name!r} wants {port}, got {held.dtype}{list(held.shape)}, smaller "
            "or of another type."
        )
    if held.size > empty.size:
        warnings.warn(
            f"port {port.name!r} is {port}: the tensor has the first {empty.size} of the array's "
            f"{held.size} elements.",
            RuntimeWarning,
            stacklevel=4,
        )
    return _seen(held, empty.shape, None)


def _seen(array: np.ndarray, shape: Sequence[int], kind: Any) -> np.ndarray:
    """Return an array's memory, or the beginning of it, under another shape and type."""
    lengths = _lengths(shape)
    dtype = array.dtype if kind is None or kind is Type.dynamic else Type(kind).to_dtype()
    if not array.flags.c_contiguous:
        raise TensorTypeError("the array is not contiguous: np.ascontiguousarray(array) is.")
    flat = array.reshape(-1)
    if dtype != array.dtype:
        flat = flat.view(np.uint8)
        flat = flat[: len(flat) // dtype.itemsize * dtype.itemsize].view(dtype)
    if math.prod(lengths) > flat.size:
        raise TensorShapeError(
            f"{dtype}{list(lengths)} needs {math.prod(lengths)} elements; the memory has "
            f"{flat.size}."
        )
    return flat[: math.prod(lengths)].reshape(lengths)


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
