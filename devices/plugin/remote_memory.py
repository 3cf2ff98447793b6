"""Remote memory: tensors that stay on a device, and the context that makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Final, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np

from hetero.devices.errors import TensorShapeError, UnsupportedOperationError
from hetero.devices.model.partial_shape import Shape
from hetero.devices.model.property_getter import getter


class _OnDevice(ABC):
    """What both have: a device's name, and nothing that an application could point at."""

    device: str

    def get_device_name(self) -> str:
        """Return `device`."""
        return self.device

    def get_params(self) -> dict[str, Any]:
        """Return no handles: a device's memory has no address in this process."""
        return {}


class RemoteTensor(_OnDevice):
    """A tensor in a device's memory.

    Attributes
    ----------
    device : str
        Whose memory it is in.
    shape : tuple of int
        Its shape.
    dtype : numpy.dtype
        Its element type.
    """

    #: Whether a request whose output it is leaves that where it is made, and has this mean it.
    by_reference: ClassVar[bool] = False
    shape: tuple[int, ...]
    dtype: np.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise self._unreadable()

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def data(self) -> NoReturn:
        """Refused: the host cannot see a device's memory."""
        raise self._unreadable()

    str_data = bytes_data = data

    def get_shape(self) -> Shape:
        """Return `shape`."""
        return Shape(self.shape)

    get_byte_size = getter(nbytes)

    def copy_to(self, target_tensor: Any) -> None:
        """Copy the elements to another tensor of the same type."""
        target_tensor.copy_from(self.to_host())

    def check_shape(self, array: np.ndarray | RemoteTensor) -> None:
        """Raise TensorShapeError if an array to be copied from has another shape."""
        if array.shape != self.shape:
            raise TensorShapeError(
                f"a tensor of {self.device} has shape {list(self.shape)}, got {list(array.shape)}; "
                "create one that fits."
            )

    def _unreadable(self) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            f"a tensor of {self.device} has no host data; copy it with to_host()."
        )

    @abstractmethod
    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""

    @abstractmethod
    def copy_from(self, array: np.ndarray) -> None:
        """Take over the contents of an array of the same shape and type."""


#: Whether values of a class are remote tensors; to ask an abstract class each time takes longer.
is_remote: Final[Callable[[Any], bool]] = cache(lambda kind: issubclass(kind, RemoteTensor))


class TensorBundle(ABC):
    """Tensors that one run left together in a device's memory, until nobody holds the bundle.

    Attributes
    ----------
    specs : mapping of str to (str, tuple of int)
        The element type and shape of each, by the output's name.
    """

    specs: Mapping[str, tuple[str, tuple[int, ...]]]

    @abstractmethod
    def tensor(self, name: str) -> RemoteTensor:
        """Return one of them as its user sees it."""


B = TypeVar("B", bound=TensorBundle)


class ResidentTensor(NamedTuple, Generic[B]):
    """One tensor of a bundle: an output, or an input, that stays where it is.

    There is one for each state and run, so it is no more than two references.
    """

    bundle: B
    name: str

    @property
    def tensor(self) -> RemoteTensor:
        """It, as its user sees it."""
        return self.bundle.tensor(self.name)


class RemoteContext(_OnDevice):
    """A device's memory, as an application sees it.

    Attributes
    ----------
    device : str
        The device's name.
    """

    def create_tensor(self, dtype: Any, shape: tuple[int, ...]) -> RemoteTensor:
        """Allocate a tensor on the device; contents are not defined."""
        return self.from_host(np.empty(shape, dtype))

    @abstractmethod
    def from_host(self, array: np.ndarray) -> RemoteTensor:
        """Copy an array to the device."""
