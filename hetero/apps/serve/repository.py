"""The models that are served: by name and version; loaded and unloaded while others run."""

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

#: Why a model is not there that somebody has unloaded.
UNLOADED: Final = "unloaded"


@dataclass(frozen=True)
class ModelSource:
    """Where a version of a model comes from.

    `stamp`: differs once what is loaded would be another.
    `folder`: where its tokenizer may be.
    """

    name: str
    version: str
    load: Callable[[], CompiledModel]
    stamp: object = None
    folder: Path | None = None


@dataclass(slots=True)
class _Entry:
    """A version of a model: loaded, or why it is not."""

    source: ModelSource
    model: ServedModel | None = None
    state: str = "LOADING"
    reason: str = "it is being loaded"

    @property
    def has_devices(self) -> bool:
        """Whether it is not a loaded model without devices."""
        return self.model is None or self.model.is_ready


class Repository:
    """Models by name and version, from what sources can be found when they are looked for.

    Who found a model keeps it: it ends once it was unloaded and its last request has ended.
    """

    def __init__(self, find_sources: Callable[[], Iterable[ModelSource]]) -> None:
        self._find_sources = find_sources
        self._entries: dict[str, dict[str, _Entry]] = {}
        #: Of one load or unload at a time; and of the table, which is never held for long.
        self._changing = threading.Lock()
        self._lock: Final = threading.Lock()

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a version of a model; without one, the highest that is ready."""
        entries = self._entries.get(name)
        if entries is None:
            known = ", ".join(map(repr, self._entries)) or "none"
            raise protocol_error(f"no model {name!r} here; there are {known}.", 404)
        if version:
            if (entry := entries.get(version)) is None:
                known = ", ".join(entries)
                raise protocol_error(
                    f"model {name!r} has no version {version!r}; it has {known}.", 404
                )
        else:
            only = len(entries) == 1
            entry = next(iter(entries.values())) if only else max(entries.values(), key=_rank)
        if entry.model is None:
            raise protocol_error(
                f"version {entry.source.version} of model {name!r} is {entry.state.lower()}: "
                f"{entry.reason}.",
                503 if entry.state == "LOADING" else 404,
            )
        return entry.model

    def is_ready(self, name: str, version: str = "") -> bool:
        """Return whether there is such a version of a model, loaded."""
        try:
            return self.find(name, version).is_ready
        except ProtocolError:
            return False

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are loaded."""
        entries = self._entries.get(name, {})
        return [version for version, entry in entries.items() if entry.model is not None]

    def models(self) -> list[ServedModel]:
        """Return every model that is loaded, each version."""
        return [entry.model for entry in self._all() if entry.model is not None]

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Return what is here, and in which state; with `ready`, only what is loaded."""
        return [
            {
                "name": entry.source.name,
                "version": entry.source.version,
                "state": entry.state if entry.has_devices else "UNAVAILABLE",
                "reason": entry.reason if entry.has_devices else "its devices are gone",
            }
            for entry in self._all()
            if entry.model is not None or not ready
        ]

    def _all(self) -> list[_Entry]:
        with self._lock:
            return [entry for held in self._entries.values() for entry in held.values()]

    def load(self, name: str) -> None:
        """Load a model's versions, or those that have changed."""
        with self._changing:
            sources = [source for source in self._find_sources() if source.name == name]
            if not sources:
                raise protocol_error(f"no model {name!r} in the repository to load.", 404)
            self._take(name, sources, retry=True)
        broken = [e for e in self._entries[name].values() if e.model is None]
        if broken:
            raise protocol_error(f"model {name!r} is not loaded: {broken[0].reason}.")

    def unload(self, name: str) -> None:
        """Serve a model no more; requests that run end as they would have."""
        with self._changing:
            if name not in self._entries:
                raise protocol_error(f"no model {name!r} here to unload.", 404)
            with self._lock:
                for entry in self._entries[name].values():
                    entry.model, entry.state, entry.reason = None, "UNAVAILABLE", UNLOADED

    def refresh(self) -> None:
        """Load what is new or has changed, and forget what is gone; what fails is told by `index`.

        A model that was unloaded stays so.
        """
        with self._changing:
            found: dict[str, list[ModelSource]] = {}
            for source in self._find_sources():
                found.setdefault(source.name, []).append(source)
            for name, sources in found.items():
                held = self._entries.get(name, {})
                if not held or any(e.reason != UNLOADED for e in held.values()):
                    self._take(name, sources, retry=False)
            with self._lock:
                self._entries = {n: e for n, e in self._entries.items() if n in found}

    def _take(self, name: str, sources: Iterable[ModelSource], *, retry: bool) -> None:
        """Have exactly these versions of a model; one that cannot be loaded keeps its old self.

        With `retry` what failed is tried again although it has not changed.
        """
        before = self._entries.get(name, {})
        entries: dict[str, _Entry] = {}
        for source in sources:
            old = before.get(source.version)
            same = old is not None and old.source.stamp == source.stamp
            if old is not None and same and (old.model is not None or not retry):
                entries[source.version] = old
            else:
                entries[source.version] = _Entry(source, None if old is None else old.model)
        with self._lock:
            self._entries[name] = {**before, **entries}
        for entry in entries.values():
            if entry.state == "LOADING":
                _load(entry)
        with self._lock:
            self._entries[name] = entries


def _load(entry: _Entry) -> None:
    source = entry.source
    try:
        entry.model = ServedModel(source.name, source.version, source.load(), source.folder)
        entry.state, entry.reason = "READY", ""
    except (HeteroError, OSError) as error:
        entry.state = "UNAVAILABLE" if entry.model is None else "READY"
        entry.reason = f"{error}"


def _rank(entry: _Entry) -> tuple[bool, int, str]:
    """Return what orders versions: those that are ready first, numbers by their value."""
    version = entry.source.version
    return entry.model is not None, int(version) if version.isdecimal() else -1, version


def fixed_repository(models: Mapping[str, CompiledModel]) -> Repository:
    """Return a repository of models that are compiled already, each as version 1."""

    def source(name: str, compiled: CompiledModel) -> ModelSource:
        return ModelSource(name, "1", lambda: compiled, id(compiled))

    sources = [source(name, compiled) for name, compiled in models.items()]
    repository = Repository(lambda: sources)
    repository.refresh()
    return repository
