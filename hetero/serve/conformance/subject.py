"""The server under test: its answers to requests, without any client library's help."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from hetero.serve.datatypes import DATATYPES
from hetero.serve.errors import ProtocolError
from hetero.serve.tensors import from_binary, to_binary

#: Seconds that an answer may take.
_PATIENCE_S: Final = 60.0
#: The header that says how long the JSON before raw bytes is.
LENGTH: Final = "Inference-Header-Content-Length"


class Broken(Exception):  # noqa: N818 - it is a rule that is broken
    """The server does not keep a rule; says how."""


class NotHere(Exception):  # noqa: N818 - it is not wrong
    """The server does not offer what a rule is about; says what."""


class Rule(NamedTuple):
    """What the protocol or an extension says, and what finds out whether a server keeps it."""

    name: str
    says: str
    check: Callable[[Subject], None]


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return its body as JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Broken(f"status {self.status} with a body that is no JSON: {error}") from error


def want(holds: object, how: str) -> None:
    """Raise Broken with `how` it is, where something does not hold."""
    if not holds:
        raise Broken(how)


@dataclass
class Subject:
    """A server and one of its models.

    `grpc`: where it answers gRPC; empty: nowhere.
    """

    url: str
    model: str
    grpc: str = ""
    _extensions: list[str] | None = field(default=None, repr=False)

    def ask(
        self,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        method: str = "",
    ) -> Answer:
        """Return the answer to one request."""
        parts = urlsplit(self.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        sent = {"Content-Type": "application/json", **(headers or {})}
        with closing(kind(parts.hostname or "", parts.port, timeout=_PATIENCE_S)) as connection:
            try:
                connection.request(
                    method or ("GET" if data is None else "POST"), parts.path + path, data, sent
                )
                answer = connection.getresponse()
                told = {name.lower(): value for name, value in answer.getheaders()}
                return Answer(answer.status, told, answer.read())
            except (OSError, http.client.HTTPException) as error:
                raise Broken(f"no answer: {type(error).__name__}: {error}") from error

    def told(self, path: str) -> Any:
        """Return the JSON at a path."""
        answer = self.ask(path)
        want(answer.status == 200, f"{path}: status {answer.status}")
        return answer.json()

    @property
    def path(self) -> str:
        """Where the model is."""
        return f"/v2/models/{self.model}"

    def requires(self, *names: str) -> None:
        """Raise NotHere where the server lists none of these extensions."""
        if self._extensions is None:
            self._extensions = self.told("/v2").get("extensions", [])
        if not set(names) & set(self._extensions):
            raise NotHere(f"extension {names[0]} is not listed")

    def metadata(self) -> Any:
        """Return the model's metadata."""
        return self.told(self.path)

    def inputs(self) -> dict[str, np.ndarray]:
        """Return an input of ones for each of the model's, open sizes 1, strings "1"."""
        made = {}
        for port in self.metadata()["inputs"]:
            shape = [1 if size < 0 else size for size in port["shape"]]
            dtype = DATATYPES[port["datatype"]]
            made[port["name"]] = np.full(shape, "1" if dtype.hasobject else 1, dtype)
        return made

    def datatypes(self) -> dict[str, str]:
        """Return each input's datatype."""
        return {port["name"]: port["datatype"] for port in self.metadata()["inputs"]}

    def request(self, *, nested: bool = False, **more: Any) -> dict[str, Any]:
        """Return a good request as JSON."""
        kinds = self.datatypes()
        inputs = []
        for name, array in self.inputs().items():
            if kinds[name] in ("FP16", "BF16"):
                raise NotHere(f"input {name} is {kinds[name]}, which JSON has no form for")
            data = array.tolist() if nested else array.ravel().tolist()
            entry = {"name": name, "shape": list(array.shape), "datatype": kinds[name]}
            inputs.append({**entry, "data": data})
        return {"inputs": inputs, **more}

    def raw_request(self, **more: Any) -> tuple[bytes, dict[str, str]]:
        """Return a good request with raw bytes behind its JSON, and its headers."""
        kinds = self.datatypes()
        entries, raws = [], []
        for name, array in self.inputs().items():
            raws.append(bytes(to_binary(array)))
            parameters = {"binary_data_size": len(raws[-1])}
            entry = {"name": name, "shape": list(array.shape), "datatype": kinds[name]}
            entries.append({**entry, "parameters": parameters})
        head = json.dumps({"inputs": entries, **more}).encode()
        headers = {LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
        return head + b"".join(raws), headers

    def outputs(self, answer: Answer) -> dict[str, np.ndarray]:
        """Return an inference's outputs, whichever form they came in."""
        want(answer.status == 200, f"status {answer.status}: {answer.body[:200]!r}")
        length = answer.headers.get(LENGTH.lower())
        at = int(length) if length is not None else len(answer.body)
        document = Answer(200, {}, answer.body[:at]).json()
        found = {}
        for entry in document.get("outputs", []):
            name, datatype, shape = entry["name"], entry["datatype"], tuple(entry["shape"])
            nbytes = (entry.get("parameters") or {}).get("binary_data_size")
            try:
                if nbytes is not None:
                    found[name] = from_binary(name, datatype, shape, answer.body[at : at + nbytes])
                    at += nbytes
                else:
                    data = np.array(entry["data"], DATATYPES[datatype])
                    found[name] = data.reshape(shape)
            except (ProtocolError, ValueError) as error:
                raise Broken(f"output {name}: {error}") from error
        want(at == len(answer.body), f"{len(answer.body) - at} bytes belong to no output")
        return found

    def usual(self) -> dict[str, np.ndarray]:
        """Return the outputs of the good request as JSON."""
        return self.outputs(self.ask(f"{self.path}/infer", self.request()))


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    """Raise Broken where outputs differ by more than rounding."""
    want(one.keys() == other.keys(), f"outputs {sorted(one)}, before {sorted(other)}")
    for name, array in one.items():
        want(array.shape == other[name].shape, f"output {name} has shape {array.shape}")
        close = (
            np.array_equal(array, other[name])
            if array.dtype.hasobject
            else np.allclose(array.astype(float), other[name].astype(float), 1e-4, 1e-5)
        )
        want(close, f"output {name} has other values than in the first form")
