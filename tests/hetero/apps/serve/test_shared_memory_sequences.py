"""Sequences of registrations, reads and writes of shared memory, with offsets other than zero."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

pytest.importorskip("orjson")
from hetero.apps.serve import shared_memory
from hetero.apps.serve.errors import ProtocolError
from hetero.apps.serve.shared_memory import Location, SharedMemoryRegions

SIZE = 24
NAMES, KEYS = st.sampled_from(["one", "two"]), st.sampled_from(["a", "b"])
OFFSETS, SIZES = st.integers(0, SIZE), st.integers(1, SIZE)


class RegionSequences(RuleBasedStateMachine):
    """Regions of two files, whose bytes are compared with bytes in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.patch = mock.patch.object(shared_memory, "_FOLDER", Path(self.folder.name))
        self.patch.start()
        self.files = {
            key: bytearray(range(first, first + SIZE))
            for key, first in zip("ab", (0, 100), strict=True)
        }
        for key, content in self.files.items():
            (Path(self.folder.name) / key).write_bytes(content)
        self.regions = SharedMemoryRegions(is_allowed=True, max_nbytes=SIZE - 4)
        self.registered: dict[str, tuple[str, int, int]] = {}

    def teardown(self) -> None:
        self.patch.stop()
        self.folder.cleanup()

    @rule(name=NAMES, key=KEYS, offset=OFFSETS, nbytes=SIZES)
    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        if name in self.registered or offset + nbytes > SIZE:
            with pytest.raises(ProtocolError, match=f"region '{name}'"):
                self.regions.register(name, f"/{key}", offset, nbytes)
            return
        self.regions.register(name, key, offset, nbytes)
        self.registered[name] = (key, offset, nbytes)

    @rule(name=st.sampled_from(["one", "two", ""]))
    def unregister(self, name: str) -> None:
        self.regions.unregister(name)
        self.registered = {n: r for n, r in self.registered.items() if name not in ("", n)}

    def fits(self, name: str, offset: int, nbytes: int) -> bool:
        known = self.registered.get(name)
        return known is not None and nbytes <= SIZE - 4 and offset + nbytes <= known[2]

    @rule(name=NAMES, offset=OFFSETS, nbytes=SIZES)
    def read(self, name: str, offset: int, nbytes: int) -> None:
        location = Location(name, offset, nbytes)
        if not self.fits(name, offset, nbytes):
            with pytest.raises(ProtocolError, match=f"region '{name}'"):
                self.regions.read(location)
            return
        key, begin, _ = self.registered[name]
        expected = self.files[key][begin + offset : begin + offset + nbytes]
        assert bytes(self.regions.read(location)) == expected

    @rule(name=NAMES, offset=OFFSETS, nbytes=SIZES, data=st.binary(min_size=0, max_size=8))
    def write(self, name: str, offset: int, nbytes: int, data: bytes) -> None:
        location = Location(name, offset, nbytes)
        if len(data) > nbytes or not self.fits(name, offset, nbytes):
            with pytest.raises(ProtocolError, match=f"region '{name}'"):
                self.regions.write(location, data)
            return
        self.regions.write(location, data)
        key, begin, _ = self.registered[name]
        self.files[key][begin + offset : begin + offset + len(data)] = data

    @invariant()
    def files_and_status_are_as_expected(self) -> None:
        for key, content in self.files.items():
            assert (Path(self.folder.name) / key).read_bytes() == content
        rows = [
            {"name": name, "key": key, "offset": offset, "byte_size": nbytes}
            for name, (key, offset, nbytes) in self.registered.items()
        ]
        assert self.regions.status() == rows
        for row in rows:
            assert self.regions.status(str(row["name"])) == [row]


TestRegionSequences = RegionSequences.TestCase
TestRegionSequences.settings = settings(max_examples=20, stateful_step_count=15)


def test_offsets_of_region_and_tensor_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "_FOLDER", tmp_path)
    (tmp_path / "key").write_bytes(bytes(range(20)))
    regions = SharedMemoryRegions(is_allowed=True, max_nbytes=100)
    regions.register("r", "key", 8, 10)
    assert bytes(regions.read(Location("r", 3, 4))) == bytes([11, 12, 13, 14])
    regions.write(Location("r", 5, 2), b"!?")
    assert (tmp_path / "key").read_bytes()[12:16] == bytes([12]) + b"!?" + bytes([15])
