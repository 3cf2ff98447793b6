"""What REST and gRPC have in common: the models, what a request may take, and what is told."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final

from hetero.apps.serve.errors import refused
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.repository import UNLOADED, Repository
from hetero.apps.serve.shared_memory import Regions
from hetero.version import hetero_version

#: The protocol's extensions that are here.
_EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)


class Service:
    """The models and the rules of a server."""

    def __init__(self, repository: Repository, options: ServerOptions) -> None:
        self.repository: Final = repository
        self.options: Final = options
        self.regions: Final = Regions(allowed=options.shared_memory)
        self._tokens = [f"Bearer {token}".encode() for token in options.tokens]
        #: Set once no more requests are wanted.
        self.is_draining = False

    def check_token(self, given: bytes) -> None:
        """Raise ProtocolError where tokens are wanted and none of them is given."""
        if self._tokens and not any(hmac.compare_digest(token, given) for token in self._tokens):
            raise refused("a token is wanted: Authorization: Bearer TOKEN.", 401)

    def is_ready(self) -> bool:
        """Return whether requests are welcome: all models have devices left and are loaded.

        Those that somebody has unloaded are not waited for.
        """
        rows = [row for row in self.repository.index() if row["reason"] != UNLOADED]
        return not self.is_draining and all(row["state"] == "READY" for row in rows)

    def metadata(self) -> dict[str, Any]:
        """Return what the protocol tells of a server."""
        more = ("system_shared_memory",) if self.regions.allowed else ()
        extensions = [*_EXTENSIONS, *more]
        return {"name": "hetero", "version": hetero_version(), "extensions": extensions}

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return what the protocol tells of a model."""
        model = self.repository.find(name, version)
        return model.metadata(self.repository.versions(name))

    def load(self, name: str, parameters: object) -> None:
        """Load a model, or what of it has changed; there are no parameters here."""
        if parameters:
            raise refused("load takes no parameters here.", 501)
        self.repository.load(name)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of a model, or of all of them."""
        if name:
            self.repository.find(name, version)
        rows = [
            model.statistics.document(model.name, model.version)
            for model in self.repository.models()
            if name in ("", model.name) and version in ("", model.version)
        ]
        return {"model_stats": rows}


#: What a request that is no inference does, by its name in the protocol: the service and what was
#: asked, by the names of gRPC's fields, to the answer's document.
CALLS: Final[dict[str, Callable[[Service, Mapping[str, Any]], dict[str, Any] | None]]] = {
    "ServerLive": lambda service, _: {"live": True},
    "ServerReady": lambda service, _: {"ready": service.is_ready()},
    "ServerMetadata": lambda service, _: service.metadata(),
    "ModelReady": lambda service, asked: {"ready": service.repository.is_ready(**asked)},
    "ModelMetadata": lambda service, asked: service.model_metadata(**asked),
    "ModelConfig": lambda service, asked: {"config": service.repository.find(**asked).config()},
    "ModelStatistics": lambda service, asked: service.statistics(**asked),
    "RepositoryIndex": lambda service, asked: {
        "models": service.repository.index(ready=asked.get("ready") is True)
    },
    "RepositoryModelLoad": lambda service, asked: service.load(
        asked["model_name"], asked.get("parameters")
    ),
    "RepositoryModelUnload": lambda service, asked: service.repository.unload(asked["model_name"]),
    "SystemSharedMemoryStatus": lambda service, asked: {
        "regions": {row["name"]: row for row in service.regions.status(asked.get("name", ""))}
    },
    "SystemSharedMemoryRegister": lambda service, asked: service.regions.register(
        *map(asked.get, ("name", "key", "offset", "byte_size"), ("", "", 0, 0))
    ),
    "SystemSharedMemoryUnregister": lambda service, asked: service.regions.unregister(
        asked.get("name", "")
    ),
}
