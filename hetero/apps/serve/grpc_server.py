"""The protocol's gRPC form, on threads: each call has one from its beginning to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from google.protobuf.json_format import ParseDict

from hetero.apps.serve.errors import GRPC_CODES, told
from hetero.apps.serve.exchange import trace_of
from hetero.apps.serve.grpc_messages import Message, read_call_of, read_message, write_answer
from hetero.apps.serve.inference import Inference
from hetero.apps.serve.proto_file import proto_file
from hetero.apps.serve.service import CALLS, Service
from hetero.devices.errors import ArgumentError, HeteroError, RequestCancelledError

_log = logging.getLogger(__name__)
#: Calls at once; of more, so many again wait for a thread before calls are refused.
_THREADS: Final = 64
_MOST_CALLS: Final = 1024
#: A method's request and context to its answer, or its answers.
Behaviour = Callable[[Any, grpc.ServicerContext], Any]


class GrpcServer:
    """Answers gRPC calls at a port, 0 for a free one, until it is closed."""

    def __init__(self, service: Service, port: int) -> None:
        self._service, options = service, service.options
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, "grpc"),
            handlers=[self._inference(), self._health()],
            options=[
                ("grpc.max_receive_message_length", min(options.body_nbytes, 2**31 - 1)),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", int(options.shared_port)),
            ],
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{host}:{port}"
        try:
            if options.tls_key and options.tls_certificate:
                pair = options.tls_key.read_bytes(), options.tls_certificate.read_bytes()
                credentials = grpc.ssl_server_credentials([pair])
                port = self._server.add_secure_port(address, credentials)
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ArgumentError(
                f"cannot serve gRPC at {address}: {error}. Give another port; 0 takes a free one."
            ) from error
        self.port: Final[int] = port
        self._server.start()

    def close(self, grace_s: float) -> None:
        """Take no more calls, answer those that are there, and end."""
        self._server.stop(grace_s).wait()

    def _inference(self) -> grpc.GenericRpcHandler:
        file = proto_file("open_inference.proto")
        handlers = {}
        for method in file.methods:
            name, write = method.name, file.messages[method.output_type.name]
            if name == "ModelInfer":
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    self._guarded(self._infer), read_message, Message.SerializeToString
                )
            elif name == "ModelStreamInfer":
                handlers[name] = grpc.stream_stream_rpc_method_handler(
                    self._stream, read_message, write.SerializeToString
                )
            else:
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    self._guarded(self._document(name, write)),
                    file.messages[method.input_type.name].FromString,
                    write.SerializeToString,
                )
        return grpc.method_handlers_generic_handler(file.service, handlers)

    def _health(self) -> grpc.GenericRpcHandler:
        """Return gRPC's own check, which needs no token."""
        file = proto_file("health.proto")
        request, answer = file.messages["HealthCheckRequest"], file.messages["HealthCheckResponse"]
        handler = grpc.unary_unary_rpc_method_handler(
            lambda _, __: answer(status=1 if self._service.is_ready() else 2),  # SERVING or not
            request.FromString,
            answer.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(file.service, {"Check": handler})

    def _guarded(self, behaviour: Behaviour) -> Behaviour:
        """Return a behaviour whose errors are gRPC's statuses, and that wants a token if any is."""

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                self._check_token(context)
                return behaviour(request, context)
            except Exception as error:
                context.abort(*_status(error))

        return answer

    def _check_token(self, context: grpc.ServicerContext) -> None:
        self._service.check_token(_metadata(context, "authorization").encode())

    def _document(self, name: str, made: Any) -> Behaviour:
        def answer(request: Any, _: grpc.ServicerContext) -> Any:
            asked = {f.name: getattr(request, f.name) for f in request.DESCRIPTOR.fields}
            return ParseDict(CALLS[name](self._service, asked) or {}, made())

        return answer

    def _stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Answer one after the other; an error is one request's, and the stream goes on."""
        made = proto_file("open_inference.proto").messages["ModelStreamInferResponse"]
        try:
            self._check_token(context)
        except HeteroError as error:
            context.abort(*_status(error))
        for request in requests:
            try:
                head, raws = self._infer(request, context)
                head.raw_output_contents.extend(map(bytes, raws))
                yield made(infer_response=head)
            except Exception as error:
                answer = made(error_message=_status(error)[1])
                answer.infer_response.id = request.head.id
                yield answer

    def _infer(self, message: Message, context: grpc.ServicerContext) -> Message:
        asked, regions = message.head, self._service.regions
        model = self._service.repository.find(asked.model_name, asked.model_version)
        with Inference(model) as inference:
            call = read_call_of(message, regions)
            trace = trace_of(_metadata(context, "traceparent"))
            inference.asks(call, context.time_remaining(), trace, waits=True, inline=True)
            submission = inference.submission
            if not submission.future.done() and not context.add_callback(submission.cancel):
                submission.cancel()
                raise RequestCancelledError("the client has gone.")
            outputs = inference.outputs(submission.future.result(), regions)
            return write_answer(model.name, model.version, call, outputs)


def _metadata(context: grpc.ServicerContext, name: str) -> str:
    """Return what a client says beside its request; empty where it does not."""
    return next((f"{value}" for key, value in context.invocation_metadata() if key == name), "")


def _status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the code and message of an error."""
    if not isinstance(error, HeteroError):
        _log.error("a gRPC call failed", exc_info=error)
    error.with_traceback(None)  # it leads to those who hold the error, and to the tensors
    status, message = told(error)
    return grpc.StatusCode[GRPC_CODES.get(status, "INTERNAL")], message
