"""A program that answers in a process of its own: where it crashes or hangs, that is all that ends.

Native code trusts what it is given: a model's file must not end or stall the user's process, nor an
actor. Each process has its own; it is kept warm, ends with whoever started it, and is started again
after a crash.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hetero.devices.model import worker_program

#: Real time that a request may take for each second of processor time, and beyond that: the machine
#: may be busy.
_WAIT: Final = 4
_WAIT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """No answer: how the process ended, for people."""

    how: str


class WorkerProcess:
    """The other process.

    `function`: ``module:name`` of one that takes a request and returns its answer, both bytes.
    `paths`: where the process looks for modules after Python's own; `isolated`: it has the standard
    library and these alone, which starts it sooner.
    """

    def __init__(self, function: str, paths: Sequence[str], *, isolated: bool = False) -> None:
        flags = ["-I", *(["-S"] if isolated else [])]
        self._command = [sys.executable, *flags, str(Path(worker_program.__file__))]
        self._arguments = [function, *paths]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._life = -1
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._end)

    def ask(self, request: bytes, *, memory_nbytes: int, time_s: float) -> bytes | Ended:
        """Return the answer, or how the process ended.

        It may take `memory_nbytes` beyond what it has, and so much processor time.
        """
        with self._lock:
            process = self._process = self._process or self._started()
            head = struct.pack("<QQd", len(request), memory_nbytes, time_s)
            until_s = time.monotonic() + _WAIT_S + _WAIT * time_s
            try:
                answer = _exchange(process, head + request, until_s)
            except TimeoutError:
                self._end()
                return Ended("it took too long")
            except BaseException:  # an answer that comes later is not the next request's
                self._end()
                raise
            return Ended(self._end(_WAIT_S)) if answer is None else answer

    def _started(self) -> subprocess.Popen[bytes]:
        watched, self._life = os.pipe()
        try:
            return subprocess.Popen(
                [*self._command, str(watched), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # where native code says why it ends
                pass_fds=[watched],
                start_new_session=True,  # Ctrl-C is for the user's process alone
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(watched)

    def _end(self, wait_s: float = 0) -> str:
        """End the process, unless it ends by itself so soon, and return how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "it had ended"
        with process:
            try:
                status = process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
                return "it took too long"
            finally:
                os.close(self._life)
        by_time = status == -signal.SIGXCPU
        named = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return "it took too long" if by_time else f"its process ended with {named}"

    def _forget(self) -> None:
        """Leave the process to the parent, after a fork."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.returncode = 0  # as far as this process is concerned
            self._process = None
            os.close(self._life)


def _exchange(process: subprocess.Popen[bytes], request: bytes, until_s: float) -> bytes | None:
    """Send a request and return the answer; None where the process ends before, or TimeoutError."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
    except BrokenPipeError:
        return None
    head = _read(process.stdout.fileno(), 8, until_s)
    return head and _read(process.stdout.fileno(), struct.unpack("<Q", head)[0], until_s)


def _read(file: int, nbytes: int, until_s: float) -> bytes | None:
    """Read so many bytes from a pipe; None where it ends before."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    found = bytearray()
    while len(found) < nbytes:
        if not poll.poll(max(0, until_s - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(file, nbytes - len(found))
        if not part:
            return None
        found += part
    return bytes(found)
