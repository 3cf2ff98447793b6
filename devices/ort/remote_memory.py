"""Device memory of execution providers: remote tensors, their context, and runs on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from hetero.devices.ort.runtime import onnxruntime
from hetero.devices.plugin.native_call import NativeCall
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteContext, RemoteTensor

#: Providers whose device has its own memory -> ONNX Runtime's name of that memory.
MEMORIES: Final = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
}


class OrtRemoteTensor(RemoteTensor):
    """A tensor in a provider's device memory, as an OrtValue."""

    def __init__(self, device: str, value: onnxruntime.OrtValue, dtype: np.dtype) -> None:
        self.device = device
        self.value = value
        self.shape = tuple(value.shape())
        self.dtype = dtype

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        return np.array(self.value.numpy())

    def copy_from(self, array: np.ndarray) -> None:
        """Overwrite the contents with an array of the same shape and type."""
        self.value.update_inplace(np.ascontiguousarray(array, self.dtype).reshape(self.shape))


class OrtContext(RemoteContext):
    """The memory of one device; `memory` is ONNX Runtime's name of it."""

    def __init__(self, device: str, memory: str) -> None:
        self.device = device
        self._memory = memory

    def create_tensor(self, dtype: Any, shape: tuple[int, ...]) -> OrtRemoteTensor:
        """Allocate a tensor with undefined contents on the device."""
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            list(shape), np.dtype(dtype), self._memory, 0
        )
        return OrtRemoteTensor(self.device, value, np.dtype(dtype))

    def from_host(self, array: np.ndarray) -> OrtRemoteTensor:
        """Copy an array to the device."""
        tensor = self.create_tensor(array.dtype, array.shape)
        tensor.copy_from(array)
        return tensor


def run_with_binding(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, Value], output_names: Sequence[str]
) -> list[np.ndarray]:
    """Run a session on inputs in host or device memory, and return its outputs on the host."""
    binding = session.io_binding()
    for name, value in feeds.items():
        if isinstance(value, OrtRemoteTensor):
            binding.bind_ortvalue_input(name, value.value)
        else:
            binding.bind_cpu_input(name, value)
    for name in output_names:
        binding.bind_output(name)
    with NativeCall():
        session.run_with_iobinding(binding)
    return [np.asarray(array) for array in binding.copy_outputs_to_cpu()]
