"""Daemon threads, with a typed error if the system has no more of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hetero.devices.errors import OverloadedError


def start_thread(function: Callable[[], object], name: str) -> threading.Thread:
    """Run a function in a daemon thread; raise OverloadedError if none can be started."""
    thread = threading.Thread(target=function, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OverloadedError(
            f"thread {name!r} cannot be started: {error}. Close models, or raise the limit of "
            "threads (ulimit -u, or the limit of the container).",
            cause=str(error),
        ) from error
    return thread
