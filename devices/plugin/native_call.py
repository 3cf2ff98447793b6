"""Calls of native runtimes, which have to end before Python does.

Python ends its daemon threads where they next ask for its lock. In a C++ runtime that waits for it
as it returns, that is the end of the whole process: "terminate called", SIGABRT.

A fork has none of the runtime's threads, for which what C++ destroys last would wait.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

from hetero.devices.errors import RequestCancelledError

#: How long the program's end waits for calls that were asked to stop.
_WAIT_S: Final = 20.0
_LOOK_S: Final = 0.001


class NativeCall:
    """The block in which a runtime is called; `stop` asks it to return soon.

    RequestCancelledError on entry, where the program ends.
    """

    __slots__ = ("_stop",)

    def __init__(self, stop: Callable[[], object] | None = None) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        _CALLS.add(self)
        if _ENDED:
            self.__exit__()
            raise RequestCancelledError("the program ends: nothing more is run")

    def __exit__(self, *exception: object) -> None:
        if _ENDED:  # what the method belongs to waits for Python's lock too, as it is destroyed
            _KEPT.append(self._stop)
        _CALLS.discard(self)

    def stop(self) -> None:
        """Ask the runtime to return soon."""
        if self._stop is not None:
            self._stop()


_CALLS: Final[set[NativeCall]] = set()
#: Holds something once the program ends.
_ENDED: Final[list[bool]] = []
#: Methods of what is not destroyed then.
_KEPT: Final[list[Callable[[], object] | None]] = []


def _end() -> None:
    """Let no more calls begin, and wait for those that did."""
    _ENDED.append(True)
    for call in list(_CALLS):
        call.stop()
    until_s = time.monotonic() + _WAIT_S
    while _CALLS and time.monotonic() < until_s:
        time.sleep(_LOOK_S)


atexit.register(_end)


def _begin_fork() -> None:
    """Leave the threads, and what waits for them, to the parent: end as Python has ended."""
    _CALLS.clear()
    _LIBC.on_exit(_LIBC._exit, None)


_LIBC: Final = ctypes.CDLL(None)
os.register_at_fork(after_in_child=_begin_fork)
