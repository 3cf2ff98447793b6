"""The NULL device's memory: on the host, and as hard to reach as a real device's."""

from __future__ import annotations

from typing import Any

import numpy as np

from devices.errors import TensorShapeError
from devices.plugin.remote import RemoteContext, RemoteTensor


class NullTensor(RemoteTensor):
    """A tensor on a NULL device that only copies go to and come from."""

    def __init__(self, device: str, contents: np.ndarray) -> None:
        self.device = device
        self._contents = np.array(contents)
        self.shape = self._contents.shape
        self.dtype = self._contents.dtype

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        return self._contents.copy()

    def copy_from(self, array: np.ndarray) -> None:
        """Take over an array's contents; TensorShapeError if its shape is another one."""
        if array.shape != self.shape:
            raise TensorShapeError(
                f"a tensor of {self.device} has shape {list(self.shape)}, got {list(array.shape)}; "
                "create one that fits."
            )
        self._contents[...] = array


class NullContext(RemoteContext):
    """The memory of one NULL device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def create_tensor(self, dtype: Any, shape: tuple[int, ...]) -> NullTensor:
        """Allocate a tensor."""
        return NullTensor(self.device, np.empty(shape, dtype))

    def from_host(self, array: np.ndarray) -> NullTensor:
        """Copy an array to the device."""
        return NullTensor(self.device, array)
