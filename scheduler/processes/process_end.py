"""Fast exit of processes that run one program."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

#: Whether this process exits at the end of its program.
_exits_soon = False


def exits_soon() -> bool:
    """Whether this process exits at the end of its program, so that cleanup can be skipped."""
    return _exits_soon


def run_and_exit(program: Callable[[], object]) -> NoReturn:
    """Run a program and its exit handlers, then end the process with the exit code.

    The teardown of all modules, which is skipped, takes longer than many commands.
    """
    global _exits_soon
    _exits_soon = True
    code = 0
    try:
        program()
    except SystemExit as exit_request:
        if not isinstance(exit_request.code, int | None):
            raise  # Python prints the message
        code = exit_request.code or 0
    except KeyboardInterrupt:  # a second one, while the program handled the first
        code = 128 + signal.SIGINT
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os._exit(128 + number))
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # the reader has closed the pipe
            if stream is not None:  # None if the parent process closed it
                stream.flush()
    os._exit(code)
