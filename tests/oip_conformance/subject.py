"""The server under test: its answers to requests, without any client library's help."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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

#: Seconds that an answer may take.
_PATIENCE_S: Final = 60.0
#: The header that says how long the JSON before raw bytes is.
LENGTH: Final = "Inference-Header-Content-Length"
#: What the requests made here are called.
ID: Final = "seven-7"
#: Asks the server itself, whatever proxies there are.
_DIRECT: Final = build_opener(ProxyHandler({}))
_FILE: Final = proto_file("open_inference.proto")
Tensors = dict[str, np.ndarray]


class Broken(Exception):  # noqa: N818 - it is a rule that is broken
    """The server does not keep a rule; says how."""


class NotHere(Exception):  # noqa: N818 - it is not wrong
    """The server does not offer what a rule is about; says what."""


class Answer(NamedTuple):
    """A response; of a gRPC call that failed its code's name is the status, and all there is."""

    status: int | str
    headers: Mapping[str, str] = {}
    body: Any = b""

    def json(self) -> Any:
        """Return its body as JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Broken(f"status {self.status} with a body that is no JSON: {error}") from error


@dataclass(frozen=True)
class Subject:
    """A server and one of its models.

    `grpc`: where it answers gRPC; empty: nowhere.
    """

    url: str
    model: str
    grpc: str = ""

    def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Return the answer to one request: a GET without a body; M in a path is the model's."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        path = path.replace("/M", f"/v2/models/{self.model}", 1)
        sent = {"Content-Type": "application/json", **(headers or {})}
        try:
            try:
                answer = _DIRECT.open(Request(self.url + path, data, sent), timeout=_PATIENCE_S)
            except HTTPError as error:  # an answer as well
                answer = error
            with answer:
                told = {name.lower(): value for name, value in answer.headers.items()}
                return Answer(answer.status, told, answer.read())
        except (OSError, HTTPException) as error:
            raise Broken(f"no answer: {type(error).__name__}: {error}") from error

    def call(self, called: str, request: Any = None, /, **fields: Any) -> Answer:
        """Return the answer to one gRPC call, a list of messages where it streams."""
        if not self.grpc:
            raise NotHere("--grpc was not given")
        method = next(m for m in _FILE.methods if m.name == called)
        read, made = (_FILE.messages[kind.name] for kind in (method.output_type, method.input_type))
        with grpc.insecure_channel(self.grpc) as channel:
            kind = channel.stream_stream if method.client_streaming else channel.unary_unary
            call = kind(f"/{_FILE.service}/{called}", made.SerializeToString, read.FromString)
            given = iter(request) if method.client_streaming else request or made(**fields)
            try:
                answer = call(given, timeout=_PATIENCE_S)
                return Answer(200, {}, list(answer) if method.client_streaming else answer)
            except grpc.RpcError as error:
                return Answer(error.code().name, {}, error.details())

    def metadata(self) -> Any:
        """Return the model's metadata."""
        answer = self.ask("/M")
        if answer.status != 200:
            raise Broken(f"the model's metadata: status {answer.status}")
        return answer.json()

    def inputs(self) -> Iterable[tuple[str, str, np.ndarray]]:
        """Yield the model's inputs with their datatypes: ones, open sizes 1, strings "1"."""
        for port in self.metadata()["inputs"]:
            shape = [1 if size < 0 else size for size in port["shape"]]
            dtype = DATATYPES[port["datatype"]].dtype
            array = np.full(shape, "1" if dtype.hasobject else 1, dtype)
            yield port["name"], port["datatype"], array

    def request(self, *, nested: bool = False, **more: Any) -> dict[str, Any]:
        """Return a good request as JSON."""
        inputs = []
        for name, datatype, array in self.inputs():
            if not DATATYPES[datatype].contents:
                raise NotHere(f"input {name} is {datatype}, which JSON has no form for")
            data = (array if nested else array.ravel()).tolist()
            inputs.append(_entry(name, datatype, array, data=data))
        return {"inputs": inputs, **more}

    def raw_request(self, **more: Any) -> tuple[bytes, dict[str, str]]:
        """Return a good request with raw bytes behind its JSON, and its headers."""
        entries, raws = [], []
        for name, datatype, array in self.inputs():
            raws.append(bytes(encode_raw(array)))
            parameters = {"binary_data_size": len(raws[-1])}
            entries.append(_entry(name, datatype, array, parameters=parameters))
        head = json.dumps({"inputs": entries, **more}).encode()
        headers = {LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
        return head + b"".join(raws), headers

    def message(self, *, raw: bool) -> Any:
        """Return a good request as gRPC's message."""
        made = _FILE.messages["ModelInferRequest"](model_name=self.model, id=ID)
        for name, datatype, array in self.inputs():
            entry = made.inputs.add(name=name, datatype=datatype, shape=array.shape)
            field = DATATYPES[datatype].contents
            if raw:
                made.raw_input_contents.append(bytes(encode_raw(array)))
            elif field:
                getattr(entry.contents, field).extend(encode_values(array))
            else:
                raise NotHere(f"{datatype} has no typed contents")
        return made

    def usual(self) -> Tensors:
        """Return the outputs of the good request as JSON."""
        return outputs(self.ask("/M/infer", self.request()))


def _entry(name: str, datatype: str, array: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": datatype, **more}


def outputs(answer: Answer) -> Tensors:
    """Return an inference's outputs, whichever form they came in."""
    if answer.status != 200:
        raise Broken(f"status {answer.status}: {answer.body[:200]!r}")
    try:
        if not isinstance(answer.body, bytes):
            return dict(_of_message(answer.body))
        at = int(answer.headers.get(LENGTH.lower(), len(answer.body)))
        found = {}
        for entry in Answer(200, {}, answer.body[:at]).json().get("outputs", []):
            of = entry["name"], entry["datatype"], tuple(entry["shape"])
            nbytes = (entry.get("parameters") or {}).get("binary_data_size")
            if nbytes is None:
                flat = np.ravel(np.array(entry["data"], object)).tolist()
                found[of[0]] = decode_values(*of, flat)
            else:
                found[of[0]] = decode_raw(*of, answer.body[at : at + nbytes])
                at += nbytes
    except ProtocolError as error:
        raise Broken(f"its outputs: {error}") from error
    if at != len(answer.body):
        raise Broken(f"{len(answer.body) - at} bytes belong to no output")
    return found


def _of_message(message: Any) -> Iterable[tuple[str, np.ndarray]]:
    for index, entry in enumerate(message.outputs):
        of = entry.name, entry.datatype, tuple(entry.shape)
        if message.raw_output_contents:
            yield of[0], decode_raw(*of, message.raw_output_contents[index])
        else:
            yield of[0], decode_contents(entry)


def same(one: Tensors, other: Tensors) -> bool:
    """Return whether outputs differ by no more than rounding; raise Broken where they do."""
    if one.keys() != other.keys():
        raise Broken(f"outputs {sorted(one)}, before {sorted(other)}")
    for name, array in one.items():
        if array.shape != other[name].shape or not (
            np.array_equal(array, other[name])
            if array.dtype.hasobject
            else np.allclose(array.astype(float), other[name].astype(float), 1e-4, 1e-5)
        ):
            raise Broken(f"output {name} has another shape or values than in the first form")
    return True
