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


def program() -> NoReturn:
    """Import the command line, run it, and end."""
    if interruptible := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
        signal.signal(signal.SIGTERM, end_at_once)
    from hetero.__main__ import program as run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
