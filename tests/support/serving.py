"""Servers of a test's models, and HTTP requests to them without a client library."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hetero
from hetero.apps.serve.proto_file import proto_file
from hetero.apps.serve.server import Server

#: Inference endpoint of the model `plus_one`.
INFER = "/v2/models/plus/infer"
#: Timeout of every wait.
PATIENCE_S = 60


@dataclass(frozen=True)
class Response:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    server: Server,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Send one request and return the response; a body other than bytes is sent as JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=60)) as connection:
        method = method or ("GET" if data is None else "POST")
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        return Response(
            answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        )


def posted(body: bytes, path: str = INFER, more: str = "") -> bytes:
    """Return the bytes of a POST request; `more` is appended to its headers."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def connected(server: Server) -> socket.socket:
    """Open a connection to the server."""
    connection = socket.create_connection((server.host, server.port), PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_answer(reader: BinaryIO) -> tuple[bytes, bytes]:
    """Read a response with Content-Length; return its head and body."""
    head = read_head(reader)
    length = next(w for w in head.lower().split(b"\r\n") if w.startswith(b"content-length"))
    return head, reader.read(int(length.split()[1]))


def read_head(reader: BinaryIO) -> bytes:
    """Read the head of a response; return it without the Date header."""
    lines = iter(reader.readline, b"\r\n")
    return b"".join(line for line in lines if not line.startswith(b"date:"))


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def tensor(name: str, datatype: str, array: Any, **more: Any) -> dict[str, Any]:
    """Return the JSON form of an input tensor."""
    array = np.asarray(array)
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "data": array.ravel().tolist(),
        **more,
    }


def plus_one() -> onnx.ModelProto:
    """Return y = x + 1 for vectors, as a model called ``plus``."""
    return one_node("Add", "plus", TensorProto.FLOAT, constant=1.0)


def identity(element: int) -> onnx.ModelProto:
    """Return y = x for vectors of an element type."""
    return one_node("Identity", "same", element)


def one_node(
    operator: str, name: str, element: int, constant: float | None = None
) -> onnx.ModelProto:
    """Return a model of one node on a vector ``x``, with result ``y``."""
    weights = []
    if constant is not None:
        weights.append(helper.make_tensor("c", element, [], [constant]))
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *(w.name for w in weights)], ["y"], name="node")],
        name,
        [helper.make_tensor_value_info("x", element, ["n"])],
        [helper.make_tensor_value_info("y", element, ["n"])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def infer_with_traceparent(server: Server, protocol: str, traceparent: str) -> None:
    """Send one request to the model ``plus``, as part of the caller's trace."""
    if protocol == "http":
        body = {"inputs": [tensor("x", "FP32", [1.0, 2.0])]}
        assert ask(server, INFER, body, headers={"traceparent": traceparent}).status == 200
        return
    grpc = pytest.importorskip("grpc")
    file = proto_file("open_inference.proto")
    request = file.messages["ModelInferRequest"](model_name="plus")
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary(
            f"/{file.service}/ModelInfer", lambda message: message.SerializeToString()
        )
        infer(request, timeout=PATIENCE_S, metadata=[("traceparent", traceparent)])


@contextmanager
def serving(
    device: str = "HETERO:ORT,CPU",
    *,
    config: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    grpc_port: int | None = None,
    plugins: tuple[Any, ...] = (),
    **models: onnx.ModelProto,
) -> Iterator[Server]:
    """Serve models by name; `config` compiles the models, `options` configure the server."""
    with hetero.Core("inprocess", plugins=plugins) as core:
        compiled = {
            name: core.compile_model(core.read_model(model.SerializeToString()), device, config)
            for name, model in models.items()
        }
        with hetero.serve(compiled, 0, grpc_port=grpc_port, **(options or {})) as server:
            yield server


def server_fixture(scope: Literal["function", "module"] = "module", **arguments: Any) -> Any:
    """Return a fixture: a server with the arguments of `serving`, closed after its scope."""

    @pytest.fixture(scope=scope)
    def server():
        with serving(**arguments) as server:
            yield server

    return server
