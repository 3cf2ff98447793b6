"""Several server processes on the same ports; the kernel distributes connections among them."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

from hetero.devices.errors import ArgumentError, ClusterError

#: Seconds within which a worker that ends has failed to start.
_START_S: Final = 10.0
#: Successive failures to start after which the server ends.
_MAX_FAILURES: Final = 3
#: Seconds between two checks of the workers.
_CHECK_S: Final = 0.2


def bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """Return a socket bound to a port, 0 for a free one; it does not listen yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise ArgumentError(
            f"cannot serve at {host}:{port}: {error}. Pass another port; 0 takes a free one."
        ) from error
    return bound


def run_workers(
    command: Sequence[str], count: int, drain_s: float, started: Callable[[list[int]], None]
) -> None:
    """Run a command in several processes until interrupted; replace those that end.

    `started`: called with the ids of the processes when they have changed.
    """
    workers: list[tuple[subprocess.Popen[bytes], float]] = []
    num_failures = 0
    try:
        while True:
            running = [(process, start_s) for process, start_s in workers if process.poll() is None]
            for process, start_s in workers:
                if process.poll() is not None:
                    has_failed = time.monotonic() - start_s < _START_S
                    num_failures = num_failures + 1 if has_failed else 0
            if num_failures >= _MAX_FAILURES:
                raise ClusterError(
                    f"workers of the server fail to start: {num_failures} ended within "
                    f"{_START_S:g} s."
                )
            if len(running) < count:
                missing = range(count - len(running))
                running += [(subprocess.Popen(command), time.monotonic()) for _ in missing]
                started([process.pid for process, _ in running])
            workers = running
            time.sleep(_CHECK_S)
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
