"""The ASGI application: the routes of the Open Inference Protocol's REST form."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from devices.errors import HeteroError
from devices.request.request import Request
from hetero.serve.errors import refused, status_of
from hetero.serve.http_exchange import ClientGone, Exchange, Receive, Send
from hetero.serve.metrics import metrics_text
from hetero.serve.repository import Repository, model_statistics
from hetero.serve.rest_request import read_infer, read_json, unpacked
from hetero.serve.rest_response import write_infer
from hetero.serve.served_model import ServedModel
from hetero.serve.turns import Turns
from hetero.version import hetero_version

_log = logging.getLogger(__name__)

#: The protocol's extensions that are here.
EXTENSIONS: Final = (
    "binary_tensor_data", "model_configuration", "model_repository", "schedule_policy",
    "statistics",
)  # fmt: skip
_JSON_NBYTES: Final = b"inference-header-content-length"
#: Seconds after which a request that is not answered yet listens for its client's end.
_LISTEN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may take.

    Attributes
    ----------
    body_nbytes : int
        Bytes of its body, packed or unpacked.
    body_s : float
        Seconds until its body is there.
    """

    body_nbytes: int = 2**30
    body_s: float = 60.0


class ServingApp:
    """The application; any ASGI server takes it.

    Parameters
    ----------
    repository : Repository
        The models.
    bounds : Bounds
        What a request may take.
    """

    def __init__(self, repository: Repository, bounds: Bounds | None = None) -> None:
        self.repository: Final = repository
        self._bounds = bounds or Bounds()
        #: Set once no more requests are wanted: ready answers no.
        self.is_draining = False
        self._turns: dict[ServedModel, Turns] = {}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        bounds = self._bounds
        exchange = Exchange(scope, receive, send, bounds.body_nbytes, bounds.body_s)
        try:
            await self._route(exchange)
        except ClientGone:
            exchange.status = 499
        except Exception as error:
            await _answer_error(exchange, error)

    # Routes.

    async def _route(self, exchange: Exchange) -> None:
        parts = [unquote(part) for part in exchange.path.split("/")[1:]]
        match parts:
            case ["v2", "models", name, "infer"]:
                await self._infer(exchange, name, "")
            case ["v2", "models", name, "versions", version, "infer"]:
                await self._infer(exchange, name, version)
            case ["v2"] | ["v2", ""]:
                _allow(exchange, "GET")
                await exchange.answer_json(server_metadata())
            case ["v2", "health", "live"]:
                _allow(exchange, "GET")
                await exchange.answer_json({"live": True})
            case ["v2", "health", "ready"]:
                _allow(exchange, "GET")
                ready = self.is_ready()
                await exchange.answer_json({"ready": ready}, 200 if ready else 503)
            case ["v2", "models", "stats"]:
                _allow(exchange, "GET")
                await exchange.answer_json(model_statistics(self.repository.models()))
            case ["v2", "models", name, "versions", version, *rest]:
                await self._model(exchange, name, version, rest)
            case ["v2", "models", name, *rest]:
                await self._model(exchange, name, "", rest)
            case ["v2", "repository", *rest]:
                await self._repository(exchange, rest)
            case ["metrics"]:
                _allow(exchange, "GET")
                text = metrics_text(self.repository.models()).encode()
                await exchange.answer(200, [text], "text/plain; version=0.0.4; charset=utf-8")
            case _:
                raise refused(f"no {exchange.path} here; the protocol's paths begin at /v2.", 404)

    def is_ready(self) -> bool:
        """Return whether requests are welcome: every model is loaded and has devices left."""
        index = self.repository.index()
        return not self.is_draining and all(row["state"] == "READY" for row in index)

    async def _model(self, exchange: Exchange, name: str, version: str, rest: list[str]) -> None:
        _allow(exchange, "GET")
        model = self.repository.find(name, version)
        match rest:
            case []:
                versions = self.repository.versions(name)
                await exchange.answer_json(model.metadata(versions))
            case ["ready"]:
                await exchange.answer_json({"name": name, "ready": True})
            case ["config"]:
                await exchange.answer_json(model.config())
            case ["stats"]:
                of_name = (m for m in self.repository.models() if m.name == name)
                chosen = [m for m in of_name if version in ("", m.version)]
                await exchange.answer_json(model_statistics(chosen))
            case _:
                raise refused(f"no {'/'.join(rest)} of a model here.", 404)

    async def _repository(self, exchange: Exchange, rest: list[str]) -> None:
        _allow(exchange, "POST")
        body = await exchange.body()
        parameters = read_json(body) if body.strip() else {}
        match rest:
            case ["index"]:
                index = self.repository.index(ready=parameters.get("ready") is True)
                await exchange.answer_json(index)
            case ["models", name, "load"]:
                if parameters.get("parameters"):
                    raise refused("load takes no parameters here: change hetero.yaml.", 501)
                await asyncio.to_thread(self.repository.load, name)
                await exchange.answer(200)
            case ["models", name, "unload"]:
                await asyncio.to_thread(self.repository.unload, name)
                await exchange.answer(200)
            case _:
                raise refused(f"no {exchange.path} here.", 404)

    # Inference.

    async def _infer(self, exchange: Exchange, name: str, version: str) -> None:
        _allow(exchange, "POST")
        model = self.repository.find(name, version)
        began_s = time.perf_counter()
        try:
            body = await exchange.body()
            came_s = time.perf_counter()
            encoding = exchange.header(b"content-encoding")
            if encoding:
                body = unpacked(body, encoding.lower(), self._bounds.body_nbytes)
            json_nbytes = exchange.header(_JSON_NBYTES) if exchange.has(_JSON_NBYTES) else None
            call = read_infer(body, json_nbytes)
            values = model.values(call)
            read_s = time.perf_counter() - came_s
            request = Request(call.timeout_s, waits=False, priority=call.priority)
            answer = await _unless_gone(exchange, self._turns_of(model).run(values, request))
            answered_s = time.perf_counter()
            length, parts = write_infer(
                name, model.version, call, model.outputs(call, answer.outputs)
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
            loaded = {*self.repository.models(), model}
            self._turns = {m: t for m, t in self._turns.items() if m in loaded}
            turns = self._turns[model] = Turns(model)
        return turns


def server_metadata() -> dict[str, Any]:
    """Return what the protocol tells of a server."""
    return {"name": "hetero", "version": hetero_version(), "extensions": list(EXTENSIONS)}


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
    if status == 405:
        headers.append((b"allow", f"{error}".partition(" takes ")[2].split(",")[0].encode()))
    if status in (408, 413):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    message = f"{error}" if isinstance(error, HeteroError) else "an error of the server's own"
    await exchange.answer_json({"error": message}, status, headers)


async def _unless_gone(exchange: Exchange, run: Awaitable[Any]) -> Any:
    """Return what `run` does, which is cancelled once the client has gone.

    Raises ClientGone: the client has gone.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    listener: list[asyncio.Task[None]] = []

    async def listen() -> None:
        await exchange.until_gone()
        task.cancel()

    timer = loop.call_later(_LISTEN_S, lambda: listener.append(loop.create_task(listen())))
    try:
        return await run
    except asyncio.CancelledError:
        if listener and listener[0].done():
            task.uncancel()
            raise ClientGone from None
        raise
    finally:
        timer.cancel()
        for started in listener:
            started.cancel()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
