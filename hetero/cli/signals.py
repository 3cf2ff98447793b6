"""SIGTERM ends a command as Ctrl-C does; the exit code tells which it was."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

#: The exit code after Ctrl-C, by the shells' convention.
INTERRUPTED: Final = 128 + signal.SIGINT
#: Whether SIGTERM came.
_terminated = False


def hear_sigterm() -> None:
    """Let SIGTERM come as Ctrl-C, unless whoever started the process had Ctrl-C ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGTERM, _interrupt)


def with_signal(code: int) -> int:
    """Return the exit code of a command that ended with `code`."""
    return 128 + signal.SIGTERM if _terminated else code


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _terminated
    _terminated = True
    signal.raise_signal(signal.SIGINT)  # which waits where Ctrl-C has to
