"""The server under test, without any client library of the protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import grpc
import numpy as np

from hetero.apps.serve.errors import ProtocolError
from hetero.apps.serve.grpc_messages import decode_contents
from hetero.apps.serve.proto_file import proto_file
from hetero.apps.serve.tensors import (
    DATATYPES,
    decode_raw,
    decode_values,
    encode_raw,
    encode_values,
)

#: Seconds that a response may take.
_TIMEOUT_S: Final = 60.0
#: The header with the length of the JSON in front of raw bytes.
LENGTH: Final = "Inference-Header-Content-Length"
#: Id of the requests.
ID: Final = "seven-7"
#: Ignores proxies of the environment.
_OPENER: Final = build_opener(ProxyHandler({}))
_FILE: Final = proto_file("open_inference.proto")
Tensors = dict[str, np.ndarray]


class RuleFailed(Exception):  # noqa: N818 - a verdict, not an error of the suite
    """The server violates a rule; the message has the details."""


class NotSupported(Exception):  # noqa: N818 - a verdict, not an error of the suite
    """The server does not support the subject of a rule; the message names it."""


class Response(NamedTuple):
    """A response; that of a failed gRPC call has the name of its code as status, and no body."""

    status: int | str
    headers: Mapping[str, str] = {}
    body: Any = b""

    def json(self) -> Any:
        """Return the body as JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise RuleFailed(f"status {self.status}, the body is no JSON: {error}") from error


@dataclass(frozen=True)
class ServerUnderTest:
    """A server and one of its models.

    `grpc`: HOST:PORT of its gRPC form; empty for none.
    """

    url: str
    model: str
    grpc: str = ""

    def with_model(self) -> ServerUnderTest:
        """Return the server with its first ready model if none is named."""
        if self.model:
            return self
        response = self.send("/v2/repository/index", {"ready": True})
        rows = response.json() if response.status == 200 else []
        if not rows:
            raise RuleFailed(f"{self.url} lists no model; name one with --model")
        return replace(self, model=rows[0]["name"])

    def send(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return the response to a GET, or with a body to a POST; /M in a path is the model's."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        path = path.replace("/M", f"/v2/models/{self.model}", 1)
        request = Request(
            self.url + path, data, {"Content-Type": "application/json", **(headers or {})}
        )
        try:
            try:
                response = _OPENER.open(request, timeout=_TIMEOUT_S)
            except HTTPError as error:  # a response as well
                response = error
            with response:
                names = {name.lower(): value for name, value in response.headers.items()}
                return Response(response.status, names, response.read())
        except (OSError, HTTPException) as error:
            raise RuleFailed(f"no response: {type(error).__name__}: {error}") from error

    def call(self, name: str, request: Any = None, /, **fields: Any) -> Response:
        """Return the response to a gRPC call: a list of messages if it is a stream."""
        if not self.grpc:
            raise NotSupported("gRPC without --grpc")
        method = next(m for m in _FILE.methods if m.name == name)
        output, input_ = (_FILE.messages[t.name] for t in (method.output_type, method.input_type))
        with grpc.insecure_channel(self.grpc) as channel:
            is_stream = method.client_streaming
            make_call = channel.stream_stream if is_stream else channel.unary_unary
            path = f"/{_FILE.service}/{name}"
            call = make_call(path, input_.SerializeToString, output.FromString)
            message = iter(request) if is_stream else request or input_(**fields)
            try:
                response = call(message, timeout=_TIMEOUT_S)
                return Response(200, {}, list(response) if is_stream else response)
            except grpc.RpcError as error:
                return Response(error.code().name, {}, error.details())

    def metadata(self) -> Any:
        """Return the model's metadata."""
        response = self.send("/M")
        if response.status != 200:
            raise RuleFailed(f"the model's metadata: status {response.status}")
        return response.json()

    def inputs(self) -> Iterable[tuple[str, str, np.ndarray]]:
        """Yield inputs with their datatypes: ones, open sizes 1, strings "1"."""
        for port in self.metadata()["inputs"]:
            shape = [1 if size < 0 else size for size in port["shape"]]
            dtype = DATATYPES[port["datatype"]].dtype
            array = np.full(shape, "1" if dtype.hasobject else 1, dtype)
            yield port["name"], port["datatype"], array

    def request(self, *, nested: bool = False, **fields: Any) -> dict[str, Any]:
        """Return a valid request as JSON."""
        inputs = []
        for name, datatype, array in self.inputs():
            if not DATATYPES[datatype].contents:
                raise NotSupported(f"input {name} is {datatype}, which JSON has no form for")
            data = (array if nested else array.ravel()).tolist()
            inputs.append(_entry(name, datatype, array, data=data))
        return {"inputs": inputs, **fields}

    def raw_request(self, **fields: Any) -> tuple[bytes, dict[str, str]]:
        """Return a valid request with raw bytes after its JSON, and its headers."""
        entries, raws = [], []
        for name, datatype, array in self.inputs():
            raws.append(bytes(encode_raw(array)))
            parameters = {"binary_data_size": len(raws[-1])}
            entries.append(_entry(name, datatype, array, parameters=parameters))
        head = json.dumps({"inputs": entries, **fields}).encode()
        headers = {LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
        return head + b"".join(raws), headers

    def message(self, *, raw: bool) -> Any:
        """Return a valid gRPC request."""
        message = _FILE.messages["ModelInferRequest"](model_name=self.model, id=ID)
        for name, datatype, array in self.inputs():
            entry = message.inputs.add(name=name, datatype=datatype, shape=array.shape)
            field = DATATYPES[datatype].contents
            if raw:
                message.raw_input_contents.append(bytes(encode_raw(array)))
            elif field:
                getattr(entry.contents, field).extend(encode_values(array))
            else:
                raise NotSupported(f"{datatype} has no typed contents")
        return message

    def expected_outputs(self) -> Tensors:
        """Return the outputs of the plain JSON request."""
        return outputs(self.send("/M/infer", self.request()))


def _entry(name: str, datatype: str, array: np.ndarray, **fields: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": datatype, **fields}


def outputs(response: Response) -> Tensors:
    """Return an inference's outputs in any form."""
    if response.status != 200:
        raise RuleFailed(f"status {response.status}: {response.body[:200]!r}")
    try:
        if not isinstance(response.body, bytes):
            return dict(_message_outputs(response.body))
        at = int(response.headers.get(LENGTH.lower(), len(response.body)))
        tensors = {}
        for entry in Response(200, {}, response.body[:at]).json().get("outputs", []):
            described = entry["name"], entry["datatype"], tuple(entry["shape"])
            nbytes = (entry.get("parameters") or {}).get("binary_data_size")
            if nbytes is None:
                flat = np.ravel(np.array(entry["data"], object)).tolist()
                tensors[described[0]] = decode_values(*described, flat)
            else:
                tensors[described[0]] = decode_raw(*described, response.body[at : at + nbytes])
                at += nbytes
    except ProtocolError as error:
        raise RuleFailed(f"the outputs: {error}") from error
    if at != len(response.body):
        raise RuleFailed(f"{len(response.body) - at} bytes belong to no output")
    return tensors


def _message_outputs(message: Any) -> Iterable[tuple[str, np.ndarray]]:
    for index, entry in enumerate(message.outputs):
        described = entry.name, entry.datatype, tuple(entry.shape)
        if message.raw_output_contents:
            yield described[0], decode_raw(*described, message.raw_output_contents[index])
        else:
            yield described[0], decode_contents(entry)


def are_same(tensors: Tensors, expected: Tensors) -> bool:
    """Return True if outputs differ only by rounding; raise RuleFailed otherwise."""
    if tensors.keys() != expected.keys():
        raise RuleFailed(f"outputs {sorted(tensors)}, expected {sorted(expected)}")
    for name, array in tensors.items():
        if array.shape != expected[name].shape or not (
            np.array_equal(array, expected[name])
            if array.dtype.hasobject
            else np.allclose(array.astype(float), expected[name].astype(float), 1e-4, 1e-5)
        ):
            raise RuleFailed(f"output {name} differs from that of the plain JSON request")
    return True
