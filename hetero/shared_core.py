"""Shared Cores of the process, for functions without a Core argument."""

from __future__ import annotations

import threading
from typing import Final

from hetero.core import Core
from hetero.core_devices import ExecutorKind

_lock: Final = threading.Lock()
_cores: Final[dict[ExecutorKind, Core]] = {}


def shared_core(executor: ExecutorKind) -> Core:
    """Return the shared Core of an executor; it is never closed."""
    with _lock:
        if executor not in _cores:
            _cores[executor] = Core(executor)
        return _cores[executor]
