"""Bounds of the HTTP protocol: heads, trailers, chunks, pipelines and refused bodies."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import pytest

from hetero.apps.serve.server import Server
from tests.support.gated_plugin import GatedPlugin
from tests.support.serving import (
    INFER,
    ask,
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
from hetero.apps.serve import http_protocol

BODY = json.dumps({"inputs": [tensor("x", "FP32", [1.0, 2.0])]}).encode()
CHUNKED = b"POST %s HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n" % INFER.encode()
#: First bytes of a request, and bytes that repeat without an end.
ENDLESS = {
    "headers": (b"GET /v2 HTTP/1.1\r\n", b"x: y\r\n"),
    "one header": (b"GET /v2 HTTP/1.1\r\nx: ", b"y"),
    "URL": (b"GET /", b"y"),
    "trailers": (CHUNKED + b"\r\n0\r\n", b"x: y\r\n"),
    "one trailer": (CHUNKED + b"\r\n0\r\nx: ", b"y"),
    "chunk extension": (CHUNKED + b"\r\n1;", b"y"),
}


server = server_fixture(options={"tokens": ("secret",)}, plus=plus_one())


def status_of(server: Server, *pieces: bytes) -> bytes:
    """Send pieces; return the status of the response."""
    with connected(server) as client:
        with suppress(ConnectionError):  # the server may close before the last piece
            for piece in pieces:
                client.sendall(piece)
        return client.recv(4096).split(b" ")[1]


def is_closed(client: socket.socket, piece: bytes) -> bool:
    """Return whether the server closes the connection before it has read a piece 100 times."""
    try:
        for _ in range(100):
            client.sendall(piece)
    except ConnectionError:
        return True
    return False


def assert_serves(server: Server) -> None:
    answer = ask(server, INFER, BODY, headers={"authorization": "Bearer secret"})
    assert answer.status == 200
    assert answer.json["outputs"][0]["data"] == [2.0, 3.0]


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("token", [b"", b"authorization: Bearer secret\r\n"])
def test_endless_head_is_refused(server, name, token):
    first, repeated = ENDLESS[name]
    line, rest = first.split(b"\r\n", 1) if b"\r\n" in first else (first, b"")
    first = line + b"\r\n" + token + rest if rest or name == "headers" else first
    piece = repeated * (100_000 // len(repeated))
    with connected(server) as client:
        client.sendall(first)
        assert is_closed(client, piece)
    assert_serves(server)


def test_oversized_head_in_one_piece_is_refused(server):
    head = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nx: %s\r\n\r\n"
    assert status_of(server, head % (b"y" * 60_000)) == b"200"
    assert status_of(server, head % (b"y" * 70_000)) == b"431"


def test_trailers_are_no_headers(server):
    body = b"\r\n%x\r\n%s\r\n0\r\nauthorization: Bearer secret\r\n\r\n" % (len(BODY), BODY)
    assert status_of(server, CHUNKED + body) == b"401"


def test_tiny_chunks_are_refused(server):
    head = CHUNKED + b"authorization: Bearer secret\r\n\r\n"
    assert status_of(server, head, b"2\r\naa\r\n" * 3000) == b"400"
    padded = BODY + b" " * 200_000
    pieces = [padded[at : at + 100] for at in range(0, len(padded), 100)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    assert status_of(server, head, chunks + b"0\r\n\r\n") == b"200"
    assert_serves(server)


def test_refused_body_is_discarded_within_a_bound(server, monkeypatch):
    monkeypatch.setattr(http_protocol, "MAX_DISCARDED_NBYTES", 10**6)
    with connected(server) as client:
        client.sendall(posted(bytes(10**6)) + posted(b""))  # no token
        reader = client.makefile("rb")
        for _ in range(2):
            assert read_answer(reader)[0].startswith(b"HTTP/1.1 401")
        client.sendall(posted(bytes(10**7))[: 10**5])
        assert read_answer(reader)[0].startswith(b"HTTP/1.1 401")
        assert is_closed(client, bytes(10**5))
    assert_serves(server)


def test_slow_head_is_refused(server, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.05)
    assert status_of(server) == b"408"
    assert status_of(server, b"GET /v2 HTTP/1.1\r\n") == b"408"
    with connected(server) as client:  # a second request on its connection
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        reader = client.makefile("rb")
        assert read_answer(reader)[0].startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /v2")
        assert read_answer(reader)[0].startswith(b"HTTP/1.1 408")
    until(lambda: not server._uvicorn.server_state.connections)
    monkeypatch.undo()
    assert_serves(server)


def test_pipelined_requests_wait_unparsed():
    request = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    count = 3000
    with (
        serving("GATED", plugins=(GatedPlugin,), plus=plus_one()) as server,
        GatedPlugin.closed(),
        connected(server) as client,
    ):
        client.sendall(posted(BODY))
        assert GatedPlugin.began.wait(60)
        client.sendall(request * count)
        [connection] = server._uvicorn.server_state.connections
        until(lambda: len(connection.pipeline) > 0)
        assert len(connection.pipeline) <= http_protocol.SLICE_NBYTES / len(request) + 1
        GatedPlugin.gate.set()
        reader = client.makefile("rb")
        bodies = [read_answer(reader)[1] for _ in range(count + 1)]
        assert json.loads(bodies[0])["outputs"][0]["data"] == [2.0, 3.0]
        assert bodies[1:] == [b'{"live":true}'] * count
        assert connection.flow.unparsed == b""
