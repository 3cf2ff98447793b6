"""Large bodies: several on a connection, pipelined, and truncated."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.support.gated_plugin import GatedPlugin
from tests.support.serving import (
    connected,
    identity,
    plus_one,
    posted,
    read_answer,
    server_fixture,
    serving,
    until,
)

pytest.importorskip("uvicorn")
from hetero.apps.serve.exchange import Exchange
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.rest_messages import RestMessage
from hetero.apps.serve.service import BodyBudget

LENGTH = "Inference-Header-Content-Length"
COUNT = 300_000


server = server_fixture(device="CPU", plus=plus_one(), same=identity(TensorProto.FLOAT))


def body_of(array: np.ndarray, **more: Any) -> tuple[bytes, dict[str, str]]:
    entry = {
        "name": "x",
        "shape": [array.size],
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }
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


def test_requests_of_a_connection_have_their_own_tensors(server):
    rng = np.random.default_rng(0)
    with closing(HTTPConnection(server.host, server.port, timeout=60)) as connection:
        for number, (model, count) in enumerate(
            [
                ("plus", COUNT),
                ("same", COUNT),
                ("same", COUNT),
                ("plus", 8),
                ("plus", COUNT + 7),
                ("same", 3 * COUNT),
                ("same", COUNT),
            ]
        ):
            array = rng.standard_normal(count, np.float32)
            result = infer(connection, model, array, id="i" * number)
            np.testing.assert_array_equal(result, array + 1 if model == "plus" else array)


@pytest.mark.parametrize("padding", range(8))
def test_numbers_of_a_body_in_parts_are_decoded_in_place(padding):
    array = np.arange(1000.0)
    body, headers = body_of(array, id="i" * padding)
    body = body.replace(b"FP32", b"FP64")
    parts = [body[:10], body[10:5000], body[5000:]]

    async def receive() -> dict[str, Any]:
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(_: dict[str, Any]) -> None: ...

    head = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"method": "POST", "path": "/", "headers": head}
    exchange = Exchange(scope, receive, send, BodyBudget(2**20).reserve())
    asyncio.run(exchange.read(ServerOptions()))
    assert bytes(exchange.body) == body
    message = RestMessage(exchange.body, headers[LENGTH].encode(), 2**20)
    decoded = message.decode(message.document.inputs[0])
    np.testing.assert_array_equal(decoded, array)
    assert np.may_share_memory(decoded, np.frombuffer(exchange.body, np.uint8))
    assert not decoded.flags.writeable


def test_disconnect_at_the_end_of_the_work_cancels_nothing_later():
    """The client disconnects in the step of the event loop that also ends the work."""

    async def serve() -> bool:
        is_done = asyncio.Event()

        async def receive() -> dict[str, Any]:
            is_done.set()
            return {"type": "http.disconnect"}

        async def send(_: dict[str, Any]) -> None: ...

        async def work() -> None:
            await is_done.wait()

        scope = {"method": "POST", "path": "/", "headers": []}
        exchange = Exchange(scope, receive, send, BodyBudget(2**20).reserve())
        await exchange.cancel_on_disconnect(work())
        await asyncio.sleep(0)
        return exchange.is_disconnected

    assert not asyncio.run(serve())


def sent(model: str, body: bytes, headers: dict[str, str]) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return posted(body, f"/v2/models/{model}/infer", more)


def test_tensor_stays_valid_during_the_next_request():
    arrays = [np.full(COUNT, value, np.float32) for value in (1.0, 2.0)]
    first, second = (sent("plus", *body_of(array)) for array in arrays)
    with (
        serving("GATED", plugins=(GatedPlugin,), plus=plus_one()) as server,
        GatedPlugin.closed(),
        connected(server) as client,
    ):
        client.sendall(first)
        assert GatedPlugin.began.wait(60)
        client.sendall(second[:300_000])
        until(lambda: any(c.pipeline for c in server._uvicorn.server_state.connections))
        GatedPlugin.gate.set()
        client.sendall(second[300_000:])
        read = client.makefile("rb")
        for array in arrays:
            head, data = read_answer(read)
            assert head.startswith(b"HTTP/1.1 200")
            result = np.frombuffer(data[-array.nbytes :], np.float32)
            np.testing.assert_array_equal(result, array + 1)


def test_truncated_body_affects_no_other_client(server):
    body, headers = body_of(np.ones(COUNT, np.float32))
    with connected(server) as disconnecting_client:
        disconnecting_client.sendall(sent("plus", body, headers)[:500_000])
    with closing(HTTPConnection(server.host, server.port, timeout=60)) as connection:
        result = infer(connection, "plus", np.zeros(COUNT, np.float32))
        np.testing.assert_array_equal(result, np.ones(COUNT))
