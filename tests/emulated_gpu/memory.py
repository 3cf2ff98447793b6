"""The memory of the emulated GPUs: the current device per thread, allocations and limits."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

#: Size of each device's memory.
TOTAL_NBYTES: Final = 1 << 28


class OutOfMemoryError(MemoryError):
    """CuPy's error for an allocation that fails."""


@dataclass(eq=False)
class MemoryPool:
    """Memory for the arrays of one program."""

    limit_nbytes: int
    used_nbytes: int = 0

    def release(self, nbytes: int) -> None:
        """Count less memory as used."""
        self.used_nbytes -= nbytes


class Memory(threading.local):
    """The current device of each thread, and the allocations of all threads."""

    device: int = 0
    #: Pool of new arrays in addition to the device's memory.
    pool: MemoryPool | None = None
    #: Whether the thread records a graph, which cannot contain waits and copies from the host.
    is_capturing: bool = False
    #: Allocated bytes and their limit by device, shared by all threads.
    used_nbytes: ClassVar[Counter[int]] = Counter()
    limits_nbytes: ClassVar[dict[int, int]] = {}

    @contextmanager
    def activate(self, device: int, pool: MemoryPool | None = None) -> Iterator[None]:
        """Make a device and a pool current in a `with` block."""
        before = self.device, self.pool
        self.device, self.pool = device, pool
        try:
            yield
        finally:
            self.device, self.pool = before

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record a graph in a `with` block."""
        self.is_capturing = True
        try:
            yield
        finally:
            self.is_capturing = False

    def check_not_capturing(self, operation: str) -> None:
        """Raise RuntimeError if the thread records a graph."""
        if self.is_capturing:
            raise RuntimeError(f"{operation} is not permitted when a stream is capturing")

    def allocate(self, array: Any, contents: np.ndarray) -> None:
        """Count an array's memory until it is collected; views count nothing."""
        if contents.base is not None:
            return
        used_nbytes, device, nbytes = Memory.used_nbytes, self.device, contents.nbytes
        if self.pool:
            if self.pool.used_nbytes + nbytes > self.pool.limit_nbytes:
                raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes (limit set)")
            self.pool.used_nbytes += nbytes
            weakref.finalize(array, self.pool.release, nbytes)
        if used_nbytes[device] + nbytes > Memory.limits_nbytes.get(device, TOTAL_NBYTES):
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        used_nbytes[device] += nbytes
        weakref.finalize(array, used_nbytes.subtract, {device: nbytes})


MEMORY: Final = Memory()
