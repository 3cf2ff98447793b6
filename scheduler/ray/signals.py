"""Signal handling around Ray: deferred Ctrl-C, and shutdown of Ray by ending signals."""

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
#: The public functions convert each number to an enum and back, which takes ten times as long.
_set_handler: Final = signal._signal.signal  # type: ignore[attr-defined]  # not in typeshed
_get_handler: Final = signal._signal.getsignal  # type: ignore[attr-defined]  # not in typeshed


class _Thread(threading.local):
    """Facts about a thread, computed once: each request needs them."""

    def __init__(self) -> None:
        self.receives_signals = threading.current_thread() is threading.main_thread()


_thread: Final = _Thread()


class LateInterrupt:
    """Context manager that defers Ctrl-C to the end of its block.

    `notice`: called when the signal arrives, so that the block can end soon.
    """

    __slots__ = ("_notice", "_previous_handler", "signal_arguments")

    def __init__(self, notice: Callable[[], object]) -> None:
        self._notice = notice
        self._previous_handler: Callable[[int, FrameType | None], Any] | None = None
        #: The handler's arguments, after the signal has arrived.
        self.signal_arguments: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> LateInterrupt:
        if _thread.receives_signals:
            before = _get_handler(signal.SIGINT)
            if callable(before):
                self._previous_handler = before
                _set_handler(signal.SIGINT, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._previous_handler is not None:
            _set_handler(signal.SIGINT, self._previous_handler)
            if self.signal_arguments is not None:
                self._previous_handler(*self.signal_arguments)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal_arguments = number, frame
        self._notice()


def exit_process(number: int, frame: FrameType | None) -> None:
    """Exit through Python's finally blocks and exit handlers, which stop Ray's processes."""
    sys.exit(128 + number)


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Preserve signal handlers while Ray starts; default handlers are replaced with `exit_process`.

    The first Ctrl-C takes effect at the end of the block: if Ray is interrupted while it starts,
    some of its processes survive. A second Ctrl-C takes effect at once. Ray replaces the handler of
    SIGTERM with one that prints a C++ stack trace.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    endings: dict[int, Handler] = {number: signal.getsignal(number) for number in _ENDING}
    interrupt = signal.getsignal(signal.SIGINT)
    interrupts: list[tuple[int, FrameType | None]] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if interrupts and callable(interrupt):
            interrupt(number, frame)
        interrupts.append((number, frame))

    if callable(interrupt):
        signal.signal(signal.SIGINT, remember)
    terminated = False
    try:
        yield
    except SystemExit as exit_error:  # from the handler that Ray installs
        if exit_error.code != signal.SIGTERM:
            raise
        terminated = True
    finally:
        if callable(interrupt):
            signal.signal(signal.SIGINT, interrupt)
        for number, handler in endings.items():
            if handler is not None:  # None: not installed from Python
                signal.signal(number, exit_process if handler == signal.SIG_DFL else handler)
    if terminated:
        signal.raise_signal(signal.SIGTERM)
    if interrupts and callable(interrupt):
        interrupt(*interrupts[0])


def default_signals() -> None:
    """Restore the default handlers that `own_signals` replaced."""
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            if signal.getsignal(number) is exit_process:
                signal.signal(number, signal.SIG_DFL)
