"""Triton's client: each of its calls, and REST and gRPC in every combination of encodings.

It is not one of the test extras because it needs protobuf 6; these tests run if it is installed.
"""

from __future__ import annotations

import asyncio
import threading
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from hetero.apps.serve.server import Server
from tests.support.serving import identity, plus_one, server_fixture

tritonclient_http: Any = pytest.importorskip("tritonclient.http")
tritonclient_grpc: Any = pytest.importorskip("tritonclient.grpc")
X = np.array([0.5, -2.0, 3e5], np.float32)
PACKINGS = (None, "gzip", "deflate")


server = server_fixture(
    grpc_port=0,
    options={"shared_memory": True, "model_control": "explicit"},
    plus=plus_one(),
    small=identity(TensorProto.INT8),
    text=identity(TensorProto.STRING),
)


@pytest.fixture(params=["http", "grpc"])
def form(request, server):
    """The module of a protocol, and its client."""
    module = tritonclient_http if request.param == "http" else tritonclient_grpc
    return module, module.InferenceServerClient(address(server, request.param))


def address(server: Server, form: str) -> str:
    return f"127.0.0.1:{server.port if form == 'http' else server.grpc_port}"


def given(module: Any, array: np.ndarray = X, datatype: str = "FP32", **options: Any) -> Any:
    tensor = module.InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **options)
    return tensor


@pytest.mark.parametrize(
    ("raw_in", "raw_out", "encoding", "accepted"),
    [*product([False, True], [False, True], PACKINGS, PACKINGS[:2])],
)
def test_encodings_over_http(server, raw_in, raw_out, encoding, accepted):
    module = tritonclient_http
    answer = module.InferenceServerClient(address(server, "http")).infer(
        "plus",
        [given(module, binary_data=raw_in)],
        outputs=[module.InferRequestedOutput("y", binary_data=raw_out)],
        request_compression_algorithm=encoding,
        response_compression_algorithm=accepted,
        request_id="seven",
        timeout=60_000_000,
        priority=1,
    )
    np.testing.assert_array_equal(answer.as_numpy("y"), X + 1)
    assert answer.get_response()["id"] == "seven"


@pytest.mark.parametrize("packing", PACKINGS)
def test_encodings_over_grpc(server, packing):
    client = tritonclient_grpc.InferenceServerClient(address(server, "grpc"))
    answer = client.infer("plus", [given(tritonclient_grpc)], compression_algorithm=packing)
    np.testing.assert_array_equal(answer.as_numpy("y"), X + 1)


def test_calls(form):
    module, client = form
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("plus")
    assert not client.is_model_ready("none")
    for call in ("get_server_metadata", "get_model_repository_index"):
        assert getattr(client, call)()
    for call in ("get_model_metadata", "get_model_config", "get_inference_statistics"):
        assert getattr(client, call)("plus")
    client.unload_model("small")
    assert not client.is_model_ready("small")
    client.load_model("small")
    text = np.array([b"", "grüße\n".encode()], object)
    answer = client.infer("text", [given(module, text, "BYTES")])
    np.testing.assert_array_equal(answer.as_numpy("y"), text)
    with pytest.raises(Exception, match="no model 'none'"):
        client.get_model_metadata("none")


def test_shared_memory(form):
    memory: Any = pytest.importorskip("tritonclient.utils.shared_memory")
    module, client = form
    regions = [memory.create_shared_memory_region(n, f"/hetero_{n}", 12) for n in ("in", "out")]
    try:
        memory.set_shared_memory_region(regions[0], [X])
        for name in ("in", "out"):
            client.register_system_shared_memory(name, f"/hetero_{name}", 12)
        tensor = module.InferInput("x", [3], "FP32")
        tensor.set_shared_memory("in", 12)
        output = module.InferRequestedOutput("y")
        output.set_shared_memory("out", 12)
        client.infer("plus", [tensor], outputs=[output])
        results = memory.get_contents_as_numpy(regions[1], np.float32, [3])
        np.testing.assert_array_equal(results, X + 1)
    finally:
        client.unregister_system_shared_memory()
        for region in regions:
            memory.destroy_shared_memory_region(region)


def test_stream(server):
    client = tritonclient_grpc.InferenceServerClient(address(server, "grpc"))
    results: list[Any] = []
    has_all_results = threading.Event()

    def take(result: Any, error: Any) -> None:
        results.append(error or result.get_response().id)
        if len(results) == 4:
            has_all_results.set()

    client.start_stream(take)
    for number in range(3):
        client.async_stream_infer("plus", [given(tritonclient_grpc)], request_id=f"{number}")
    client.async_stream_infer("none", [given(tritonclient_grpc)])
    assert has_all_results.wait(60)
    client.stop_stream()
    assert results[:3] == ["0", "1", "2"]
    assert "no model 'none'" in str(results[3])


@pytest.mark.parametrize("form_name", ["http", "grpc"])
def test_asyncio(server, form_name):
    module: Any = pytest.importorskip(f"tritonclient.{form_name}.aio")

    async def many() -> list[Any]:
        async with module.InferenceServerClient(address(server, form_name)) as client:
            calls = [client.infer("plus", [given(module)]) for _ in range(16)]
            return [answer.as_numpy("y") for answer in await asyncio.gather(*calls)]

    np.testing.assert_array_equal(asyncio.run(many()), [X + 1] * 16)
