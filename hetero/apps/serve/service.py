"""Protocol-independent part of a server: models, access, limits and all calls but inference."""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.repository import UNLOADED, Repository
from hetero.apps.serve.shared_memory import SharedMemoryRegions
from hetero.apps.serve.worker_link import WorkerLink
from hetero.devices.errors import OverloadedError
from hetero.version import hetero_version

#: The protocol's extensions that are served.
_EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)
#: Bytes from which messages are decoded and encoded by another thread than the event loop's.
LARGE_NBYTES: Final = 65536
#: Threads for that; more would only compete for Python's lock.
_CODEC_THREADS: Final = 2
T = TypeVar("T")


class BodyBudget:
    """Bound on the bytes of all requests' bodies together.

    `limit`: bytes; a reservation beyond raises OverloadedError.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.used = 0

    def reserve(self) -> Reservation:
        """Return a reservation of no bytes."""
        return Reservation(self)

    def change(self, nbytes: int) -> None:
        """Add to the bytes in use."""
        with self._lock:
            if nbytes > 0 and self.used + nbytes > self._limit:
                raise OverloadedError(
                    f"the bodies of the requests in progress have {self.used} of at most "
                    f"{self._limit} bytes; try again later."
                )
            self.used += nbytes


class Reservation:
    """Bytes of one request in a budget; a context manager that frees them."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget, self._nbytes = budget, 0

    def add(self, nbytes: int) -> None:
        """Reserve more bytes; OverloadedError if the budget has no room for them."""
        self._budget.change(nbytes)
        self._nbytes += nbytes

    def change_to(self, nbytes: int) -> None:
        """Reserve this many bytes instead; OverloadedError if the budget has no room for them."""
        self.add(nbytes - self._nbytes)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.change(-self._nbytes)
        self._nbytes = 0


class Service:
    """The models of a server, and the rules for its clients."""

    def __init__(self, repository: Repository, options: ServerOptions) -> None:
        self.repository: Final = repository
        self.options: Final = options
        self.bodies: Final = BodyBudget(options.all_bodies_nbytes)
        self.regions: Final = SharedMemoryRegions(
            is_allowed=options.shared_memory, max_nbytes=options.body_nbytes
        )
        self._tokens = [f"Bearer {token}".encode() for token in options.tokens]
        self._codec = ThreadPoolExecutor(_CODEC_THREADS, "codec")
        #: Link to the other processes of the server; None if there is only one.
        self.link: WorkerLink | None = None
        #: Whether the server is about to end.
        self.is_draining = False

    async def run_codec(self, nbytes: int, function: Callable[[], T]) -> T:
        """Decode or encode a message; off the event loop's thread if it is large."""
        if nbytes < LARGE_NBYTES:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._codec, function)

    def reserve_response(self, reservation: Reservation, nbytes: int) -> None:
        """Reserve room for a response instead of its request, until the client has read it.

        One that is larger than any request counts as such a request, so that it has room at all.
        """
        reservation.change_to(min(nbytes, self.options.body_nbytes))

    def close(self) -> None:
        """End the threads."""
        self._codec.shutdown(wait=False)

    def check_token(self, authorization: bytes) -> None:
        """Raise ProtocolError if the server has tokens and the header has none of them."""
        tokens = self._tokens
        if tokens and not any(hmac.compare_digest(token, authorization) for token in tokens):
            raise protocol_error("expected a token: Authorization: Bearer TOKEN.", 401)

    def is_ready(self) -> bool:
        """Return whether all models have devices, except those that a client has unloaded."""
        rows = [row for row in self.repository.index() if row["reason"] != UNLOADED]
        return not self.is_draining and all(row["state"] == "READY" for row in rows)

    def metadata(self) -> dict[str, Any]:
        """Return the protocol's metadata of the server."""
        extensions = [*_EXTENSIONS]
        if self.regions.is_allowed:
            extensions.append("system_shared_memory")
        return {"name": "hetero", "version": hetero_version(), "extensions": extensions}

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the protocol's metadata of a model."""
        model = self.repository.find(name, version)
        return model.metadata(self.repository.versions(name))

    async def answer(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Answer a call by its gRPC name; all processes of the server carry out a change."""
        call = CALLS[name]
        call.check(self, fields)
        if call.shared_fields and self.link is not None:
            shared = {key: fields[key] for key in call.shared_fields if key in fields}
            await self.link.call_all(name, shared)
            return None
        if call.is_slow:
            return await asyncio.to_thread(call.answer, self, fields)
        return call.answer(self, fields)

    def carry_out(self, name: str, fields: Mapping[str, Any]) -> None:
        """Carry out a call that another process of the server has received."""
        CALLS[name].answer(self, fields)

    def check_load(self, parameters: object) -> None:
        """Raise ProtocolError if clients may not load models, or not with parameters."""
        self.check_model_control()
        if parameters:
            raise protocol_error("load: parameters are not supported; leave them out.", 501)

    def check_model_control(self) -> None:
        """Raise ProtocolError if clients may not load and unload models."""
        if self.options.model_control != "explicit":
            raise protocol_error(
                "clients may not load or unload models; start with --model-control explicit.", 403
            )

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of a model, or of all models."""
        if name:
            self.repository.find(name, version)
        rows = [
            model.statistics.document(model.name, model.version)
            for model in self.repository.models()
            if name in ("", model.name) and version in ("", model.version)
        ]
        return {"model_stats": rows}


class Call(NamedTuple):
    """A call of the protocol that is no inference.

    `answer`: returns the response's document; the arguments have the names of gRPC's fields.
    `is_slow`: whether it may take seconds, so that it needs a thread.
    `shared_fields`: the fields that the server's other processes need to carry it out as well;
        empty if it changes nothing.
    `check`: raises ProtocolError if the call is refused.
    """

    answer: Callable[[Service, Mapping[str, Any]], dict[str, Any] | None]
    is_slow: bool = False
    shared_fields: tuple[str, ...] = ()
    check: Callable[[Service, Mapping[str, Any]], None] = lambda service, fields: None


def _model_name(fields: Mapping[str, Any]) -> str:
    """Return the name of a model: gRPC's field, or the name in REST's path."""
    name: str = fields["name"] if "name" in fields else fields["model_name"]
    return name


#: Calls by gRPC's names.
CALLS: Final[dict[str, Call]] = {
    "ServerLive": Call(lambda service, _: {"live": True}),
    "ServerReady": Call(lambda service, _: {"ready": service.is_ready()}),
    "ServerMetadata": Call(lambda service, _: service.metadata()),
    "ModelReady": Call(lambda service, names: {"ready": service.repository.is_ready(**names)}),
    "ModelMetadata": Call(lambda service, names: service.model_metadata(**names)),
    "ModelConfig": Call(
        lambda service, names: {"config": service.repository.find(**names).config()}
    ),
    "ModelStatistics": Call(lambda service, names: service.statistics(**names)),
    "RepositoryIndex": Call(
        lambda service, fields: {
            "models": service.repository.index(ready=fields.get("ready") is True)
        }
    ),
    "RepositoryModelLoad": Call(
        lambda service, fields: service.repository.load(_model_name(fields)),
        is_slow=True,
        shared_fields=("name", "model_name"),
        check=lambda service, fields: service.check_load(fields.get("parameters")),
    ),
    "RepositoryModelUnload": Call(
        lambda service, fields: service.repository.unload(_model_name(fields)),
        is_slow=True,
        shared_fields=("name", "model_name"),
        check=lambda service, fields: service.check_model_control(),
    ),
    "SystemSharedMemoryStatus": Call(
        lambda service, fields: {
            "regions": {row["name"]: row for row in service.regions.status(fields.get("name", ""))}
        }
    ),
    "SystemSharedMemoryRegister": Call(
        lambda service, fields: service.regions.register(
            *map(fields.get, ("name", "key", "offset", "byte_size"), ("", "", 0, 0))
        ),
        shared_fields=("name", "key", "offset", "byte_size"),
        check=lambda service, fields: service.regions.require_allowed(),
    ),
    "SystemSharedMemoryUnregister": Call(
        lambda service, fields: service.regions.unregister(fields.get("name", "")),
        shared_fields=("name",),
        check=lambda service, fields: service.regions.require_allowed(),
    ),
}
