"""Release of heap memory that compilations have freed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: Growth of the process in bytes above which memory is released; that takes milliseconds.
MIN_GROWTH_NBYTES: Final = 2_000_000


@contextmanager
def releases_free_memory() -> Iterator[None]:
    """Return free heap memory to the system at the end, if the process has grown in the context.

    The C library keeps freed memory for later allocations. Runtimes free several copies of the
    weights when a model is compiled, and do not need that much memory again.
    """
    before_nbytes = _resident_nbytes()
    yield
    if _resident_nbytes() - before_nbytes >= MIN_GROWTH_NBYTES:
        release_free_memory()


def release_free_memory() -> None:
    """Return free heap memory of this process to the system, if the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def _resident_nbytes() -> int:
    """Return the resident memory of this process; 0 if unknown."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except OSError:
        return 0
    return int(pages) * mmap.PAGESIZE
