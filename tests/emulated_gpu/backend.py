"""The array backend of the emulated GPUs, and runs of single kernels on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from hetero.devices.gpu.backend import Captured, DeviceBackend
from hetero.devices.gpu.namespace import GPUNamespace
from hetero.devices.kernels import Kernel
from tests.emulated_gpu.array import DTYPES, WAITS, DeviceArray, contents_of
from tests.emulated_gpu.memory import MEMORY, TOTAL_NBYTES, Memory, MemoryPool
from tests.emulated_gpu.namespace import DEVICE, is_atomic

#: Copies of arrays: ``upload`` and ``download``.
COPIES: Final[Counter[str]] = Counter()
#: Releases of unused memory, by device.
RELEASES: Final[Counter[str]] = Counter()


class EmulatedBackend(DeviceBackend):
    """Array backend of two emulated devices."""

    def __init__(self) -> None:
        super().__init__("emulated", GPUNamespace(DEVICE))

    def to_device(self, array: np.ndarray) -> DeviceArray:
        MEMORY.check_not_capturing("a copy from the host")
        COPIES["upload"] += 1
        copy = array.copy()
        copy.setflags(write=array.flags.writeable)
        return DeviceArray(copy)

    def to_host(self, array: Any) -> np.ndarray:
        MEMORY.check_not_capturing("a copy to the host")
        COPIES["download"] += 1
        WAITS["download"] += 1
        return np.array(contents_of(array))

    def device_ids(self) -> tuple[str, ...]:
        return "0", "1"

    def describe(self, device_id: str) -> str:
        return "emulated GPU"

    def fingerprint(self, device_id: str) -> str:
        return f"emulated numpy {np.__version__}"

    def total_nbytes(self, device_id: str) -> int:
        return TOTAL_NBYTES

    def used_nbytes(self, device_id: str) -> int:
        return Memory.used_nbytes[int(device_id)]

    def make_pool(self, device_id: str, limit_nbytes: int) -> MemoryPool:
        return MemoryPool(limit_nbytes)

    def release_unused_memory(self, device_id: str) -> None:
        RELEASES[device_id] += 1

    def overwrite(self, array: Any, values: Any) -> None:
        if isinstance(values, np.ndarray):
            COPIES["upload"] += 1
            contents_of(array)[...] = values
        else:
            array[...] = values

    def capture(self, run: Callable[[], Captured]) -> tuple[Captured, Callable[[], None]]:
        with MEMORY.capture():
            captured: Any = run()

        def launch() -> None:
            COPIES["graph launch"] += 1
            with MEMORY.capture():
                again: Any = run()
            for array, values in zip(captured, again, strict=True):
                array[...] = values

        return captured, launch

    def activate(self, device_id: str, pool: Any = None) -> AbstractContextManager[None]:
        return MEMORY.activate(int(device_id), pool)


BACKEND: Final = EmulatedBackend()


def is_deterministic_on_device(
    kernel: Kernel, inputs: Sequence[Any], keywords: Mapping[str, Any], results: Sequence[Any]
) -> bool:
    """Return whether a GPU supports these arguments, and results do not depend on a random seed."""
    if "seed" in kernel.attributes and keywords.get("seed") is None:
        return False
    choices = _gpu_kernel(kernel).choices
    if any(keywords.get(name, valid[0]) not in valid for name, valid in choices.items()):
        return False
    if keywords.get("reduction", "none") != "none" and not is_atomic(inputs[0].dtype):
        return False
    values = [*inputs, *keywords.values(), *results]
    return all(map(_is_supported, values))


def run_on_device(kernel: Kernel, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Run a kernel, or the GPU's replacement of it, and return its results on the host."""
    result = BACKEND.function(_gpu_kernel(kernel), keywords, on_host=False)(*inputs)
    results = list(result) if isinstance(result, tuple) else [result]
    return [BACKEND.download(value) for value in results]


def _gpu_kernel(kernel: Kernel) -> Kernel:
    return BACKEND.find_kernel(kernel.domain, kernel.op_type, kernel.since) or kernel


def _is_supported(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_supported, value))
    return not callable(value) and (not hasattr(value, "dtype") or value.dtype in DTYPES)
