"""Bounds of the HTTP protocol: heads, trailers, chunks, pipelines and refused bodies."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import numpy as np
import pytest

from hetero.apps.serve.server import Server
from hetero.apps.serve.service import BodyBudget
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


@pytest.fixture
def in_place(monkeypatch):
    """Receive bodies of 2000 bytes in place, and wake the application every 1000 bytes."""
    monkeypatch.setattr(http_protocol, "MIN_IN_PLACE_NBYTES", 2000)
    monkeypatch.setattr(http_protocol, "MAX_UNREAD_NBYTES", 1000)


def bodies_of(server: Server) -> BodyBudget:
    """Return the budget of all bodies."""
    bodies: BodyBudget = server._uvicorn.config.app._service.bodies
    return bodies


def raw_request(values: np.ndarray) -> bytes:
    """Return a request with raw numbers."""
    x = {"name": "x", "shape": values.shape, "datatype": "FP32"}
    x["parameters"] = {"binary_data_size": values.nbytes}
    document = json.dumps({"inputs": [x]}).encode()
    headers = (
        f"authorization: Bearer secret\r\ninference-header-content-length: {len(document)}\r\n"
    )
    return posted(document + values.tobytes(), more=headers)


def send_first_part(server: Server, client: socket.socket, request: bytes) -> bytes:
    """Send 1000 bytes; return the rest once the server receives it in place."""
    client.sendall(request[:1000])
    state = server._uvicorn.server_state
    until(lambda: any(connection._reader for connection in state.connections))
    return request[1000:]


def test_body_received_in_place_is_complete(server, in_place):
    values = np.arange(20_000, dtype=np.float32)
    small = posted(BODY, more="authorization: Bearer secret\r\n")
    with connected(server) as client:
        reader = client.makefile("rb")
        for _ in range(2):
            rest = send_first_part(server, client, raw_request(values))
            client.sendall(rest[:30_000])
            client.sendall(rest[30_000:] + small)  # the next request begins in the same read
            for expected in (values + 1, np.array([2, 3], np.float32)):
                head, body = read_answer(reader)
                assert head.startswith(b"HTTP/1.1 200")
                assert json.loads(body)["outputs"][0]["data"] == expected.tolist()


def test_body_in_place_without_room_is_refused(server, in_place, monkeypatch):
    request = raw_request(np.zeros(20_000, np.float32))
    with connected(server) as client:
        reader = client.makefile("rb")
        rest = send_first_part(server, client, request)
        monkeypatch.setattr(bodies_of(server), "_limit", 30_000)
        client.sendall(rest[:40_000])
        assert read_answer(reader)[0].startswith(b"HTTP/1.1 503")
        monkeypatch.undo()
        client.sendall(rest[40_000:] + request)  # the rest is discarded
        assert read_answer(reader)[0].startswith(b"HTTP/1.1 200")
    assert bodies_of(server).used == 0


def test_body_in_place_of_lost_connection_is_freed(server, in_place):
    with connected(server) as client:
        send_first_part(server, client, raw_request(np.zeros(20_000, np.float32)))
        client.sendall(bytes(10_000))
    until(lambda: not server._uvicorn.server_state.connections)
    until(lambda: bodies_of(server).used == 0)
    assert_serves(server)


def test_tiny_parts_of_a_body_in_place_are_refused(server, in_place, monkeypatch):
    monkeypatch.setattr(http_protocol, "FREE_CHUNKS", 3)
    monkeypatch.setattr(http_protocol, "MIN_CHUNK_NBYTES", 1000)
    connections = server._uvicorn.server_state.connections
    with connected(server) as client:
        rest = send_first_part(server, client, raw_request(np.zeros(20_000, np.float32)))
        [reader] = [connection._reader for connection in connections]
        for num_sent in range(100, 2000, 100):
            if connections:
                client.sendall(rest[:100])
                until(lambda num=num_sent: reader.num_received == num or not connections)
        assert client.recv(4096).startswith(b"HTTP/1.1 400")


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


class RecordedTransport:
    """Records what is written at once."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("pieces", "writes"),
    [
        ([b"head", b"body"], [b"headbody"]),
        ([b"head", b"part", b"part"], [b"headpart", b"part"]),
        ([b"head", b""], [b"head"]),
        ([b"head"], [b"head"]),  # the application has failed
        (
            [b"HTTP/1.1 100 Continue\r\n\r\n", b"head", b"body"],
            [b"HTTP/1.1 100 Continue\r\n\r\n", b"headbody"],
        ),
    ],
)
def test_head_is_sent_with_the_first_part_of_the_body(pieces, writes):
    transport = RecordedTransport()
    writer = http_protocol.ResponseWriter(transport)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    assert transport.writes == writes
    assert transport.is_closed


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_response_without_body_is_complete(server, method):
    with connected(server) as client:
        for _ in range(2):
            client.sendall(method + b" /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("count", "status"), [(90, b"200"), (200, b"431"), (10_000, b"431")])
def test_many_headers_are_refused(server, count, status):
    head = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n%s\r\n"
    assert status_of(server, head % (b"a:b\r\n" * count)) == status
    assert_serves(server)


@pytest.mark.parametrize(("count", "status"), [(8000, b"200"), (9000, b"414"), (60_000, b"414")])
def test_long_url_is_refused(server, count, status):
    head = b"GET /v2/health/live?%s HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert status_of(server, head % (b"a" * count)) == status
    assert_serves(server)
