"""The ASGI application: the Open Inference Protocol's REST form."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from devices.errors import HeteroError
from devices.request.answer import Answer
from hetero.serve.completions import Completions
from hetero.serve.errors import refused, told
from hetero.serve.http_exchange import BEGUN, ClientGone, Exchange, Receive, Send, trace_of
from hetero.serve.inference import Inference
from hetero.serve.metrics import metrics_text
from hetero.serve.rest_messages import number_of, read_infer, read_json, unpacked, write_infer
from hetero.serve.routes import Names, Route, Routes, openapi
from hetero.serve.served_model import ServedModel
from hetero.serve.service import CALLS, Service
from hetero.serve.tensors import Raw
from hetero.serve.turns import Turns

_log = logging.getLogger(__name__)

_AUTHORIZATION: Final = b"authorization"
_JSON_NBYTES: Final = b"inference-header-content-length"
#: Milliseconds until the proxy before this server gives up, as Envoy tells it.
_TIMEOUT_MS: Final = b"x-envoy-expected-rq-timeout-ms"
#: Status -> headers that go with it; of a body that was refused the rest is not read.
_HEADERS: Final = {
    401: [(b"www-authenticate", b"Bearer")],
    408: [(b"connection", b"close")],
    413: [(b"connection", b"close")],
    503: [(b"retry-after", b"1")],
}
#: Headers of requests that `ServingApp.answer_now` leaves to the application.
_NOT_NOW: Final = frozenset({b"content-encoding", b"traceparent", _TIMEOUT_MS})
_UNPACKED: Final = (None, b"identity", b"")
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
_OCTETS: Final = b"application/octet-stream"
_RAW_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ninference-header-content-length: %d\r\n"
    b"content-type: application/octet-stream\r\n\r\n"
)
#: Seconds of the devices up to which the loop's thread runs a request itself, and its bytes.
_QUICK_S: Final = 0.0005
_SMALL_NBYTES: Final = 65536


class ServingApp:
    """The application. Health checks are answered to anybody, the rest to who has a token."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._access_log = service.options.access_log
        #: Of each model, as long as somebody holds it.
        self._turns: WeakKeyDictionary[ServedModel, Turns] = WeakKeyDictionary()
        self._routes = Routes(self._table())

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        exchange = Exchange(scope, receive, send, self._service.options)
        began_s = time.perf_counter()
        try:
            if not exchange.path.startswith("/v2/health/"):
                self._service.check_token(exchange.headers.get(_AUTHORIZATION, b""))
            routes, names = self._routes.at(exchange.path)
            method = "GET" if exchange.method == "HEAD" else exchange.method
            if (route := routes.get(method)) is None:
                raise _no_route(exchange, routes)
            await route.answer(exchange, names)
        except ClientGone:
            exchange.status = 499
        except asyncio.CancelledError:  # the time that requests have to end is over
            await _answer_error(exchange, refused("the server ends.", 503))
        except Exception as error:
            await _answer_error(exchange, error)
        if self._access_log:
            exchange.log(time.perf_counter() - began_s)

    def _table(self) -> list[Route]:
        texts = Completions(self._service)
        read = 400, 408, 413
        rows = [
            Route("GET", "/v2", self._document("ServerMetadata"), "The server", "server"),
            Route("GET", "/v2/health/live", self._document("ServerLive"), "Is it up?", "live"),
            Route(
                "GET", "/v2/health/ready", self._ready, "Are requests welcome?", "ready", (503,)
            ),
            Route("GET", "/v2/models/stats", self._document("ModelStatistics"), "What all did"),
            Route(
                "POST", "/v2/repository/index", self._document("RepositoryIndex", _only),
                "The models that are here", "index", read,
            ),
            Route(
                "POST", "/v2/repository/models/{model_name}/load",
                self._document("RepositoryModelLoad"),
            ),
            Route(
                "POST", "/v2/repository/models/{model_name}/unload",
                self._document("RepositoryModelUnload"),
            ),
            Route("GET", "/v1/models", texts.models),
            Route("GET", "/v1/models/{name}", texts.models),
            Route("POST", "/v1/completions", partial(texts.openai, False)),
            Route("POST", "/v1/chat/completions", partial(texts.openai, True)),
            Route("GET", "/openapi.json", self._openapi),
            Route("GET", "/metrics", self._metrics),
        ]  # fmt: skip
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            found = 404, 503
            rows += [
                Route("GET", path, self._document("ModelMetadata"), "Ports", "model", found),
                Route("GET", f"{path}/ready", self._ready, "Is it loaded?", "ready", found),
                Route(
                    "GET", f"{path}/config", self._document("ModelConfig", _only),
                    "As Triton has it", "anything", found,
                ),
                Route(
                    "GET", f"{path}/stats", self._document("ModelStatistics"), "What it did",
                    "anything", found,
                ),
                Route(
                    "POST", f"{path}/infer", self._infer, "An inference", "inference_response",
                    (*read, 415, 500, 501, 504, *found), "inference_request",
                ),
                Route("POST", f"{path}/generate", partial(texts.triton, False)),
                Route("POST", f"{path}/generate_stream", partial(texts.triton, True)),
            ]  # fmt: skip
        for path in ("/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{name}"):
            status = self._document("SystemSharedMemoryStatus", lambda d: [*_only(d).values()])
            rows += [
                Route("GET", f"{path}/status", status),
                Route("POST", f"{path}/register", self._document("SystemSharedMemoryRegister")),
                Route("POST", f"{path}/unregister", self._document("SystemSharedMemoryUnregister")),
            ]
        return rows

    def _document(self, called: str, shape: Callable[[Any], Any] = lambda told: told) -> Any:
        """Return what answers with a call's document; what changes something has a thread."""

        async def answer(exchange: Exchange, names: Names) -> None:
            if exchange.method != "POST":
                document = CALLS[called](self._service, names)
            else:
                body = await exchange.body()
                asked = {**(read_json(body) if bytes(body).strip() else {}), **names}
                document = await asyncio.to_thread(CALLS[called], self._service, asked)
            if document is None:
                await exchange.answer(200)
            else:
                await exchange.answer_json(shape(document))

        return answer

    async def _ready(self, exchange: Exchange, names: Names) -> None:
        found = self._service.repository.find(**names) if names else None
        ready = found.is_ready if found else self._service.is_ready()
        document = {"name": found.name, "ready": ready} if found else {"ready": ready}
        await exchange.answer_json(document, 200 if ready else 503)

    async def _openapi(self, exchange: Exchange, _: Names) -> None:
        models = [row["name"] for row in self._service.repository.index()]
        await exchange.answer_json(openapi(self._routes.routes, models))

    async def _metrics(self, exchange: Exchange, _: Names) -> None:
        text = metrics_text(self._service.repository.models()).encode()
        await exchange.answer(200, [text], b"text/plain; version=0.0.4; charset=utf-8")

    async def _infer(self, exchange: Exchange, names: Names) -> None:
        begun: Inference | Exception | None = exchange.scope.pop(BEGUN, None)
        if isinstance(begun, Exception):
            raise begun
        with begun or Inference(self._service.repository.find(**names)) as inference:
            if begun is None:
                body = await exchange.body()
                inference.reads()
                if encoding := exchange.header(b"content-encoding").lower():
                    most = self._service.options.body_nbytes
                    body = await asyncio.to_thread(unpacked, body, encoding, most)
                self._begin(inference, exchange.headers, body)
            submission = inference.submission
            if submission is not None and submission.future.done():
                answer = submission.future.result()
            else:
                answer = await exchange.unless_gone(self._turns_of(inference.model).end(inference))
            length, parts = self._written(inference, answer)
        if length is None:
            await exchange.answer(200, parts, may_pack=True)
        else:
            told_length = [(_JSON_NBYTES, b"%d" % length)]
            await exchange.answer(200, parts, _OCTETS, told_length, may_pack=True)

    def answer_now(self, url: str, given: Mapping[bytes, bytes], body: bytes) -> object:
        """Return the answer to a small request whose model is quick, as it is sent.

        Else what is to be the scope's `BEGUN`, from where the application goes on: None for a
        request of which nothing was done.
        """
        routes, names = self._routes.at(url)
        if "POST" not in routes or routes["POST"].answer != self._infer or self._access_log:
            return None
        if not _NOT_NOW.isdisjoint(given) or given.get(b"accept-encoding") not in _UNPACKED:
            return None
        try:
            self._service.check_token(given.get(_AUTHORIZATION, b""))
            model = self._service.repository.find(**names)
        except HeteroError as error:
            return error
        if model.statistics.usual_s >= _QUICK_S:
            return None
        inference = Inference(model)
        try:
            self._begin(inference, given, body)
            if inference.submission is None or not inference.submission.future.done():
                return inference
            length, parts = self._written(inference, inference.submission.future.result())
        except Exception as error:
            inference.__exit__(type(error), error, None)
            return error
        inference.__exit__(None, None, None)
        nbytes = sum(map(len, parts))
        if length is None:
            return b"".join((_HEAD % nbytes, *parts))
        return b"".join((_RAW_HEAD % (nbytes, length), *parts))

    def _begin(self, inference: Inference, headers: Mapping[bytes, bytes], body: Raw) -> None:
        """Start the inference that a body asks for, unless it has to wait for its turn."""
        call = read_infer(body, headers.get(_JSON_NBYTES), self._service.regions)
        left_ms = headers.get(_TIMEOUT_MS, b"")
        left_s = number_of(left_ms) / 1000 or None
        trace = trace_of(headers.get(b"traceparent", b"").decode("latin-1"))
        # The loop's own thread runs what takes less than to hand it on.
        quick = len(body) < _SMALL_NBYTES and inference.model.statistics.usual_s < _QUICK_S
        inference.asks(call, left_s, trace, waits=False, inline=quick)
        self._turns_of(inference.model).begin(inference)

    def _written(self, inference: Inference, answer: Answer) -> tuple[int | None, list[Raw]]:
        """Return an answer's body in parts, and its JSON's length where raw bytes follow."""
        model, outputs = inference.model, inference.outputs(answer, self._service.regions)
        return write_infer(model.name, model.version, inference.call.id, outputs)

    def _turns_of(self, model: ServedModel) -> Turns:
        if (turns := self._turns.get(model)) is None:
            turns = self._turns[model] = Turns(model.name, model.most_waiting)
        return turns


def _only(document: dict[str, Any]) -> Any:
    """Return a document's only value: REST has no name for it, where gRPC has a field."""
    [value] = document.values()
    return value


def _no_route(exchange: Exchange, routes: Collection[str]) -> HeteroError:
    """Return the error of a path that is not here, or takes other methods."""
    if not routes:
        return refused(
            f"no {exchange.path} here; paths begin at /v2, of OpenAI's there are "
            "/v1/models, /v1/completions and /v1/chat/completions.",
            404,
        )
    error = refused(f"{exchange.path} takes {', '.join(routes)}, not {exchange.method}.", 405)
    error.data["allow"] = ", ".join(routes)
    return error


async def _answer_error(exchange: Exchange, error: Exception) -> None:
    status, message = told(error)
    if not isinstance(error, HeteroError):
        _log.error("%s %s", exchange.method, exchange.path, exc_info=error)
    error.with_traceback(None)  # it leads to those who hold the error, and to the tensors
    headers = _HEADERS.get(status, [])
    if status == 405 and isinstance(error, HeteroError):
        headers = [(b"allow", error.data["allow"].encode())]
    document: Any = message
    if exchange.path.startswith("/v1/"):  # OpenAI's form
        kind = "invalid_request_error" if status < 500 else "server_error"
        document = {"message": message, "type": kind, "param": None, "code": None}
    if exchange.has_events:
        await exchange.write_event({"error": document}, last=True)
    elif not exchange.status:  # else the head of an answer is on its way
        await exchange.answer_json({"error": document}, status, headers)
