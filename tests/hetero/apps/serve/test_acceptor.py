"""Acceptor: clients that leave cost little, many connections take turns, descriptors run out."""

from __future__ import annotations

import errno
import json
import logging
import socket
import struct
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from hetero.apps.serve.server import Server
from tests.support.serving import (
    PATIENCE_S,
    connected,
    plus_one,
    posted,
    read_answer,
    server_fixture,
    serving,
    tensor,
    until,
)

pytest.importorskip("uvicorn")
from hetero.apps.serve import acceptor as acceptor_module
from hetero.apps.serve import server as server_module

REQUEST = posted(json.dumps({"inputs": [tensor("x", "FP32", [1.0, 2.0])]}).encode())
RESET = struct.pack("ii", 1, 0)


server = server_fixture("function", plus=plus_one())


@pytest.fixture
def num_protocols(monkeypatch):
    """Return a list that gets an entry for each connection with a protocol."""
    made: list[object] = []
    make = server_module.Server._make_protocol

    def count(server: Server) -> Any:
        made.append(server)
        return make(server)

    monkeypatch.setattr(server_module.Server, "_make_protocol", count)
    return made


class Pause:
    """Holds up the event loop of a server while connections arrive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over, self.began = threading.Event(), threading.Event()
        accept = acceptor_module.Acceptor._accept

        def wait_first(acceptor: acceptor_module.Acceptor) -> None:
            self.began.set()
            self.is_over.wait(PATIENCE_S)
            accept(acceptor)

        monkeypatch.setattr(acceptor_module.Acceptor, "_accept", wait_first)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.sendall(b"POST /v2/mod")
    connection.close()


def leave(connection: socket.socket) -> None:
    connection.sendall(b"POST /v2/mod")
    connection.close()


@pytest.mark.parametrize("go", [socket.socket.close, leave, reset])
def test_clients_that_have_left_get_no_protocol(
    go,
    num_protocols,
    monkeypatch,
):
    pause = Pause(monkeypatch)
    with serving(plus=plus_one()) as server, ExitStack() as stack:
        stack.callback(pause.is_over.set)
        first = stack.enter_context(connected(server))
        assert pause.began.wait(PATIENCE_S)
        for _ in range(300):
            go(connected(server))
        last = stack.enter_context(connected(server))
        pause.is_over.set()
        for client in (first, last):
            client.sendall(REQUEST)
            assert read_answer(client.makefile("rb"))[0].startswith(b"HTTP/1.1 200")
        assert len(num_protocols) == 2


def test_new_connections_alternate_with_other_work(monkeypatch):
    """A thousand connections at once must not delay a request on an open connection."""
    counts: list[int] = []
    accept = acceptor_module.Acceptor._accept

    def count(acceptor: acceptor_module.Acceptor) -> None:
        before = len(acceptor._tasks)
        accept(acceptor)
        counts.append(len(acceptor._tasks) - before)

    monkeypatch.setattr(acceptor_module.Acceptor, "_accept", count)
    with serving(plus=plus_one()) as server, ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(100)]
        for client in clients:
            client.sendall(REQUEST)
            assert read_answer(client.makefile("rb"))[0].startswith(b"HTTP/1.1 200")
    assert max(counts) <= acceptor_module.MAX_KEPT


def test_lack_of_descriptors_is_logged_once(server, monkeypatch, caplog):
    monkeypatch.setattr(acceptor_module, "_RETRY_S", 0.01)
    attempts: list[object] = []

    class Listener(socket.socket):
        __slots__ = ()

        def accept(self) -> Any:
            if len(attempts) < 5:
                attempts.append(self)
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    server._socket.__class__ = Listener
    with caplog.at_level(logging.ERROR), connected(server) as client:
        client.sendall(REQUEST)
        assert read_answer(client.makefile("rb"))[0].startswith(b"HTTP/1.1 200")
    assert len(attempts) == 5
    [record] = caplog.records
    assert "Too many open files" in record.getMessage()


def test_closed_server_accepts_no_more(server):
    with connected(server) as client:
        client.sendall(REQUEST)
        assert read_answer(client.makefile("rb"))[0].startswith(b"HTTP/1.1 200")
    server.close()
    until(lambda: server._socket.fileno() == -1)
    with pytest.raises(ConnectionRefusedError):
        connected(server)
