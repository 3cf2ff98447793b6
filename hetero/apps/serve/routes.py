"""Routes of the REST form, and their OpenAPI description."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hetero.apps.serve.exchange import Exchange
from hetero.apps.serve.tensors import DATATYPES
from hetero.version import hetero_version

Names = Mapping[str, str]


class Route(NamedTuple):
    """A method and a path, whose parts in braces are names.

    `answer`: sets the response to a request with the names of its path.
    `summary`, `schema`, `statuses`, `body`: its description, the schema of its response
        (``nothing`` for an empty one), its own statuses of errors, and the schema of the request's
        body.
    """

    method: str
    path: str
    answer: Callable[[Exchange, Names], Awaitable[None]]
    summary: str
    schema: str = "anything"
    statuses: tuple[int, ...] = ()
    body: str = ""


class Router:
    """Finds the routes of a path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes: Final = tuple(routes)
        self._patterns: dict[re.Pattern[str], dict[str, Route]] = {}
        for route in routes:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.path))
            self._patterns.setdefault(re.compile(pattern), {})[route.method] = route
        #: Clients may send any path, so the cache is small.
        self.find = lru_cache(256)(self._find)

    def _find(self, path: str) -> tuple[dict[str, Route], Names]:
        """Return the routes of a path by method, and the names in it; the first match counts."""
        for pattern, routes in self._patterns.items():
            if match := pattern.fullmatch(path.rstrip("/")):
                return routes, match.groupdict()
        return {}, {}


_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "number"}
_INTEGER: Final = {"type": "integer"}
_PARAMETERS: Final = {"type": "object", "additionalProperties": True}


def _object_schema(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_PORT: Final = _object_schema(
    "name datatype shape",
    name=_TEXT,
    datatype=_ref("datatype"),
    shape=_list({"type": "integer", "minimum": -1}),
)
_TENSOR: Final = _object_schema(
    "name shape datatype",
    name=_TEXT,
    shape=_list({"type": "integer", "minimum": 0}),
    datatype=_ref("datatype"),
    parameters=_PARAMETERS,
    data=_list({}),
)
_OPENAI_MODEL: Final = _object_schema("id object", id=_TEXT, object=_TEXT)
_SAMPLING: Final = {
    "max_tokens": _INTEGER,
    "temperature": _NUMBER,
    "top_k": _INTEGER,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "seed": _INTEGER,
    "stop": {},
    "ignore_eos": {"type": "boolean"},
}
#: A prompt is a text or token ids, or a list of such.
_PROMPT: Final = {"oneOf": [_TEXT, _list({})]}
_SCHEMAS: Final = {
    "error": _object_schema("error", error={}),
    "datatype": {"type": "string", "enum": [*DATATYPES]},
    "server": _object_schema(
        "name version extensions", name=_TEXT, version=_TEXT, extensions=_list(_TEXT)
    ),
    "live": _object_schema("live", live={"type": "boolean"}),
    "ready": _object_schema("ready", ready={"type": "boolean"}, name=_TEXT),
    "model": _object_schema(
        "name platform inputs outputs",
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(_PORT),
        outputs=_list(_PORT),
    ),
    "inference_request": _object_schema(
        "inputs",
        id=_TEXT,
        parameters=_PARAMETERS,
        inputs=_list(_TENSOR),
        outputs=_list(_object_schema("name", name=_TEXT, parameters=_PARAMETERS)),
    ),
    "inference_response": _object_schema(
        "model_name outputs",
        id=_TEXT,
        model_name=_TEXT,
        model_version=_TEXT,
        parameters=_PARAMETERS,
        outputs=_list(_TENSOR),
    ),
    "index": _list(_object_schema("name", name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)),
    "region": _object_schema("key byte_size", key=_TEXT, offset=_INTEGER, byte_size=_INTEGER),
    "openai_models": _object_schema("object data", object=_TEXT, data=_list(_OPENAI_MODEL)),
    "openai_model": _OPENAI_MODEL,
    "completion_request": _object_schema(
        "model prompt", model=_TEXT, prompt=_PROMPT, n=_INTEGER, stream={}, **_SAMPLING
    ),
    "chat_request": _object_schema(
        "model messages", model=_TEXT, messages=_list({}), n=_INTEGER, stream={}, **_SAMPLING
    ),
    "completion": _object_schema(
        "id object model choices", id=_TEXT, object=_TEXT, model=_TEXT, choices=_list({})
    ),
    "generation_request": _object_schema(
        "text_input", text_input=_PROMPT, parameters=_PARAMETERS, **_SAMPLING
    ),
    "generation": _object_schema(
        "model_name text_output", model_name=_TEXT, text_output=_TEXT, token_ids=_list(_INTEGER)
    ),
    "anything": {},
    "text": _TEXT,
    "events": _TEXT,
    "version": {"type": "string", "pattern": "^[0-9]+$"},
}
#: Schema -> content type, if it is not JSON.
_CONTENT_TYPES: Final = {"text": "text/plain", "events": "text/event-stream"}


def _content(schema: str) -> dict[str, Any]:
    if schema == "nothing":
        return {}
    content_type = _CONTENT_TYPES.get(schema, "application/json")
    return {"content": {content_type: {"schema": _ref(schema)}}}


def openapi(routes: Sequence[Route], models: Sequence[str]) -> dict[str, Any]:
    """Return the OpenAPI description of a server with models of these names."""
    paths: dict[str, Any] = {}
    for route in routes:
        names = [part[1:-1] for part in route.path.split("/") if part[:1] == "{"]
        statuses = {401, 403, 414, 431, *route.statuses}
        if names:
            statuses |= {404, 501, 503}
        if "sharedmemory" in route.path:
            statuses |= {400, 501}
        if route.method == "POST":
            statuses |= {400, 408, 413, 501, 503}
        if route.body:
            statuses |= {404}
        responses = {"200": {"description": "OK", **_content(route.schema)}}
        for status in sorted(statuses):
            responses[str(status)] = {"description": "Error", **_content("error")}
        described: dict[str, Any] = {
            "summary": route.summary,
            "responses": responses,
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": _schema(name, route.path)}
                for name in names
            ],
        }
        if route.body:
            described["requestBody"] = {"required": True, **_content(route.body)}
        paths.setdefault(route.path, {})[route.method.lower()] = described
    return {
        "openapi": "3.0.3",
        "info": {"title": "Open Inference Protocol", "version": hetero_version()},
        "paths": paths,
        "components": {"schemas": {**_SCHEMAS, "name": {"type": "string", "enum": [*models]}}},
    }


def _schema(name: str, path: str) -> dict[str, Any]:
    """Return the schema of a name in a path."""
    if name == "version":
        return _ref("version")
    return _TEXT if "sharedmemory" in path else _ref("name")
