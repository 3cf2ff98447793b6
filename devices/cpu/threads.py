"""The number of BLAS threads, which is one limit for the whole process."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
#: The latest argument of `use_threads`.
_count = 0


@cache
def _libraries() -> tuple[tuple[Any, int], ...]:
    """Return the BLAS libraries, each with its default number of threads."""
    blas = ThreadpoolController().select(user_api="blas")
    return tuple((library, library.num_threads) for library in blas.lib_controllers)


def blas_name() -> str:
    """Return the BLAS libraries of numpy and the processor architectures that they detected."""
    names = {f"{lib.internal_api} {getattr(lib, 'architecture', '')}" for lib, _ in _libraries()}
    return ", ".join(sorted(names)) or "no BLAS"


def use_threads(count: int) -> None:
    """Set the number of threads of matrix products; 0 restores the default.

    The limit holds for the whole process: BLAS libraries have no limit per caller.
    """
    global _count
    if count == _count:
        return
    with _lock:
        _count = count
        for library, default in _libraries():
            library.set_num_threads(count or default)
            # Newer versions of threadpoolctl ignore every thread except the first that ever set
            # OpenBLAS's limit, and device threads are short-lived.
            release = getattr(library, "clear_controlling_thread", None)
            if release is not None:
                release()
