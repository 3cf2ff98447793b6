"""The watch of a cluster's head: one that is not reached is gone soon, a busy one is not."""

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
from hetero.scheduler.ray import watch
from hetero.scheduler.ray.watch import ClusterWatch

LONG_S = 60.0


@contextmanager
def watched(server: socket.socket) -> Iterator[Queue[ClusterError]]:
    """Watch what listens; what is told comes in a queue."""
    told: Queue[ClusterError] = Queue()
    host, port = server.getsockname()
    found = ClusterWatch(f"{host}:{port}", told.put)
    try:
        yield told
    finally:
        found.close()
        found.join()


def deaf() -> socket.socket:
    """Return a server whose host takes no more connections, and does not say so."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    server.settimeout(LONG_S)
    return server


def fill(server: socket.socket, stack: ExitStack) -> None:
    with contextlib.suppress(TimeoutError):
        while True:
            stack.enter_context(socket.create_connection(server.getsockname(), 0.2))


def test_a_head_whose_host_is_not_reached_is_gone_long_before_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
    monkeypatch.setattr(watch, "_UNREACHED_S", 0.5)
    begun_s = time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(deaf())
        fill(server, stack)
        told = stack.enter_context(watched(server))
        error = told.get(timeout=LONG_S)
    assert "its host is not there" in str(error)
    assert time.monotonic() - begun_s < watch._SILENT_S


def test_a_head_that_lets_in_and_has_no_time_to_answer_is_still_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_LOOK_S", "_AGAIN_S", "_ANSWER_S", "_UNREACHED_S"):
        monkeypatch.setattr(watch, name, 0.01)
    monkeypatch.setattr(watch, "_HOST_S", LONG_S)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(LONG_S)
        told = stack.enter_context(watched(server))
        for _ in range(10):
            stack.enter_context(server.accept()[0])  # it stays open, and nothing is said
        assert told.empty()


def test_a_head_that_refuses_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_S", "_AGAIN_S", "_REFUSED_S"):
        monkeypatch.setattr(watch, name, 0.01)
    server = socket.create_server(("127.0.0.1", 0))
    with watched(server) as told:
        server.close()
        assert "is gone: " in str(told.get(timeout=LONG_S))


def test_a_client_that_can_open_no_more_files_does_not_take_the_cluster_for_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_LOOK_S", "_AGAIN_S", "_UNREACHED_S", "_SILENT_S"):
        monkeypatch.setattr(watch, name, 0.001)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = "{}:{}".format(*server.getsockname())
        refusals: Queue[None] = Queue()

        def refuse(*arguments: object) -> socket.socket:
            refusals.put(None)
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket, "create_connection", refuse)
        found = ClusterWatch(address, lambda error: None)
        for _ in range(20):
            refusals.get(timeout=LONG_S)
        with pytest.raises(ClusterError, match=r"this process cannot ask .*ulimit"):
            found.look()
        found.close()
        found.join()
    assert found.loss_error is None
