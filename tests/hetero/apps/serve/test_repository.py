"""Sequences of loads, unloads and changes of the models of a server, compared with a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

pytest.importorskip("orjson")
from hetero.apps.serve import repository as module
from hetero.apps.serve.errors import ProtocolError
from hetero.apps.serve.repository import ModelSource, Repository
from hetero.devices.errors import ModelError

NAMES, VERSIONS = st.sampled_from(["m", "n"]), st.sampled_from(["1", "2", "10"])


@dataclass
class Expected:
    """A version of a model: the stamps of its source and of the loaded model."""

    stamp: int
    model: int | None
    state: str
    reason: str


class RepositorySequences(RuleBasedStateMachine):
    """Sources that appear, change, break and vanish between the calls of clients."""

    def __init__(self) -> None:
        super().__init__()

        def served(name: str, version: str, compiled: Any, folder: Any) -> Any:
            return SimpleNamespace(name=name, version=version, stamp=compiled, is_ready=True)

        self.patch = mock.patch.object(module, "ServedModel", served)
        self.patch.start()
        #: (Name, version) -> stamp, and whether loading fails.
        self.sources: dict[tuple[str, str], tuple[int, bool]] = {}
        self.expected: dict[str, dict[str, Expected]] = {}
        self.loads: list[int] = []
        self.count = 0
        self.repository = Repository(self.find_sources)

    def teardown(self) -> None:
        self.patch.stop()

    def find_sources(self) -> Iterator[ModelSource]:
        for (name, version), (stamp, fails) in self.sources.items():

            def load(stamp: int = stamp, fails: bool = fails) -> Any:
                self.loads.append(stamp)
                if fails:
                    raise ModelError(f"damaged {stamp}")
                return stamp

            yield ModelSource(name, version, load, stamp)

    @rule(name=NAMES, version=VERSIONS, fails=st.booleans())
    def change_source(self, name: str, version: str, fails: bool) -> None:
        self.count += 1
        self.sources[name, version] = (self.count, fails)

    @rule(name=NAMES, version=VERSIONS)
    def remove_source(self, name: str, version: str) -> None:
        self.sources.pop((name, version), None)

    @rule()
    def refresh(self) -> None:
        number = len(self.loads)
        self.repository.refresh()
        loads: list[int] = []
        names = dict.fromkeys(name for name, _ in self.sources)
        for name in names:
            old = self.expected.get(name, {})
            if not old or any(e.reason != "unloaded" for e in old.values()):
                loads += self.replace(name, retry=False)
        self.expected = {n: e for n, e in self.expected.items() if n in names}
        assert self.loads[number:] == loads

    @rule(name=NAMES)
    def load(self, name: str) -> None:
        number = len(self.loads)
        if not any(other == name for other, _ in self.sources):
            with pytest.raises(ProtocolError, match=f"no model '{name}'"):
                self.repository.load(name)
            assert self.loads[number:] == []
            return
        loads = self.replace(name, retry=True)
        if any(entry.model is None for entry in self.expected[name].values()):
            with pytest.raises(ProtocolError, match=f"'{name}' is not loaded: .*damaged"):
                self.repository.load(name)
        else:
            self.repository.load(name)
        assert self.loads[number:] == loads

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        if name not in self.expected:
            with pytest.raises(ProtocolError, match=f"no model '{name}' to unload"):
                self.repository.unload(name)
            return
        self.repository.unload(name)
        for entry in self.expected[name].values():
            entry.model, entry.state, entry.reason = None, "UNAVAILABLE", "unloaded"

    def replace(self, name: str, *, retry: bool) -> list[int]:
        """Change the expected versions of a model; return the stamps that are loaded."""
        old, new, loads = self.expected.get(name, {}), {}, []
        for (other, version), (stamp, fails) in self.sources.items():
            if other != name:
                continue
            entry = old.get(version)
            if entry and entry.stamp == stamp and (entry.model is not None or not retry):
                new[version] = entry
                continue
            loads.append(stamp)
            previous = entry.model if entry else None
            if not fails:
                new[version] = Expected(stamp, stamp, "READY", "")
            else:
                state = "UNAVAILABLE" if previous is None else "READY"
                new[version] = Expected(stamp, previous, state, f"damaged {stamp}")
        self.expected[name] = new
        return loads

    @invariant()
    def clients_find_the_expected_models(self) -> None:
        for name in ("m", "n"):
            entries = self.expected.get(name, {})
            loaded = [version for version, entry in entries.items() if entry.model is not None]
            assert self.repository.versions(name) == loaded
            for version in ("1", "2", "10"):
                entry = entries.get(version)
                if entry is None or entry.model is None:
                    with pytest.raises(ProtocolError) as caught:
                        self.repository.find(name, version)
                    assert caught.value.status == 404
                    assert not self.repository.is_ready(name, version)
                else:
                    model: Any = self.repository.find(name, version)
                    assert (model.stamp, model.name, model.version) == (entry.model, name, version)
            if loaded:
                assert self.repository.find(name).version == max(loaded, key=int)
            assert self.repository.is_ready(name) == bool(loaded)
        rows = [
            (name, version, entry.state, entry.reason)
            for name, entries in self.expected.items()
            for version, entry in entries.items()
        ]
        index = self.repository.index()
        assert [(r["name"], r["version"], r["state"]) for r in index] == [row[:3] for row in rows]
        assert all(row[3] in r["reason"] for r, row in zip(index, rows, strict=True))
        ready = self.repository.index(ready=True)
        assert len(ready) == len(self.repository.models())


TestRepositorySequences = RepositorySequences.TestCase
TestRepositorySequences.settings = settings(max_examples=20, stateful_step_count=15)


def test_model_whose_devices_are_lost_is_unavailable(monkeypatch):
    model = SimpleNamespace(is_ready=True, version="1")
    monkeypatch.setattr(module, "ServedModel", lambda *arguments: model)
    repository = module.fixed_repository({"m": None})  # type: ignore[dict-item]
    (row,) = repository.index()
    assert (row["state"], row["reason"]) == ("READY", "")
    model.is_ready = False
    (row,) = repository.index()
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "its devices are lost")
    assert not repository.is_ready("m")
    with pytest.raises(ProtocolError, match="no model 'x'; the server has 'm'"):
        repository.find("x")
    with pytest.raises(ProtocolError, match="has no version '2', expected one of 1"):
        repository.find("m", "2")
