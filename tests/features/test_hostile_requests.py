"""Unusual and damaged requests: each has a status of its own, and none is answered with 500."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from onnx import TensorProto

import hetero
from hetero.apps.serve.server import Server
from tests.support.decoders import decoder
from tests.support.serving import (
    INFER,
    ask,
    connected,
    identity,
    plus_one,
    posted,
    read_answer,
    tensor,
)

pytest.importorskip("uvicorn")

BODY = json.dumps({"inputs": [tensor("x", "FP32", [1.0, 2.0])]}).encode()
UPGRADE = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
REGISTER = "/v2/systemsharedmemory/region/r/register"


@pytest.fixture(scope="module")
def server():
    with hetero.Core("inprocess") as core:
        protos = {"plus": plus_one(), "text": identity(TensorProto.STRING)}
        models = {
            name: core.compile_model(core.read_model(proto.SerializeToString()), "CPU")
            for name, proto in protos.items()
        }
        models["little"] = core.compile_model(hetero.read_decoder(decoder()), "CPU")
        options: Any = {"shared_memory": True, "model_control": "explicit"}
        with hetero.serve(models, 0, **options) as server:
            yield server


def status_of(server: Server, request: bytes) -> int:
    """Send a request; return the status, and check that the server goes on."""
    with connected(server) as client:
        client.sendall(request)
        status = int(read_answer(client.makefile("rb"))[0].split()[1])
    assert ask(server, INFER, BODY).json["outputs"][0]["data"] == [2.0, 3.0]
    return status


def in_chunks(trailer: str) -> bytes:
    head = f"POST {INFER} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    return head.encode() + b"%x;a=b\r\n%s\r\n0\r\n%s\r\n" % (len(BODY), BODY, trailer.encode())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (posted(gzip.compress(BODY), more="content-encoding: gzip\r\n"), 200),
        (posted(gzip.compress(BODY)[:-9], more="content-encoding: gzip\r\n"), 400),
        (posted(zlib.compress(BODY)[2:-4], more="content-encoding: deflate\r\n"), 400),
        (posted(BODY, more="content-encoding: br\r\n"), 415),
        (posted(BODY, more=UPGRADE), 200),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", 431),
        (posted(b"--b\r\n\r\n1\r\n--b--", more="content-type: multipart/form-data\r\n"), 400),
        (in_chunks("authorization: Bearer x\r\n"), 200),
        (in_chunks("content-length: 5\r\n"), 400),
        (posted(BODY, more="inference-header-content-length: -1\r\n"), 400),
        (posted(BODY, more="accept-encoding: gzip;q=nan, deflate;q=inf\r\n"), 200),
    ],
)
def test_encodings_and_framings(server, request_, status):
    assert status_of(server, request_) == status


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (b"1.0", b"NaN", 400),
        (b"1.0", b"-Infinity", 400),
        (b"1.0", b"1e999", 400),
        (b"1.0", b"1" * 100_000, 400),
        (b"1.0", b"[" * 100_000 + b"]" * 100_000, 400),
        (b"[2]", b"[0, 9223372036854775807]", 400),
        (b"[2]", b"[" + b"1," * 64 + b"2]", 400),
        (b'"inputs"', b'"inputs": 1, "inputs"', 400),
        (b'"inputs"', b'"a": ' + b'{"a":' * 60_000 + b"1" + b"}" * 60_000 + b', "inputs"', 400),
        (b'"shape"', b'"shape": [9], "shape"', 200),
        (b'"inputs"', b'"__proto__": {"a": 1}, "inputs"', 200),
        (b'{"inputs"', b'\xef\xbb\xbf{"inputs"', 400),
        (b'{"inputs"', b'{"id": "\\ud800", "inputs"', 400),
    ],
)
def test_numbers_depth_and_repeated_keys(server, before, after, status):
    assert BODY.count(before) == 1
    assert status_of(server, posted(BODY.replace(before, after))) == status


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "%2e%2e%2fetc%2fpasswd", "%00", "%ff%fe", "%zz", "a" * 5000, "{name}"]
)
@pytest.mark.parametrize(
    "path",
    ["/v2/repository/models/{}/load", "/v2/repository/models/{}/unload", "/v2/models/{}/infer"],
)
def test_odd_names_of_models(server, path, name):
    assert status_of(server, posted(b"", path.replace("{}", name))) == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "r" * 300, "byte_size": 1},
        {"key": "a\0b", "byte_size": 1},
        {"key": "..", "byte_size": 1},
        {"key": "r", "byte_size": 10**400},
        {"key": "r", "byte_size": True},
        {"key": "r", "offset": None, "byte_size": 1},
        {},
    ],
)
def test_damaged_regions(server, fields):
    assert status_of(server, posted(json.dumps(fields).encode(), REGISTER)) == 400


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"temperature": 1e308}, 400),
        ({"temperature": 5e-324, "min_p": 1.0, "repetition_penalty": 1e38}, 200),
        ({"temperature": -1}, 400),
        ({"top_k": 2**70}, 400),
        ({"top_p": -1}, 400),
        ({"repetition_penalty": 0}, 400),
        ({"seed": -(2**63)}, 200),
        ({"n": 10**30}, 400),
        ({"prompt": [2**63]}, 400),
        ({"prompt": [[]]}, 400),
        ({"stop": "\ud800"}, 400),
    ],
)
def test_extreme_parameters_of_generations(server, fields, status):
    body = json.dumps({"model": "little", "prompt": [1], "max_tokens": 2, **fields}).encode()
    assert status_of(server, posted(body, "/v1/completions")) == status
