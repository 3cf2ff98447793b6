"""The protocol's gRPC form on the event loop: no call holds a thread while it waits.

Every method reads its message by itself, as a stream of one: a token is checked before a message
is read, and a message that does not arrive in time ends its call.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.json_format import ParseDict

from hetero.apps.serve.errors import GRPC_CODES, describe_error, protocol_error
from hetero.apps.serve.exchange import trace_of
from hetero.apps.serve.grpc_messages import MESSAGES, GrpcMessage, parse_message, write_response
from hetero.apps.serve.inference import Inference
from hetero.apps.serve.proto_file import proto_file
from hetero.apps.serve.service import LARGE_NBYTES, Service
from hetero.devices.errors import ArgumentError, HeteroError, OverloadedError
from hetero.devices.file_reader import FileReader

_log = logging.getLogger(__name__)
_PEM: Final = FileReader("TLS file", ArgumentError, "Pass a file in PEM form.", max_nbytes=2**20)
#: Calls at once, health checks not counted.
MAX_CALLS: Final = 4096
#: Calls at once on a connection; a client waits before it begins more.
_MAX_CALLS_PER_CONNECTION: Final = 128
#: Seconds that a stream may be idle.
STREAM_IDLE_S: Final = 300.0
#: Bytes of a message that is no inference.
_MAX_MESSAGE_NBYTES: Final = 2**20
#: Milliseconds: connections are checked when idle, closed without calls, and renewed, so that
#: clients find new servers; gRPC's guide to keepalive has these options.
_KEEPALIVE: Final = {
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.max_connection_idle_ms": 600_000,
    "grpc.max_connection_age_ms": 3_600_000,
    "grpc.max_connection_age_grace_ms": 600_000,
}
_FILE: Final = proto_file("open_inference.proto")
_HEALTH: Final = proto_file("health.proto")
Context = Any  # grpc has no types


class GrpcServer:
    """Answers gRPC calls at a port, 0 for a free one; made and used on one event loop."""

    def __init__(self, service: Service, port: int) -> None:
        self._service, options = service, service.options
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", min(options.body_nbytes, 2**31 - 1)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", _MAX_CALLS_PER_CONNECTION),
                ("grpc.so_reuseport", int(options.shared_port)),
                *_KEEPALIVE.items(),
            ],
        )
        self._server.add_generic_rpc_handlers((_Methods(service),))
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{host}:{port}"
        try:
            if options.tls_key and options.tls_certificate:
                key, certificate = map(_PEM.read_bytes, (options.tls_key, options.tls_certificate))
                credentials = grpc.ssl_server_credentials([(key, certificate)])
                port = self._server.add_secure_port(address, credentials)
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ArgumentError(
                f"cannot serve gRPC at {address}: {error}. Pass another port; 0 takes a free one."
            ) from error
        self.port: Final[int] = port

    async def start(self) -> None:
        """Begin to answer."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, and cancel those that have not ended after a while."""
        await self._server.stop(grace_s)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """The methods of the services, by their paths."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._num_calls = 0
        self._handlers: dict[str, Any] = {
            f"/{_HEALTH.service}/Check": grpc.stream_stream_rpc_method_handler(self._check_health)
        }
        for method in _FILE.methods:
            if method.name == "ModelInfer":
                answer = self._infer_once
            elif method.name == "ModelStreamInfer":
                answer = self._infer_stream
            else:
                answer = partial(self._answer_call, method)
            self._handlers[f"/{_FILE.service}/{method.name}"] = (
                grpc.stream_stream_rpc_method_handler(partial(self._guard, answer))
            )

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method; None if there is none."""
        return self._handlers.get(handler_call_details.method)

    async def _guard(self, answer: Any, _: object, context: Context) -> None:
        """Answer a call; check its token first, and turn errors into gRPC's statuses."""
        try:
            self._service.check_token(_metadata(context, "authorization").encode())
            if self._num_calls >= MAX_CALLS:
                raise OverloadedError(f"{MAX_CALLS} gRPC calls are open; try again later.")
            self._num_calls += 1
            try:
                await answer(context)
            finally:
                self._num_calls -= 1
        except Exception as error:
            await context.abort(*_status(error))

    async def _check_health(self, _: object, context: Context) -> None:
        """Answer gRPC's own health check, which needs no token."""
        ready = self._service.is_ready()
        answer = _HEALTH.messages["HealthCheckResponse"](status=1 if ready else 2)
        await context.write(answer.SerializeToString())

    async def _read(self, context: Context, seconds: float) -> bytes | None:
        """Return the next message of a call; None after the last."""
        try:
            async with asyncio.timeout(seconds):
                data = await context.read()
        except TimeoutError:
            raise protocol_error(f"no message within {seconds:g} s.", 408) from None
        return None if data is grpc.aio.EOF else data

    async def _read_one(self, context: Context) -> bytes:
        data = await self._read(context, self._service.options.body_s)
        if data is None:
            raise protocol_error("the call has no message.")
        return data

    async def _answer_call(self, method: Any, context: Context) -> None:
        data = await self._read_one(context)
        if len(data) > _MAX_MESSAGE_NBYTES:
            raise protocol_error(f"the message has more than {_MAX_MESSAGE_NBYTES} bytes.", 413)
        message = parse_message(method.input_type.name, data)
        fields = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
        document = await self._service.answer(method.name, fields)
        answer = ParseDict(document or {}, MESSAGES[method.output_type.name]())
        await context.write(answer.SerializeToString())

    async def _infer_once(self, context: Context) -> None:
        data = await self._read_one(context)
        with self._service.bodies.reserve() as reservation:
            reservation.add(len(data))
            response = await self._infer(await self._parse(data), len(data), context)
            nbytes = response.ByteSize()
            self._service.reserve_response(reservation, nbytes)
            await context.write(await self._service.run_codec(nbytes, response.SerializeToString))

    async def _infer_stream(self, context: Context) -> None:
        """Answer one request after the other; an error is an answer, and the stream continues."""
        make = MESSAGES["ModelStreamInferResponse"]
        while (data := await self._read(context, STREAM_IDLE_S)) is not None:
            request_id = ""
            try:
                with self._service.bodies.reserve() as reservation:
                    reservation.add(len(data))
                    message = await self._parse(data)
                    request_id = message.id
                    answer = make(infer_response=await self._infer(message, len(data), context))
            except Exception as error:
                answer = make(error_message=_status(error)[1])
                answer.infer_response.id = request_id
            await context.write(answer.SerializeToString())

    async def _parse(self, data: bytes) -> GrpcMessage:
        parse = partial(GrpcMessage, data, self._service.options.json_nbytes)
        return await self._service.run_codec(len(data), parse)

    async def _infer(self, message: GrpcMessage, nbytes: int, context: Context) -> Any:
        """Return the response to a request."""
        service = self._service
        model = service.repository.find(message.model_name, message.model_version)
        with Inference(model, service.regions) as inference:
            await service.run_codec(nbytes, partial(inference.read, message))
            trace = trace_of(_metadata(context, "traceparent"))
            # gRPC cancels the call at its deadline.
            inference.submit(None, trace, is_small=nbytes < LARGE_NBYTES)
            if not inference.is_done:
                await inference.wait()
            outputs = inference.outputs()
            write = partial(
                write_response,
                model.name,
                model.version,
                message.id,
                outputs,
                is_raw=inference.request.wants_raw_outputs,
            )
            return await service.run_codec(sum(o.array.nbytes for o in outputs), write)


def _metadata(context: Context, name: str) -> str:
    """Return a metadata value of a call; empty if the client did not send it."""
    return next((f"{value}" for key, value in context.invocation_metadata() if key == name), "")


def _status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the code and message of an error."""
    if not isinstance(error, HeteroError):
        _log.error("a gRPC call failed", exc_info=error)
    error.with_traceback(None)  # its frames refer to the request's tensors
    status, message = describe_error(error)
    return grpc.StatusCode[GRPC_CODES.get(status, "INTERNAL")], message
