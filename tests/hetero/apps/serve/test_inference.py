"""Small requests of quick models, which run on the event loop's thread."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from hetero.apps.serve.server import Server
from tests.support.serving import connected, plus_one, posted, read_answer, server_fixture, tensor

pytest.importorskip("uvicorn")
from hetero.apps.serve.exchange import Exchange

X = np.array([0.5, -2.0, 3e5], np.float32)
GOOD = json.dumps({"inputs": [tensor("x", "FP32", X)], "id": "7"}).encode()
BYTES_OF_X = {"name": "x", "shape": [3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
RAW = json.dumps({"inputs": [BYTES_OF_X], "parameters": {"binary_data_output": True}}).encode()
#: Name -> body and headers of a request.
REQUESTS = {
    "good": (GOOD, ""),
    "raw": (RAW + X.tobytes(), f"inference-header-content-length: {len(RAW)}\r\n"),
    "with a timeout": (b'{"parameters": {"timeout": 60000000},' + GOOD[1:], ""),
    "no JSON": (b"{", ""),
    "another input": (GOOD.replace(b'"x"', b'"z"'), ""),
    "too few elements": (GOOD.replace(b"[3]", b"[4]"), ""),
    "no token": (GOOD, "authorization: Bearer other\r\n"),
    "a lying length": (RAW + X.tobytes(), "inference-header-content-length: 9999\r\n"),
}


server = server_fixture(options={"tokens": ("secret",)}, plus=plus_one())


def request_of(body: bytes, more: str) -> bytes:
    token = "" if "authorization" in more else "authorization: Bearer secret\r\n"
    return posted(body, more=token + more)


def answers(server: Server, *pieces: bytes, count: int = 1, typical_s: float) -> list[bytes]:
    """Send pieces; return responses of a model with this typical time."""
    statistics = server.service.repository.find("plus").statistics
    with connected(server) as client:
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(0.01)  # if it arrives with the previous piece, the response is the same
            statistics.typical_s = typical_s
            client.sendall(piece)
        reader = client.makefile("rb")
        return [b"".join(read_answer(reader)) for _ in range(count)]


QUICK, SLOW = -math.inf, 1.0


@pytest.mark.parametrize("name", REQUESTS)
def test_responses_are_those_of_slow_models(server, name):
    request = request_of(*REQUESTS[name])
    [slow] = answers(server, request, typical_s=SLOW)
    [quick] = answers(server, request, typical_s=QUICK)
    assert sorted(quick.split(b"\r\n")) == sorted(slow.split(b"\r\n"))
    head = request.index(b"\r\n\r\n") + 4
    assert answers(server, request[:head], request[head:], typical_s=QUICK) == [quick]
    assert answers(server, request[:-1], request[-1:], typical_s=QUICK) == [quick]
    responses = answers(server, request + request, count=2, typical_s=QUICK)
    assert responses == [quick, quick]


def test_quick_request_needs_no_task(server, monkeypatch):
    expected = answers(server, request_of(GOOD, ""), typical_s=QUICK)
    monkeypatch.setattr(Exchange, "cancel_on_disconnect", None)
    assert answers(server, request_of(GOOD, ""), typical_s=QUICK) == expected


def test_request_is_counted_once(server):
    statistics = server.service.repository.find("plus").statistics
    before = statistics.num_succeeded, statistics.num_failed
    for name in ("good", "with a timeout", "no JSON"):
        answers(server, request_of(*REQUESTS[name]), typical_s=QUICK)
    assert (statistics.num_succeeded, statistics.num_failed) == (before[0] + 2, before[1] + 1)
    assert statistics.num_in_flight == 0


def test_chunked_body_may_follow(server):
    good = request_of(GOOD, "")
    head = good[: good.index(b"content-length")] + b"authorization: Bearer secret\r\n"
    chunks = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    first, second = answers(server, good, chunks, count=2, typical_s=QUICK)
    assert sorted(second.split(b"\r\n")) == sorted(first.split(b"\r\n"))
