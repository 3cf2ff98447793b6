"""Remote memory: tensors in the memory of a device, and the context that allocates them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Final, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np

from hetero.devices.errors import ArgumentError, TensorShapeError, UnsupportedOperationError
from hetero.devices.model.partial_shape import Shape
from hetero.devices.model.property_getter import getter


class _DeviceObject(ABC):
    """Base of objects in the memory of a device."""

    device: str

    def get_device_name(self) -> str:
        """Return `device`."""
        return self.device

    def get_params(self) -> dict[str, Any]:
        """Return an empty dict: device memory has no handles in this process."""
        return {}


class RemoteTensor(_DeviceObject):
    """A tensor in a device's memory.

    Attributes
    ----------
    device : str
        The device's name.
    shape : tuple of int
        The shape.
    dtype : numpy.dtype
        The element type.
    """

    #: As an output tensor of a request: whether the tensor then refers to the device's output, as
    #: opposed to receiving a copy.
    by_reference: ClassVar[bool] = False
    shape: tuple[int, ...]
    dtype: np.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise self._unreadable_error()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def data(self) -> NoReturn:
        """Raise UnsupportedOperationError: the host cannot read device memory directly."""
        raise self._unreadable_error()

    str_data = bytes_data = data

    def get_shape(self) -> Shape:
        """Return `shape`."""
        return Shape(self.shape)

    get_byte_size = getter(nbytes)

    def copy_to(self, target_tensor: Any) -> None:
        """Copy the elements to another tensor of the same type."""
        target_tensor.copy_from(self.to_host())

    def check_shape(self, array: np.ndarray | RemoteTensor) -> None:
        """Raise TensorShapeError if the source of a copy has another shape."""
        if array.shape != self.shape:
            raise TensorShapeError(
                f"copy to a tensor of {self.device}: expected shape {list(self.shape)}, got "
                f"{list(array.shape)}. Create a tensor of that shape."
            )

    def _unreadable_error(self) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            f"the host cannot read a tensor of {self.device} directly; copy it with to_host()."
        )

    @abstractmethod
    def to_host(self) -> np.ndarray:
        """Return a copy of the elements in host memory."""

    @abstractmethod
    def copy_from(self, array: np.ndarray) -> None:
        """Copy the elements of an array of the same shape and type into the tensor."""


#: Returns whether a class is a remote tensor; cached, because checks of abstract classes are slow.
is_remote: Final[Callable[[Any], bool]] = cache(lambda kind: issubclass(kind, RemoteTensor))


class TensorBundle(ABC):
    """Resident outputs of one run; the device frees them together, when the bundle is released.

    Attributes
    ----------
    specs : mapping of str to (str, tuple of int)
        Output name -> element type and shape.
    """

    specs: Mapping[str, tuple[str, tuple[int, ...]]]

    @abstractmethod
    def tensor(self, name: str) -> RemoteTensor:
        """Return a tensor of the bundle as a RemoteTensor."""


B = TypeVar("B", bound=TensorBundle)


class ResidentTensor(NamedTuple, Generic[B]):
    """Reference to one tensor of a bundle.

    Every run creates one for each state, so it only consists of two references.
    """

    bundle: B
    name: str

    @property
    def tensor(self) -> RemoteTensor:
        """The tensor as a RemoteTensor."""
        return self.bundle.tensor(self.name)


class RemoteContext(_DeviceObject):
    """An application's access to the memory of a device.

    Attributes
    ----------
    device : str
        The device's name.
    """

    def check_owner(self, own_context: RemoteContext) -> None:
        """Raise ArgumentError: a plugin's own context belongs to no Core."""
        raise ArgumentError(
            f"context of {self.device}: expected a context of this Core, got one of the plugin; "
            f"create it with core.create_context({self.device!r})."
        )

    def create_tensor(self, dtype: Any, shape: tuple[int, ...]) -> RemoteTensor:
        """Allocate an uninitialized tensor on the device."""
        return self.from_host(np.empty(shape, dtype))

    @abstractmethod
    def from_host(self, array: np.ndarray) -> RemoteTensor:
        """Copy an array to the device."""
