"""The protocol's gRPC form, on threads: each call has one from its beginning to its end."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.json_format import ParseDict

from devices.errors import ArgumentError, HeteroError, RequestCancelledError
from devices.request.request import Request
from hetero.serve.errors import status_of
from hetero.serve.grpc_messages import MESSAGES, read_call, write_answer
from hetero.serve.proto_file import ProtoFile, proto_file
from hetero.serve.service import Service

_log = logging.getLogger(__name__)
#: HTTP status -> gRPC's code for the same.
_CODES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
#: Calls at once; of more, so many again wait for a thread before calls are refused.
_THREADS: Final = 64
_MOST_CALLS: Final = 1024


#: What a method does: the service and the message of the request to the answer's document.
Call = Callable[[Service, Any], Any]
#: The methods that are no inferences.
_CALLS: Final[dict[str, Call]] = {
    "ServerLive": lambda service, _: {"live": True},
    "ServerReady": lambda service, _: {"ready": service.is_ready()},
    "ServerMetadata": lambda service, _: service.metadata(),
    "ModelReady": lambda service, asked: {
        "ready": service.repository.is_ready(asked.name, asked.version)
    },
    "ModelMetadata": lambda service, asked: service.model_metadata(asked.name, asked.version),
    "ModelConfig": lambda service, asked: {
        "config": service.repository.find(asked.name, asked.version).config()
    },
    "ModelStatistics": lambda service, asked: service.statistics(asked.name, asked.version),
    "RepositoryIndex": lambda service, asked: {
        "models": service.repository.index(ready=asked.ready)
    },
    "RepositoryModelLoad": lambda service, asked: service.load(asked.model_name, asked.parameters),
    "RepositoryModelUnload": lambda service, asked: service.repository.unload(asked.model_name),
    "SystemSharedMemoryStatus": lambda service, asked: {
        "regions": {row["name"]: row for row in service.regions.status(asked.name)}
    },
    "SystemSharedMemoryRegister": lambda service, asked: service.regions.register(
        asked.name, asked.key, asked.offset, asked.byte_size
    ),
    "SystemSharedMemoryUnregister": lambda service, asked: service.regions.unregister(asked.name),
}


class GrpcServer:
    """Answers gRPC calls until it is closed.

    Parameters
    ----------
    service : Service
        The models and rules.
    host, port : str, int
        Where to listen; port 0 takes one that is free.
    tokens : collection of str
        One of them has to come with each call; none: anybody may call.
    certificate : tuple of bytes, optional
        The private key and the certificate chain, for TLS.
    shared_port : bool
        Whether other processes listen on the same port.

    Raises
    ------
    ArgumentError
        It cannot listen there.
    """

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        *,
        tokens: Collection[str] = (),
        certificate: tuple[bytes, bytes] | None = None,
        shared_port: bool = False,
    ) -> None:
        most = min(service.bounds.body_nbytes, 2**31 - 1)
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, "grpc"),
            handlers=_handlers(service, tokens),
            options=[
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", int(shared_port)),
            ],
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                credentials = grpc.ssl_server_credentials([certificate])
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ArgumentError(
                f"cannot serve gRPC at {address}: {error}. Give another port; 0 takes a free one."
            ) from error
        self.port: Final[int] = port
        self._server.start()

    def close(self, grace_s: float) -> None:
        """Take no more calls, answer those that are there, and end."""
        self._server.stop(grace_s).wait()


Behaviour = Callable[[Any, grpc.ServicerContext], Any]


def _handlers(service: Service, tokens: Collection[str]) -> list[grpc.GenericRpcHandler]:
    inference, health = proto_file("open_inference.proto"), proto_file("health.proto")
    inferences = _Inference(service)
    behaviours: dict[str, Behaviour] = {
        "ModelInfer": inferences.infer,
        "ModelStreamInfer": inferences.stream,
        **{name: _answering(service, name, call) for name, call in _CALLS.items()},
    }

    def check(request: Any, _: grpc.ServicerContext) -> Any:
        status = "SERVING" if service.is_ready() else "NOT_SERVING"
        return ParseDict({"status": status}, health.messages["HealthCheckResponse"]())

    allowed = partial(_with_token, tokens=frozenset(tokens))
    return [
        _handler(inference, {name: allowed(behaviour) for name, behaviour in behaviours.items()}),
        _handler(health, {"Check": check}),
    ]


def _handler(file: ProtoFile, behaviours: dict[str, Behaviour]) -> grpc.GenericRpcHandler:
    handlers = {}
    for method in file.methods:
        make = (
            grpc.stream_stream_rpc_method_handler
            if method.streams
            else grpc.unary_unary_rpc_method_handler
        )
        read, write = file.messages[method.request], file.messages[method.response]
        handlers[method.name] = make(
            behaviours[method.name], read.FromString, write.SerializeToString
        )
    return grpc.method_handlers_generic_handler(file.service, handlers)


def _with_token(behaviour: Behaviour, tokens: frozenset[str]) -> Behaviour:
    """Return a behaviour that refuses calls without a token, where there are some."""
    if not tokens:
        return behaviour

    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not any(hmac.compare_digest(f"Bearer {t}".encode(), given.encode()) for t in tokens):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a bearer token is wanted.")
        return behaviour(request, context)

    return guarded


def _answering(service: Service, name: str, call: Call) -> Behaviour:
    """Return a method whose errors are gRPC's statuses, and whose documents are messages."""
    made = MESSAGES[f"{name}Response"]

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            document = call(service, request)
        except Exception as error:
            context.abort(*_told(error))
        return ParseDict(document or {}, made())

    return answer


def _told(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the code and message of an error."""
    if not isinstance(error, HeteroError):
        _log.error("a gRPC call failed", exc_info=error)
        return grpc.StatusCode.INTERNAL, "an error of the server's own"
    return _CODES.get(status_of(error), grpc.StatusCode.INTERNAL), f"{error}"


class _Inference:
    """The methods that are inferences."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return self._infer(request, context)
        except Exception as error:
            context.abort(*_told(error))

    def stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Answer one after the other; an error is one request's, and the stream goes on."""
        made = MESSAGES["ModelStreamInferResponse"]
        for request in requests:
            try:
                yield made(infer_response=self._infer(request, context))
            except Exception as error:
                answer = made(error_message=_told(error)[1])
                answer.infer_response.id = request.id
                yield answer

    def _infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        regions = self._service.regions
        model = self._service.repository.find(request.model_name, request.model_version)
        began_s = time.perf_counter()
        try:
            call = read_call(request, regions)
            values = model.values(call)
            read_s = time.perf_counter() - began_s
            left = [s for s in (call.timeout_s, context.time_remaining()) if s is not None]
            timeout_s = min(left) if left else None
            options = Request(timeout_s, priority=call.priority, inline=timeout_s is None)
            with model.statistics.in_flight():
                submission = model.submit(values, options)
                if not submission.future.done() and not context.add_callback(submission.cancel):
                    submission.cancel()
                    raise RequestCancelledError("the client has gone.")
                answer = submission.future.result()
            answered_s = time.perf_counter()
            outputs = model.outputs(call, answer.outputs)
            written = write_answer(model.name, model.version, call, outputs, regions)
            ended_s = time.perf_counter()
        except BaseException:
            model.statistics.failed(time.perf_counter() - began_s)
            raise
        model.statistics.succeeded(
            model.rows(values), ended_s - began_s, answer.stage_runs, read_s, ended_s - answered_s
        )
        return written
