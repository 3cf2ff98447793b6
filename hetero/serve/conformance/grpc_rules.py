"""The rules of the protocol's gRPC form."""

from __future__ import annotations

from typing import Any, Final

import grpc
import numpy as np

from hetero.serve.conformance.subject import Broken, NotHere, Rule, Subject, same, want
from hetero.serve.datatypes import DATATYPES
from hetero.serve.grpc_messages import CONTENTS
from hetero.serve.proto_file import proto_file
from hetero.serve.tensors import from_binary, to_binary

_FILE: Final = proto_file("open_inference.proto")
_PATIENCE_S: Final = 60.0


def _call(server: Subject, called: str, /, request: Any = None, **fields: Any) -> Any:
    if not server.grpc:
        raise NotHere("--grpc was not given")
    method = next(m for m in _FILE.methods if m.name == called)
    made = request or _FILE.messages[method.request](**fields)
    with grpc.insecure_channel(server.grpc) as channel:
        kind = channel.stream_stream if method.streams else channel.unary_unary
        call = kind(
            f"/{_FILE.service}/{called}",
            _FILE.messages[method.request].SerializeToString,
            _FILE.messages[method.response].FromString,
        )
        try:
            if method.streams:
                return list(call(iter(made), timeout=_PATIENCE_S))
            return call(made, timeout=_PATIENCE_S)
        except grpc.RpcError as error:
            raise _Failed(error.code(), error.details()) from error


class _Failed(Broken):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code


def _request(server: Subject, *, raw: bool, name: str = "") -> Any:
    made = _FILE.messages["ModelInferRequest"](model_name=name or server.model, id="seven-7")
    kinds = server.datatypes()
    for port, array in server.inputs().items():
        entry = made.inputs.add(name=port, datatype=kinds[port], shape=array.shape)
        if raw:
            made.raw_input_contents.append(bytes(to_binary(array)))
        elif kinds[port] in CONTENTS:
            values = array.ravel().tolist()
            values = [v.encode() for v in values] if array.dtype.hasobject else values
            getattr(entry.contents, CONTENTS[kinds[port]]).extend(values)
        else:
            raise NotHere(f"{kinds[port]} has no typed contents")
    return made


def _outputs(answer: Any) -> dict[str, np.ndarray]:
    found = {}
    for index, entry in enumerate(answer.outputs):
        shape = tuple(entry.shape)
        if answer.raw_output_contents:
            raw = answer.raw_output_contents[index]
            found[entry.name] = from_binary(entry.name, entry.datatype, shape, raw)
        else:
            values = list(getattr(entry.contents, CONTENTS[entry.datatype]))
            dtype = DATATYPES[entry.datatype]
            values = [v.decode() for v in values] if dtype.hasobject else values
            found[entry.name] = np.array(values, dtype).reshape(shape)
    return found


def _live(server: Subject) -> None:
    want(_call(server, "ServerLive").live, "not live")
    want(_call(server, "ServerReady").ready, "not ready")
    want(_call(server, "ModelReady", name=server.model).ready, "the model is not ready")


def _metadata(server: Subject) -> None:
    told, rest = _call(server, "ModelMetadata", name=server.model), server.metadata()
    ports = [(p.name, p.datatype, list(p.shape)) for p in (*told.inputs, *told.outputs)]
    wanted = [(p["name"], p["datatype"], p["shape"]) for p in (*rest["inputs"], *rest["outputs"])]
    want(ports == wanted, f"{ports}; by REST {wanted}")


def _infer(raw: bool) -> Any:
    def check(server: Subject) -> None:
        answer = _call(server, "ModelInfer", _request(server, raw=raw))
        want(answer.id == "seven-7", f"id {answer.id!r}")
        same(_outputs(answer), server.usual())

    return check


def _unknown(server: Subject) -> None:
    _fails(server, _request(server, raw=True, name="no-such-model"), "NOT_FOUND")


def _mixed(server: Subject) -> None:
    mixed = _request(server, raw=False)
    mixed.raw_input_contents.extend(_request(server, raw=True).raw_input_contents)
    _fails(server, mixed, "INVALID_ARGUMENT")


def _short(server: Subject) -> None:
    short = _request(server, raw=True)
    short.raw_input_contents[0] = short.raw_input_contents[0][:-1]
    _fails(server, short, "INVALID_ARGUMENT")


def _fails(server: Subject, request: Any, code: str) -> None:
    try:
        _call(server, "ModelInfer", request)
    except _Failed as failed:
        want(failed.code.name == code, f"{failed}; wanted {code}")
        return
    raise Broken(f"an answer; wanted {code}")


def _stream(server: Subject) -> None:
    request = _request(server, raw=True)
    try:
        answers = _call(server, "ModelStreamInfer", [request, request])
    except _Failed as failed:
        if failed.code is grpc.StatusCode.UNIMPLEMENTED:
            raise NotHere("ModelStreamInfer") from failed
        raise
    want(len(answers) == 2, f"{len(answers)} answers to 2 requests")
    same(_outputs(answers[1].infer_response), server.usual())


RULES: Final = (
    Rule("gRPC: live and ready", "ServerLive, ServerReady, ModelReady", _live),
    Rule("gRPC: metadata", "ModelMetadata says what REST says", _metadata),
    Rule("gRPC: contents", "typed contents give what REST gives; id comes back", _infer(raw=False)),
    Rule("gRPC: raw", "raw_input_contents give the same", _infer(raw=True)),
    Rule("gRPC: unknown model", "NOT_FOUND", _unknown),
    Rule("gRPC: mixed contents", "contents beside raw contents are INVALID_ARGUMENT", _mixed),
    Rule("gRPC: raw lengths", "bytes that do not fit the shape are INVALID_ARGUMENT", _short),
    Rule("gRPC: streams", "ModelStreamInfer answers each request", _stream),
)
