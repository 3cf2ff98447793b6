"""Signals around Ray: Ctrl-C waits where it must, and what ends the process ends Ray as well."""

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
#: The module's own turns each number into an enum and back, which takes ten times as long.
_set_handler: Final = signal._signal.signal  # type: ignore[attr-defined]  # not in typeshed
_get_handler: Final = signal._signal.getsignal  # type: ignore[attr-defined]  # not in typeshed


class LateInterrupt:
    """A block that Ctrl-C does not break into: it comes at the end.

    `notice`: called when it has come, for the end to be soon.
    """

    __slots__ = ("_before", "_notice", "came")

    def __init__(self, notice: Callable[[], object]) -> None:
        self._notice = notice
        self._before: Callable[[int, FrameType | None], Any] | None = None
        #: The handler's arguments, once it has come.
        self.came: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> LateInterrupt:
        if threading.get_ident() == threading.main_thread().ident:  # it comes nowhere else
            before = _get_handler(signal.SIGINT)
            if callable(before):
                self._before = before
                _set_handler(signal.SIGINT, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            _set_handler(signal.SIGINT, self._before)
            if self.came is not None:
                self._before(*self.came)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.came = number, frame
        self._notice()


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
    terminated = False
    try:
        yield
    except SystemExit as ended:  # as the handler that Ray sets meanwhile ends the process
        if ended.code != signal.SIGTERM:
            raise
        terminated = True
    finally:
        if callable(interrupt):
            signal.signal(signal.SIGINT, interrupt)
        for number, handler in endings.items():
            if handler is not None:  # None: set by somebody outside Python
                signal.signal(number, leave if handler == signal.SIG_DFL else handler)
    if terminated:
        signal.raise_signal(signal.SIGTERM)
    if asked and callable(interrupt):
        interrupt(*asked[0])


def default_signals() -> None:
    """Undo what `own_signals` left in place."""
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            if signal.getsignal(number) is leave:
                signal.signal(number, signal.SIG_DFL)
