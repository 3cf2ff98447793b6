"""BLAS threads: one limit for the process, set only when another number is wanted."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
#: What `use_threads` was asked for last.
_wanted = 0


@cache
def _libraries() -> tuple[tuple[Any, int], ...]:
    """Return the BLAS libraries, each with the number of threads it started with."""
    blas = ThreadpoolController().select(user_api="blas")
    return tuple((library, library.num_threads) for library in blas.lib_controllers)


def blas_name() -> str:
    """Return the BLAS libraries behind numpy and the processors that they chose code for."""
    names = {f"{lib.internal_api} {getattr(lib, 'architecture', '')}" for lib, _ in _libraries()}
    return ", ".join(sorted(names)) or "no BLAS"


def use_threads(count: int) -> None:
    """Let matrix products use `count` threads from now on; 0: as many as they started with.

    The limit is the process's, not the caller's: BLAS libraries have no other.
    """
    global _wanted
    if count == _wanted:
        return
    with _lock:
        _wanted = count
        for library, started_with in _libraries():
            library.set_num_threads(count or started_with)
            # Newer versions of threadpoolctl let only the first thread that ever set OpenBLAS's
            # limit set it again, and ignore the others; device threads come and go.
            release = getattr(library, "clear_controlling_thread", None)
            if release is not None:
                release()
