"""Release of mapped pages: resident memory of arrays that a file or shared memory still holds."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Final

import numpy as np

#: ``MADV_DONTNEED`` of Linux.
_DONTNEED: Final = 4


def release_pages(array: np.ndarray) -> None:
    """Remove the pages of an array from resident memory if its memory is a shared mapping.

    The contents stay in the file or the shared memory, and return at the next access. Private
    memory is not changed.
    """
    address, nbytes = array.__array_interface__["data"][0], array.nbytes
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if array.flags.c_contiguous and begin < end and _is_shared(begin, end):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONTNEED)


def _is_shared(begin: int, end: int) -> bool:
    """Return whether addresses belong to one shared mapping; False if it is unknown."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    for line in lines:
        addresses, permissions, *_ = line.split()
        first, last = (int(text, 16) for text in addresses.split("-"))
        if first <= begin and end <= last:
            return permissions.endswith("s")
    return False
