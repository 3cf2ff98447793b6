"""The rules of the protocol and its extensions: what is asked, and what the answer has to be."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hetero.apps.serve.tensors import DATATYPES
from tests.oip_conformance.subject import (
    ID,
    LENGTH,
    Answer,
    NotHere,
    Subject,
    outputs,
    same,
)

Ask = Callable[[Subject], Answer]
Expect = Callable[[Subject, Answer], object]


class Rule(NamedTuple):
    """A rule: its sentence, a request, whether an answer keeps it, the extension that it is of."""

    name: str
    says: str
    ask: Ask
    expect: Expect
    extension: str = ""


def _get(path: str) -> Ask:
    return lambda server: server.ask(path)


def _infer(path: str = "/M/infer", **more: Any) -> Ask:
    return lambda server: server.ask(path, server.request(**more))


def _raw(pack: Callable[[bytes], bytes] = bytes, **headers: str) -> Ask:
    """Ask with raw bytes behind the JSON, packed or damaged."""

    def ask(server: Subject) -> Answer:
        body, own = server.raw_request()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return server.ask("/M/infer", pack(body), {**own, **named})

    return ask


def _changed(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Ask:
    """Ask with a request that is changed: it, or its first input."""

    def ask(server: Subject) -> Answer:
        request = server.request()
        change(request, request["inputs"][0])
        return server.ask("/M/infer", request)

    return ask


def _message(change: Callable[[Any, Subject], object] = lambda *_: None, *, raw: bool) -> Ask:
    def ask(server: Subject) -> Answer:
        message = server.message(raw=raw)
        change(message, server)
        return server.call("ModelInfer", message)

    return ask


def _ok(server: Subject, answer: Answer) -> bool:
    return answer.status == 200


def _refused(server: Subject, answer: Answer) -> bool:
    return 400 <= int(answer.status) < 500 and isinstance(answer.json().get("error"), str)


def _is_4xx(server: Subject, answer: Answer) -> bool:
    return 400 <= int(answer.status) < 500


def _usual(server: Subject, answer: Answer) -> bool:
    return same(outputs(answer), server.usual())


def _fails(code: str) -> Expect:
    return lambda server, answer: answer.status == code


def _version(server: Subject) -> str:
    if not (versions := server.metadata().get("versions")):
        raise NotHere("the model has no versions")
    return f"/M/versions/{versions[-1]}"


def _counts(answer: Answer) -> tuple[int, int]:
    [row] = answer.json()["model_stats"]
    return row["inference_stats"]["success"]["count"], row["inference_count"]


def _counted_once(server: Subject, before: Answer) -> bool:
    server.usual()
    after = _counts(server.ask("/M/stats"))
    return after[0] == _counts(before)[0] + 1 and after[1] > _counts(before)[1]


def _ports(told: Any, *kinds: str) -> list[Any]:
    return [(p["name"], p["datatype"], p["shape"]) for kind in kinds for p in told[kind]]


def _names_of(server: Subject, kind: str) -> list[str]:
    return [port["name"] for port in server.metadata()[kind]]


def _same_ports(server: Subject, answer: Answer) -> bool:
    told = [*answer.body.inputs, *answer.body.outputs]
    ports = [(port.name, port.datatype, list(port.shape)) for port in told]
    return ports == _ports(server.metadata(), "inputs", "outputs")


def _is_metadata(server: Subject, answer: Answer) -> bool:
    told = answer.json()
    return (told["name"], type(told["platform"])) == (server.model, str) and all(
        datatype in DATATYPES and all(type(size) is int and size >= -1 for size in shape)
        for _, datatype, shape in _ports(told, "inputs", "outputs")
    )


def _streams(server: Subject, answer: Answer) -> bool:
    if answer.status == "UNIMPLEMENTED":
        raise NotHere("ModelStreamInfer")
    second = Answer(200, {}, answer.body[1].infer_response)
    return len(answer.body) == 2 and _usual(server, second)


#: Requests that are changed for the worse.
_BAD: Final[dict[str, Ask]] = {
    "unknown model": _get("/v2/models/no-such-model"),
    "inference by none": _infer("/v2/models/no-such-model/infer"),
    "unknown version": _get("/M/versions/987654"),
    "no JSON": lambda server: server.ask("/M/infer", b"{"),
    "no object": lambda server: server.ask("/M/infer", b"[1]"),
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
    Rule("live", "GET /v2/health/live answers 200", _get("/v2/health/live"), _ok),
    Rule("ready", "GET /v2/health/ready answers 200", _get("/v2/health/ready"), _ok),
    Rule(
        "server metadata",
        "GET /v2 has name, version, extensions",
        _get("/v2"),
        lambda _, answer: (
            {type(answer.json()["name"]), type(answer.json()["version"])}
            | {type(name) for name in answer.json()["extensions"]}
            == {str}
        ),
    ),
    Rule("model ready", "GET .../ready answers 200", _get("/M/ready"), _ok),
    Rule(
        "model metadata",
        "name, platform, ports: datatype and shape, -1 open",
        _get("/M"),
        _is_metadata,
    ),
    Rule(
        "versions",
        "paths with /versions/V are the same model",
        lambda server: server.ask(f"{_version(server)}/infer", server.request()),
        lambda server, answer: (
            _usual(server, answer)
            and server.ask(_version(server)).json()["name"] == server.model
            and _ok(server, server.ask(f"{_version(server)}/ready"))
        ),
    ),
    Rule(
        "infer",
        "flat JSON data; the answer has model_name and every output",
        _infer(),
        lambda server, answer: (
            answer.json()["model_name"] == server.model
            and sorted(outputs(answer)) == sorted(_names_of(server, "outputs"))
        ),
    ),
    Rule("nested data", "nested data is the same as flat data", _infer(nested=True), _usual),
    Rule("id", "a request's id comes back", _infer(id=ID), lambda _, a: a.json()["id"] == ID),
    Rule(
        "outputs",
        "of outputs only those asked for come",
        lambda server: server.ask(
            "/M/infer", server.request(outputs=[{"name": _names_of(server, "outputs")[-1]}])
        ),
        lambda server, answer: [*outputs(answer)] == _names_of(server, "outputs")[-1:],
    ),
    Rule(
        "parameters",
        "parameters of the client's own change nothing",
        _infer(parameters={"of_mine": "x", "number": 1, "flag": True}),
        _usual,
    ),
    *(Rule(name, "4xx with {error}", ask, _refused) for name, ask in _BAD.items()),
    Rule("other method", "GET .../infer is refused", _get("/M/infer"), _is_4xx),
    Rule("raw input", f"{_RAW}: raw bytes behind the JSON", _raw(), _usual, _RAW),
    Rule(
        "raw output",
        f"{_RAW}: binary_data_output",
        _infer(parameters={"binary_data_output": True}),
        lambda server, answer: LENGTH.lower() in answer.headers and _usual(server, answer),
        _RAW,
    ),
    Rule(
        "raw output by name",
        f"{_RAW}: an output's binary_data",
        lambda server: server.ask(
            "/M/infer",
            *server.raw_request(
                outputs=[
                    {"name": name, "parameters": {"binary_data": True}}
                    for name in _names_of(server, "outputs")
                ]
            ),
        ),
        lambda server, answer: LENGTH.lower() in answer.headers and _usual(server, answer),
        _RAW,
    ),
    Rule(
        "raw lengths",
        f"{_RAW}: a byte less than the shape says is 4xx",
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
        "gzip", "Content-Encoding: gzip", _raw(gzip.compress, Content_Encoding="gzip"), _usual, _RAW
    ),
    Rule(
        "deflate",
        "Content-Encoding: deflate",
        _raw(zlib.compress, Content_Encoding="deflate"),
        _usual,
        _RAW,
    ),
    Rule(
        "configuration",
        "name and inputs",
        _get("/M/config"),
        lambda server, answer: (
            answer.json()["name"] == server.model
            and [p["name"] for p in answer.json()["input"]] == _names_of(server, "inputs")
        ),
        "model_configuration",
    ),
    Rule(
        "statistics", "an inference is counted once", _get("/M/stats"), _counted_once, "statistics"
    ),
    Rule(
        "index",
        "the model is READY",
        lambda server: server.ask("/v2/repository/index", {}),
        lambda server, answer: (
            (server.model, "READY") in [(row["name"], row.get("state")) for row in answer.json()]
        ),
        "model_repository",
    ),
    Rule("goes on", "after all of that it answers as before", _infer(), _usual),
    Rule(
        "gRPC: live",
        "ServerLive",
        lambda server: server.call("ServerLive"),
        lambda _, answer: answer.body.live,
    ),
    Rule(
        "gRPC: ready",
        "ServerReady, ModelReady",
        lambda server: server.call("ModelReady", name=server.model),
        lambda server, answer: answer.body.ready and server.call("ServerReady").body.ready,
    ),
    Rule(
        "gRPC: metadata",
        "ModelMetadata says what REST says",
        lambda server: server.call("ModelMetadata", name=server.model),
        _same_ports,
    ),
    Rule("gRPC: contents", "typed contents give what REST gives", _message(raw=False), _usual),
    Rule("gRPC: raw", "raw_input_contents give the same", _message(raw=True), _usual),
    Rule("gRPC: id", "a request's id comes back", _message(raw=True), lambda _, a: a.body.id == ID),
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
