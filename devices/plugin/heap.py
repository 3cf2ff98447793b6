"""Memory that the C library keeps after it was freed: release and reuse."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: Growth of the process in bytes above which memory is released; that takes milliseconds.
MIN_GROWTH_NBYTES: Final = 2_000_000
#: Parameters of glibc's ``mallopt``, from malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


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


def reuse_free_memory() -> None:
    """Make the C library keep up to 64 MB of freed memory, and map only blocks above 32 MB.

    By default it returns the memory of large buffers to the system, so that each request with a
    body of megabytes faults in its memory again, page by page.

    It keeps as much in each arena, and up to 8 threads a core have one of their own. Threads that
    start after this call share those that exist by then, so a program calls this first.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 2**26)
        mallopt(_M_MMAP_THRESHOLD, 2**25)
        mallopt(_M_ARENA_MAX, 1)


def map_large_blocks() -> None:
    """Make the C library map each block above 128 kB, and return it to the system once it is freed.

    By default the limit grows to the largest block that was freed, up to 32 MB. Smaller blocks then
    leave gaps in the heap, so that the process keeps more than it uses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**17)


def _resident_nbytes() -> int:
    """Return the resident memory of this process; 0 if unknown."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except OSError:
        return 0
    return int(pages) * mmap.PAGESIZE
