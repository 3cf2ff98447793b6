"""The protocol's gRPC form, with grpcio as the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from onnx import TensorProto

from hetero.apps.serve.server import Server
from tests.support.gated_plugin import GatedPlugin
from tests.support.serving import ask, identity, plus_one, server_fixture, serving, tensor, until

grpc = pytest.importorskip("grpc")
pytest.importorskip("uvicorn")
from hetero.apps.serve import proto_file as proto_file_  # noqa: E402 - optional packages
from hetero.apps.serve.proto_file import proto_file  # noqa: E402 - the same

FILE = proto_file("open_inference.proto")
X = np.array([0.5, np.nan, 3e5], np.float32)


class Client:
    """The service's methods."""

    def __init__(self, server: Server) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")

    def __call__(self, method_name: str, document: Any = None, **fields: Any) -> Any:
        method = next(m for m in FILE.methods if m.name == method_name)
        input_type, output_type = method.input_type.name, method.output_type.name
        request_type, response_type = FILE.messages[input_type], FILE.messages[output_type]
        request, streams = document or request_type(**fields), method.client_streaming
        kind = self._channel.stream_stream if streams else self._channel.unary_unary
        path = f"/{FILE.service}/{method_name}"
        call = kind(path, request_type.SerializeToString, response_type.FromString)
        return call(iter(request) if streams else request, timeout=60)

    def fails(self, method_name: str, document: Any) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self(method_name, document)
        return caught.value.code().name, caught.value.details()


server = server_fixture(
    grpc_port=0,
    options={"model_control": "explicit"},
    plus=plus_one(),
    small=identity(TensorProto.INT8),
    text=identity(TensorProto.STRING),
    half=identity(TensorProto.FLOAT16),
)


@pytest.fixture(scope="module")
def client(server):
    return Client(server)


def request(
    model: str, datatype: str, shape: list[int], raw: bytes | None = None, **more: Any
) -> Any:
    message = FILE.messages["ModelInferRequest"](model_name=model, id="seven")
    entry = message.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, values in more.items():
        getattr(entry.contents, name).extend(values)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


def test_metadata(client):
    assert client("ServerLive").live
    assert client("ServerReady").ready
    assert client("ServerMetadata").name == "hetero"
    assert client("ModelReady", name="plus").ready
    assert not client("ModelReady", name="none").ready
    metadata = client("ModelMetadata", name="plus", version="1")
    assert [(p.name, p.datatype, list(p.shape)) for p in metadata.inputs] == [("x", "FP32", [-1])]
    assert client("ModelConfig", name="text").config.input[0].data_type == 13
    assert {row.name for row in client("RepositoryIndex").models} == {
        "plus",
        "small",
        "text",
        "half",
    }


def test_raw_contents(client):
    answer = client("ModelInfer", request("plus", "FP32", [3], X.tobytes()))
    assert (answer.model_name, answer.model_version, answer.id) == ("plus", "1", "seven")
    assert list(answer.raw_output_contents) == [(X + 1).tobytes()]


def test_typed_contents(client):
    answer = client("ModelInfer", request("plus", "FP32", [3], fp32_contents=X))
    np.testing.assert_array_equal(np.float32(answer.outputs[0].contents.fp32_contents), X + 1)
    answer = client("ModelInfer", request("text", "BYTES", [2], bytes_contents=[b"", "ü".encode()]))
    assert list(answer.outputs[0].contents.bytes_contents) == [b"", "ü".encode()]
    values = np.array([0.5, -1], np.float16)
    answer = client("ModelInfer", request("half", "FP16", [2], values.tobytes()))
    assert list(answer.raw_output_contents) == [values.tobytes()]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (request("none", "FP32", [3], X.tobytes()), "NOT_FOUND"),
        (request("plus", "FP32", [4], X.tobytes()), "INVALID_ARGUMENT"),
        (request("plus", "INT32", [3], X.tobytes()), "INVALID_ARGUMENT"),
        (request("plus", "FP32", [3], X.tobytes(), fp32_contents=X), "INVALID_ARGUMENT"),
        (request("plus", "FP32", [3], int_contents=[1, 2, 3]), "INVALID_ARGUMENT"),
        (request("plus", "FP32", [-3], X.tobytes()), "INVALID_ARGUMENT"),
        (request("half", "FP16", [1], fp32_contents=[1]), "INVALID_ARGUMENT"),
        (request("small", "INT8", [1], int_contents=[128]), "INVALID_ARGUMENT"),
        (request("text", "BYTES", [1], b"\xff\xff\xff\xff"), "INVALID_ARGUMENT"),
        (request("text", "BYTES", [1], bytes_contents=[b"\xff"]), "INVALID_ARGUMENT"),
        (FILE.messages["ModelInferRequest"](model_name="plus"), "INVALID_ARGUMENT"),
    ],
)
def test_bad_requests_are_refused(client, bad, code):
    actual, message = client.fails("ModelInfer", bad)
    assert actual == code, message
    assert message


def test_stream_continues_after_an_error(client):
    good = request("plus", "FP32", [3], X.tobytes())
    answers = list(client("ModelStreamInfer", [good, request("none", "FP32", [0]), good]))
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]
    assert answers[2].infer_response.raw_output_contents[0] == (X + 1).tobytes()


def test_rest_and_grpc_share_repository_and_statistics(server, client):
    before = client("ModelStatistics", name="plus").model_stats[0].inference_stats.success.count
    ask(server, "/v2/models/plus/infer", {"inputs": [tensor("x", "FP32", [1, 2])]})
    client("ModelInfer", request("plus", "FP32", [3], X.tobytes()))
    after = client("ModelStatistics", name="plus").model_stats[0].inference_stats
    assert (after.success.count - before, after.success.ns > 0) == (2, True)
    client("RepositoryModelUnload", model_name="small")
    assert ask(server, "/v2/models/small").status == 404
    client("RepositoryModelLoad", model_name="small")
    assert ask(server, "/v2/models/small").status == 200


def test_health_check(server):
    health = proto_file("health.proto")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health.messages["HealthCheckRequest"].SerializeToString,
            health.messages["HealthCheckResponse"].FromString,
        )
        assert check(health.messages["HealthCheckRequest"](), timeout=60).status == 1


def test_descriptors_are_protocs_output(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    folder = Path(proto_file_.__file__).parent
    message = tmp_path / "protocol.binpb"
    names = ["open_inference.proto", "health.proto"]
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={message}", *names]) == 0
    ours, theirs = FileDescriptorSet(), FileDescriptorSet()
    ours.ParseFromString((folder / "protocol.binpb").read_bytes())
    theirs.ParseFromString(message.read_bytes())
    assert ours == theirs


def test_call_with_a_deadline_may_run_at_once(server, client, monkeypatch):
    model = server.service.repository.find("plus")
    model.statistics.typical_s = 0.0
    submit, inline = model.submit, []

    def noted(values: Any, request: Any) -> Any:
        inline.append(request.inline)
        return submit(values, request)

    monkeypatch.setattr(model, "submit", noted)
    client("ModelInfer", request("plus", "FP32", [3], X.tobytes()))  # with a deadline
    assert inline == [True]


def test_deadline_cancels_a_waiting_call():
    config = {"MAX_REQUESTS_IN_FLIGHT": 1}
    with (
        serving(
            "GATED", config=config, plugins=(GatedPlugin,), grpc_port=0, plus=plus_one()
        ) as server,
        GatedPlugin.closed(),
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        infer = channel.unary_unary(f"/{FILE.service}/ModelInfer")
        message = request("plus", "FP32", [3], X.tobytes()).SerializeToString()
        running = infer.future(message, timeout=60)
        assert GatedPlugin.began.wait(60)
        with pytest.raises(grpc.RpcError) as caught:
            infer(message, timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        statistics = server.service.repository.find("plus").statistics
        until(lambda: statistics.num_in_flight == 1)
        GatedPlugin.gate.set()
        assert running.result(60)
        assert len(GatedPlugin.runs) == 1
