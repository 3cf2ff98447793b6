"""Entry point of ``hetero`` and ``python -m hetero``: runs the command line, then exits."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def _exit_at_once(number: int, _: FrameType | None) -> NoReturn:
    """End the process during its imports, when there is nothing to clean up."""
    os.write(2, b"hetero: interrupted\n")
    os._exit(128 + number)


def program() -> NoReturn:
    """Import the command line, run it, and end the process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit_at_once)
    # A signal during the imports, which take half a second, must not print a traceback.
    from hetero.cli.main import main
    from hetero.cli.signals import handle_signals
    from hetero.scheduler.processes.process_end import run_and_exit

    handle_signals()
    run_and_exit(main)


if __name__ == "__main__":
    program()
