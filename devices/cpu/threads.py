"""BLAS threads: one limit for the process, set only when another number is wanted."""

from __future__ import annotations

import threading
from functools import cache

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_current = 0


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def use_threads(count: int) -> None:
    """Let matrix products use `count` threads from now on.

    The limit is the process's, not the caller's: BLAS libraries have no other.
    """
    global _current
    if count == _current:
        return
    with _lock:
        if count != _current:
            for library in _controller().select(user_api="blas").lib_controllers:
                library.set_num_threads(count)
            _current = count
