"""The end of a process that does one thing: what its end takes down anyway is left standing."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

#: Whether this process ends once its program has.
_is_near = False


def is_near() -> bool:
    """Whether this process ends by itself very soon, so that whoever is connected need not part."""
    return _is_near


def end_with(program: Callable[[], object]) -> NoReturn:
    """Run a program, and end the process with the code that it exits with, exit handlers included.

    Python itself would then take every module apart, which takes longer than many a command.
    """
    global _is_near
    _is_near = True
    code = 0
    try:
        program()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise  # with words: Python prints them
        code = ended.code or 0
    except KeyboardInterrupt:  # once more, while the program told of the first
        code = 128 + signal.SIGINT
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os._exit(128 + number))
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # its reader has gone
            if stream is not None:  # as it is where whoever started the process had closed it
                stream.flush()
    os._exit(code)
