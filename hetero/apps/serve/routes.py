"""What is answered at which path, and the OpenAPI description that says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from hetero.apps.serve.datatypes import DATATYPES
from hetero.apps.serve.exchange import Exchange, Pending
from hetero.version import hetero_version

Names = Mapping[str, str]


class Route(NamedTuple):
    """A method and a path, whose parts in braces are names.

    `answer`: writes the answer to a request, of the names in its path, or returns what will.
    `summary`: of what OpenAPI describes; empty for the others.
    `schema`, `statuses`, `body`: what it answers, how else, and what it takes.
    """

    method: str
    path: str
    answer: Callable[[Exchange, Names], Pending | None]
    summary: str = ""
    schema: str = "anything"
    statuses: tuple[int, ...] = ()
    body: str = ""


class Routes:
    """Finds the routes of a path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._paths: dict[re.Pattern[str], dict[str, Route]] = {}
        for route in routes:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.path))
            self._paths.setdefault(re.compile(pattern), {})[route.method] = route
        #: Paths of clients are any: a few are kept.
        self.at = lru_cache(256)(self._at)

    def _at(self, path: str) -> tuple[dict[str, Route], Names]:
        """Return the routes at a path by method, and the names in it; the first path that fits."""
        for pattern, routes in self._paths.items():
            if found := pattern.fullmatch(path.rstrip("/")):
                return routes, found.groupdict()
        return {}, {}


_TEXT = {"type": "string"}
_PARAMETERS = {"type": "object", "additionalProperties": True}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_PORT = _object(
    "name datatype shape",
    name=_TEXT,
    datatype=_ref("datatype"),
    shape=_list({"type": "integer", "minimum": -1}),
)
_TENSOR = _object(
    "name shape datatype",
    name=_TEXT,
    shape=_list({"type": "integer", "minimum": 0}),
    datatype=_ref("datatype"),
    parameters=_PARAMETERS,
    data=_list({}),
)
_SCHEMAS = {
    "error": _object("error", error=_TEXT),
    "datatype": {"type": "string", "enum": [*DATATYPES]},
    "server": _object(
        "name version extensions", name=_TEXT, version=_TEXT, extensions=_list(_TEXT)
    ),
    "live": _object("live", live={"type": "boolean"}),
    "ready": _object("ready", ready={"type": "boolean"}, name=_TEXT),
    "model": _object(
        "name platform inputs outputs",
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(_PORT),
        outputs=_list(_PORT),
    ),
    "inference_request": _object(
        "inputs",
        id=_TEXT,
        parameters=_PARAMETERS,
        inputs=_list(_TENSOR),
        outputs=_list(_object("name", name=_TEXT, parameters=_PARAMETERS)),
    ),
    "inference_response": _object(
        "model_name outputs",
        id=_TEXT,
        model_name=_TEXT,
        model_version=_TEXT,
        parameters=_PARAMETERS,
        outputs=_list(_TENSOR),
    ),
    "index": _list(_object("name", name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)),
    "anything": {},
    "version": {"type": "string", "pattern": "^[0-9]+$"},
}


def _content(schema: str) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": _ref(schema)}}}


def openapi(routes: Sequence[Route], models: Sequence[str]) -> dict[str, Any]:
    """Return the description of a server with models of these names."""
    paths: dict[str, Any] = {}
    for route in routes:
        if not route.summary:
            continue
        answers = {"200": {"description": "OK", **_content(route.schema)}}
        for status in (401, 431, *route.statuses):
            answers[str(status)] = {"description": "why not", **_content("error")}
        names = [part[1:-1] for part in route.path.split("/") if part[:1] == "{"]
        paths[route.path] = {
            route.method.lower(): {
                "summary": route.summary,
                "responses": answers,
                "parameters": [
                    {"name": name, "in": "path", "required": True, "schema": _ref(name)}
                    for name in names
                ],
                **(
                    {"requestBody": {"required": True, **_content(route.body)}}
                    if route.body
                    else {}
                ),
            }
        }
    schemas = {**_SCHEMAS, "name": {"type": "string", "enum": [*models]}}
    return {
        "openapi": "3.0.3",
        "info": {"title": "Open Inference Protocol", "version": hetero_version()},
        "paths": paths,
        "components": {"schemas": schemas},
    }
