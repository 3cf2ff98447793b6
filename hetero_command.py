"""The command ``hetero``, which a signal ends in one line while all that it needs is imported.

Beside the package, since what is in a package is imported after the package.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def end_at_once(number: int, _: FrameType | None) -> NoReturn:
    """End the process, which has nothing to clean up yet."""
    os.write(2, b"hetero: interrupted\n")
    os._exit(128 + number)


def hear_signals() -> None:
    """Let signals end the process at once, but those that whoever started it had ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end_at_once)


def program() -> NoReturn:
    """Import the command line, run it, and end."""
    hear_signals()
    from hetero.__main__ import program as run

    run()
