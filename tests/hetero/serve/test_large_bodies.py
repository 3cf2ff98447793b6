"""Bodies that the kernel writes to where their tensors stay: on one connection, and cut off."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from hetero.serve.server import Server
from tests.support.gated_plugin import GatedPlugin
from tests.support.serving import identity, plus_one, serving

pytest.importorskip("uvicorn")
LENGTH = "Inference-Header-Content-Length"
COUNT = 300_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("CPU", plus=plus_one(), same=identity(TensorProto.FLOAT)) as made:
        yield made


def body_of(array: np.ndarray, **more: Any) -> tuple[bytes, dict[str, str]]:
    entry = {
        "name": "x", "shape": [array.size], "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }  # fmt: skip
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}, **more}
    head = json.dumps(document).encode()
    return head + array.tobytes(), {LENGTH: str(len(head))}


def infer(connection: HTTPConnection, model: str, array: np.ndarray, **more: Any) -> np.ndarray:
    body, headers = body_of(array, **more)
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, data[:300]
    return np.frombuffer(data[int(answer.headers[LENGTH]) :], np.float32)


def test_one_after_the_other_on_a_connection(server: Server) -> None:
    rng = np.random.default_rng(0)
    with closing(HTTPConnection(server.host, server.port, timeout=60)) as connection:
        for turn, (model, count) in enumerate([
            ("plus", COUNT), ("same", COUNT), ("same", COUNT), ("plus", 8), ("plus", COUNT + 7),
            ("same", 3 * COUNT), ("same", COUNT),
        ]):  # fmt: skip
            array = rng.standard_normal(count, np.float32)
            got = infer(connection, model, array, id="i" * turn)
            np.testing.assert_array_equal(got, array + 1 if model == "plus" else array)


def head_of(model: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def test_a_body_stays_while_the_next_is_read() -> None:
    """The second request comes while a device still has the first one's tensor."""
    arrays = [np.full(COUNT, value, np.float32) for value in (1.0, 2.0)]
    bodies = [body_of(array) for array in arrays]
    sent = [head_of("plus", *body) + body[0] for body in bodies]
    with (
        serving("GATED", plugins=(GatedPlugin,), plus=plus_one()) as server,
        GatedPlugin.closed(),
        socket.create_connection((server.host, server.port)) as client,
    ):
        client.settimeout(60)
        client.sendall(sent[0])
        assert GatedPlugin.began.wait(60)
        client.sendall(sent[1][:300_000])
        deadline = time.monotonic() + 60
        while not any(made.reading for made in server._uvicorn.server_state.connections):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        GatedPlugin.gate.set()
        client.sendall(sent[1][300_000:])
        read = client.makefile("rb")
        for array in arrays:
            told = {}
            assert read.readline().startswith(b"HTTP/1.1 200")
            while line := read.readline().strip():
                name, _, value = line.decode().partition(": ")
                told[name] = value
            data = read.read(int(told["content-length"]))
            got = np.frombuffer(data[int(told[LENGTH.lower()]) :], np.float32)
            np.testing.assert_array_equal(got, array + 1)


def test_a_client_that_leaves_in_the_middle_harms_nobody(server: Server) -> None:
    body, headers = body_of(np.ones(COUNT, np.float32))
    with socket.create_connection((server.host, server.port)) as leaver:
        leaver.sendall(head_of("plus", body, headers))
        leaver.sendall(body[:500_000])
    with closing(HTTPConnection(server.host, server.port, timeout=60)) as connection:
        got = infer(connection, "plus", np.zeros(COUNT, np.float32))
        np.testing.assert_array_equal(got, np.ones(COUNT))
