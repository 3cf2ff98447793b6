"""Calls of native runtimes, which must return before the interpreter shuts down.

At shutdown, Python ends a daemon thread when the thread next requests the GIL. If that happens
inside a C++ runtime, C++ aborts the whole process ("terminate called", SIGABRT).

A forked child has no threads of the runtime, and the runtime's destructors would wait for them
forever. Therefore a child exits without running destructors.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

from hetero.devices.errors import RequestCancelledError
from hetero.devices.plugin.program import RunContext

#: Seconds that the interpreter's shutdown waits for running calls, and the interval of its polls.
_WAIT_S: Final = 20.0
_POLL_S: Final = 0.001


class NativeCall:
    """Context manager for a call of a native runtime; `stop` makes the call return early.

    Cancelling the run of `context` also calls `stop`. Entering the block raises
    RequestCancelledError while the interpreter shuts down. An object may serve several calls, one
    after the other, with a new `context` for each.
    """

    __slots__ = ("_stop", "context")

    def __init__(
        self, stop: Callable[[], object] | None = None, context: RunContext | None = None
    ) -> None:
        self._stop = stop
        self.context = context

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *exception: object) -> None:
        self.end()

    def begin(self) -> None:
        """Enter the block."""
        _CALLS.add(self)
        if _is_shutting_down:
            self.end()
            raise RequestCancelledError("the program is shutting down, so the request did not run")
        if (context := self.context) is not None:
            context.stop_call = self._stop
            if context.is_cancelled:
                self.stop()

    def end(self) -> None:
        """Leave the block; without effect if it was not entered."""
        if (context := self.context) is not None:
            context.stop_call = self.context = None  # an idle object keeps no request alive
        if _is_shutting_down:  # the runtime's destructor would request the GIL too
            _UNDESTROYED.append(self._stop)
        _CALLS.discard(self)

    def stop(self) -> None:
        """Make the runtime return early."""
        if self._stop is not None:
            self._stop()


#: Calls that are running.
_CALLS: Final[set[NativeCall]] = set()
#: Whether the interpreter shuts down.
_is_shutting_down = False
#: References that keep runtime objects from being destroyed during shutdown.
_UNDESTROYED: Final[list[Callable[[], object] | None]] = []


def _shut_down() -> None:
    """Reject new calls, stop the running ones and wait for their end."""
    global _is_shutting_down
    _is_shutting_down = True
    for call in list(_CALLS):
        call.stop()
    until_s = time.monotonic() + _WAIT_S
    while _CALLS and time.monotonic() < until_s:
        time.sleep(_POLL_S)


atexit.register(_shut_down)


def _prepare_child() -> None:
    """Forget the parent's calls in a forked child, and exit it without running destructors."""
    _CALLS.clear()
    _LIBC.on_exit(_LIBC._exit, None)


_LIBC: Final = ctypes.CDLL(None)
os.register_at_fork(after_in_child=_prepare_child)
