"""Attacks by one client, while a well-behaved client must be served all the time."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import hetero
from hetero.apps.serve import options as options_module
from hetero.apps.serve.server import Server
from tests.support.serving import (
    INFER,
    PATIENCE_S,
    ask,
    connected,
    identity,
    plus_one,
    posted,
    read_answer,
    server_fixture,
    serving,
    tensor,
    until,
)

pytest.importorskip("uvicorn")
grpc = pytest.importorskip("grpc")
from hetero.apps.serve import grpc_server, tensors  # noqa: E402 - optional packages
from hetero.apps.serve.proto_file import proto_file  # noqa: E402 - the same

FILE = proto_file("open_inference.proto")
BODY = json.dumps({"inputs": [tensor("x", "FP32", [1.0, 2.0])]}).encode()
LIMIT = 2**20


def fixed() -> Any:
    """Return a model whose input has a fixed shape of 3,072 elements."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 32, 32]) for name in "xy"
    ]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "fixed", ports[:1], ports[1:]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


server = server_fixture(
    grpc_port=0, plus=plus_one(), text=identity(TensorProto.STRING), fixed=fixed()
)


#: A server that accepts bodies of 1 MiB each and of 1.5 MiB in total.
limited = server_fixture(
    "function",
    grpc_port=0,
    options={"body_nbytes": LIMIT, "all_bodies_nbytes": 3 * LIMIT // 2},
    plus=plus_one(),
)


def infer_by_grpc(server: Server, *, token: str = "") -> list[float]:
    message = FILE.messages["ModelInferRequest"](model_name="plus")
    message.inputs.add(name="x", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1, 2])
    answer = call(server, "ModelInfer", message.SerializeToString(), token=token)
    response = FILE.messages["ModelInferResponse"].FromString(answer)
    return list(response.outputs[0].contents.fp32_contents)


def call(server: Server, method: str, data: bytes, *, token: str = "") -> bytes:
    """Return the response's bytes of a call with these bytes."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(
        f"127.0.0.1:{server.grpc_port}", options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        answer: bytes = channel.unary_unary(f"/{FILE.service}/{method}")(
            data, timeout=PATIENCE_S, metadata=metadata
        )
        return answer


def code_of(server: Server, method: str, data: bytes, **options: Any) -> str:
    with pytest.raises(grpc.RpcError) as error:
        call(server, method, data, **options)
    return str(error.value.code().name)


@contextmanager
def good_client(server: Server, token: str = "") -> Iterator[None]:
    """Run a client by HTTP and gRPC in the block; it is answered before, during and after."""
    stop, outcomes = threading.Event(), list[str]()
    headers = {"authorization": f"Bearer {token}"} if token else {}

    def run() -> None:
        try:
            while not stop.is_set() or not outcomes:
                answer = ask(server, INFER, BODY, headers=headers)
                assert answer.json["outputs"][0]["data"] == [2.0, 3.0]
                if server.grpc_port:
                    assert infer_by_grpc(server, token=token) == [2.0, 3.0]
                outcomes.append("good")
        except Exception as error:
            outcomes.append(repr(error))

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: bool(outcomes))
    try:
        yield
    finally:
        count = len(outcomes)
        until(lambda: len(outcomes) > count or not thread.is_alive())
        stop.set()
        thread.join(PATIENCE_S)
    assert set(outcomes) == {"good"}


def open_calls(server: Server, method: str, count: int, stack: ExitStack) -> list[Any]:
    """Open calls whose messages never arrive."""
    stop_event = threading.Event()
    stack.callback(stop_event.set)

    def silent() -> Iterator[bytes]:
        stop_event.wait()
        yield from ()

    channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    calls = [channel.stream_stream(f"/{FILE.service}/{method}")(silent()) for _ in range(count)]
    for call in calls:
        stack.callback(call.cancel)
    return calls


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ServerLive"])
def test_silent_calls_hold_up_no_other(server, method):
    health = proto_file("health.proto").messages
    with ExitStack() as stack, good_client(server):
        open_calls(server, method, 150, stack)
        for _ in range(3):
            # By default, channels with the same target share a connection and its streams.
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                answer = check(b"", timeout=PATIENCE_S)
            assert health["HealthCheckResponse"].FromString(answer).status == 1


def test_silent_calls_end(monkeypatch):
    monkeypatch.setattr(grpc_server, "STREAM_IDLE_S", 0.1)
    with (
        serving(grpc_port=0, options={"body_s": 0.1}, plus=plus_one()) as server,
        ExitStack() as stack,
        good_client(server),
    ):
        for method in ("ModelInfer", "ModelStreamInfer"):
            for calls in open_calls(server, method, 3, stack):
                with pytest.raises(grpc.RpcError) as error:
                    next(calls)
                assert error.value.code().name == "DEADLINE_EXCEEDED"


def test_excess_calls_are_refused_except_health(server, monkeypatch):
    monkeypatch.setattr(grpc_server, "MAX_CALLS", 0)
    assert code_of(server, "ServerLive", b"") == "UNAVAILABLE"
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=PATIENCE_S)
    monkeypatch.undo()
    assert infer_by_grpc(server) == [2.0, 3.0]


def test_token_is_checked_before_the_body_arrives():
    options = {"tokens": ("secret",)}
    with serving(grpc_port=0, options=options, plus=plus_one()) as server, ExitStack() as stack:
        stack.enter_context(good_client(server, token="secret"))
        for method in ("ModelInfer", "ModelStreamInfer", "RepositoryIndex"):
            [calls] = open_calls(server, method, 1, stack)
            with pytest.raises(grpc.RpcError) as error:
                next(calls)
            assert error.value.code().name == "UNAUTHENTICATED"
        with connected(server) as client:
            client.sendall(posted(bytes(1000))[:-1000])
            assert read_answer(client.makefile("rb"))[0].startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xff" * 300_000, "INVALID_ARGUMENT"),
        (b"\x3a" + b"\xff" * 9 + b"\x01", "INVALID_ARGUMENT"),
        (b"\x3b\x3c" * 100, "INVALID_ARGUMENT"),
        (b"\x3a\x05abc", "INVALID_ARGUMENT"),
        (b"\x3a", "INVALID_ARGUMENT"),
        (b"\x39abc", "INVALID_ARGUMENT"),
        (b"\x0a\x01\xff", "INVALID_ARGUMENT"),
        (b"\x3a\x00" * 100_000, "RESOURCE_EXHAUSTED"),
        (b"\x2a\x00" * 100_000, "RESOURCE_EXHAUSTED"),
        (b"\x32\x00" * 100_000, "RESOURCE_EXHAUSTED"),
        (b"\x78\x01" * 100_000, "RESOURCE_EXHAUSTED"),
    ],
)
def test_damaged_messages_are_refused(server, data, code):
    with good_client(server):
        assert code_of(server, "ModelInfer", data) == code


def test_fields_inside_inputs_are_bounded(server):
    message = FILE.messages["ModelInferRequest"](model_name="text")
    entry = message.inputs.add(name="x", datatype="BYTES", shape=[100_000])
    entry.contents.bytes_contents.extend([b""] * 100_000)
    with good_client(server):
        assert code_of(server, "ModelInfer", message.SerializeToString()) == "RESOURCE_EXHAUSTED"
        entry.Clear()
        entry.shape.extend([1] * 1000)
        assert code_of(server, "ModelInfer", message.SerializeToString()) == "INVALID_ARGUMENT"
        entry.Clear()
        for number in range(1000):
            entry.parameters[f"{number}"].int64_param = 1
        assert code_of(server, "ModelInfer", message.SerializeToString()) == "INVALID_ARGUMENT"


def test_only_typed_contents_are_limited():
    message = FILE.messages["ModelInferRequest"](model_name="plus")
    entry = message.inputs.add(name="x", datatype="FP32", shape=[10_000])
    entry.contents.fp32_contents.extend([1.0] * 10_000)
    with serving(grpc_port=0, options={"json_nbytes": 30_000}, plus=plus_one()) as server:
        assert code_of(server, "ModelInfer", message.SerializeToString()) == "RESOURCE_EXHAUSTED"
        entry.ClearField("contents")
        message.raw_input_contents.append(np.ones(10_000, np.float32).tobytes())
        assert call(server, "ModelInfer", message.SerializeToString())


def test_large_message_is_refused_compressed_or_not(limited):
    data = bytes(2 * LIMIT)
    with good_client(limited):
        assert code_of(limited, "ModelInfer", data) == "RESOURCE_EXHAUSTED"
        with grpc.insecure_channel(f"127.0.0.1:{limited.grpc_port}") as channel:
            infer = channel.unary_unary(f"/{FILE.service}/ModelInfer")
            with pytest.raises(grpc.RpcError) as error:
                infer(data, timeout=PATIENCE_S, compression=grpc.Compression.Gzip)
        assert error.value.code().name == "RESOURCE_EXHAUSTED"


def json_body(count: int, shape: list[int], datatype: str = "FP32") -> bytes:
    element = b'""' if datatype == "BYTES" else b"0"
    head = json.dumps({"name": "x", "shape": shape, "datatype": datatype}).encode()[:-1]
    return b'{"inputs":[%s,"data":[%s]}]}' % (head, b",".join([element] * count))


@pytest.mark.parametrize("encoding", ["", "gzip"])
@pytest.mark.parametrize("shape", [[1, 3, 32, 32], [1_000_000], [1, 3, 577, 577]])
def test_json_of_wrong_size_is_not_decoded(server, encoding, shape, monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("the data is decoded")

    monkeypatch.setattr(tensors, "_decoder", fail)
    body = json_body(1_000_000, shape)
    headers = {"content-encoding": encoding} if encoding else {}
    body = gzip.compress(body) if encoding else body
    assert ask(server, "/v2/models/fixed/infer", body, headers=headers).status == 400


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_large_json_is_refused(encoding):
    headers = {"content-encoding": encoding} if encoding else {}
    with serving(options={"json_nbytes": 10**6}, plus=plus_one()) as server, good_client(server):
        body = json_body(600_000, [600_000])
        body = gzip.compress(body) if encoding else body
        response = ask(server, INFER, body, headers=headers)
        assert response.status == 413
        assert "raw bytes" in response.json["error"]


def test_body_is_bounded_when_it_is_decompressed(limited):
    body = gzip.compress(b" " * (2 * LIMIT))
    with good_client(limited):
        response = ask(limited, INFER, body, headers={"content-encoding": "gzip"})
        assert response.status == 413


@pytest.mark.parametrize("is_raw", [False, True])
def test_many_strings_are_refused(server, is_raw):
    count = tensors.MAX_STRINGS + 1
    body, headers = json_body(count, [count], "BYTES"), {}
    if is_raw:
        entry = {"name": "x", "shape": [count], "datatype": "BYTES"}
        head = {"inputs": [{**entry, "parameters": {"binary_data_size": 4 * count}}]}
        body = json.dumps(head).encode()
        headers = {"inference-header-content-length": str(len(body))}
        body += bytes(4 * count)
    with good_client(server):
        response = ask(server, "/v2/models/text/infer", body, headers=headers)
        assert response.status == 413


def test_bodies_are_bounded_together(limited):
    bodies = limited.service.bodies
    with good_client(limited):
        with connected(limited) as holder:
            holder.sendall(posted(bytes(LIMIT))[:-1])
            until(lambda: bodies.used > LIMIT // 2)  # of the rest, parts are counted later
            response = ask(limited, INFER, bytes(LIMIT))
            assert response.status == 503
            assert response.headers["retry-after"]
            message = FILE.messages["ModelInferRequest"](model_name="plus")
            message.raw_input_contents.append(bytes(LIMIT - 100))
            assert code_of(limited, "ModelInfer", message.SerializeToString()) == "UNAVAILABLE"
        until(lambda: bodies.used < LIMIT // 2)
        assert ask(limited, INFER, bytes(LIMIT)).status == 400
    until(lambda: bodies.used == 0)


def test_total_body_limit_below_single_limit_is_refused():
    with pytest.raises(hetero.ArgumentError, match="at least body_nbytes"):
        options_module.ServerOptions(body_nbytes=10, all_bodies_nbytes=9)


def test_pipelines_hold_up_no_other(server):
    request = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with ExitStack() as stack, good_client(server):
        for _ in range(4):
            client = stack.enter_context(connected(server))
            client.setblocking(False)
            with suppress(BlockingIOError):
                for _ in range(50):
                    client.sendall(request * 100)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", "[0, 9223372036854775808]"),
        ("shape", "[4611686018427387904, 4, 0]"),
        ("shape", f"[0, 1{'0' * 300}]"),
        ("shape", "[9223372036854775807]"),
        ("shape", "[1.5]"),
        ("parameters", f'{{"binary_data_size": 1{"0" * 300}}}'),
        ("parameters", '{"binary_data_size": -1}'),
    ],
)
@pytest.mark.parametrize("model", ["plus", "text"])
def test_numbers_out_of_range_are_bad_requests(server, model, field, value):
    entry = {"name": '"x"', "datatype": '"FP32"', "shape": "[2]", "data": "[1, 2]", field: value}
    if model == "text":
        entry |= {"datatype": '"BYTES"', "data": "[]"}
    fields = ", ".join(f'"{name}": {text}' for name, text in entry.items())
    response = ask(server, f"/v2/models/{model}/infer", f'{{"inputs": [{{{fields}}}]}}'.encode())
    assert response.status == 400


@pytest.mark.parametrize("name", ["timeout", "priority"])
@pytest.mark.parametrize("value", [f"1{'0' * 400}", "-1", "1e400", "9223372036854775808"])
def test_parameters_out_of_range_are_bad_requests(server, name, value):
    body = BODY[:-1] + f', "parameters": {{"{name}": {value}}}}}'.encode()
    assert ask(server, INFER, body).status == 400


@pytest.mark.parametrize("prompt", ["hello", [1, 2], ["hello"]])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_prompt_for_other_model_is_a_bad_request(server, prompt, path):
    messages = [{"role": "user", "content": "hello"}]
    fields = {"messages": messages} if "chat" in path else {"prompt": prompt}
    response = ask(server, path, {"model": "plus", **fields})
    assert response.status == 400
    assert "was not read as a decoder" in response.json["error"]["message"]


def test_unread_responses_are_bounded_together():
    array = np.zeros(2_000_000, np.float32)  # more than the kernel keeps for a connection
    entry = {"name": "x", "shape": array.shape, "datatype": "FP32"}
    entry["parameters"] = {"binary_data_size": array.nbytes}
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    head = json.dumps(document).encode()
    length = {"inference-header-content-length": str(len(head))}
    body = head + array.tobytes()
    options = {"body_nbytes": 9_000_000, "all_bodies_nbytes": 12_000_000}
    with serving(options=options, plus=plus_one()) as server:
        bodies = server.service.bodies
        statistics = server.service.repository.find("plus").statistics
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((server.host, server.port))
            client.sendall(posted(body, more=f"inference-header-content-length: {len(head)}\r\n"))
            until(lambda: statistics.num_succeeded == 1)
            with good_client(server):
                assert ask(server, INFER, body, headers=length).status == 503
        until(lambda: bodies.used == 0)
        assert ask(server, INFER, body, headers=length).status == 200
        until(lambda: bodies.used == 0)


def test_response_larger_than_any_request_is_answered():
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}'
    nbytes = len(body)
    with serving(
        options={"body_nbytes": nbytes, "all_bodies_nbytes": nbytes}, plus=plus_one()
    ) as server:
        response = ask(server, INFER, body)
        assert response.status == 200
        assert len(response.body) > nbytes
        until(lambda: server.service.bodies.used == 0)


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_many_objects_are_refused_before_they_are_parsed(server, kind):
    entries = ",".join(['{"name":"","shape":[],"datatype":""}'] * (2**16 + 1))
    body = f'{{"{kind}":[{entries}]}}'.encode()
    with good_client(server):
        response = ask(server, "/v2/models/text/infer", body)
    assert response.status == 413
    assert "raw bytes" in response.json["error"]


def test_repeated_input_is_named_once(server):
    x = tensor("x", "FP32", [1.0])
    response = ask(server, INFER, {"inputs": [x] * 1000})
    assert response.status == 400
    assert response.json["error"] == "input 'x' is repeated."


@pytest.mark.parametrize("path", ["repository/index", "systemsharedmemory/region/r/register"])
def test_large_body_of_a_call_is_refused(server, path):
    body = b'{"ready":[' + b",".join([b"[]"] * 10**5) + b"]}"
    with good_client(server):
        assert ask(server, f"/v2/{path}", body).status == 413
