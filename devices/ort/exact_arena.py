"""Arenas that grow by the blocks that a session requests.

By default an arena doubles its growth and keeps what it has, so that a session may hold twice the
memory that its values need at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hetero.devices.ort.runtime import onnxruntime

#: ONNX Runtime's ``kSameAsRequested``.
_EXTEND_STRATEGY: Final = {"arena_extend_strategy": 1}
#: The arena of new sessions belongs to the process.
_LOCK: Final = threading.Lock()


@contextmanager
def exact_arena(options: onnxruntime.SessionOptions) -> Iterator[None]:
    """Give the session that opens in this context an exact arena of its own."""
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Its block of memory is allocated after the first run, beside the arena of that run.
    options.enable_mem_pattern = False
    with _LOCK:
        _register_arena()
        try:
            yield
        finally:
            # The session alone owns the former arena now, and returns it to the system at its end.
            _register_arena()


def _register_arena() -> None:
    """Register an empty arena for the sessions that open next; it replaces the former one."""
    place = onnxruntime.OrtMemoryInfo(
        "Cpu",
        onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        0,
        onnxruntime.OrtMemType.DEFAULT,
    )
    arena = onnxruntime.OrtArenaCfg(_EXTEND_STRATEGY)
    onnxruntime.create_and_register_allocator(place, arena)
