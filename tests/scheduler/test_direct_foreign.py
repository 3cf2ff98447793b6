"""What is foreign, damaged or noise never crashes a direct channel, and is told where it can be."""

from __future__ import annotations

import base64
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.errors import BlobError
from hetero.scheduler.channels import direct_address, envelope, protocol
from hetero.scheduler.channels.direct_address import to_endpoint
from hetero.scheduler.channels.protocol import MOST_CONTROL_NBYTES, PREFIX, TOGETHER, VERSION
from hetero.scheduler.vocabulary.messages import Dropped, Message, Values
from tests.scheduler.parties import LONG_S, TASK, Party, check, number_of, values, wait_for

STATUS = protocol.packed_status(0, {"queued": 1})
DROP = envelope.frames(Dropped(TASK.request))[0]


class Foreign:
    """Sends a party frames of any kind."""

    def __init__(self, party: Party) -> None:
        self.endpoint = to_endpoint(party.address)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.data = self.context.socket(zmq.PUSH)
        self.data.connect(self.endpoint.data_url)
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.control.connect(self.endpoint.control_path)

    def frame(self, number: int, message: Message, link: bytes = b"12345678") -> bytes:
        head = envelope.frames(message)[0]
        return PREFIX.pack(self.endpoint.identity, link, number, 0) + head

    def say(self, said: protocol.Said, sender: str) -> None:
        """Say something in a sender's name."""
        self.control.send(protocol.control_message(said, self.endpoint.identity, sender))

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.control.close()


@pytest.fixture
def foreign(party: Callable[..., Party]) -> Iterator[tuple[Party, Foreign]]:
    one = party()
    sender = Foreign(one)
    yield one, sender
    sender.close()


def test_doubles_are_dropped_and_what_is_damaged_or_foreign_is_passed_over(
    foreign: tuple[Party, Foreign],
) -> None:
    one, sender = foreign
    first = sender.frame(1, values(1))
    bad = [
        b"x",
        b"y" * 100,
        PREFIX.pack(b"somebody", b"12345678", 2, 0) + envelope.frames(values(9))[0],
        first[:-3],
        sender.frame(2, values(2))[: PREFIX.size],
        PREFIX.pack(sender.endpoint.identity, b"12345678", 3, 1) + first[PREFIX.size :],
    ]
    for data in (first, first, *bad):
        sender.data.send(data)
    near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for number, said in enumerate((b"", b"\x90", b"\x91", b"\x92\xc4\x01", first), 1):
        head = PREFIX.pack(sender.endpoint.identity, b"87654321", number, TOGETHER)
        near.sendto(head + said, sender.endpoint.datagram_path)
    near.close()
    sender.data.send_multipart([b"z", b"more"])
    sender.data.send_multipart([first, b"more"])
    beat = protocol.Beat(b"l", b"n", 1, 0.5, None, 0, STATUS, True)
    for data in (b"x", b"\x93", protocol.control_message(beat, b"somebody", one.address)):
        sender.control.send(data)
    sender.say(beat, "no address")
    beat.status = msgpack.packb((0, {"x": "y"}))
    sender.say(beat, one.address)
    sender.data.send(sender.frame(9, values(3)))
    while one.came.qsize() < 2:
        one.channel.pump(LONG_S)
    check(one.came.get(), 1)
    check(one.came.get(), 3)


SAID = [
    protocol.Beat(b"l", b"n", 9, 0.5, None, 0, STATUS, True),
    protocol.Beat(b"l", b"n", 9, 0.5, 0.25, 0.1, protocol.packed_status(3, {}), False),
    protocol.Drop([DROP]),
    protocol.Lost(b"l", 1, 2, "why"),
    protocol.Leave({b"l": 3}),
    protocol.Missed(b"l", 1, [2, 3]),
    protocol.Ask(["b", "c"]),
    protocol.Roll([protocol.Row(b"identity", 0.5, 0.1, 9.0, STATUS, 3)]),
]


@given(st.sampled_from(SAID), st.integers(0, 400), st.binary(max_size=3))
def test_mutated_control_messages_are_read_or_refused(
    said: protocol.Said, position: int, replacement: bytes
) -> None:
    data = bytearray(protocol.control_message(said, b"receiver", "a"))
    assert protocol.read_control(bytes(data), b"receiver") == ("a", said)
    at = position % len(data)
    data[at : at + max(1, len(replacement))] = replacement
    with contextlib.suppress(BlobError):
        protocol.read_control(bytes(data), b"receiver")


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ([], "length 2"),
        (["a", [0, b"l", b"n", 9, 0.5, None, 0, STATUS]], "length"),
        (["a", [0, b"l", b"n", 9, 0.5, None, 0, STATUS, True, 1]], "length"),
        (["a", [0, b"l", b"n", "9", 0.5, None, 0, STATUS, True]], "Expected `int`"),
        (["a", [1, ["text"]]], "Expected `bytes`"),
        (["a", [2, {"text": 1}]], "Expected `bytes`"),
        (["a", [4, b"l", 1, [2, "3"]]], "Expected `int`"),
        (["a", [6, [[b"identity", 0.5, 0.1, 9.0, STATUS]]]], "length"),
        (["a", [7]], "Invalid value 7"),
        ([b"a", [5, []]], "Expected `str`"),
    ],
)
def test_control_messages_of_another_form_are_refused(tree: Any, why: str) -> None:
    start = protocol.control_message(protocol.Ask([]), b"receiver", "a")[:12]
    with pytest.raises(BlobError, match=why):
        protocol.read_control(start + msgpack.packb(tree), b"receiver")


def test_a_control_message_of_another_version_is_refused_by_name() -> None:
    data = bytearray(protocol.control_message(protocol.Ask([]), b"receiver", "a"))
    data[3] = VERSION + 1
    with pytest.raises(BlobError, match=f"version {VERSION + 1}; this program reads .* {VERSION}"):
        protocol.read_control(bytes(data), b"receiver")


@given(st.binary(max_size=200))
def test_addresses_of_any_bytes_are_read_or_refused(data: bytes) -> None:
    address = "hetero1:" + base64.urlsafe_b64encode(data).decode()
    with contextlib.suppress(BlobError):
        str(to_endpoint(address))


def test_noise_on_every_socket_changes_nothing(foreign: tuple[Party, Foreign]) -> None:
    one, sender = foreign
    rng = np.random.default_rng(0)
    near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    good = sender.frame(1, values(1))
    for number in range(200):
        data = bytearray(good)
        for at in rng.integers(0, len(good), 3):
            data[at] = rng.integers(256)
        sender.data.send(bytes(data))
        sender.control.send(bytes(data))
        if not number % 10:
            near.sendto(bytes(data), sender.endpoint.datagram_path)
        one.channel.pump(0)
    near.close()
    sender.data.send(sender.frame(1, values(77), link=b"unspoilt"))
    while not any(isinstance(m, Values) and number_of(m) == 77 for m in list(one.came.queue)):
        one.channel.pump(LONG_S)
    two = Party(Path(sender.endpoint.path).parent)
    two.channel.send(one.address, Dropped(TASK.request))
    while Dropped(TASK.request) != one.came.get(timeout=LONG_S):
        pass
    two.channel.close()


def test_a_beat_that_says_what_is_lost_is_told_on(party: Callable[..., Party]) -> None:
    one, two = party(), party()
    sender = Foreign(one)
    for num_lost in (0, 3, 3):
        status = protocol.packed_status(num_lost, {})
        sender.say(protocol.Beat(b"12345678", b"near", 0, 0.5, None, 0, status, True), two.address)
    assert one.lost.get(timeout=LONG_S) == two.address
    sender.say(protocol.Lost(b"not ours", 1, 2, "why"), two.address)
    sender.say(protocol.Lost(b"not ours", 1, 2, "why"), "x")
    assert one.lost.empty()
    sender.close()


def test_who_leaves_in_anothers_name_ends_nothing(party: Callable[..., Party]) -> None:
    one, two = party(), party()
    one.channel.watch(two.address)
    wait_for(lambda: one.channel.clock_offset_s(two.address) is not None)
    sender = Foreign(one)
    sender.say(protocol.Leave({}), two.address)
    sender.say(protocol.Leave({b"no link!": 3}), two.address)
    sender.say(protocol.Drop([DROP]), two.address)
    assert one.came.get(timeout=LONG_S) == Dropped(TASK.request)  # after the others
    assert not one.channel.is_silent(two.address)
    two.channel.close()
    assert one.silent.get(timeout=LONG_S) == (two.address, 0.0)
    sender.close()


def test_a_clock_that_is_ahead_does_not_make_its_party_heard_for_ever(
    party: Callable[..., Party],
) -> None:
    one, two = party(beat_s=0.02, timeout_s=0.2), party(beat_s=0.02)
    one.channel.watch(two.address)
    for here, there in ((one, two), (two, one)):  # after which neither needs beats
        wait_for(lambda h=here, t=there: h.channel.clock_offset_s(t.address) is not None)
    two.channel._control._stamp.write(1e12, protocol.packed_status(0, {"ahead": 1.0}), [])
    two.channel._control._stamp.write = lambda *said: None  # type: ignore[method-assign]
    wait_for(lambda: one.channel.status_of(two.address).get("ahead"))
    assert one.silent.get(timeout=LONG_S)[0] == two.address


@pytest.mark.parametrize("curve", [True, False])
def test_strangers_at_the_network_ports_change_nothing(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch, curve: bool
) -> None:
    one, friend = (party(host="127.0.0.1", curve=curve, beat_s=0.05) for _ in range(2))
    monkeypatch.setattr(direct_address, "this_node", lambda: "elsewhere")
    friend.channel.send(one.address, values(1))
    check(one.next(), 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    endpoint = to_endpoint(one.address)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    rng = np.random.default_rng(1)
    strangers = []
    for port in (endpoint.data_port, endpoint.control_port):
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", greeting, rng.bytes(10_000)):
            for more in (b"", b"\x02" + b"\xff" * 8, rng.bytes(1_000)):  # a frame of 2**64 bytes
                stranger = socket.create_connection(("127.0.0.1", port))
                stranger.sendall(said + more)
                strangers.append(stranger)
    friend.channel.send(one.address, values(2))
    friend.channel.send(one.address, Dropped(TASK.request))
    end_s = time.monotonic() + LONG_S
    while one.came.qsize() < 2:
        assert time.monotonic() < end_s
        one.channel.pump(1.0)
    came = [one.came.get() for _ in range(2)]
    assert Dropped(TASK.request) in came
    check(next(m for m in came if isinstance(m, Values)), 2)
    for stranger in strangers:
        stranger.close()
    # The parties have a few connections of their own by now.
    wait_for(lambda: len(list(Path("/proc/self/fd").iterdir())) < before + len(strangers) / 2)
    assert one.lost.empty()


def test_a_control_message_that_is_too_large_ends_its_connection(
    party: Callable[..., Party], caplog: pytest.LogCaptureFixture
) -> None:
    one = party(host="127.0.0.1", curve=False)
    endpoint = to_endpoint(one.address)
    sender = Foreign(one)
    control = sender.context.socket(zmq.DEALER)
    control.connect(f"tcp://127.0.0.1:{endpoint.control_port}")
    control.send(bytes(MOST_CONTROL_NBYTES + 1))
    end_s = time.monotonic() + LONG_S
    while one.came.empty():  # what is sent before the connection is made anew may be lost
        assert time.monotonic() < end_s
        control.send(protocol.control_message(protocol.Drop([DROP]), endpoint.identity, "somebody"))
        time.sleep(0.05)
    assert "control message of" not in caplog.text  # it was never taken in
    sender.close()
