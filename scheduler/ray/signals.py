"""Signals around Ray: Ctrl-C waits for its start, and what ends the process ends it as well."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

#: Signals that end a process.
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], Any] | int | None


def leave(number: int, frame: FrameType | None) -> None:
    """End as Python ends: with finally blocks and exit handlers, which stop Ray's processes."""
    sys.exit(128 + number)


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep signals as they are through Ray's start; those that would end the process run `leave`.

    Ctrl-C waits for the block's end, a second one does not: Ray that is stopped while it starts
    forgets some of the processes that it has started. Ray takes SIGTERM from whoever had it, and
    prints a stack of C++ frames for it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    endings: dict[int, Handler] = {number: signal.getsignal(number) for number in _ENDING}
    interrupt = signal.getsignal(signal.SIGINT)
    asked: list[tuple[int, FrameType | None]] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if asked and callable(interrupt):
            interrupt(number, frame)
        asked.append((number, frame))

    if callable(interrupt):
        signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        if callable(interrupt):
            signal.signal(signal.SIGINT, interrupt)
        for number, handler in endings.items():
            if handler is not None:  # None: set by somebody outside Python
                signal.signal(number, leave if handler == signal.SIG_DFL else handler)
    if asked and callable(interrupt):
        interrupt(*asked[0])


def default_signals() -> None:
    """Undo what `own_signals` left in place."""
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            if signal.getsignal(number) is leave:
                signal.signal(number, signal.SIG_DFL)
