"""Freed heap memory: release after compilations, and reuse by servers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero.devices.plugin import heap
from hetero.devices.plugin.heap import releases_free_memory


@pytest.mark.parametrize(("growth_nbytes", "calls"), [(1_000_000, []), (3_000_000, [0])])
def test_memory_is_released_if_the_process_has_grown(monkeypatch, growth_nbytes, calls):
    trims: list[int] = []

    class Library:
        malloc_trim: Callable[[int], None] = staticmethod(trims.append)

    sizes = iter([50_000_000, 50_000_000 + growth_nbytes])
    monkeypatch.setattr(heap, "_resident_nbytes", lambda: next(sizes))
    monkeypatch.setattr("ctypes.CDLL", lambda _: Library())
    with releases_free_memory():
        pass
    assert trims == calls


def test_resident_memory_is_that_of_the_kernel_in_bytes():
    status = Path("/proc/self/status").read_text()
    (expected_kb,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    assert abs(heap._resident_nbytes() - 1024 * int(expected_kb)) < 10_000_000


#: Prints the number of page faults of 30 rounds that allocate and free 6 MB.
_ROUNDS = """
import resource
def count():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    [bytes(600_000) for _ in range(10)]
before = count()
for _ in range(30):
    [bytes(600_000) for _ in range(10)]
print(count() - before)
"""


def test_reused_memory_is_not_faulted_in_again():
    setup = f"import runpy; runpy.run_path({heap.__file__!r})['reuse_free_memory']()"
    faults = [
        int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for code in (_ROUNDS, setup + _ROUNDS)
    ]
    if faults[0] < 1000:
        pytest.skip("the C library reuses freed memory by itself")
    assert faults[1] < faults[0] / 10


#: Prints the growth of the private address space in MB after 9 of 10 blocks of 4 MB are freed.
_GAPS = """
import re
from pathlib import Path
def private_mb():
    return int(re.findall(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[0]) / 1000
bytes(20_000_000)
before = private_mb()
last = [bytes(4_000_000) for _ in range(10)][-1]
print(private_mb() - before)
"""


def test_mapped_blocks_leave_no_gaps():
    setup = f"import runpy; runpy.run_path({heap.__file__!r})['map_large_blocks']()"
    default, mapped = (
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for code in (_GAPS, setup + _GAPS)
    )
    if default < 30:
        pytest.skip("the C library returns freed memory by itself")
    assert mapped < 6


#: Prints the growth in MB that remains after 8 threads have each freed 20 MB twice.
_THREADS = """
import re, threading
from pathlib import Path
def resident_mb():
    return int(re.findall(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[0]) / 1000
def work():
    started.wait()
    for _ in range(2):
        with turn:
            b"x" * 20_000_000
    freed.wait()
    ended.wait()
started, freed, ended = threading.Barrier(8), threading.Barrier(9), threading.Barrier(9)
turn = threading.Lock()
before = resident_mb()
for _ in range(8):
    threading.Thread(target=work).start()
freed.wait()
print(resident_mb() - before)
ended.wait()
"""


def test_threads_share_freed_memory():
    setup = f"import runpy; runpy.run_path({heap.__file__!r})['reuse_free_memory']()"
    default, shared = (
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for code in (_THREADS, setup + _THREADS)
    )
    if default < 100:
        pytest.skip("the C library shares freed memory by itself")
    assert shared < 40
