"""The backend of emulated GPUs, and running a single kernel on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from hetero.devices.gpu.backend import DeviceBackend
from hetero.devices.kernels import Kernel
from tests.emulated_gpu.array import DTYPES, WAITS, DeviceArray, contents_of
from tests.emulated_gpu.memory import MEMORY, TOTAL_NBYTES, Memory
from tests.emulated_gpu.namespace import DEVICE

#: Copies of arrays: ``upload`` and ``download``.
COPIES: Final[Counter[str]] = Counter()


class EmulatedBackend(DeviceBackend):
    """Two devices whose arrays the host cannot reach."""

    def __init__(self) -> None:
        super().__init__("emulated", DEVICE)

    def to_device(self, array: np.ndarray) -> DeviceArray:
        COPIES["upload"] += 1
        copy = array.copy()
        copy.setflags(write=array.flags.writeable)
        return DeviceArray(copy)

    def to_host(self, array: Any) -> np.ndarray:
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
        return Memory.held[int(device_id)]

    def bound_memory(self, device_id: str, nbytes: int) -> None:
        Memory.bounds[int(device_id)] = nbytes or TOTAL_NBYTES

    def working_on(self, device_id: str) -> AbstractContextManager[None]:
        return MEMORY.on(int(device_id))


BACKEND: Final = EmulatedBackend()


def runs_on_device(
    kernel: Kernel, inputs: Sequence[Any], keywords: Mapping[str, Any], results: Sequence[Any]
) -> bool:
    """Whether a GPU takes this, and gives the same: draws without a seed are new each time."""
    if "seed" in kernel.attributes and keywords.get("seed") is None:
        return False
    choices = _on_gpu(kernel).choices
    if any(keywords.get(name, valid[0]) not in valid for name, valid in choices.items()):
        return False
    values = [*inputs, *keywords.values(), *results]
    return all(map(_fits, values))


def run_on_device(kernel: Kernel, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Return what a kernel, or the GPU's own of its operator, gives, copied to the host."""
    result = BACKEND.function(_on_gpu(kernel), keywords, on_host=False)(*inputs)
    results = list(result) if isinstance(result, tuple) else [result]
    return [BACKEND.download(value) for value in results]


def _on_gpu(kernel: Kernel) -> Kernel:
    return BACKEND.find_kernel(kernel.domain, kernel.op_type, kernel.since) or kernel


def _fits(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_fits, value))
    return not callable(value) and (not hasattr(value, "dtype") or value.dtype in DTYPES)
