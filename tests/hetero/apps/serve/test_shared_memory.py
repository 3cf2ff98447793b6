"""Shared memory of clients: complete reads and writes, bounds, and files that change."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("orjson")
from hetero.apps.serve import shared_memory
from hetero.apps.serve.errors import ProtocolError
from hetero.apps.serve.inference_request import decode_request, requested_outputs
from hetero.apps.serve.rest_messages import RestMessage
from hetero.apps.serve.shared_memory import MAX_REGIONS, Location, SharedMemoryRegions

DATA = bytes(range(256)) * 4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "_FOLDER", tmp_path)
    (tmp_path / "key").write_bytes(DATA)
    return tmp_path


@pytest.fixture
def regions(folder):
    regions = SharedMemoryRegions(is_allowed=True, max_nbytes=2**20)
    regions.register("all", "/key", 0, len(DATA))
    return regions


def limited(function: Callable[..., int], nbytes: int) -> Callable[..., int]:
    """Return os.preadv or os.pwrite of at most this many bytes a call, as for large ones."""

    def call(file: int, buffers: Any, offset: int) -> int:
        if isinstance(buffers, list):
            return function(file, [buffers[0][:nbytes]], offset)
        return function(file, buffers[:nbytes], offset)

    return call


def test_short_reads_and_writes_continue(folder, regions, monkeypatch):
    for name in ("preadv", "pwrite"):
        monkeypatch.setattr(os, name, limited(getattr(os, name), 100))
    assert bytes(regions.read(Location("all", 0, len(DATA)))) == DATA
    regions.write(Location("all", 10, 1000), DATA[::-1][:999])
    assert (folder / "key").read_bytes() == DATA[:10] + DATA[::-1][:999] + DATA[1009:]


def test_write_without_space_is_an_error(regions, monkeypatch):
    def write(file: int, data: memoryview, offset: int) -> int:
        if offset:
            raise OSError(errno.ENOSPC, "No space left on device")
        return 100

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(ProtocolError, match="No space left") as caught:
        regions.write(Location("all", 0, len(DATA)), DATA)
    assert caught.value.status == 503


def test_shrunk_region_is_refused(folder, regions):
    os.truncate(folder / "key", 100)
    with pytest.raises(ProtocolError, match="100 bytes"):
        regions.write(Location("all", 0, len(DATA)), DATA)
    with pytest.raises(ProtocolError, match="100 bytes"):
        regions.read(Location("all", 0, len(DATA)))
    assert (folder / "key").stat().st_size == 100


def test_regions_are_bounded_and_hold_no_files(folder):
    regions = SharedMemoryRegions(is_allowed=True, max_nbytes=2**20)
    num_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - it is no path of ours
    for number in range(MAX_REGIONS):
        regions.register(f"region {number}", "key", 0, 10)
    assert len(os.listdir("/proc/self/fd")) == num_files  # noqa: PTH208
    with pytest.raises(ProtocolError, match="unregister one"):
        regions.register("one more", "key", 0, 10)
    regions.unregister("region 0")
    regions.register("one more", "key", 0, 10)


def test_tensor_is_bounded_before_it_is_read(folder):
    os.truncate(folder / "key", 2**40)  # sparse
    regions = SharedMemoryRegions(is_allowed=True, max_nbytes=2**20)
    regions.register("large", "key", 0, 2**40)
    with pytest.raises(ProtocolError) as caught:
        regions.read(Location("large", 0, 2**30))
    assert caught.value.status == 413
    assert len(regions.read(Location("large", 2**39, 2**20))) == 2**20


@pytest.mark.parametrize("nbytes", [0, 4, 12, 2**19])
def test_tensor_size_is_checked_before_reading(regions, monkeypatch, nbytes):
    parameters = {"shared_memory_region": "all", "shared_memory_byte_size": nbytes}
    entry = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": parameters}
    message = RestMessage(json.dumps({"inputs": [entry]}).encode(), None, 1000)

    def fail(*_: object) -> None:
        pytest.fail("shared memory is read")

    monkeypatch.setattr(SharedMemoryRegions, "read", fail)
    with pytest.raises(ProtocolError, match="expected 8"):
        decode_request(message, regions)


def test_tensor_is_read_and_written(folder, regions):
    parameters = {"shared_memory_region": "all", "shared_memory_byte_size": 8}
    entry = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": parameters}
    output = {"name": "y", "parameters": {**parameters, "shared_memory_offset": 8}}
    body = json.dumps({"inputs": [entry], "outputs": [output]}).encode()
    request = decode_request(RestMessage(body, None, 1000), regions)
    np.testing.assert_array_equal(request.inputs["x"], np.frombuffer(DATA, np.float32, 2))
    result = np.array([1.5, -2], np.float32)
    [output_tensor] = requested_outputs(request, ["y"], {"y": result}, regions)
    assert output_tensor.location == output["parameters"]
    assert (folder / "key").read_bytes() == DATA[:8] + result.tobytes() + DATA[16:]


@pytest.mark.parametrize(
    ("key", "offset", "nbytes"),
    [
        ("", 0, 1),
        ("..", 0, 1),
        ("/../key", 0, 1),
        ("key\0", 0, 1),
        ("link", 0, 1),
        ("folder", 0, 1),
        ("pipe", 0, 1),
        ("none", 0, 1),
        ("hetero-1-2-3", 0, 1),
        ("key", -1, 1),
        ("key", 0, 0),
        ("key", 0, len(DATA) + 1),
        ("key", 10**400, 1),
        ("key", 0, 10**400),
        ("key", True, 1),
        ("key", "0", 1),
        (5, 0, 1),
    ],
)
def test_bad_registrations_are_refused(folder, key, offset, nbytes):
    (folder / "link").symlink_to(folder / "key")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "hetero-1-2-3").write_bytes(DATA)
    with pytest.raises(ProtocolError, match="region 'x'"):
        SharedMemoryRegions(is_allowed=True, max_nbytes=2**20).register("x", key, offset, nbytes)


@pytest.mark.parametrize("location", [Location("all", 1, len(DATA)), Location("none", 0, 1)])
def test_ranges_outside_of_regions_are_refused(regions, location):
    with pytest.raises(ProtocolError):
        regions.read(location)
    with pytest.raises(ProtocolError):
        regions.write(location, b"x")


def test_shared_memory_is_off_by_default():
    with pytest.raises(ProtocolError, match="--shared-memory") as caught:
        SharedMemoryRegions(is_allowed=False, max_nbytes=1).status()
    assert caught.value.status == 501
