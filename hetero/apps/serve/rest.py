"""The Open Inference Protocol's REST form: what answers requests, and how errors are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hetero.apps.serve.completions import Completions
from hetero.apps.serve.errors import refused, told
from hetero.apps.serve.exchange import ONE_WRITE_NBYTES, Exchange, Headers, Pending, trace_of
from hetero.apps.serve.inference import Inference
from hetero.apps.serve.metrics import metrics_text
from hetero.apps.serve.rest_messages import (
    dump_json,
    number_of,
    packed,
    read_infer,
    read_json,
    unpacked,
    write_infer,
)
from hetero.apps.serve.routes import Names, Route, Routes, openapi
from hetero.apps.serve.service import CALLS, Service
from hetero.apps.serve.tensors import Raw
from hetero.devices.errors import HeteroError
from hetero.devices.request.response import Response

_log = logging.getLogger(__name__)

_JSON_NBYTES: Final = b"inference-header-content-length"
#: Milliseconds until the proxy before this server gives up, as Envoy tells it.
_TIMEOUT_MS: Final = b"x-envoy-expected-rq-timeout-ms"
#: Status -> headers that go with it.
_HEADERS: Final = {
    401: [(b"www-authenticate", b"Bearer")],
    503: [(b"retry-after", b"1")],
}
#: Seconds of the devices up to which the loop's thread runs a request itself, and its bytes.
_QUICK_S: Final = 0.0005
_SMALL_NBYTES: Final = 65536


class ServingApp:
    """The application. Health checks are answered to anybody, the rest to who has a token."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.options: Final = service.options
        self._routes = Routes(self._table())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        exchange = Exchange(scope, receive, send)
        try:
            if not exchange.path.startswith("/v2/health/"):
                self._service.check_token(exchange.headers.get(b"authorization", b""))
            await exchange.read(self.options)
            routes, names = self._routes.at(exchange.path)
            method = "GET" if exchange.method == "HEAD" else exchange.method
            if (route := routes.get(method)) is None:
                raise _no_route(exchange, routes)
            if (pending := route.answer(exchange, names)) is not None:
                await exchange.finish(pending)
        except asyncio.CancelledError:  # the client has disconnected, or the server ends
            _answer_error(exchange, refused("the server ends.", 503))
        except Exception as error:
            _answer_error(exchange, error)
        if not exchange.is_disconnected:
            await exchange.send()
        self._log(exchange)

    def _log(self, exchange: Exchange) -> None:
        if self.options.access_log:
            exchange.log()

    def _table(self) -> list[Route]:
        texts = Completions(self._service)
        read = 400, 408, 413
        rows = [
            Route("GET", "/v2", self._document("ServerMetadata"), "The server", "server"),
            Route("GET", "/v2/health/live", self._document("ServerLive"), "Is it up?", "live"),
            Route("GET", "/v2/health/ready", self._ready, "Are requests welcome?", "ready", (503,)),
            Route("GET", "/v2/models/stats", self._document("ModelStatistics"), "What all did"),
            Route(
                "POST",
                "/v2/repository/index",
                self._document("RepositoryIndex", _only),
                "The models that are here",
                "index",
                read,
            ),
            Route(
                "POST",
                "/v2/repository/models/{model_name}/load",
                self._document("RepositoryModelLoad"),
            ),
            Route(
                "POST",
                "/v2/repository/models/{model_name}/unload",
                self._document("RepositoryModelUnload"),
            ),
            Route("GET", "/v1/models", texts.models),
            Route("GET", "/v1/models/{name}", texts.models),
            Route("POST", "/v1/completions", partial(texts.openai, False)),
            Route("POST", "/v1/chat/completions", partial(texts.openai, True)),
            Route("GET", "/openapi.json", self._openapi),
            Route("GET", "/metrics", self._metrics),
        ]
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            found = 404, 503
            rows += [
                Route("GET", path, self._document("ModelMetadata"), "Ports", "model", found),
                Route("GET", f"{path}/ready", self._ready, "Is it loaded?", "ready", found),
                Route(
                    "GET",
                    f"{path}/config",
                    self._document("ModelConfig", _only),
                    "As Triton has it",
                    "anything",
                    found,
                ),
                Route(
                    "GET",
                    f"{path}/stats",
                    self._document("ModelStatistics"),
                    "What it did",
                    "anything",
                    found,
                ),
                Route(
                    "POST",
                    f"{path}/infer",
                    self._infer,
                    "An inference",
                    "inference_response",
                    (*read, 415, 500, 501, 504, *found),
                    "inference_request",
                ),
                Route("POST", f"{path}/generate", partial(texts.triton, False)),
                Route("POST", f"{path}/generate_stream", partial(texts.triton, True)),
            ]
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
            call, body = partial(CALLS[called], self._service), exchange.body
            if exchange.method != "POST":
                document = call(names)
            else:
                asked = read_json(body) if bytes(body).strip() else {}
                document = await asyncio.to_thread(call, {**asked, **names})
            exchange.respond(200, [] if document is None else [dump_json(shape(document))])

        return answer

    def _ready(self, exchange: Exchange, names: Names) -> None:
        found = self._service.repository.find(**names) if names else None
        ready = found.is_ready if found else self._service.is_ready()
        document = {"name": found.name, "ready": ready} if found else {"ready": ready}
        exchange.respond_json(document, 200 if ready else 503)

    def _openapi(self, exchange: Exchange, _: Names) -> None:
        models = [row["name"] for row in self._service.repository.index()]
        exchange.respond_json(openapi(self._routes.routes, models))

    def _metrics(self, exchange: Exchange, _: Names) -> None:
        text = metrics_text(self._service.repository.models()).encode()
        exchange.respond(200, [text], b"text/plain; version=0.0.4; charset=utf-8")

    def _infer(self, exchange: Exchange, names: Names) -> Pending | None:
        encoding, headers = exchange.headers.get(b"content-encoding"), exchange.headers
        with Inference(self._service.repository.find(**names)) as inference:
            if not encoding:
                self._begin(inference, headers, exchange.body)
            if encoding or _accepts_packed(exchange) or not inference.submission.future.done():
                inference.goes_on = True
                return self._infer_in_turn(inference, exchange)
            answer = self._written(inference, inference.submission.future.result())
        exchange.respond(200, *answer)
        return None

    async def _infer_in_turn(self, inference: Inference, exchange: Exchange) -> None:
        """Answer an inference that has to wait, or whose bytes are packed."""
        with inference:
            if encoding := exchange.header(b"content-encoding").lower():
                most = self.options.body_nbytes
                body = await asyncio.to_thread(unpacked, exchange.body, encoding, most)
                self._begin(inference, exchange.headers, body)
            parts, kind, headers = self._written(inference, await inference.answered())
        if _accepts_packed(exchange):
            accepted = exchange.header(b"accept-encoding")
            if sum(map(len, parts)) > ONE_WRITE_NBYTES:  # others need not wait for it
                encoding, parts = await asyncio.to_thread(packed, parts, accepted)
            else:
                encoding, parts = packed(parts, accepted)
            if encoding:
                headers = [*headers, (b"content-encoding", encoding.encode())]
        exchange.respond(200, parts, kind, headers)

    def _begin(self, inference: Inference, headers: Mapping[bytes, bytes], body: Raw) -> None:
        """Start the inference that a body asks for, now or once there is room."""
        call = read_infer(body, headers.get(_JSON_NBYTES), self._service.regions)
        left_ms = headers.get(_TIMEOUT_MS, b"")
        left_s = number_of(left_ms) / 1000 or None
        trace = trace_of(headers.get(b"traceparent", b"").decode("latin-1"))
        # The loop's own thread runs what takes less than to hand it on.
        quick = len(body) < _SMALL_NBYTES and inference.model.statistics.usual_s < _QUICK_S
        inference.asks(call, left_s, trace, waits=None, inline=quick)

    def _written(
        self, inference: Inference, answer: Response
    ) -> tuple[Sequence[Raw], bytes, Headers]:
        """Return an answer's body in parts, its type and further headers."""
        model, outputs = inference.model, inference.outputs(answer, self._service.regions)
        length, parts = write_infer(model.name, model.version, inference.call.id, outputs)
        if length is None:
            return parts, b"application/json", ()
        return parts, b"application/octet-stream", [(_JSON_NBYTES, b"%d" % length)]


def _only(document: dict[str, Any]) -> Any:
    """Return a document's only value: REST has no name for it, where gRPC has a field."""
    [value] = document.values()
    return value


def _accepts_packed(exchange: Exchange) -> bool:
    return exchange.headers.get(b"accept-encoding") not in (None, b"", b"identity")


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


def _answer_error(exchange: Exchange, error: Exception) -> None:
    if exchange.is_disconnected:
        exchange.status = 499
        return
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
        exchange.end_events(b"data: %s\n\n" % dump_json({"error": document}))
    elif not exchange.status:  # else the head of an answer is on its way
        exchange.respond_json({"error": document}, status, headers)
