"""Rules of the protocol and its extensions: a request and a check of its response each."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hetero.apps.serve.tensors import DATATYPES
from tests.oip_conformance.server_under_test import (
    ID,
    LENGTH,
    NotSupported,
    Response,
    ServerUnderTest,
    are_same,
    outputs,
)

Send = Callable[[ServerUnderTest], Response]
Check = Callable[[ServerUnderTest, Response], object]


class Rule(NamedTuple):
    """A rule: its text, a request, a check of the response, and its extension if it is of one."""

    name: str
    text: str
    request: Send
    check: Check
    extension: str = ""


def _get(path: str) -> Send:
    return lambda server: server.send(path)


def _infer(path: str = "/M/infer", **fields: Any) -> Send:
    return lambda server: server.send(path, server.request(**fields))


def _raw(pack: Callable[[bytes], bytes] = bytes, **headers: str) -> Send:
    """Send raw bytes after the JSON, compressed or damaged by `pack`, with more headers."""

    def send(server: ServerUnderTest) -> Response:
        body, request_headers = server.raw_request()
        request_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        return server.send("/M/infer", pack(body), request_headers)

    return send


def _changed(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Send:
    """Send a request after a change of it, or of its first input."""

    def send(server: ServerUnderTest) -> Response:
        request = server.request()
        change(request, request["inputs"][0])
        return server.send("/M/infer", request)

    return send


def _message(
    change: Callable[[Any, ServerUnderTest], object] = lambda *_: None, *, raw: bool
) -> Send:
    def send(server: ServerUnderTest) -> Response:
        message = server.message(raw=raw)
        change(message, server)
        return server.call("ModelInfer", message)

    return send


def _is_ok(server: ServerUnderTest, response: Response) -> bool:
    return response.status == 200


def _is_refused(server: ServerUnderTest, response: Response) -> bool:
    return 400 <= int(response.status) < 500 and isinstance(response.json().get("error"), str)


def _is_4xx(server: ServerUnderTest, response: Response) -> bool:
    return 400 <= int(response.status) < 500


def _is_expected(server: ServerUnderTest, response: Response) -> bool:
    return are_same(outputs(response), server.expected_outputs())


def _fails(code: str) -> Check:
    return lambda server, response: response.status == code


def _version(server: ServerUnderTest) -> str:
    if not (versions := server.metadata().get("versions")):
        raise NotSupported("the model has no versions")
    return f"/M/versions/{versions[-1]}"


def _counts(response: Response) -> tuple[int, int]:
    [row] = response.json()["model_stats"]
    return row["inference_stats"]["success"]["count"], row["inference_count"]


def _counted_once(server: ServerUnderTest, before: Response) -> bool:
    server.expected_outputs()
    after = _counts(server.send("/M/stats"))
    return after[0] == _counts(before)[0] + 1 and after[1] > _counts(before)[1]


def _ports(metadata: Any, *kinds: str) -> list[Any]:
    return [(p["name"], p["datatype"], p["shape"]) for kind in kinds for p in metadata[kind]]


def _names_of(server: ServerUnderTest, kind: str) -> list[str]:
    return [port["name"] for port in server.metadata()[kind]]


def _same_ports(server: ServerUnderTest, response: Response) -> bool:
    described = [*response.body.inputs, *response.body.outputs]
    ports = [(port.name, port.datatype, list(port.shape)) for port in described]
    return ports == _ports(server.metadata(), "inputs", "outputs")


def _is_metadata(server: ServerUnderTest, response: Response) -> bool:
    metadata = response.json()
    return (metadata["name"], type(metadata["platform"])) == (server.model, str) and all(
        datatype in DATATYPES and all(type(size) is int and size >= -1 for size in shape)
        for _, datatype, shape in _ports(metadata, "inputs", "outputs")
    )


def _streams(server: ServerUnderTest, response: Response) -> bool:
    if response.status == "UNIMPLEMENTED":
        raise NotSupported("ModelStreamInfer")
    second = Response(200, {}, response.body[1].infer_response)
    return len(response.body) == 2 and _is_expected(server, second)


#: Invalid requests.
_BAD: Final[dict[str, Send]] = {
    "unknown model": _get("/v2/models/no-such-model"),
    "inference by none": _infer("/v2/models/no-such-model/infer"),
    "unknown version": _get("/M/versions/987654"),
    "no JSON": lambda server: server.send("/M/infer", b"{"),
    "no object": lambda server: server.send("/M/infer", b"[1]"),
    "no inputs": _changed(lambda request, _: request.pop("inputs")),
    "missing input": _changed(lambda request, _: request["inputs"].pop()),
    "unknown input": _changed(lambda _, first: first.update(name="no_such")),
    "unknown output": _infer(outputs=[{"name": "no"}]),
    "no datatype": _changed(lambda _, first: first.pop("datatype")),
    "unknown datatype": _changed(lambda _, first: first.update(datatype="FP33")),
    "other datatype": _changed(
        lambda _, first: first.update(datatype="FP32" if first["datatype"] == "INT16" else "INT16")
    ),
    "too few elements": _changed(lambda _, first: first["shape"].append(7)),
    "negative size": _changed(lambda _, first: first.update(shape=[-1])),
    "text for numbers": _changed(lambda _, first: first.update(data=[{}])),
}
_RAW: Final = "binary_tensor_data"

RULES: Final = (
    Rule("live", "GET /v2/health/live answers 200", _get("/v2/health/live"), _is_ok),
    Rule("ready", "GET /v2/health/ready answers 200", _get("/v2/health/ready"), _is_ok),
    Rule(
        "server metadata",
        "GET /v2 has name, version, extensions",
        _get("/v2"),
        lambda _, response: (
            {type(response.json()["name"]), type(response.json()["version"])}
            | {type(name) for name in response.json()["extensions"]}
            == {str}
        ),
    ),
    Rule("model ready", "GET .../ready answers 200", _get("/M/ready"), _is_ok),
    Rule(
        "model metadata",
        "name, platform, ports: datatype and shape, -1 open",
        _get("/M"),
        _is_metadata,
    ),
    Rule(
        "versions",
        "paths with /versions/V are the same model",
        lambda server: server.send(f"{_version(server)}/infer", server.request()),
        lambda server, response: (
            _is_expected(server, response)
            and server.send(_version(server)).json()["name"] == server.model
            and _is_ok(server, server.send(f"{_version(server)}/ready"))
        ),
    ),
    Rule(
        "infer",
        "flat JSON data; the response has model_name and every output",
        _infer(),
        lambda server, response: (
            response.json()["model_name"] == server.model
            and sorted(outputs(response)) == sorted(_names_of(server, "outputs"))
        ),
    ),
    Rule("nested data", "nested data is the same as flat data", _infer(nested=True), _is_expected),
    Rule(
        "id",
        "a request's id comes back",
        _infer(id=ID),
        lambda _, response: response.json()["id"] == ID,
    ),
    Rule(
        "outputs",
        "of outputs only those asked for come",
        lambda server: server.send(
            "/M/infer", server.request(outputs=[{"name": _names_of(server, "outputs")[-1]}])
        ),
        lambda server, response: [*outputs(response)] == _names_of(server, "outputs")[-1:],
    ),
    Rule(
        "parameters",
        "parameters of the client's own change nothing",
        _infer(parameters={"of_mine": "x", "number": 1, "flag": True}),
        _is_expected,
    ),
    *(Rule(name, "4xx with {error}", send, _is_refused) for name, send in _BAD.items()),
    Rule("other method", "GET .../infer is refused", _get("/M/infer"), _is_4xx),
    Rule("raw input", f"{_RAW}: raw bytes behind the JSON", _raw(), _is_expected, _RAW),
    Rule(
        "raw output",
        f"{_RAW}: binary_data_output",
        _infer(parameters={"binary_data_output": True}),
        lambda server, response: (
            LENGTH.lower() in response.headers and _is_expected(server, response)
        ),
        _RAW,
    ),
    Rule(
        "raw output by name",
        f"{_RAW}: an output's binary_data",
        lambda server: server.send(
            "/M/infer",
            *server.raw_request(
                outputs=[
                    {"name": name, "parameters": {"binary_data": True}}
                    for name in _names_of(server, "outputs")
                ]
            ),
        ),
        lambda server, response: (
            LENGTH.lower() in response.headers and _is_expected(server, response)
        ),
        _RAW,
    ),
    Rule(
        "raw lengths",
        f"{_RAW}: one byte fewer than the shape needs is 4xx",
        _raw(lambda body: body[:-1]),
        _is_4xx,
        _RAW,
    ),
    Rule(
        "JSON's length",
        f"{_RAW}: JSON that goes on beyond the body is 4xx",
        _raw(Inference_Header_Content_Length="999999"),
        _is_4xx,
        _RAW,
    ),
    Rule(
        "gzip",
        "Content-Encoding: gzip",
        _raw(gzip.compress, Content_Encoding="gzip"),
        _is_expected,
        _RAW,
    ),
    Rule(
        "deflate",
        "Content-Encoding: deflate",
        _raw(zlib.compress, Content_Encoding="deflate"),
        _is_expected,
        _RAW,
    ),
    Rule(
        "configuration",
        "name and inputs",
        _get("/M/config"),
        lambda server, response: (
            response.json()["name"] == server.model
            and [p["name"] for p in response.json()["input"]] == _names_of(server, "inputs")
        ),
        "model_configuration",
    ),
    Rule(
        "statistics", "an inference is counted once", _get("/M/stats"), _counted_once, "statistics"
    ),
    Rule(
        "index",
        "the model is READY",
        lambda server: server.send("/v2/repository/index", {}),
        lambda server, response: (
            (server.model, "READY") in [(row["name"], row.get("state")) for row in response.json()]
        ),
        "model_repository",
    ),
    Rule("goes on", "after all of that it answers as before", _infer(), _is_expected),
    Rule(
        "gRPC: live",
        "ServerLive",
        lambda server: server.call("ServerLive"),
        lambda _, response: response.body.live,
    ),
    Rule(
        "gRPC: ready",
        "ServerReady, ModelReady",
        lambda server: server.call("ModelReady", name=server.model),
        lambda server, response: response.body.ready and server.call("ServerReady").body.ready,
    ),
    Rule(
        "gRPC: metadata",
        "ModelMetadata is the same as in REST",
        lambda server: server.call("ModelMetadata", name=server.model),
        _same_ports,
    ),
    Rule(
        "gRPC: contents", "typed contents give what REST gives", _message(raw=False), _is_expected
    ),
    Rule("gRPC: raw", "raw_input_contents give the same", _message(raw=True), _is_expected),
    Rule(
        "gRPC: id",
        "a request's id comes back",
        _message(raw=True),
        lambda _, response: response.body.id == ID,
    ),
    Rule(
        "gRPC: unknown model",
        "NOT_FOUND",
        _message(lambda message, _: setattr(message, "model_name", "no-such-model"), raw=True),
        _fails("NOT_FOUND"),
    ),
    Rule(
        "gRPC: mixed contents",
        "contents beside raw contents are INVALID_ARGUMENT",
        _message(
            lambda message, server: message.raw_input_contents.extend(
                server.message(raw=True).raw_input_contents
            ),
            raw=False,
        ),
        _fails("INVALID_ARGUMENT"),
    ),
    Rule(
        "gRPC: raw lengths",
        "bytes that do not fit the shape are INVALID_ARGUMENT",
        _message(
            lambda message, _: message.raw_input_contents.__setitem__(
                0, message.raw_input_contents[0][:-1]
            ),
            raw=True,
        ),
        _fails("INVALID_ARGUMENT"),
    ),
    Rule(
        "gRPC: streams",
        "ModelStreamInfer answers each request",
        lambda server: server.call("ModelStreamInfer", [server.message(raw=True)] * 2),
        _streams,
    ),
)
