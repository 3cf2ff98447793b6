"""What runtimes say when a run fails, as errors of ours."""

from __future__ import annotations

import re
from typing import Final

from devices.errors import DeviceMemoryError, InferenceError

#: How ONNX Runtime, its providers' allocators, C++ and OpenVINO put it.
_NO_MEMORY: Final = re.compile(
    r"failed to allocate|cannot allocate|out of memory|out_of_memory|bad_alloc|"
    r"available memory of \d+ is smaller|not enough (device )?memory",
    re.IGNORECASE,
)


def run_failed(what: str, error: Exception) -> InferenceError:
    """Return the error of a run: DeviceMemoryError where memory was wanting.

    `what`: what failed, before the runtime's own words.
    """
    words = " ".join(str(error).split())
    kind = DeviceMemoryError if _NO_MEMORY.search(words) else InferenceError
    return kind(f"{what}: {words}")
