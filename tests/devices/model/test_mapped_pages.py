"""Release of mapped pages: contents stay, resident memory does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hetero.devices.model.mapped_pages import release_pages


def resident_nbytes(array: np.ndarray) -> int:
    """Return the resident bytes of the mapping that contains an array."""
    address = array.__array_interface__["data"][0]
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, dash, last = line.split()[0].partition("-")
        if dash and not line.split()[0].endswith(":"):
            is_inside = int(first, 16) <= address < int(last, 16)
        elif is_inside and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no mapping contains the array")


def test_pages_of_a_file_are_released_and_return(tmp_path):
    path = tmp_path / "numbers"
    np.arange(1_000_000, dtype=np.float32).tofile(path)
    array = np.memmap(path, np.float32, mode="r")
    total = float(array.sum())
    before = resident_nbytes(array)
    release_pages(array)
    assert resident_nbytes(array) < before / 10
    assert float(array.sum()) == total


def test_private_memory_keeps_its_contents():
    array = np.arange(1_000_000, dtype=np.float32)
    release_pages(array)
    assert array[-1] == 999_999
