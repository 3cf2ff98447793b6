"""Signals: SIGTERM and SIGHUP interrupt a command as Ctrl-C does, with their own exit codes."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from types import FrameType
from typing import Final

#: Exit code after Ctrl-C, by the convention of shells.
INTERRUPTED: Final = 128 + signal.SIGINT
#: SIGTERM or SIGHUP, if one was received.
_received_signal: int | None = None


def handle_signals() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, except signals that the parent process ignores."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, partial(_interrupt, os.getpid()))


def exit_code_for(code: int) -> int:
    """Return the exit code of a command that ended with `code`, after a signal the signal's."""
    return 128 + _received_signal if _received_signal else code


def _interrupt(command_pid: int, number: int, frame: FrameType | None) -> None:
    """Interrupt the command, whose process id is `command_pid`."""
    global _received_signal
    if os.getpid() != command_pid:  # a library's fork ends silently
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _received_signal = number
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a script
        sys.exit(128 + number)
    signal.raise_signal(signal.SIGINT)  # is deferred wherever Ctrl-C is deferred
