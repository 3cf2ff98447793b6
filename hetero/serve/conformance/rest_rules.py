"""The rules of the protocol's REST form."""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any, Final

from hetero.serve.conformance.subject import LENGTH, NotHere, Rule, Subject, same, want
from hetero.serve.datatypes import DATATYPES


def _live(server: Subject) -> None:
    want(server.ask("/v2/health/live").status == 200, "not 200")


def _ready(server: Subject) -> None:
    want(server.ask("/v2/health/ready").status == 200, "not 200")


def _server(server: Subject) -> None:
    told = server.told("/v2")
    want(isinstance(told.get("name"), str) and isinstance(told.get("version"), str), f"{told}")
    want(all(isinstance(name, str) for name in told["extensions"]), f"{told['extensions']}")


def _model_ready(server: Subject) -> None:
    want(server.ask(f"{server.path}/ready").status == 200, "not 200")


def _metadata(server: Subject) -> None:
    told = server.metadata()
    want(told["name"] == server.model, f"its name is {told['name']}")
    want(isinstance(told["platform"], str), "no platform")
    for port in (*told["inputs"], *told["outputs"]):
        want(port["datatype"] in DATATYPES, f"{port['name']} is {port['datatype']}")
        sizes = port["shape"]
        want(all(type(n) is int and n >= -1 for n in sizes), f"{port['name']} has shape {sizes}")


def _versions(server: Subject) -> None:
    versions = server.metadata().get("versions")
    if not versions:
        raise NotHere("the model has no versions")
    path = f"{server.path}/versions/{versions[-1]}"
    want(server.told(path)["name"] == server.model, "another model")
    want(server.ask(f"{path}/ready").status == 200, "not ready")
    same(server.outputs(server.ask(f"{path}/infer", server.request())), server.usual())


def _infer(server: Subject) -> None:
    answer = server.ask(f"{server.path}/infer", server.request())
    outputs = server.outputs(answer)
    want(answer.json()["model_name"] == server.model, f"{answer.json().get('model_name')}")
    wanted = [port["name"] for port in server.metadata()["outputs"]]
    want(sorted(outputs) == sorted(wanted), f"outputs {sorted(outputs)}")


def _nested(server: Subject) -> None:
    request = server.request(nested=True)
    same(server.outputs(server.ask(f"{server.path}/infer", request)), server.usual())


def _id(server: Subject) -> None:
    answer = server.ask(f"{server.path}/infer", server.request(id="seven-7"))
    want(answer.json().get("id") == "seven-7", f"id {answer.json().get('id')!r}")


def _chosen(server: Subject) -> None:
    name = server.metadata()["outputs"][-1]["name"]
    outputs = server.outputs(
        server.ask(f"{server.path}/infer", server.request(outputs=[{"name": name}]))
    )
    want(list(outputs) == [name], f"asked for {name}, got {list(outputs)}")


def _parameters(server: Subject) -> None:
    request = server.request(parameters={"of_mine": "x", "number": 1, "flag": True})
    same(server.outputs(server.ask(f"{server.path}/infer", request)), server.usual())


def _bad(change: Callable[[dict[str, Any]], object]) -> Callable[[Subject], None]:
    """Return what asks with a request that is changed for the worse."""

    def check(server: Subject) -> None:
        request = copy.deepcopy(server.request())
        change(request)
        _refused(server, f"{server.path}/infer", json.dumps(request).encode())

    return check


def _bad_bytes(body: bytes) -> Callable[[Subject], None]:
    return lambda server: _refused(server, f"{server.path}/infer", body)


def _refused(server: Subject, path: str, body: bytes | None, **headers: str) -> None:
    """Have a request refused: a status of 4xx, and {"error": text}."""
    answer = server.ask(path, body, headers)
    want(400 <= answer.status < 500, f"status {answer.status}: {answer.body[:120]!r}")
    told = answer.json()
    want(isinstance(told, dict) and isinstance(told.get("error"), str), f"the body is {told}")


def _unknown_model(server: Subject) -> None:
    _refused(server, "/v2/models/no-such-model", None)
    _refused(server, "/v2/models/no-such-model/infer", json.dumps(server.request()).encode())


def _unknown_version(server: Subject) -> None:
    _refused(server, f"{server.path}/versions/987654", None)


def _method(server: Subject) -> None:
    answer = server.ask(f"{server.path}/infer")
    want(answer.status in (400, 404, 405), f"status {answer.status}")


def _raw_in(server: Subject) -> None:
    server.requires("binary_tensor_data")
    body, headers = server.raw_request()
    same(server.outputs(server.ask(f"{server.path}/infer", body, headers)), server.usual())


def _raw_out(server: Subject) -> None:
    server.requires("binary_tensor_data")
    request = server.request(parameters={"binary_data_output": True})
    answer = server.ask(f"{server.path}/infer", request)
    want(LENGTH.lower() in answer.headers, f"no {LENGTH}")
    same(server.outputs(answer), server.usual())


def _raw_of_one(server: Subject) -> None:
    server.requires("binary_tensor_data")
    named = [
        {"name": port["name"], "parameters": {"binary_data": True}}
        for port in server.metadata()["outputs"]
    ]
    body, headers = server.raw_request(outputs=named)
    answer = server.ask(f"{server.path}/infer", body, headers)
    want(LENGTH.lower() in answer.headers, f"no {LENGTH}")
    same(server.outputs(answer), server.usual())


def _raw_short(server: Subject) -> None:
    server.requires("binary_tensor_data")
    body, headers = server.raw_request()
    answer = server.ask(f"{server.path}/infer", body[:-1], headers)
    want(400 <= answer.status < 500, f"a byte short: status {answer.status}")
    answer = server.ask(f"{server.path}/infer", body, {**headers, LENGTH: "999999"})
    want(400 <= answer.status < 500, f"JSON beyond the body: status {answer.status}")


def _packed(encoding: str) -> Callable[[Subject], None]:
    def check(server: Subject) -> None:
        server.requires("binary_tensor_data")  # its text says how they go together
        body, headers = server.raw_request()
        body = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
        answer = server.ask(f"{server.path}/infer", body, {**headers, "Content-Encoding": encoding})
        same(server.outputs(answer), server.usual())

    return check


def _configuration(server: Subject) -> None:
    server.requires("model_configuration")
    told = server.told(f"{server.path}/config")
    want(told["name"] == server.model, f"{told}")
    names = [port["name"] for port in told["input"]]
    want(names == [port["name"] for port in server.metadata()["inputs"]], f"inputs {names}")


def _statistics(server: Subject) -> None:
    server.requires("statistics")

    def counted() -> Any:
        rows = server.told(f"{server.path}/stats")["model_stats"]
        return rows[0]["inference_stats"]["success"]["count"], rows[0]["inference_count"]

    before = counted()
    server.usual()
    want(counted()[0] == before[0] + 1, f"success.count {before[0]}, then {counted()[0]}")
    want(counted()[1] > before[1], f"inference_count {before[1]}, then {counted()[1]}")


def _index(server: Subject) -> None:
    server.requires("model_repository")
    answer = server.ask("/v2/repository/index", {})
    want(answer.status == 200, f"status {answer.status}")
    rows = [row for row in answer.json() if row["name"] == server.model]
    want(any(row.get("state") == "READY" for row in rows), f"{rows}")


def _goes_on(server: Subject) -> None:
    same(server.usual(), server.usual())


def _first(request: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = request["inputs"][0]
    return entry


RULES: Final = (
    Rule("live", "GET /v2/health/live answers 200", _live),
    Rule("ready", "GET /v2/health/ready answers 200", _ready),
    Rule("server metadata", "GET /v2 has name, version, extensions", _server),
    Rule("model ready", "GET .../ready answers 200", _model_ready),
    Rule("model metadata", "name, platform, ports: datatype and shape, -1 open", _metadata),
    Rule("versions", "paths with /versions/V are the same model", _versions),
    Rule("infer", "flat JSON data; the answer has model_name and every output", _infer),
    Rule("nested data", "nested data is the same as flat data", _nested),
    Rule("id", "a request's id comes back", _id),
    Rule("outputs", "of outputs only those asked for come", _chosen),
    Rule("parameters", "parameters of the client's own change nothing", _parameters),
    Rule("unknown model", "4xx with {error}", _unknown_model),
    Rule("unknown version", "4xx with {error}", _unknown_version),
    Rule("no JSON", "4xx with {error}", _bad_bytes(b"{")),
    Rule("no object", "4xx with {error}", _bad_bytes(b"[1]")),
    Rule("no inputs", "4xx with {error}", _bad(lambda r: r.pop("inputs"))),
    Rule("missing input", "4xx with {error}", _bad(lambda r: r["inputs"].pop())),
    Rule("unknown input", "4xx with {error}", _bad(lambda r: _first(r).update(name="no_such"))),
    Rule("unknown output", "4xx with {error}", _bad(lambda r: r.update(outputs=[{"name": "no"}]))),
    Rule("no datatype", "4xx with {error}", _bad(lambda r: _first(r).pop("datatype"))),
    Rule("unknown datatype", "4xx with {error}", _bad(lambda r: _first(r).update(datatype="FP33"))),
    Rule("other datatype", "4xx with {error}", _bad(
        lambda r: _first(r).update(datatype="INT16" if _first(r)["datatype"] != "INT16" else "FP32")
    )),
    Rule("too few elements", "4xx with {error}", _bad(lambda r: _first(r)["shape"].append(7))),
    Rule("negative size", "4xx with {error}", _bad(lambda r: _first(r).update(shape=[-1]))),
    Rule("text for numbers", "4xx with {error}", _bad(lambda r: _first(r).update(data=[{}]))),
    Rule("other method", "GET .../infer is refused", _method),
    Rule("raw input", "binary_tensor_data: raw bytes behind the JSON", _raw_in),
    Rule("raw output", "binary_tensor_data: binary_data_output", _raw_out),
    Rule("raw output by name", "binary_tensor_data: an output's binary_data", _raw_of_one),
    Rule("raw lengths", "binary_tensor_data: lengths that do not fit are 4xx", _raw_short),
    Rule("gzip", "Content-Encoding: gzip", _packed("gzip")),
    Rule("deflate", "Content-Encoding: deflate", _packed("deflate")),
    Rule("configuration", "model_configuration: name and inputs", _configuration),
    Rule("statistics", "statistics: an inference is counted once", _statistics),
    Rule("index", "model_repository: the model is READY", _index),
    Rule("goes on", "after all of that it answers as before", _goes_on),
)  # fmt: skip
