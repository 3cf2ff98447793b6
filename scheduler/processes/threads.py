"""Threads that end with the process, and what is said where the system has no more of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hetero.devices.errors import OverloadedError


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Have a thread of its own do `work`, and return it; OverloadedError if none can be started."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OverloadedError(
            f"no thread {name!r} can be started: {error}. Close models, or raise the limit of "
            "threads (ulimit -u, or the container's).",
            cause=str(error),
        ) from error
    return thread
