"""Model compiled for a GPU, and remote tensors in its memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from hetero.devices.gpu.backend import DeviceBackend
from hetero.devices.interpreter.program import InterpretedProgram
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.plugin.remote_memory import RemoteContext, RemoteTensor


class GPUTensor(RemoteTensor):
    """A tensor in a GPU's memory; programs of the same device read its `array`."""

    def __init__(self, context: GPUContext, array: Any) -> None:
        self.device = context.device
        self.array = array
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self._context = context

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        with self._context.activate():
            host: np.ndarray = self._context.backend.download(self.array)
        return host

    def copy_from(self, array: np.ndarray) -> None:
        """Overwrite the contents with an array; TensorShapeError if its shape differs."""
        self.check_shape(array)
        with self._context.activate():
            self.array[...] = self._context.backend.upload(array.astype(self.dtype, copy=False))
            self._context.backend.finish()


class GPUContext(RemoteContext):
    """The memory of one GPU."""

    def __init__(self, backend: DeviceBackend, device: str, device_id: str) -> None:
        self.device = device
        self.backend = backend
        self._device_id = device_id

    def activate(self) -> Any:
        """Make the device current for this thread in a `with` block."""
        return self.backend.activate(self._device_id)

    def from_host(self, array: np.ndarray) -> GPUTensor:
        """Copy an array to the device."""
        with self.activate():
            tensor = GPUTensor(self, self.backend.upload(array))
            self.backend.finish()
        return tensor


class GPUProgram(InterpretedProgram):
    """A model whose constants are in a GPU's memory.

    `device` is the device's full name and `device_id` its id. Each thread runs in its own stream.
    `on_close` is called once, when the program is closed or collected.
    """

    def __init__(
        self,
        model: Model,
        backend: DeviceBackend,
        device: str,
        device_id: str,
        on_close: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._device_id = device_id
        self._memory = GPUContext(backend, device, device_id)
        with backend.activate(device_id):
            super().__init__(model, backend)
            backend.finish()
        self._on_close = weakref.finalize(self, on_close)

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs; KernelError if a node's inputs violate its specification."""
        backend = self._backend
        with backend.activate(self._device_id):
            start_s = perf_counter()
            values = [
                value.array
                if isinstance(value, GPUTensor)
                else value
                if position in self._block.host_inputs
                else backend.upload(value)
                for position, value in enumerate(inputs)
            ]
            context.upload_s += perf_counter() - start_s
            with np.errstate(all="ignore"):
                outputs = self._block.run(values, context, profile=context.profile)
            backend.finish()
            start_s = perf_counter()
            results = [
                GPUTensor(self._memory, value)
                if position in context.resident_outputs and backend.is_on_device(value)
                else backend.download(value)
                for position, value in enumerate(outputs)
            ]
            context.download_s += perf_counter() - start_s
        return results

    def takes_remote(self, tensor: RemoteTensor) -> bool:
        """Return whether a tensor is in this device's memory."""
        return isinstance(tensor, GPUTensor) and tensor.device == self._memory.device

    def close(self) -> None:
        """Free the constants' memory, and remove the model's memory limit."""
        self._block.release()
        self._on_close()
