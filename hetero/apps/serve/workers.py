"""Several server processes on the same ports: each takes its part of the connections."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

from hetero.devices.errors import ArgumentError, ClusterError

#: A worker that has ended sooner than that could not start.
_SOON_S: Final = 10.0
#: So many workers may not be able to start, one after the other, before all are given up.
_MOST_FAILURES: Final = 3
_LOOK_S: Final = 0.2


def bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """Return a socket at a port, 0 for a free one; until it listens it gets no connections."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise ArgumentError(
            f"cannot serve at {host}:{port}: {error}. Give another port; 0 takes one that is free."
        ) from error
    return made


def run_workers(
    command: Sequence[str], count: int, drain_s: float, started: Callable[[list[int]], None]
) -> None:
    """Run a command in so many processes until it is interrupted; start anew those that end.

    `started`: called with the processes' ids, whenever they have changed.
    """
    workers: list[tuple[subprocess.Popen[bytes], float]] = []
    failures = 0
    try:
        while True:
            alive = [(p, began_s) for p, began_s in workers if p.poll() is None]
            for process, began_s in workers:
                if process.poll() is not None:
                    soon = time.monotonic() - began_s < _SOON_S
                    failures = failures + 1 if soon else 0
            if failures >= _MOST_FAILURES:
                raise ClusterError(f"workers of the server cannot start: {failures} have ended.")
            if len(alive) < count:
                missing = range(count - len(alive))
                alive += [(subprocess.Popen(command), time.monotonic()) for _ in missing]
                started([process.pid for process, _ in alive])
            workers = alive
            time.sleep(_LOOK_S)
    finally:
        _end([process for process, _ in workers], drain_s)


def _end(processes: Sequence[subprocess.Popen[bytes]], drain_s: float) -> None:
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + drain_s + 10
    for process in processes:
        try:
            process.wait(max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
