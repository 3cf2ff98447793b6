"""A GPU's memory, as an application sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

from devices.errors import TensorShapeError
from devices.gpu.backend import DeviceBackend
from devices.plugin.remote import RemoteContext, RemoteTensor


class GPUTensor(RemoteTensor):
    """An array in a device's memory; `array` is for programs of the same device."""

    def __init__(self, context: GPUContext, array: Any) -> None:
        self.device = context.device
        self.array = array
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self._context = context

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        with self._context.working():
            host: np.ndarray = self._context.backend.download(self.array)
        return host

    def copy_from(self, array: np.ndarray) -> None:
        """Take over an array's contents; TensorShapeError if its shape is another one."""
        if array.shape != self.shape:
            raise TensorShapeError(
                f"a tensor of {self.device} has shape {list(self.shape)}, got {list(array.shape)}; "
                "create one that fits."
            )
        with self._context.working():
            self.array[...] = self._context.backend.upload(array.astype(self.dtype, copy=False))
            self._context.backend.finish()


class GPUContext(RemoteContext):
    """The memory of one GPU."""

    def __init__(self, backend: DeviceBackend, device: str, device_id: str) -> None:
        self.device = device
        self.backend = backend
        self._device_id = device_id

    def working(self) -> Any:
        """Return what makes the device this thread's, while inside."""
        return self.backend.working_on(self._device_id)

    def create_tensor(self, dtype: Any, shape: tuple[int, ...]) -> GPUTensor:
        """Allocate a tensor."""
        return self.from_host(np.empty(shape, dtype))

    def from_host(self, array: np.ndarray) -> GPUTensor:
        """Copy an array to the device."""
        with self.working():
            tensor = GPUTensor(self, self.backend.upload(array))
            self.backend.finish()
        return tensor
