"""Arenas whose first block holds all values of a run.

By default an arena doubles its growth, so that a session may take twice the memory that its values
need at the same time. If it grew by the blocks requested, blocks of different sizes could not serve
each other: a U-Net would take 2.2 times the memory of its values.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hetero.devices.ort.runtime import onnxruntime

#: Largest size of a first block, which ONNX Runtime stores in an ``int``.
_MAX_NBYTES: Final = 2**31 - 1
#: Smallest growth if the first block is full, instead of a block of the same size.
_GROWTH_NBYTES: Final = 2**20
#: The rest of a block beyond a value is used if it is at least as large as this; by default a value
#: takes all of a block of up to twice its size.
_MAX_GAP_NBYTES: Final = 256
#: The arena of new sessions belongs to the process.
_LOCK: Final = threading.Lock()


@contextmanager
def sized_arena(options: onnxruntime.SessionOptions, nbytes: int) -> Iterator[None]:
    """Give the session that opens in this context an arena of its own, of the given size."""
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Its block of memory is allocated after the first run, in addition to the values of that run.
    options.enable_mem_pattern = False
    sizes = {
        "initial_chunk_size_bytes": min(nbytes, _MAX_NBYTES),
        "max_power_of_two_extend_bytes": _GROWTH_NBYTES,
        "max_dead_bytes_per_chunk": _MAX_GAP_NBYTES,
    }
    with _LOCK:
        _register_arena(sizes)
        try:
            yield
        finally:
            # The session alone owns the former arena now, and returns it to the system at its end.
            _register_arena({})


def _register_arena(sizes: dict[str, int]) -> None:
    """Register an empty arena for the sessions that open next; it replaces the former one."""
    place = onnxruntime.OrtMemoryInfo(
        "Cpu",
        onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        0,
        onnxruntime.OrtMemType.DEFAULT,
    )
    onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg(sizes))
