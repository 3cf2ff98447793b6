"""The ASGI application: the routes of the Open Inference Protocol's REST form."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import unquote

from devices.errors import HeteroError
from devices.request.request import Request
from hetero.serve.access_log import write_line
from hetero.serve.completions import Completions
from hetero.serve.errors import refused, status_of
from hetero.serve.http_exchange import ClientGone, Exchange, Receive, Send
from hetero.serve.metrics import metrics_text
from hetero.serve.openapi import openapi
from hetero.serve.rest_request import read_infer, read_json, unpacked
from hetero.serve.rest_response import write_infer
from hetero.serve.served_model import ServedModel
from hetero.serve.service import Service
from hetero.serve.turns import Turns

_log = logging.getLogger(__name__)

_JSON_NBYTES: Final = b"inference-header-content-length"


class ServingApp:
    """The application; any ASGI server takes it.

    Parameters
    ----------
    service : Service
        The models and rules.
    tokens : collection of str
        One of them has to come with each request but health checks; none: anybody may ask.
    access_log : bool
        Whether each request is logged.
    """

    def __init__(
        self, service: Service, *, tokens: Collection[str] = (), access_log: bool = False
    ) -> None:
        self._service = service
        self._tokens = tuple(f"Bearer {token}".encode() for token in tokens)
        self._access_log = access_log
        self._completions = Completions(service)
        self._turns: dict[ServedModel, Turns] = {}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        bounds = self._service.bounds
        exchange = Exchange(scope, receive, send, bounds.body_nbytes, bounds.body_s)
        began_s = time.perf_counter()
        try:
            self._check_token(exchange)
            await self._route(exchange)
        except ClientGone:
            exchange.status = 499
        except Exception as error:
            await _answer_error(exchange, error)
        if self._access_log:
            write_line(exchange, time.perf_counter() - began_s)

    def _check_token(self, exchange: Exchange) -> None:
        """Raise ProtocolError where a token is wanted and none of ours has come."""
        if not self._tokens or exchange.path.startswith("/v2/health/"):
            return
        given = exchange.header(b"authorization").encode("latin-1")
        if not any(hmac.compare_digest(token, given) for token in self._tokens):
            raise refused("a token is wanted: Authorization: Bearer TOKEN.", 401)

    # Routes.

    async def _route(self, exchange: Exchange) -> None:
        parts = [unquote(part) for part in exchange.path.split("/")[1:]]
        match parts:
            case ["v2", "models", name, "infer"]:
                await self._infer(exchange, name, "")
            case ["v2", "models", name, "versions", version, "infer"]:
                await self._infer(exchange, name, version)
            case ["v1", "models"]:
                _allow(exchange, "GET")
                await self._completions.models(exchange)
            case ["v1", "completions"]:
                _allow(exchange, "POST")
                await self._completions.completion(exchange)
            case ["v1", "chat", "completions"]:
                _allow(exchange, "POST")
                await self._completions.chat(exchange)
            case ["v2"] | ["v2", ""]:
                _allow(exchange, "GET")
                await exchange.answer_json(self._service.metadata())
            case ["v2", "health", "live"]:
                _allow(exchange, "GET")
                await exchange.answer_json({"live": True})
            case ["v2", "health", "ready"]:
                _allow(exchange, "GET")
                ready = self._service.is_ready()
                await exchange.answer_json({"ready": ready}, 200 if ready else 503)
            case ["v2", "models", "stats"]:
                _allow(exchange, "GET")
                await exchange.answer_json(self._service.statistics())
            case ["v2", "models", name, "versions", version, *rest]:
                await self._model(exchange, name, version, rest)
            case ["v2", "models", name, *rest]:
                await self._model(exchange, name, "", rest)
            case ["v2", "systemsharedmemory", *rest]:
                await self._shared_memory(exchange, rest)
            case ["v2", "repository", *rest]:
                await self._repository(exchange, rest)
            case ["openapi.json"]:
                _allow(exchange, "GET")
                await exchange.answer_json(
                    openapi([row["name"] for row in self._service.repository.index()])
                )
            case ["metrics"]:
                _allow(exchange, "GET")
                text = metrics_text(self._service.repository.models()).encode()
                await exchange.answer(200, [text], "text/plain; version=0.0.4; charset=utf-8")
            case _:
                raise refused(f"no {exchange.path} here; the protocol's paths begin at /v2.", 404)

    async def _model(self, exchange: Exchange, name: str, version: str, rest: list[str]) -> None:
        writes = rest and rest[0].startswith("generate")
        _allow(exchange, "POST" if writes else "GET")
        model = self._service.repository.find(name, version)
        match rest:
            case ["generate" | "generate_stream" as kind]:
                stream = kind == "generate_stream"
                await self._completions.generate(exchange, model, stream=stream)
            case []:
                await exchange.answer_json(self._service.model_metadata(name, version))
            case ["ready"]:
                ready = {"name": name, "ready": model.is_ready}
                await exchange.answer_json(ready, 200 if model.is_ready else 503)
            case ["config"]:
                await exchange.answer_json(model.config())
            case ["stats"]:
                await exchange.answer_json(self._service.statistics(name, version))
            case _:
                raise refused(f"no {'/'.join(rest)} of a model here.", 404)

    async def _repository(self, exchange: Exchange, rest: list[str]) -> None:
        _allow(exchange, "POST")
        body = await exchange.body()
        parameters = read_json(body) if body.strip() else {}
        match rest:
            case ["index"]:
                index = self._service.repository.index(ready=parameters.get("ready") is True)
                await exchange.answer_json(index)
            case ["models", name, "load"]:
                given = parameters.get("parameters") or {}
                await asyncio.to_thread(self._service.load, name, given)
                await exchange.answer(200)
            case ["models", name, "unload"]:
                await asyncio.to_thread(self._service.repository.unload, name)
                await exchange.answer(200)
            case _:
                raise refused(f"no {exchange.path} here.", 404)

    async def _shared_memory(self, exchange: Exchange, rest: list[str]) -> None:
        regions = self._service.regions
        name = rest[1] if rest[0] == "region" and len(rest) == 3 else ""
        match [rest[0], rest[-1]]:
            case [_, "status"] if len(rest) in (1, 3):
                _allow(exchange, "GET")
                await exchange.answer_json(regions.status(name))
            case ["region", "register"]:
                _allow(exchange, "POST")
                told = read_json(await exchange.body())
                key, nbytes = str(told.get("key")), told.get("byte_size", 0)
                regions.register(name, key, told.get("offset", 0), nbytes)
                await exchange.answer(200)
            case [_, "unregister"] if len(rest) in (1, 3):
                _allow(exchange, "POST")
                regions.unregister(name)
                await exchange.answer(200)
            case _:
                raise refused(f"no {exchange.path} here.", 404)

    # Inference.

    async def _infer(self, exchange: Exchange, name: str, version: str) -> None:
        _allow(exchange, "POST")
        model = self._service.repository.find(name, version)
        began_s = time.perf_counter()
        try:
            body = await exchange.body()
            came_s = time.perf_counter()
            encoding = exchange.header(b"content-encoding")
            if encoding:
                body = unpacked(body, encoding.lower(), self._service.bounds.body_nbytes)
            json_nbytes = exchange.header(_JSON_NBYTES) if exchange.has(_JSON_NBYTES) else None
            call = read_infer(body, json_nbytes, self._service.regions)
            values = model.values(call)
            read_s = time.perf_counter() - came_s
            request = Request(call.timeout_s, waits=False, priority=call.priority)
            with model.statistics.in_flight():
                run = self._turns_of(model).run(values, request)
                answer = await exchange.unless_gone(run)
            answered_s = time.perf_counter()
            length, parts = write_infer(
                name,
                model.version,
                call,
                model.outputs(call, answer.outputs),
                self._service.regions,
            )
            ended_s = time.perf_counter()
            model.statistics.succeeded(
                model.rows(values), ended_s - began_s, answer.stage_runs, read_s,
                ended_s - answered_s,
            )  # fmt: skip
        except BaseException:
            model.statistics.failed(time.perf_counter() - began_s)
            raise
        if length is None:
            await exchange.answer(200, parts, may_pack=True)
        else:
            headers = [(_JSON_NBYTES, b"%d" % length)]
            kind = "application/octet-stream"
            await exchange.answer(200, parts, kind, headers, may_pack=True)

    def _turns_of(self, model: ServedModel) -> Turns:
        if (turns := self._turns.get(model)) is None:
            loaded = {*self._service.repository.models(), model}
            self._turns = {m: t for m, t in self._turns.items() if m in loaded}
            turns = self._turns[model] = Turns(model, self._service.num_in_flight)
        return turns


def _allow(exchange: Exchange, method: str) -> None:
    """Raise ProtocolError for another method; who may GET may ask for the HEAD."""
    if exchange.method != method and (method, exchange.method) != ("GET", "HEAD"):
        raise refused(f"{exchange.path} takes {method}, not {exchange.method}.", 405)


async def _answer_error(exchange: Exchange, error: Exception) -> None:
    status = status_of(error)
    if not isinstance(error, HeteroError):
        _log.error("%s %s", exchange.method, exchange.path, exc_info=error)
    if exchange.status:  # the head of an answer is on its way
        return
    headers = []
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 405:
        headers.append((b"allow", f"{error}".partition(" takes ")[2].split(",")[0].encode()))
    if status in (408, 413):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    message = f"{error}" if isinstance(error, HeteroError) else "an error of the server's own"
    told: Any = message
    if exchange.path.startswith("/v1/"):  # OpenAI's form
        kind = "invalid_request_error" if status < 500 else "server_error"
        told = {"message": message, "type": kind, "param": None, "code": None}
    await exchange.answer_json({"error": told}, status, headers)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
