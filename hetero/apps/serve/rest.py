"""The protocol's REST form: an ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from hetero.apps.serve.completions import Completions
from hetero.apps.serve.errors import describe_error, protocol_error
from hetero.apps.serve.exchange import JSON_NBYTES_HEADER, Exchange, trace_of
from hetero.apps.serve.inference import Inference
from hetero.apps.serve.inference_request import OutputTensor
from hetero.apps.serve.rest_messages import (
    RestMessage,
    compress,
    decompress,
    dump_json,
    parse_json,
    parse_number,
    preferred_encoding,
    write_response,
)
from hetero.apps.serve.routes import Names, Route, Router, openapi
from hetero.apps.serve.served_model import ServedModel
from hetero.apps.serve.service import LARGE_NBYTES, Service
from hetero.apps.serve.sites import SiteRules
from hetero.apps.serve.statistics import metrics_text
from hetero.apps.serve.tensors import Raw
from hetero.devices.errors import HeteroError, OverloadedError

_log = logging.getLogger(__name__)

#: Bytes of a body of raw numbers that a copy takes less time for than waking a thread.
_MAX_RAW_NBYTES: Final = 2**20
#: Bytes of a body that is no inference: it is parsed on the event loop.
_MAX_CALL_NBYTES: Final = 2**18
#: Envoy's header: milliseconds until the proxy in front of this server gives up.
_TIMEOUT_MS: Final = b"x-envoy-expected-rq-timeout-ms"
#: Status -> headers of its responses.
_ERROR_HEADERS: Final = {
    401: [(b"www-authenticate", b"Bearer")],
    503: [(b"retry-after", b"1")],
}


class RestApplication:
    """The application. Health checks need no token."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sites = SiteRules(service.options)
        self._router = Router(self._routes())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        options = self._service.options
        with self._service.bodies.reserve() as reservation:
            exchange = Exchange(scope, receive, send, reservation)
            try:
                self._check_access(exchange)
                await exchange.read(options)
                await self._answer(exchange)
            except asyncio.CancelledError:  # the client has disconnected, or the server ends
                _respond_error(exchange, protocol_error("the server ends.", 503))
            except Exception as error:
                _respond_error(exchange, error)
            exchange.body = b""
            try:
                self._service.reserve_response(reservation, exchange.sent_nbytes)
            except OverloadedError as error:
                _respond_error(exchange, error)
            await exchange.send()
        if options.access_log:
            exchange.log()

    def _check_access(self, exchange: Exchange) -> None:
        if not exchange.path.startswith("/v2/health/"):
            self._sites.check(exchange.headers)
            self._service.check_token(exchange.headers.get(b"authorization", b""))

    async def _answer(self, exchange: Exchange) -> None:
        routes, names = self._router.find(exchange.path)
        method = "GET" if exchange.method == "HEAD" else exchange.method
        if (route := routes.get(method)) is None:
            raise _no_route(exchange, routes)
        await route.answer(exchange, names)

    def _routes(self) -> list[Route]:
        texts, call = Completions(self._service), self._call
        models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        regions = ("/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{name}")
        loads = "/v2/repository/models/{name}"
        return [
            Route("GET", "/v2", call("ServerMetadata"), "Server metadata", "server"),
            Route("GET", "/v2/health/live", call("ServerLive"), "Liveness", "live"),
            Route("GET", "/v2/health/ready", self._answer_ready, "Readiness", "ready", (503,)),
            Route("GET", "/v2/models/stats", call("ModelStatistics"), "Statistics of all models"),
            Route(
                "POST",
                "/v2/repository/index",
                call("RepositoryIndex", _only_value),
                "Models",
                "index",
            ),
            Route("POST", f"{loads}/load", call("RepositoryModelLoad"), "Load a model", "nothing"),
            Route(
                "POST",
                f"{loads}/unload",
                call("RepositoryModelUnload"),
                "Unload a model",
                "nothing",
            ),
            *(route for path in models for route in self._model_routes(path, texts)),
            *(route for path in regions for route in self._region_routes(path)),
            Route("GET", "/v1/models", texts.models, "Models in OpenAI's form", "openai_models"),
            Route(
                "GET", "/v1/models/{name}", texts.models, "A model in OpenAI's form", "openai_model"
            ),
            Route(
                "POST",
                "/v1/completions",
                partial(texts.openai, False),
                "Completion of a prompt",
                "completion",
                body="completion_request",
            ),
            Route(
                "POST",
                "/v1/chat/completions",
                partial(texts.openai, True),
                "Answer to a chat",
                "completion",
                body="chat_request",
            ),
            Route("GET", "/openapi.json", self._openapi, "This description"),
            Route("GET", "/metrics", self._metrics, "Metrics for Prometheus", "text"),
        ]

    def _model_routes(self, path: str, texts: Completions) -> list[Route]:
        call, config = self._call, self._call("ModelConfig", _only_value)
        return [
            Route("GET", path, call("ModelMetadata"), "Model metadata", "model"),
            Route(
                "GET", f"{path}/ready", self._answer_ready, "Readiness of a model", "ready", (503,)
            ),
            Route("GET", f"{path}/config", config, "Configuration in Triton's form"),
            Route("GET", f"{path}/stats", call("ModelStatistics"), "Statistics of a model"),
            Route(
                "POST",
                f"{path}/infer",
                self._infer,
                "Inference",
                "inference_response",
                (415, 500, 504),
                "inference_request",
            ),
            Route(
                "POST",
                f"{path}/generate",
                partial(texts.triton, False),
                "Generation",
                "generation",
                body="generation_request",
            ),
            Route(
                "POST",
                f"{path}/generate_stream",
                partial(texts.triton, True),
                "Generation as events",
                "events",
                body="generation_request",
            ),
        ]

    def _region_routes(self, path: str) -> list[Route]:
        call, rows = self._call, lambda document: [*_only_value(document).values()]
        register = call("SystemSharedMemoryRegister")
        return [
            Route("GET", f"{path}/status", call("SystemSharedMemoryStatus", rows), "Shared memory"),
            Route(
                "POST",
                f"{path}/register",
                register,
                "Register shared memory",
                "nothing",
                (),
                "region",
            ),
            Route(
                "POST",
                f"{path}/unregister",
                call("SystemSharedMemoryUnregister"),
                "Unregister shared memory",
                "nothing",
            ),
        ]

    def _call(
        self, name: str, shape: Callable[[Any], Any] = lambda document: document
    ) -> Callable[[Exchange, Names], Awaitable[None]]:
        """Return the handler of a call; `shape` turns gRPC's document into REST's."""

        async def answer(exchange: Exchange, names: Names) -> None:
            if len(exchange.body) > _MAX_CALL_NBYTES:
                raise protocol_error(f"the body has more than {_MAX_CALL_NBYTES} bytes.", 413)
            is_empty = exchange.method != "POST" or not bytes(exchange.body).strip()
            fields = {**({} if is_empty else parse_json(exchange.body)), **names}
            document = await self._service.answer(name, fields)
            exchange.respond(200, [] if document is None else [dump_json(shape(document))])

        return answer

    async def _answer_ready(self, exchange: Exchange, names: Names) -> None:
        model = self._service.repository.find(**names) if names else None
        is_ready = model.is_ready if model else self._service.is_ready()
        document = {"name": model.name, "ready": is_ready} if model else {"ready": is_ready}
        exchange.respond_json(document, 200 if is_ready else 503)

    async def _openapi(self, exchange: Exchange, _: Names) -> None:
        models = [row["name"] for row in self._service.repository.index()]
        exchange.respond_json(openapi(self._router.routes, models))

    async def _metrics(self, exchange: Exchange, _: Names) -> None:
        models = self._service.repository.models()
        text = metrics_text({(model.name, model.version): model.statistics for model in models})
        content_type = b"text/plain; version=0.0.4; charset=utf-8"
        exchange.respond(200, [text.encode()], content_type)

    async def _infer(self, exchange: Exchange, names: Names) -> None:
        service, headers = self._service, exchange.headers
        model = service.repository.find(**names)
        with Inference(model, service.regions) as inference:
            body = await self._decompress_body(exchange)
            limit, length = service.options.json_nbytes, headers.get(JSON_NBYTES_HEADER)

            def read() -> None:
                inference.read(RestMessage(body, length, limit))

            await service.run_codec(_decoded_nbytes(model, body, length), read)
            client_timeout_s = parse_number(headers.get(_TIMEOUT_MS, b"")) / 1000 or None
            trace = trace_of(exchange.header(b"traceparent"))
            inference.submit(client_timeout_s, trace, is_small=len(body) < LARGE_NBYTES)
            if not inference.is_done:
                await exchange.cancel_on_disconnect(inference.wait())
            outputs = inference.outputs()
            id_ = inference.request.id
            write = partial(write_response, model.name, model.version, id_, outputs)
            json_nbytes, parts = await service.run_codec(_nbytes(outputs), write)
        content_type, response_headers = b"application/json", list[tuple[bytes, bytes]]()
        if json_nbytes is not None:
            content_type = b"application/octet-stream"
            response_headers.append((JSON_NBYTES_HEADER, b"%d" % json_nbytes))
        if encoding := preferred_encoding(exchange.header(b"accept-encoding")):
            nbytes = sum(map(len, parts))
            parts = await service.run_codec(nbytes, partial(compress, parts, encoding))
            response_headers.append((b"content-encoding", encoding.encode()))
        exchange.respond(200, parts, content_type, response_headers)

    async def _decompress_body(self, exchange: Exchange) -> Raw:
        """Return a request's body without its Content-Encoding."""
        if not (encoding := exchange.header(b"content-encoding").lower()):
            return exchange.body
        options = self._service.options
        limit = options.body_nbytes
        if JSON_NBYTES_HEADER not in exchange.headers:  # it is JSON alone
            limit = min(limit, options.json_nbytes)
        unpack = partial(decompress, exchange.body, encoding, limit)
        body = await self._service.run_codec(LARGE_NBYTES, unpack)
        exchange.reservation.add(len(body))
        return body


def _decoded_nbytes(model: ServedModel, body: Raw, json_nbytes: bytes | None) -> int:
    """Return the bytes of a body that take long to decode: raw numbers are at most copied."""
    if json_nbytes is None or model.takes_text or len(body) > _MAX_RAW_NBYTES:
        return len(body)
    return parse_number(json_nbytes)


def _nbytes(outputs: Sequence[OutputTensor]) -> int:
    nbytes = 0
    for output in outputs:  # without the frames of a generator: each request comes here
        nbytes += output.array.nbytes
    return nbytes


def _only_value(document: dict[str, Any]) -> Any:
    """Return a document's only value: gRPC has a field for it, REST has the value itself."""
    [value] = document.values()
    return value


def _no_route(exchange: Exchange, methods: Collection[str]) -> HeteroError:
    """Return the error of a path that does not exist, or not with this method."""
    if not methods:
        return protocol_error(
            f"no path {exchange.path}; paths begin with /v2, and OpenAI's are /v1/models, "
            "/v1/completions and /v1/chat/completions. GET /openapi.json lists all.",
            404,
        )
    error = protocol_error(
        f"{exchange.path}: method {exchange.method}, expected {', '.join(methods)}.", 405
    )
    error.data["allow"] = ", ".join(methods)
    return error


def _respond_error(exchange: Exchange, error: Exception) -> None:
    """Set the response of an error, in the form of the path."""
    if exchange.is_disconnected:
        exchange.status = 499
        return
    status, message = describe_error(error)
    if not isinstance(error, HeteroError):
        _log.error("%s %s", exchange.method, exchange.path, exc_info=error)
    error.with_traceback(None)  # its frames refer to the request's tensors
    headers = _ERROR_HEADERS.get(status, [])
    if status == 405 and isinstance(error, HeteroError):
        headers = [(b"allow", error.data["allow"].encode())]
    document: Any = message
    if exchange.path.startswith("/v1/"):  # OpenAI's form
        # 501: the request asks for something that the model or its folder lacks.
        kind = "invalid_request_error" if status < 500 or status == 501 else "server_error"
        document = {"message": message, "type": kind, "param": None, "code": None}
    if exchange.has_events:
        exchange.end_events(b"data: %s\n\n" % dump_json({"error": document}))
    else:
        exchange.respond_json({"error": document}, status, headers)
