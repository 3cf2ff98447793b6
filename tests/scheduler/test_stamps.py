"""Stamps: parties of a node see how each other is, and send no beats for it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from hetero.devices.errors import BlobError, ClusterError
from hetero.scheduler.channels.direct_address import Endpoint
from hetero.scheduler.channels.protocol import Row, packed_status, unpacked_status
from hetero.scheduler.channels.sockets import ControlSockets
from hetero.scheduler.channels.stamps import _HEAD, Stamp, StampReader, _sum
from tests.scheduler.parties import Party, wait_for


def test_parties_that_have_met_send_no_beats_and_are_heard(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0.0

    def status() -> dict[str, float]:
        nonlocal count
        count += 1
        return {"count": count}

    one, other = party(beat_s=0.02), party(beat_s=0.02, status=status)
    one.channel.watch(other.address)
    wait_for(lambda: len([*one.channel._peers, *other.channel._peers]) == 2)
    peers = [*one.channel._peers, *other.channel._peers]
    wait_for(lambda: all(peer.clocks and not peer.owed for peer in peers))
    sent: list[Endpoint] = []
    send = ControlSockets.send

    def note(sockets: ControlSockets, endpoint: Endpoint, data: bytes) -> bool:
        sent.append(endpoint)
        return send(sockets, endpoint, data)

    monkeypatch.setattr(ControlSockets, "send", note)

    def none_was_sent() -> bool:
        """Whether a party that is seldom late needs no beats; one that is sends some."""
        sent.clear()
        seen = one.channel.status_of(other.address)["count"]
        wait_for(lambda: one.channel.status_of(other.address)["count"] > seen + 20)
        return not sent

    wait_for(none_was_sent)
    assert not one.channel.is_silent(other.address)


def test_a_stamp_is_read_once_and_never_half(tmp_path: Path) -> None:
    stamp = Stamp(str(tmp_path / "s"))
    reader = StampReader(str(tmp_path / "s"))
    assert reader.read() is None
    status = packed_status(2, {"tasks": 3.0})
    row = Row(b"identity", 0.5, 0.25, 9.0, packed_status(1, {}), 3)
    stamp.write(1.0, status, [row])
    assert reader.read() == (1.0, status, [row])
    assert reader.read() is None
    stamp._file[:8] = b"\1" * 8  # its clock alone is written yet
    assert reader.read() is None
    stamp.write(2.0, status, 1000 * [row])  # too much of it
    assert reader.read() == (2.0, status, [])
    for now_s, tree in ((3.0, [1, []]), (4.0, [status, [row[1:]]])):
        said = msgpack.packb(tree)
        stamp._file[: _HEAD.size + len(said)] = (
            _HEAD.pack(now_s, _sum(now_s, said), len(said)) + said
        )
        with pytest.raises(BlobError, match="stamp: damaged"):
            reader.read()
    stamp.close()
    reader.close()


def test_a_status_is_read_as_it_was_written_or_refused() -> None:
    assert unpacked_status(packed_status(2, {"tasks": 3.0})) == (2, {"tasks": 3.0})
    too_large = {str(i) * 1000: 1.0 for i in range(64)}
    assert unpacked_status(packed_status(2, too_large)) == (2, {})
    for damaged in ({}, [1], ["1", {}], [1, {"n": "x"}], [1, {b"n": 1.0}]):
        with pytest.raises(BlobError, match="status: damaged"):
            unpacked_status(msgpack.packb(damaged))


def test_a_stamp_without_room_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ClusterError, match="No space left on device"):
        Stamp(str(tmp_path / "s"))


def test_a_party_whose_stamp_cannot_be_opened_for_want_of_descriptors_is_not_silent(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str) -> StampReader:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("hetero.scheduler.channels.control.StampReader", full)
    one, two = party(beat_s=0.02, timeout_s=0.2), party(beat_s=0.02)
    one.channel.watch(two.address)
    wait_for(lambda: one.channel.clock_offset_s(two.address) is not None)
    (peer,) = one.channel._peers
    control, now_s = one.channel._control, time.monotonic() + 1e4
    control._look_at(peer, now_s)
    assert peer.heard_s == now_s
