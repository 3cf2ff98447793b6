"""The protocol's REST form, with http.client as the client."""

from __future__ import annotations

import gzip
import json
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import jsonschema
import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.support.serving import INFER, ask, identity, plus_one, server_fixture, serving, tensor

pytest.importorskip("uvicorn")
pytest.importorskip("orjson")
from hetero.apps.serve.inference import Inference
from hetero.apps.serve.rest import RestApplication

X = np.array([0.5, -2.0, 3e5], np.float32)
#: Datatype -> ONNX's element type, and values.
TYPES: dict[str, tuple[int, Any]] = {
    "BOOL": (TensorProto.BOOL, np.array([True, False])),
    "UINT8": (TensorProto.UINT8, np.array([0, 255], np.uint8)),
    "UINT16": (TensorProto.UINT16, np.array([0, 2**16 - 1], np.uint16)),
    "UINT32": (TensorProto.UINT32, np.array([0, 2**32 - 1], np.uint32)),
    "UINT64": (TensorProto.UINT64, np.array([1, 2**64 - 1], np.uint64)),
    "INT8": (TensorProto.INT8, np.array([-128, 127], np.int8)),
    "INT16": (TensorProto.INT16, np.array([-(2**15), 2**15 - 1], np.int16)),
    "INT32": (TensorProto.INT32, np.array([-(2**31), 2**31 - 1], np.int32)),
    "INT64": (TensorProto.INT64, np.array([-(2**63), 2**63 - 1], np.int64)),
    "FP16": (TensorProto.FLOAT16, np.array([0.5, -65504], np.float16)),
    "FP32": (TensorProto.FLOAT, np.array([0.1, -3e38], np.float32)),
    "FP64": (TensorProto.DOUBLE, np.array([0.1, -1e308], np.float64)),
    "BF16": (TensorProto.BFLOAT16, np.array([0.5, -3e38], ml_dtypes.bfloat16)),
    "BYTES": (TensorProto.STRING, np.array(["", "grüße\n"], object)),
}


server = server_fixture(
    plus=plus_one(), **{name.lower(): identity(element) for name, (element, _) in TYPES.items()}
)


def binary(entries: list[dict[str, Any]], raws: list[bytes], **more: Any) -> tuple[bytes, dict]:
    """Return a body with raw tensors, and its header."""
    for entry, raw in zip(entries, raws, strict=True):
        entry.pop("data", None)
        entry["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": entries, **more}).encode()
    return head + b"".join(raws), {"Inference-Header-Content-Length": str(len(head))}


def raw_outputs(answer: Any) -> list[bytes]:
    """Return the raw bytes after a response's JSON."""
    at = int(answer.headers["inference-header-content-length"])
    outputs = []
    for output in json.loads(answer.body[:at])["outputs"]:
        nbytes = output["parameters"]["binary_data_size"]
        outputs.append(answer.body[at : at + nbytes])
        at += nbytes
    assert at == len(answer.body)
    return outputs


def test_server_metadata(server):
    assert ask(server, "/v2/health/live").json == {"live": True}
    assert ask(server, "/v2/health/ready").json == {"ready": True}
    document = ask(server, "/v2").json
    assert document["name"] == "hetero"
    assert "binary_tensor_data" in document["extensions"]


def test_model_metadata(server):
    port = {"datatype": "FP32", "shape": [-1]}
    expected = {
        "name": "plus",
        "versions": ["1"],
        "platform": "onnx_onnxv1",
        "inputs": [{"name": "x", **port}],
        "outputs": [{"name": "y", **port}],
    }
    assert ask(server, "/v2/models/plus").json == expected
    assert ask(server, "/v2/models/plus/versions/1").json == expected
    assert ask(server, "/v2/models/plus/ready").json == {"name": "plus", "ready": True}
    config = ask(server, "/v2/models/plus/config").json
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]


@pytest.mark.parametrize("nested", [False, True])
def test_json_infer(server, nested):
    entry = tensor("x", "FP32", X)
    if nested:
        entry["data"] = X.tolist()
    answer = ask(server, INFER, {"id": "seven", "inputs": [entry], "parameters": {"mine": 1}})
    assert answer.status == 200
    assert answer.json["id"] == "seven"
    assert (answer.json["model_name"], answer.json["model_version"]) == ("plus", "1")
    [output] = answer.json["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [3])
    np.testing.assert_array_equal(np.array(output["data"], np.float32), X + 1)


@pytest.mark.parametrize("datatype", TYPES)
def test_every_datatype_as_json(server, datatype):
    _, values = TYPES[datatype]
    path = f"/v2/models/{datatype.lower()}/infer"
    answer = ask(server, path, {"inputs": [tensor("x", datatype, values)]})
    assert answer.status == 200, answer.body
    [output] = answer.json["outputs"]
    assert output["datatype"] == datatype
    np.testing.assert_array_equal(np.array(output["data"], values.dtype), values)


@pytest.mark.parametrize("datatype", TYPES)
def test_every_datatype_as_raw_bytes(server, datatype):
    _, values = TYPES[datatype]
    if datatype == "BYTES":
        texts = [text.encode() for text in values]
        raw = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    else:
        raw = values.tobytes()
    body, headers = binary(
        [tensor("x", datatype, values)], [raw], parameters={"binary_data_output": True}
    )
    answer = ask(server, f"/v2/models/{datatype.lower()}/infer", body, headers=headers)
    assert answer.status == 200, answer.body
    assert raw_outputs(answer) == [raw]


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
@pytest.mark.parametrize("accepted", ["", "gzip", "deflate;q=0.5, gzip;q=0.2", "br, *;q=0"])
def test_compressed_bodies(server, encoding, accepted):
    body, headers = binary(
        [tensor("x", "FP32", X)],
        [X.tobytes()],
        outputs=[{"name": "y", "parameters": {"binary_data": True}}],
    )
    if encoding:
        body = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
        headers["Content-Encoding"] = encoding
    if accepted:
        headers["Accept-Encoding"] = accepted
    answer = ask(server, INFER, body, headers=headers)
    assert answer.status == 200, answer.body
    response_encoding = answer.headers.get("content-encoding", "")
    assert response_encoding == {"gzip": "gzip", "deflate;q=0.5, gzip;q=0.2": "deflate"}.get(
        accepted, ""
    )
    data = zlib.decompress(answer.body, 47) if response_encoding else answer.body
    np.testing.assert_array_equal(np.frombuffer(data[-12:], np.float32), X + 1)


def test_nan_in_a_json_output_is_refused(server):
    values = np.array([np.nan], np.float32)
    body, headers = binary([tensor("x", "FP32", values)], [values.tobytes()])
    answer = ask(server, INFER, body, headers=headers)
    assert answer.status == 400
    assert "NaN" in answer.json["error"]


def bad_bodies() -> Iterator[Any]:
    def case(name: str, body: Any, status: int = 400, **headers: str) -> Any:
        request_headers = {key.replace("_", "-"): value for key, value in headers.items()}
        return pytest.param(body, request_headers, status, id=name)

    good = tensor("x", "FP32", X)
    yield case("no JSON", b"{")
    yield case("another JSON", [1])
    yield case("nothing", b"")
    yield case("no inputs", {})
    yield case("inputs of none", {"inputs": []})
    yield case("inputs that are none", {"inputs": "x"})
    yield case("an input without a name", {"inputs": [{"shape": [1]}]})
    yield case("twice", {"inputs": [good, good]})
    yield case("unknown input", {"inputs": [good, {**good, "name": "z"}]})
    yield case("unknown output", {"inputs": [good], "outputs": [{"name": "z"}]})
    yield case("other datatype", {"inputs": [tensor("x", "INT32", [1, 2])]})
    yield case("no datatype", {"inputs": [{**good, "datatype": None}]})
    yield case("a datatype of its own", {"inputs": [{**good, "datatype": "FP33"}]})
    yield case("too few", {"inputs": [{**good, "shape": [4]}]})
    yield case("another rank", {"inputs": [{**good, "shape": [3, 1]}]})
    yield case("negative size", {"inputs": [{**good, "shape": [-3]}]})
    yield case("size that is none", {"inputs": [{**good, "shape": [True, 3]}]})
    yield case("enormous", {"inputs": [{**good, "shape": [2**62, 2**62]}]})
    yield case("deep", {"inputs": [{**good, "shape": [1] * 100}]})
    yield case("ragged", {"inputs": [{**good, "data": [[1], [2, 3]]}]})
    yield case("text for numbers", {"inputs": [{**good, "data": ["1", "2", "3"]}]})
    yield case("truth for numbers", {"inputs": [{**good, "data": [True, False, True]}]})
    yield case("nothing for numbers", {"inputs": [{**good, "data": [None, 1, 2]}]})
    yield case("too large a number", {"inputs": [{**good, "data": [1e300, 1, 2]}]})
    yield case("data that is none", {"inputs": [{**good, "data": 5}]})
    yield case("NaN", json.dumps({"inputs": [{**good, "data": [float("nan"), 1, 2]}]}).encode())
    yield case("deep JSON", b'{"inputs":' + b"[" * 100_000)
    yield case("id that is none", {"id": 5, "inputs": [good]})
    yield case("timeout that is none", {"inputs": [good], "parameters": {"timeout": "soon"}})
    yield case("sequences", {"inputs": [good], "parameters": {"sequence_id": 3}}, 501)
    yield case("JSON beyond the body", {"inputs": [good]}, Inference_Header_Content_Length="9999")
    yield case("JSON of no length", {"inputs": [good]}, Inference_Header_Content_Length="-1")
    yield case("no gzip", b"{}", Content_Encoding="gzip")
    yield case("gzip cut off", gzip.compress(b"{}")[:-4], Content_Encoding="gzip")
    yield case("other packing", b"{}", 415, Content_Encoding="br")
    short, headers = binary([dict(good)], [X.tobytes()])
    yield case("raw cut off", short[:-4], **headers)
    yield case("raw left over", short + b"more", **headers)


@pytest.mark.parametrize(("body", "headers", "status"), [*bad_bodies()])
def test_bad_requests_are_refused(server, body, headers, status):
    answer = ask(server, INFER, body, headers=headers)
    assert answer.status == status, answer.body
    assert answer.json["error"]
    good = ask(server, INFER, {"inputs": [tensor("x", "FP32", X)]})
    assert good.status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/v3", 404),
        ("/v2/models/none", 404),
        ("/v2/models/none/ready", 404),
        ("/v2/models/plus/versions/2", 404),
        ("/v2/models/plus/versions/2/ready", 404),
        ("/v2/models/plus/weights", 404),
        ("/v2/models/plus/infer", 405),
        ("/v2/repository/index", 405),
    ],
)
def test_unknown_paths_are_refused(server, path, status):
    answer = ask(server, path)
    assert answer.status == status
    assert answer.json["error"]


def test_statistics_and_metrics_count(server):
    def counted() -> tuple[int, int, int]:
        [row] = ask(server, "/v2/models/plus/stats").json["model_stats"]
        document = row["inference_stats"]
        assert document["success"]["ns"] >= document["compute_infer"]["ns"] > 0
        return document["success"]["count"], document["fail"]["count"], row["inference_count"]

    ask(server, INFER, {"inputs": [tensor("x", "FP32", X)]})
    before = counted()
    ask(server, INFER, {"inputs": [tensor("x", "FP32", X)]})
    ask(server, INFER, b"{")
    assert np.subtract(counted(), before).tolist() == [1, 1, 3]
    text = ask(server, "/metrics").body.decode()
    good = (
        f'hetero_serve_requests_total{{model="plus",result="success",version="1"}} {before[0] + 1}'
    )
    assert f"{good}.0\n" in text


#: Schema of a request's body -> a body.
BODIES = {
    "inference_request": {"inputs": [tensor("x", "FP32", X)]},
    "completion_request": {"model": "plus", "prompt": [1]},
    "chat_request": {"model": "plus", "messages": []},
    "generation_request": {"text_input": [1]},
    "region": {"key": "hetero_test", "byte_size": 8},
}


def test_openapi_lists_every_path(server):
    paths = ask(server, "/openapi.json").json["paths"]
    listed = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    routes = RestApplication(server.service)._router.routes
    assert listed == {(route.method, route.path) for route in routes}
    assert ("POST", "/v1/chat/completions") in listed


@pytest.mark.parametrize("name", ["plus", "none"])
def test_responses_fit_the_openapi_description(server, name):
    document = ask(server, "/openapi.json").json
    names = {"name": name, "model_name": name, "version": "1"}
    num_ok = 0
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            parameters = {parameter["name"] for parameter in described["parameters"]}
            assert parameters == set(re.findall(r"{(\w+)}", path))
            body = None if method == "get" else {}
            if requested := described.get("requestBody"):
                schema = requested["content"]["application/json"]["schema"]["$ref"]
                body = BODIES[schema.rpartition("/")[2]]
                jsonschema.validate(body, {**document, **_ref_of(requested)})
            answer = ask(server, path.format(**names), body)
            response = described["responses"][str(answer.status)]
            num_ok += answer.status == 200
            if answer.body and "application/json" in response["content"]:
                # OpenAPI 3.0's schemas are JSON Schema, except for words that are not used here.
                jsonschema.validate(answer.json, {**document, **_ref_of(response)})
    assert num_ok > (15 if name == "plus" else 5)


def _ref_of(content: Any) -> Any:
    return content["content"]["application/json"]["schema"]


def test_models_are_unloaded_and_loaded():
    options = {"model_control": "explicit"}
    with serving(options=options, plus=plus_one(), same=identity(TensorProto.INT8)) as server:
        assert ask(server, "/v2/repository/models/same/unload", b"").status == 200
        assert ask(server, "/v2/models/same/ready").status == 404
        assert ask(server, "/v2/health/ready").status == 200
        rows = ask(server, "/v2/repository/index", {}).json
        assert [row["state"] for row in rows if row["name"] == "same"] == ["UNAVAILABLE"]
        rows = ask(server, "/v2/repository/index", {"ready": True}).json
        assert [row["name"] for row in rows] == ["plus"]
        assert ask(server, "/v2/repository/models/same/load", b"").status == 200
        assert ask(server, "/v2/models/same/ready").status == 200
        assert ask(server, "/v2/repository/models/none/load", b"").status == 404


def test_models_are_not_unloaded_by_default(server):
    for action in ("load", "unload"):
        response = ask(server, f"/v2/repository/models/plus/{action}", b"")
        assert response.status == 403
        assert "--model-control explicit" in response.json["error"]
    assert ask(server, "/v2/models/plus/ready").status == 200


@pytest.mark.parametrize(
    ("model", "datatype", "nbytes", "is_inline"),
    [
        ("plus", "FP32", 2**17, True),
        ("plus", "FP32", 2**20 + 4, False),
        ("bytes", "BYTES", 2**17, False),
    ],
    ids=["numbers", "many numbers", "text"],
)
def test_event_loop_decodes_only_small_raw_bodies(
    server,
    monkeypatch,
    model,
    datatype,
    nbytes,
    is_inline,
):
    threads: list[threading.Thread] = []
    read = Inference.read

    def noted(self: Inference, message: Any) -> None:
        threads.append(threading.current_thread())
        read(self, message)

    monkeypatch.setattr(Inference, "read", noted)
    raw = (
        bytes(nbytes) if datatype == "FP32" else struct.pack("<I", nbytes - 4) + b"x" * (nbytes - 4)
    )
    shape = [nbytes // 4] if datatype == "FP32" else [1]
    entry = {"name": "x", "datatype": datatype, "shape": shape}
    body, headers = binary([entry], [raw], outputs=[])
    assert ask(server, f"/v2/models/{model}/infer", body, headers=headers).status == 200
    assert (threads[0] in server._threads) == is_inline
