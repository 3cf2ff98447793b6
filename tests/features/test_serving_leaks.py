"""Memory of requests, which is freed as soon as they end, whatever the reason.

The garbage collector is off: a reference cycle would keep a request's tensors.
"""

from __future__ import annotations

import gc
import json
import logging
import socket
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.apps.serve.server import Server
from tests.support.decoders import decoder
from tests.support.serving import (
    PATIENCE_S,
    connected,
    plus_one,
    posted,
    read_answer,
    serving,
    tensor,
    until,
)

pytest.importorskip("uvicorn")
grpc = pytest.importorskip("grpc")
from hetero.apps.serve import server as server_module  # noqa: E402 - needs optional packages
from hetero.apps.serve.proto_file import proto_file  # noqa: E402 - the same

COUNT = 300_000
SMALL = json.dumps({"inputs": [tensor("x", "FP32", np.ones(8))]}).encode()
FILE = proto_file("open_inference.proto")


@pytest.fixture(scope="module")
def server():
    with hetero.Core("inprocess") as core:
        models = {
            "plus": core.compile_model(core.read_model(plus_one().SerializeToString()), "CPU"),
            "little": core.compile_model(hetero.read_decoder(decoder()), "CPU"),
        }
        with hetero.serve(models, 0, grpc_port=0) as server:
            yield server


def large(name: str = "x", count: int = COUNT) -> bytes:
    entry = {
        "name": name,
        "shape": [count],
        "datatype": "FP32",
        "parameters": {"binary_data_size": 4 * count},
    }
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    header = f"inference-header-content-length: {len(head)}\r\n"
    return posted(head + bytes(4 * count), more=header)


def text(**fields: Any) -> bytes:
    body = {"model": "little", "prompt": [1], "max_tokens": 40, "stream": True, **fields}
    return posted(json.dumps(body).encode(), "/v1/completions")


def answered(*requests: bytes, status: int = 200) -> Callable[[Server], None]:
    """Return a client that reads its responses and closes the connection."""

    def ask(server: Server) -> None:
        with connected(server) as client, client.makefile("rb") as reader:
            for request in requests:
                client.sendall(request)
                assert read_answer(reader)[0].startswith(b"HTTP/1.1 %d" % status)

    return ask


def left(data: bytes, *, reset: bool, reads: int = 0) -> Callable[[Server], None]:
    """Return a client that sends data, reads a number of bytes, and disconnects."""

    def ask(server: Server) -> None:
        with connected(server) as client:
            client.sendall(data)
            if reads:
                assert client.recv(reads)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return ask


def by_grpc(name: str, cancels: bool) -> Callable[[Server], None]:
    """Return a client whose calls fail, or that cancels them."""

    def ask(server: Server) -> None:
        message = FILE.messages["ModelInferRequest"](model_name="plus")
        message.inputs.add(name=name, datatype="FP32", shape=[COUNT])
        message.raw_input_contents.append(bytes(4 * COUNT))
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            call = channel.unary_unary(
                f"/{FILE.service}/ModelInfer", lambda message: message.SerializeToString()
            )
            client = call.future(message, timeout=PATIENCE_S)
            if cancels:
                client.cancel()
            else:
                assert client.exception(PATIENCE_S).code().name == "INVALID_ARGUMENT"

    return ask


CLIENTS = {
    "answered": answered(posted(SMALL), large(), posted(SMALL)),
    "answered, then reset": left(large(), reset=True, reads=1),
    "refused": answered(posted(b"{"), posted(b"{}"), status=400),
    "no such model": answered(posted(b"{}", "/v2/models/none/infer"), status=404),
    "refused, large": answered(large("z"), status=400),
    "half a body": left(large()[: 2 * COUNT], reset=False),
    "half a body, reset": left(large()[: 2 * COUNT], reset=True),
    "unread": left(large(), reset=False),
    "one behind the other, reset": left(large() + large() + large()[:1000], reset=True, reads=1),
    "stream left": left(text(), reset=False, reads=100),
    "text left": left(text(stream=False), reset=False),
    "gRPC, refused": by_grpc("z", cancels=False),
    "gRPC, given up": by_grpc("x", cancels=True),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CLIENTS)
def test_request_leaves_no_tensor_to_the_garbage_collector(server, name, caplog):
    client = CLIENTS[name]
    for _ in range(3):
        client(server)
    until(lambda: not server._uvicorn.server_state.connections)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(5):
            client(server)
        # Less than half of one request of 1.2 MB.
        until(lambda: tracemalloc.get_traced_memory()[0] < 2 * COUNT)
    finally:
        tracemalloc.stop()
        gc.enable()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.slow
def test_client_that_reads_nothing_is_disconnected(monkeypatch):
    monkeypatch.setattr(server_module, "_UNREAD_MS", 100)
    with serving(plus=plus_one()) as server, connected(server) as client:
        client.sendall(large(count=40 * COUNT))
        assert client.recv(1)
        until(lambda: not server._uvicorn.server_state.connections)
