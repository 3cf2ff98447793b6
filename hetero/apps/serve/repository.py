"""Served models by name and version; they are loaded and unloaded while others run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hetero.apps.serve.errors import ProtocolError, protocol_error
from hetero.apps.serve.served_model import ServedModel
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import HeteroError

#: Reason of a model that a client has unloaded.
UNLOADED: Final = "unloaded"


@dataclass(frozen=True)
class ModelSource:
    """The source of a version of a model.

    `load`: compiles or imports the model.
    `stamp`: changes with the model, so that it is loaded again.
    `folder`: the folder that may have its tokenizer.
    """

    name: str
    version: str
    load: Callable[[], CompiledModel]
    stamp: object = None
    folder: Path | None = None


@dataclass(slots=True)
class _Entry:
    """A version of a model: the loaded model, or the reason why there is none."""

    source: ModelSource
    model: ServedModel | None = None
    state: str = "LOADING"
    reason: str = "it is being loaded"

    @property
    def has_devices(self) -> bool:
        """Whether the model is not loaded, or its devices are up."""
        return self.model is None or self.model.is_ready

    def load(self) -> None:
        """Load the model; keep the previous one if that fails."""
        source = self.source
        try:
            self.model = ServedModel(source.name, source.version, source.load(), source.folder)
            self.state, self.reason = "READY", ""
        except (HeteroError, OSError) as error:
            self.state = "UNAVAILABLE" if self.model is None else "READY"
            self.reason = f"{error}"


class Repository:
    """Models by name and version, from the sources that a function finds.

    A caller of `find` keeps the model: an unloaded one closes after its last request.
    """

    def __init__(self, find_sources: Callable[[], Iterable[ModelSource]]) -> None:
        self._find_sources = find_sources
        self._entries: dict[str, dict[str, _Entry]] = {}
        #: Held during a load or unload, which may take minutes.
        self._load_lock = threading.Lock()
        #: Held while the table is read or changed.
        self._lock: Final = threading.Lock()

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a version of a model; without one, the highest that is ready."""
        entries = self._entries.get(name)
        if entries is None:
            names = ", ".join(map(repr, self._entries)) or "no models"
            raise protocol_error(f"no model {name!r}; the server has {names}.", 404)
        if version:
            if (entry := entries.get(version)) is None:
                raise protocol_error(
                    f"model {name!r} has no version {version!r}, expected one of "
                    f"{', '.join(entries)}.",
                    404,
                )
        else:
            entry = max(entries.values(), key=_rank)
        if entry.model is None:
            raise protocol_error(
                f"version {entry.source.version} of model {name!r} is {entry.state.lower()}: "
                f"{entry.reason}.",
                503 if entry.state == "LOADING" else 404,
            )
        return entry.model

    def is_ready(self, name: str, version: str = "") -> bool:
        """Return whether a version of a model is loaded and has devices."""
        try:
            return self.find(name, version).is_ready
        except ProtocolError:
            return False

    def versions(self, name: str) -> list[str]:
        """Return the loaded versions of a model."""
        entries = self._entries.get(name, {})
        return [version for version, entry in entries.items() if entry.model is not None]

    def models(self) -> list[ServedModel]:
        """Return every loaded version of every model."""
        return [entry.model for entry in self._all_entries() if entry.model is not None]

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Return the state of every version of every model; `ready` leaves out unloaded ones."""
        return [
            {
                "name": entry.source.name,
                "version": entry.source.version,
                "state": entry.state if entry.has_devices else "UNAVAILABLE",
                "reason": entry.reason if entry.has_devices else "its devices are lost",
            }
            for entry in self._all_entries()
            if entry.model is not None or not ready
        ]

    def _all_entries(self) -> list[_Entry]:
        with self._lock:
            return [entry for entries in self._entries.values() for entry in entries.values()]

    def load(self, name: str) -> None:
        """Load a model's versions, or those that have changed."""
        with self._load_lock:
            sources = [source for source in self._find_sources() if source.name == name]
            if not sources:
                raise protocol_error(f"the repository has no model {name!r}.", 404)
            self._replace(name, sources, retry=True)
        for entry in self._entries[name].values():
            if entry.model is None:
                raise protocol_error(f"model {name!r} is not loaded: {entry.reason}.")

    def unload(self, name: str) -> None:
        """Stop serving a model; requests in progress end normally."""
        with self._load_lock:
            if name not in self._entries:
                raise protocol_error(f"no model {name!r} to unload.", 404)
            with self._lock:
                for entry in self._entries[name].values():
                    entry.model, entry.state, entry.reason = None, "UNAVAILABLE", UNLOADED

    def refresh(self) -> None:
        """Load new and changed models, and drop those whose sources are gone.

        Failures are reported by `index`. A model that a client has unloaded stays unloaded.
        """
        with self._load_lock:
            by_name: dict[str, list[ModelSource]] = {}
            for source in self._find_sources():
                by_name.setdefault(source.name, []).append(source)
            for name, sources in by_name.items():
                entries = self._entries.get(name, {})
                if not entries or any(e.reason != UNLOADED for e in entries.values()):
                    self._replace(name, sources, retry=False)
            with self._lock:
                self._entries = {n: e for n, e in self._entries.items() if n in by_name}

    def _replace(self, name: str, sources: Iterable[ModelSource], *, retry: bool) -> None:
        """Replace the versions of a model; one that cannot be loaded keeps its previous model.

        `retry`: whether to load those again that failed and have not changed.
        """
        previous = self._entries.get(name, {})
        entries: dict[str, _Entry] = {}
        for source in sources:
            old = previous.get(source.version)
            is_same = old is not None and old.source.stamp == source.stamp
            if old is not None and is_same and (old.model is not None or not retry):
                entries[source.version] = old
            else:
                entries[source.version] = _Entry(source, None if old is None else old.model)
        with self._lock:
            self._entries[name] = {**previous, **entries}
        for entry in entries.values():
            if entry.state == "LOADING":
                entry.load()
        with self._lock:
            self._entries[name] = entries


def _rank(entry: _Entry) -> tuple[bool, int, str]:
    """Return the order of a version: loaded ones last, numbers by their value."""
    version = entry.source.version
    return entry.model is not None, int(version) if version.isdecimal() else -1, version


def fixed_repository(models: Mapping[str, CompiledModel]) -> Repository:
    """Return a repository of compiled models, each as version 1."""

    def source(name: str, compiled: CompiledModel) -> ModelSource:
        return ModelSource(name, "1", lambda: compiled, id(compiled))

    sources = [source(name, compiled) for name, compiled in models.items()]
    repository = Repository(lambda: sources)
    repository.refresh()
    return repository
