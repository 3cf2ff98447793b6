"""Packed messages: readers return the written values or raise BlobError."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.devices.errors import BlobError
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels import lane
from hetero.scheduler.channels.lane import LaneHead
from hetero.scheduler.channels.shared_memory import Place
from hetero.scheduler.formats.tensor_entries import DTYPES
from tests.support.rows import for_each_row

HEAD = LaneHead(lane.TO_STAGE, 0, 0, lane.lane_key("deployment"), 7, 2, 3, 1, 0b101, 0)
TIMINGS = tuple(
    StageTiming(stage, f"D.{stage}", 0.1, 1.0 + stage, 1.5 + stage, 0.2, 0.3, 0.4, {}, 24)
    for stage in range(2)
)
DEVICES = ("D.0", "D.1")
BUILTIN = [dtype for dtype in DTYPES.values() if dtype.isbuiltin == 1]


class Store:
    """Shared memory for one tensor of any size."""

    place = Place("1-2-3-4", 5, 6, 7, 8)

    def put(self, flat: np.ndarray) -> Place:
        self.contents = flat.copy()
        self.contents.setflags(write=False)
        return self.place

    def get(self, place: Place, nbytes: int) -> np.ndarray:
        if place != self.place or nbytes != self.contents.nbytes:
            raise BlobError("no such place")
        return self.contents


STORE = Store()


def message(tensors: list[Any], head: LaneHead = HEAD, timings: Any = TIMINGS) -> bytes:
    """Return a message after a prefix of 32 bytes."""
    parts = lane.pack_message(head, b"".join(map(lane.pack_timing, timings)), tensors, STORE.put)
    assert parts is not None
    return bytes(32) + b"".join(parts)


@for_each_row("dtype, shape", product(BUILTIN, [(), (0,), (3,), (2, 0, 5), (2, 3), (1,) * 8]))
def test_tensors_survive_packing(dtype, shape):
    count = int(np.prod(shape))
    tensors = [np.arange(count).astype(dtype).reshape(shape), np.ones(shape, dtype)]
    data = message(tensors)
    head = lane.read_head(data, 32)
    read = lane.read_tensors(data, head)
    assert head[:1] + head[3:9] == HEAD[:1] + HEAD[3:9]
    assert (head.num_tensors, head.num_timings) == (2, 2)
    for one, other in zip(read, tensors, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
        assert one.flags.aligned
        assert not one.flags.writeable


@pytest.mark.parametrize("shape", [(lane.MAX_NBYTES,), (300, 1, 70), (2**17, 0)])
def test_stored_tensor_survives_packing(shape):
    tensors = [np.arange(3), np.arange(np.prod(shape), dtype=np.float32).reshape(shape), np.ones(2)]
    data = message(tensors)
    head = lane.read_head(data, 32)
    assert len(data) < 1000
    for one, other in zip(lane.read_tensors(data, head, STORE.get), tensors, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
        assert not one.flags.writeable
    if tensors[1].nbytes:
        with pytest.raises(BlobError, match="unknown shared memory"):
            lane.read_tensors(data, head)


def test_timings_can_be_appended_without_reading():
    data = message([], timings=TIMINGS[:1])
    packed = lane.slice_timings(data, lane.read_head(data, 32))
    assert lane.read_timings(packed + lane.pack_timing(TIMINGS[1]), DEVICES) == TIMINGS
    assert [timing.device for timing in lane.read_timings(packed)] == [""]


@pytest.mark.parametrize(
    "value",
    [
        np.ones((4, 4), np.float32)[:, ::2],
        np.ones(2, ">f4"),
        np.ones(2, ml_dtypes.bfloat16),
        np.array(["text"], object),
        np.ones(lane.MAX_NBYTES + 1, np.uint8),
        np.ones((1,) * 9, np.float32),
        np.ones((0, 2**32), np.float32),
        [np.ones(2, np.float32)],
        None,
    ],
    ids=[
        "strided",
        "big-endian",
        "bfloat16",
        "text",
        "large",
        "rank 9",
        "long",
        "sequence",
        "nothing",
    ],
)
def test_unsupported_values_are_not_packed(value):
    tensors = [np.ones(1, np.float32), value]
    assert lane.pack_message(HEAD, b"", tensors) is None
    if getattr(value, "nbytes", 0) <= lane.MAX_NBYTES:
        assert lane.pack_message(HEAD, b"", tensors, STORE.put) is None


@pytest.mark.parametrize("field", ["attempt", "stage", "route"])
def test_numbers_beyond_their_field_are_not_packed(field):
    assert lane.pack_message(HEAD._replace(**{field: 2**16}), b"", []) is None


def test_input_mask_has_64_bits():
    assert lane.input_mask([0, 2, 63]) == 1 << 63 | 0b101
    assert lane.input_mask([0, 64]) == 0
    assert lane.input_mask([1, 0]) == 0  # a mask has no order
    assert lane.masked_names("abc", 0b101) == ["a", "c"]


def read(data: bytes, start: int = 32) -> None:
    """Read all of a message."""
    head = lane.read_head(data, start)
    lane.read_tensors(data, head, STORE.get)
    lane.read_timings(lane.slice_timings(data, head), DEVICES)


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_read_or_rejected(noise, has_magic):
    data = (lane.MAGIC if has_magic else b"") + noise
    with suppress(BlobError):
        read(data, 0)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_message_is_read_or_rejected(data):
    large = np.zeros(lane.MAX_NBYTES, np.uint8)
    whole = bytearray(message([np.ones((2, 3), np.float32), large, np.arange(5)]))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(32, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with suppress(BlobError):
        read(bytes(whole[:cut] if data.draw(st.booleans()) else whole))


def test_truncated_or_extended_message_is_rejected():
    whole = message([np.ones((2, 3), np.float32)])
    read(whole)
    for size in range(32, len(whole)):
        with pytest.raises(BlobError):
            read(whole[:size])
    with pytest.raises(BlobError, match="expected 272 bytes"):
        read(whole + b"\0")
    whole = message([np.ones(lane.MAX_NBYTES, np.float32)])
    read(whole)
    for size in range(32, len(whole)):
        with pytest.raises(BlobError):
            read(whole[:size])
    with pytest.raises(BlobError, match="starts with"):
        read(whole.replace(lane.MAGIC, b"HTL\0"))


def test_invalid_timings_are_rejected():
    packed = lane.pack_timing(TIMINGS[0]._replace(stage=2))
    with pytest.raises(BlobError, match="stage 2"):
        lane.read_timings(packed, DEVICES)
    with pytest.raises(BlobError, match="timings"):
        lane.read_timings(lane.pack_timing(TIMINGS[0]) * (lane.MAX_TIMINGS + 2))


def test_caches_of_heads_are_bounded(monkeypatch):
    monkeypatch.setattr(lane, "_MAX_CACHED", 4)
    monkeypatch.setattr(lane, "_packed_heads", {})
    monkeypatch.setattr(lane, "_tensor_heads", {})
    for length in range(20):
        data = message([np.arange(length, dtype=np.float32)])
        (read,) = lane.read_tensors(data, lane.read_head(data, 32))
        np.testing.assert_array_equal(read, np.arange(length))
        assert 1 <= len(lane._packed_heads) <= 4
        assert 1 <= len(lane._tensor_heads) <= 4
