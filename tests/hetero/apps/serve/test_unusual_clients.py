"""Clients that offer another protocol, pipeline requests, or wait while the server ends."""

from __future__ import annotations

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hetero.apps.serve.server import Server
from tests.support.gated_plugin import GatedPlugin
from tests.support.serving import (
    INFER,
    PATIENCE_S,
    ask,
    connected,
    plus_one,
    read_answer,
    read_head,
    serving,
    tensor,
)

pytest.importorskip("uvicorn")

BODY = json.dumps({"inputs": [tensor("x", "FP32", np.ones(4))]}).encode()
#: Offer of HTTP/2 by Java's client and ``curl --http2``.
OFFER = (
    b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
)


def answer(server: Server, *pieces: bytes, count: int = 1) -> list[tuple[bytes, bytes]]:
    """Send pieces; return the status lines and bodies of responses."""
    with connected(server) as client:
        for piece in pieces:
            client.sendall(piece)
        reader = client.makefile("rb")
        responses = [read_answer(reader) for _ in range(count)]
        return [(head.split(b"\r\n")[0], body) for head, body in responses]


def head(more: bytes, method: bytes = b"POST", path: str = INFER) -> bytes:
    return b"%s %s HTTP/1.1\r\nhost: localhost\r\n%s\r\n" % (method, path.encode(), more)


def test_offer_of_another_protocol_is_ignored():
    length = b"content-length: %d\r\n" % len(BODY)
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with serving(plus=plus_one()) as server:
        [plain] = answer(server, head(length) + BODY)
        assert plain[0] == b"HTTP/1.1 200 OK"
        offered = head(length + OFFER)
        assert answer(server, offered + BODY) == [plain]
        assert answer(server, offered, BODY) == [plain]
        assert answer(server, offered[:70], offered[70:], BODY[:9], BODY[9:]) == [plain]
        chunked = head(b"transfer-encoding: chunked\r\n" + OFFER) + chunks
        assert answer(server, chunked) == [plain]
        requests = offered + BODY + chunked + head(length) + BODY
        assert answer(server, requests, count=3) == [plain] * 3
        socket_offer = head(b"connection: upgrade\r\nupgrade: websocket\r\n", b"GET", "/v2")
        assert answer(server, socket_offer) == answer(server, head(b"", b"GET", "/v2"))
        [(status, _)] = answer(server, b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n")
        assert status == b"HTTP/1.1 400 Bad Request"


@pytest.mark.slow
def test_pipelined_requests_are_answered_in_order():
    length = b"content-length: %d\r\n" % len(BODY)
    token, traced = b"authorization: Bearer a\r\n", b"traceparent: 00-0-0-00\r\n"
    good, slow = (head(length + more) + BODY for more in (token, token + traced))
    unauthorised = head(b"content-length: 400000\r\n") + bytes(400_000)
    none = head(token, b"GET", "/v2/models/none")
    with serving(options={"tokens": ("a",)}, plus=plus_one()) as server:
        [plain] = answer(server, good)
        assert plain[0] == b"HTTP/1.1 200 OK"
        responses = answer(server, slow, none, unauthorised, unauthorised + good, slow, count=6)
        assert responses[:1] + responses[4:] == [plain] * 3
        assert [line.split()[1] for line, _ in responses[1:4]] == [b"404", b"401", b"401"]
        assert answer(server, *[good * 500] * 4, count=2000) == [plain] * 2000
        with connected(server) as client:
            client.sendall(head(token, b"HEAD", "/v2") + head(token, b"GET", "/v2"))
            reader = client.makefile("rb")
            heads = [read_head(reader) for _ in range(2)]
            assert heads[0] == heads[1]
        with connected(server) as client:
            reader = client.makefile("rb")
            client.sendall(head(token + length + b"expect: 100-continue\r\n"))
            assert reader.readline() == b"HTTP/1.1 100 Continue\r\n"
            client.sendall(BODY)
            assert reader.readline() + reader.readline() == b"\r\nHTTP/1.1 200 OK\r\n"
        with connected(server) as client:
            client.sendall(good.replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert client.makefile("rb").read().endswith(plain[1])  # the connection closes


def test_long_numbers_in_headers():
    digits = "9" * 5000
    with serving(plus=plus_one()) as server:
        timeout = {"x-envoy-expected-rq-timeout-ms": digits}
        assert ask(server, INFER, BODY, headers=timeout).status == 200
        response = ask(server, INFER, BODY, headers={"inference-header-content-length": digits})
        assert response.status == 400


@pytest.mark.parametrize("parameters", [[1], "x", 1])
def test_parameters_have_to_be_an_object(parameters):
    with serving(plus=plus_one()) as server:
        body = {"text_input": [1], "parameters": parameters}
        for call in ("generate", "generate_stream"):
            assert ask(server, f"/v2/models/plus/{call}", body).status == 400


@pytest.mark.parametrize("stop", [["a"] * 17, "a" * 257])
def test_stops_are_bounded(stop):
    with serving(plus=plus_one()) as server:
        body = {"model": "plus", "prompt": [1], "stop": stop}
        response = ask(server, "/v1/completions", body)
        assert response.status == 400
        assert "stop" in response.json["error"]["message"]


def test_request_beyond_the_drain_time_gets_503():
    with (
        serving("GATED", options={"drain_s": 1}, plugins=(GatedPlugin,), plus=plus_one()) as server,
        GatedPlugin.closed(),
        ThreadPoolExecutor(1) as pool,
    ):
        future = pool.submit(ask, server, INFER, BODY)
        assert GatedPlugin.began.wait(PATIENCE_S)
        server.close()
        responses = future.result(PATIENCE_S)
        assert responses.status == 503
        assert responses.json["error"]


def test_running_request_is_answered_after_ctrl_c():
    with (
        serving("GATED", plugins=(GatedPlugin,), plus=plus_one()) as server,
        GatedPlugin.closed(),
        ThreadPoolExecutor(1) as pool,
    ):
        future = pool.submit(ask, server, INFER, BODY)
        assert GatedPlugin.began.wait(PATIENCE_S)
        with pytest.raises(KeyboardInterrupt):
            _wait_interrupted(server)
        threading.Timer(0.2, GatedPlugin.gate.set).start()
        server.close()
        assert GatedPlugin.gate.is_set()
        assert future.result(PATIENCE_S).status == 200


def _wait_interrupted(server: Server) -> None:
    interrupt = (threading.get_ident(), signal.SIGINT)
    threading.Timer(0.2, signal.pthread_kill, interrupt).start()
    server.wait()
