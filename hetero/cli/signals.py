"""SIGTERM and SIGHUP end a command as Ctrl-C does; the exit code tells which it was."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from types import FrameType
from typing import Final

#: The exit code after Ctrl-C, by the shells' convention.
INTERRUPTED: Final = 128 + signal.SIGINT
#: The other signal that came, if one did.
_came: int | None = None


def hear_signals() -> None:
    """Let SIGTERM and SIGHUP come as Ctrl-C; what whoever started the process ignores stays so."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, partial(_interrupt, os.getpid()))


def with_signal(code: int) -> int:
    """Return the exit code of a command that ended with `code`."""
    return 128 + _came if _came else code


def _interrupt(command: int, number: int, frame: FrameType | None) -> None:
    """`command`: its process."""
    global _came
    if os.getpid() != command:  # a fork, as a library may make one, ends without a word
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _came = number
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a script
        sys.exit(128 + number)
    signal.raise_signal(signal.SIGINT)  # which waits where Ctrl-C has to
