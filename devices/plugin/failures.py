"""What runtimes say when they fail: as errors of ours, without the places in their sources."""

from __future__ import annotations

import re
from typing import Final

from hetero.devices.errors import DeviceMemoryError, InferenceError

#: How ONNX Runtime, its providers' allocators, C++ and OpenVINO put it.
_NO_MEMORY: Final = re.compile(
    r"failed to allocate|cannot allocate|out of memory|out_of_memory|bad_alloc|"
    r"available memory of \d+ is smaller|not enough (device )?memory",
    re.IGNORECASE,
)
#: Codes, places in sources with the functions there, and advice to those who program.
_PLACES: Final = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |Exception from \S+:\d+:?\s*|"
    r"Check '.*' failed at \S+:?\s*|\S+\.(cc|h):\d+ .*[)\]] |"
    r"FrontEnd API failed with \w+:\s*|To facilitate the conversion of .*"
)


def reason_of(error: Exception) -> str:
    """Return what a runtime says, for people."""
    lines = [_PLACES.sub("", line.strip()) for line in str(error).splitlines()]
    return " ".join(" ".join(lines).split())[:300] or type(error).__name__


def run_failed(what: str, error: Exception) -> InferenceError:
    """Return the error of a run: DeviceMemoryError where memory was wanting.

    `what`: what failed, before the runtime's own words.
    """
    words = " ".join(str(error).split())
    kind = DeviceMemoryError if _NO_MEMORY.search(words) else InferenceError
    return kind(f"{what}: {words}")
