"""The OpenAPI description of what is answered by HTTP, for tools that read one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero.serve.datatypes import DATATYPES
from hetero.version import hetero_version

_TEXT = {"type": "string"}
_PARAMETERS = {"type": "object", "additionalProperties": True}
_SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_DATA = {"type": "array", "items": {}}
_PORT = _object(
    ("name", "datatype", "shape"),
    name=_TEXT, datatype=_ref("datatype"), shape=_list({"type": "integer", "minimum": -1}),
)  # fmt: skip
_TENSOR = {"name": _TEXT, "shape": _SHAPE, "datatype": _ref("datatype"), "parameters": _PARAMETERS}
_SCHEMAS = {
    "error": _object(("error",), error=_TEXT),
    "datatype": {"type": "string", "enum": list(DATATYPES)},
    "server": _object(
        ("name", "version", "extensions"), name=_TEXT, version=_TEXT, extensions=_list(_TEXT)
    ),
    "live": _object(("live",), live={"type": "boolean"}),
    "ready": _object(("ready",), ready={"type": "boolean"}, name=_TEXT),
    "model": _object(
        ("name", "platform", "inputs", "outputs"),
        name=_TEXT, versions=_list(_TEXT), platform=_TEXT, inputs=_list(_PORT),
        outputs=_list(_PORT),
    ),
    "inference_request": _object(
        ("inputs",),
        id=_TEXT,
        parameters=_PARAMETERS,
        inputs=_list(_object(("name", "shape", "datatype"), **_TENSOR, data=_DATA)),
        outputs=_list(_object(("name",), name=_TEXT, parameters=_PARAMETERS)),
    ),
    "inference_response": _object(
        ("model_name", "outputs"),
        id=_TEXT, model_name=_TEXT, model_version=_TEXT, parameters=_PARAMETERS,
        outputs=_list(_object(("name", "shape", "datatype"), **_TENSOR, data=_DATA)),
    ),
    "index": _list(
        _object(("name",), name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)
    ),
    "anything": {},
}  # fmt: skip


def _answers(schema: str, *statuses: int) -> dict[str, Any]:
    json = "application/json"
    told = {"200": {"description": "OK", "content": {json: {"schema": _ref(schema)}}}}
    bad = {"description": "why not", "content": {json: {"schema": _ref("error")}}}
    return {**told, **{str(status): bad for status in (401, 431, *statuses)}}


def _path(
    method: str,
    summary: str,
    answers: dict[str, Any],
    names: Mapping[str, str] | None = None,
    body: str = "",
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": answers}
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": _ref(kind)}
            for name, kind in names.items()
        ]
    if body:
        content = {"application/json": {"schema": _ref(body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return {method: operation}


def openapi(models: Sequence[str]) -> dict[str, Any]:
    """Return the description of a server with models of these names."""
    paths = {
        "/v2": _path("get", "The server", _answers("server")),
        "/v2/health/live": _path("get", "Whether it is up", _answers("live")),
        "/v2/health/ready": _path("get", "Whether requests are welcome", _answers("ready", 503)),
        "/v2/models/stats": _path("get", "Statistics of all models", _answers("anything")),
        "/v2/repository/index": _path(
            "post", "The models that are here", _answers("index", 400, 408, 413)
        ),
    }
    for version in ("", "/versions/{version}"):
        path, names = f"/v2/models/{{model}}{version}", {"model": "model_name"}
        names |= {"version": "version"} if version else {}
        found = 404, 503
        paths |= {
            path: _path("get", "A model's ports", _answers("model", *found), names),
            f"{path}/ready": _path("get", "Whether it is loaded", _answers("ready", *found), names),
            f"{path}/config": _path("get", "As Triton has it", _answers("anything", *found), names),
            f"{path}/stats": _path("get", "What it did", _answers("anything", *found), names),
            f"{path}/infer": _path(
                "post", "An inference",
                _answers("inference_response", 400, 408, 413, 415, 500, 501, 504, *found), names,
                "inference_request",
            ),
        }  # fmt: skip
    return {
        "openapi": "3.0.3",
        "info": {"title": "Open Inference Protocol", "version": hetero_version()},
        "paths": paths,
        "components": {
            "schemas": {
                **_SCHEMAS,
                "model_name": {"type": "string", "enum": list(models)},
                "version": {"type": "string", "pattern": "^[0-9]+$"},
            }
        },
    }
