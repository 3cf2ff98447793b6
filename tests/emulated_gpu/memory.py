"""The emulated GPUs' memory: which device is current in a thread, what is held, and the bound."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np

#: Bytes of each device.
TOTAL_NBYTES: Final = 1 << 28


class OutOfMemoryError(MemoryError):
    """A device has no room, as CuPy says it."""


class Memory(threading.local):
    """The current device, of each thread its own."""

    device: int = 0
    #: Bytes held, and their bound, by device: the same for all threads.
    held: ClassVar[Counter[int]] = Counter()
    bounds: ClassVar[dict[int, int]] = {}

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device current."""
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    def hold(self, array: Any, contents: np.ndarray) -> None:
        """Count an array's memory until it dies; views hold none of their own."""
        if contents.base is not None:
            return
        held, device, nbytes = Memory.held, self.device, contents.nbytes
        if held[device] + nbytes > Memory.bounds.get(device, TOTAL_NBYTES):
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        held[device] += nbytes
        weakref.finalize(array, held.subtract, {device: nbytes})


MEMORY: Final = Memory()
