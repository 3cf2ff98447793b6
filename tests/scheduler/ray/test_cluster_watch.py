"""Watch of the cluster head: it reports an unreachable head soon, a busy one not at all."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import Queue

import pytest

from hetero.devices.errors import ClusterError
from hetero.scheduler.ray import cluster_watch
from hetero.scheduler.ray.cluster_watch import ClusterWatch

LONG_S = 60.0


@contextmanager
def watch_server(server: socket.socket) -> Iterator[Queue[ClusterError]]:
    """Watch a server; yield the queue of its loss errors."""
    errors: Queue[ClusterError] = Queue()
    host, port = server.getsockname()
    cluster_watch = ClusterWatch(f"{host}:{port}", errors.put)
    try:
        yield errors
    finally:
        cluster_watch.close()
        cluster_watch.join()


def server_without_backlog() -> socket.socket:
    """Return a server whose backlog is full after one connection and drops further ones."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    server.settimeout(LONG_S)
    return server


def fill(server: socket.socket, stack: ExitStack) -> None:
    with contextlib.suppress(TimeoutError):
        while True:
            stack.enter_context(socket.create_connection(server.getsockname(), 0.2))


def test_unreachable_host_is_reported_before_silence_limit(
    monkeypatch,
):
    monkeypatch.setattr(cluster_watch, "_LOOK_S", 0.01)
    monkeypatch.setattr(cluster_watch, "_UNREACHED_S", 0.5)
    start_s = time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(server_without_backlog())
        fill(server, stack)
        errors = stack.enter_context(watch_server(server))
        error = errors.get(timeout=LONG_S)
    assert "its host is not there" in str(error)
    assert time.monotonic() - start_s < cluster_watch._SILENT_S


def test_busy_head_is_not_reported(
    monkeypatch,
):
    for name in ("_LOOK_S", "_AGAIN_S", "_ANSWER_S", "_UNREACHED_S"):
        monkeypatch.setattr(cluster_watch, name, 0.01)
    monkeypatch.setattr(cluster_watch, "_HOST_S", LONG_S)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(LONG_S)
        errors = stack.enter_context(watch_server(server))
        for _ in range(10):
            stack.enter_context(server.accept()[0])  # connections stay open and receive nothing
        assert errors.empty()


def test_refusing_head_is_reported(monkeypatch):
    for name in ("_LOOK_S", "_AGAIN_S", "_REFUSED_S"):
        monkeypatch.setattr(cluster_watch, name, 0.01)
    server = socket.create_server(("127.0.0.1", 0))
    with watch_server(server) as errors:
        server.close()
        assert "is gone: " in str(errors.get(timeout=LONG_S))


def test_exhausted_file_descriptors_do_not_report_the_head(
    monkeypatch,
):
    for name in ("_LOOK_S", "_AGAIN_S", "_UNREACHED_S", "_SILENT_S"):
        monkeypatch.setattr(cluster_watch, name, 0.001)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = "{}:{}".format(*server.getsockname())
        refusals: Queue[None] = Queue()

        def refuse(*arguments: object) -> socket.socket:
            refusals.put(None)
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket, "create_connection", refuse)
        watch = ClusterWatch(address, lambda error: None)
        for _ in range(20):
            refusals.get(timeout=LONG_S)
        with pytest.raises(ClusterError, match=r"this process cannot ask .*ulimit"):
            watch.check()
        watch.close()
        watch.join()
    assert watch.loss_error is None
