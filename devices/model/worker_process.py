"""Runs a function in a worker process, so that its crash or hang does not affect the caller.

Native code may crash on a malformed model file, and the crash must not end the user's process or an
actor. The worker process stays alive between calls, restarts after a crash, and ends with the
process that started it.
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

#: Limit of real time: seconds for each second of allowed processor time, and a constant, because
#: the machine may be busy.
_WAIT_PER_S: Final = 4
_WAIT_S: Final = 120


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A call without a response; `reason` describes the end of the process."""

    reason: str


class WorkerProcess:
    """A worker process that calls one function.

    `function` is the ``module:name`` of a function from bytes to bytes. `paths` are added to the
    module search path of the worker. With `isolated`, the worker sees only these paths and the
    standard library, and therefore starts faster.
    """

    def __init__(self, function: str, paths: Sequence[str], *, isolated: bool = False) -> None:
        flags = ["-I", *(["-S"] if isolated else [])]
        self._command = [sys.executable, *flags, str(Path(worker_program.__file__))]
        self._arguments = [function, *paths]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        os.register_at_fork(after_in_child=self._leave_to_parent)
        atexit.register(self._end)

    def start(self) -> None:
        """Start the process without waiting, so that a later call finds it ready."""
        with self._lock:
            self._process = self._process or self._start()

    def stop(self) -> None:
        """End the process, if it runs; a later call starts another."""
        with self._lock:
            self._end()

    def call(self, request: bytes, *, memory_nbytes: int, time_s: float) -> bytes | WorkerFailure:
        """Call the function with a request and return its response, or the failure.

        The call may allocate `memory_nbytes` of additional memory and use `time_s` of processor
        time.
        """
        with self._lock:
            process = self._process = self._process or self._start()
            head = struct.pack("<QQd", len(request), memory_nbytes, time_s)
            until_s = time.monotonic() + _WAIT_S + _WAIT_PER_S * time_s
            try:
                response = _exchange(process, head + request, until_s)
            except TimeoutError:
                self._end()
                return WorkerFailure("it took too long")
            except BaseException:  # a late response must not reach the next call
                self._end()
                raise
            return WorkerFailure(self._end(_WAIT_S)) if response is None else response

    def _start(self) -> subprocess.Popen[bytes]:
        lifeline, self._lifeline = os.pipe()
        try:
            return subprocess.Popen(
                [*self._command, str(lifeline), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # native code prints its crash messages there
                pass_fds=[lifeline],
                start_new_session=True,  # Ctrl-C reaches only the user's process
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)

    def _end(self, wait_s: float = 0) -> str:
        """Wait for the process to end, kill it after `wait_s`, and return the reason of its end."""
        process, self._process = self._process, None
        if process is None:
            return "it has already ended"
        with process:
            try:
                status = process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
                return "it took too long"
            finally:
                os.close(self._lifeline)
        if status == -signal.SIGXCPU:
            return "it took too long"
        cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"its process ended with {cause}"

    def _leave_to_parent(self) -> None:
        """Release the worker in a forked child: it belongs to the parent."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.returncode = 0  # so that Popen does not wait for it
            self._process = None
            os.close(self._lifeline)


def _exchange(process: subprocess.Popen[bytes], request: bytes, until_s: float) -> bytes | None:
    """Send a request and return the response, or None if the process ends.

    Raises TimeoutError if the process hangs.
    """
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
    """Read `nbytes` from a pipe; return None if the pipe closes first."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    data = bytearray()
    while len(data) < nbytes:
        if not poll.poll(max(0, until_s - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(file, nbytes - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
