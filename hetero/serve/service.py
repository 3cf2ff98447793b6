"""What REST and gRPC have in common: the models, what a request may take, and what is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hetero.serve.errors import refused
from hetero.serve.regions import Regions
from hetero.serve.repository import UNLOADED, Repository
from hetero.serve.served_model import ServedModel
from hetero.version import hetero_version

#: The protocol's extensions that are here.
_EXTENSIONS: Final = (
    "binary_tensor_data", "model_configuration", "model_repository", "schedule_policy",
    "statistics",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may take.

    Attributes
    ----------
    body_nbytes : int
        Bytes of its body, packed or unpacked.
    body_s : float
        Seconds until its body is there.
    """

    body_nbytes: int = 2**30
    body_s: float = 60.0


class Service:
    """The models and the rules of a server.

    Parameters
    ----------
    repository : Repository
        The models.
    bounds : Bounds
        What a request may take.
    shared_memory : bool
        Whether clients may name shared memory of the server's user as inputs and outputs.
    """

    def __init__(
        self, repository: Repository, bounds: Bounds | None = None, *, shared_memory: bool = False
    ) -> None:
        self.repository: Final = repository
        self.bounds: Final = bounds or Bounds()
        self.regions: Final = Regions(allowed=shared_memory)
        #: Set once no more requests are wanted.
        self.is_draining = False

    def is_ready(self) -> bool:
        """Return whether requests are welcome: all models have devices left and are loaded.

        Those that somebody has unloaded are not waited for.
        """
        rows = [row for row in self.repository.index() if row["reason"] != UNLOADED]
        return not self.is_draining and all(row["state"] == "READY" for row in rows)

    def num_in_flight(self) -> int:
        """Return how many requests run, or wait for their turn."""
        return sum(m.statistics.num_in_flight for m in self.repository.models())

    def metadata(self) -> dict[str, Any]:
        """Return what the protocol tells of a server."""
        more = ("system_shared_memory",) if self.regions.allowed else ()
        extensions = [*_EXTENSIONS, *more]
        return {"name": "hetero", "version": hetero_version(), "extensions": extensions}

    def model_metadata(self, name: str, version: str) -> dict[str, Any]:
        """Return what the protocol tells of a model."""
        model = self.repository.find(name, version)
        return model.metadata(self.repository.versions(name))

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model, or what of it has changed.

        Raises
        ------
        ProtocolError
            There is none, it cannot be loaded, or parameters are given: there are none here.
        """
        if parameters:
            raise refused(f"load takes no parameters here, got {', '.join(parameters)}.", 501)
        self.repository.load(name)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of a model, or of all of them."""
        if name:
            self.repository.find(name, version)
        models: Sequence[ServedModel] = [
            model
            for model in self.repository.models()
            if name in ("", model.name) and version in ("", model.version)
        ]
        return {"model_stats": [m.statistics.document(m.name, m.version) for m in models]}
