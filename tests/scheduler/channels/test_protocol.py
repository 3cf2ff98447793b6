"""Foreign or damaged messages never crash a direct channel, and are reported."""

from __future__ import annotations

import base64
import contextlib
import socket
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.errors import BlobError
from hetero.scheduler.channels import addresses, envelope, protocol
from hetero.scheduler.channels.addresses import to_endpoint
from hetero.scheduler.channels.local import FRAMES, HEADER, MESSAGE, PART, TOGETHER, hello
from hetero.scheduler.channels.protocol import MAX_CONTROL_NBYTES, PREFIX, VERSION
from hetero.scheduler.types.messages import Dropped, Message, Values
from tests.scheduler.endpoints import (
    LONG_S,
    TASK,
    ChannelEndpoint,
    check,
    number_of,
    values,
    wait_for,
)

DROP = envelope.to_frames(Dropped(TASK.request))[0]


class Foreign:
    """Sends arbitrary frames to an endpoint."""

    def __init__(self, endpoint: ChannelEndpoint) -> None:
        self.endpoint = to_endpoint(endpoint.address)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.data = self.context.socket(zmq.DEALER)
        self.data.connect(self.endpoint.data_url)
        self.local = self.connect()
        self.local.send(hello(self.endpoint.identity, b"a sender"))
        self.control = self.context.socket(zmq.DEALER)
        self.control.connect(self.endpoint.control_url)

    def frame(self, message: Message) -> bytes:
        head = envelope.to_frames(message)[0]
        return PREFIX.pack(self.endpoint.identity, b"a sender", 0) + head

    def connect(self) -> socket.socket:
        """Connect like another endpoint of the node."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.endpoint.local_path)
        return connection

    def say(self, message: protocol.ControlMessage, sender: str) -> None:
        """Send a control message with the identity of a sender."""
        identity = to_endpoint(sender).identity
        self.control.send(protocol.pack_control(message, self.endpoint.identity, identity))

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.local.close()


@pytest.fixture
def foreign(
    make_endpoint,
):
    one = make_endpoint(host="127.0.0.1", curve=False)
    sender = Foreign(one)
    yield one, sender
    sender.close()


def test_damaged_or_foreign_frames_are_skipped_and_reported(
    foreign,
):
    one, sender = foreign
    first = sender.frame(values(1))
    bad = [
        b"x",
        b"y" * 100,
        PREFIX.pack(b"somebody", b"a sender", 0) + envelope.to_frames(values(9))[0],
        first[:-3],
        first[: PREFIX.size],
        PREFIX.pack(sender.endpoint.identity, b"a sender", 1) + first[PREFIX.size :],
    ]
    for data in (first, *bad):
        sender.data.send(data)
    packets = [
        (TOGETHER, 0, b""),
        (TOGETHER, 0, b"\x90"),
        (TOGETHER, 0, b"\x91"),
        (TOGETHER, 0, b"\x92\xc4\x01"),
        (9, 0, first),
        (MESSAGE, 0, first[PREFIX.size :][:-3]),
        (PART, 0, b"of nothing"),
        (FRAMES, 0, b"\x90"),
        (FRAMES, 0, b"\x91\xff"),
        (FRAMES, 0, b"\x91\x0a"),
        (PART, 1, b"x"),  # the first is missing
        (FRAMES, 0, b"\x91\x02"),
        (PART, 0, b"too long"),
        (FRAMES, 0, b"\x91\x02"),  # followed by another one
    ]
    for kind, number, packed in packets:
        sender.local.send(HEADER.pack(kind, number) + packed)
    sender.local.send(HEADER.pack(MESSAGE, 0) + envelope.to_frames(values(4))[0])
    sender.local.send(b"short")
    for greeting in (b"x", b"HTS\xff" + bytes(16), hello(b"somebody", b"a sender"), b"HTS\x01"):
        reason = sender.connect()
        reason.send(greeting)
        with contextlib.suppress(OSError):
            reason.send(HEADER.pack(MESSAGE, 0) + envelope.to_frames(values(9))[0])
        reason.close()
    sender.data.send_multipart([b"z", b"more"])
    sender.data.send_multipart([first, b"more"])
    ask = protocol.StatusRequest(0.5)
    for data in (b"x", b"\x93", protocol.pack_control(ask, b"somebody", b"a sender")):
        sender.control.send(data)
    sender.control.send(protocol.pack_control(protocol.Drop([DROP]), b"somebody", b"a sender"))
    sender.say(protocol.Drop([b"none"]), one.address)
    sender.data.send(sender.frame(values(3)))
    lost_counts = one.channel._control._num_lost
    # Thirteen packets, and four messages from another node.
    while one.messages.qsize() < 3 or lost_counts.get(b"a sender", 0) < 17:
        one.channel.pump(0.05)
    came = sorted((one.messages.get() for _ in range(3)), key=number_of)
    for message, number in zip(came, (1, 3, 4), strict=True):
        check(message, number)
    assert lost_counts == {b"a sender": 17}


SAID = [
    protocol.StatusRequest(0.5),
    protocol.Status(0.25, 0.5, {b"identity": 3}, {"queued": 1}),
    protocol.Drop([DROP]),
    protocol.Leave(),
]


@given(st.sampled_from(SAID), st.integers(0, 400), st.binary(max_size=3))
def test_mutated_control_messages_are_read_or_refused(logged_text, position, replacement):
    data = bytearray(protocol.pack_control(logged_text, b"receiver", b"a sender"))
    assert protocol.read_control(bytes(data)) == (b"receiver", b"a sender", logged_text)
    at = position % len(data)
    data[at : at + max(1, len(replacement))] = replacement
    with contextlib.suppress(BlobError):
        protocol.read_control(bytes(data))


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ([], "length 3"),
        ([b"receiver", b"a sender", [0]], "length"),
        ([b"receiver", b"a sender", [0, 0.5, 1]], "length"),
        ([b"receiver", b"a sender", [0, "0.5"]], "Expected `float`"),
        ([b"receiver", b"a sender", [1, 0.5, 0.5, {b"l": "3"}, {}]], "Expected `int`"),
        ([b"receiver", b"a sender", [1, 0.5, 0.5, {}, {"n": "x"}]], "Expected `float`"),
        ([b"receiver", b"a sender", [2, ["text"]]], "Expected `bytes`"),
        ([b"receiver", b"a sender", [4]], "Invalid value 4"),
        ([b"receiver", b"sender", [3]], "length"),
        (["receiver", b"a sender", [3]], "Expected `bytes`"),
    ],
)
def test_control_messages_of_another_form_are_refused(tree, why):
    start = protocol.pack_control(protocol.Leave(), b"receiver", b"a sender")[:4]
    with pytest.raises(BlobError, match=why):
        protocol.read_control(start + msgpack.packb(tree))


def test_control_message_of_another_version_is_refused_by_name():
    data = bytearray(protocol.pack_control(protocol.Leave(), b"receiver", b"a sender"))
    data[3] = VERSION + 1
    with pytest.raises(BlobError, match=f"version {VERSION + 1}; expected version {VERSION}"):
        protocol.read_control(bytes(data))


@given(st.binary(max_size=200))
def test_addresses_of_any_bytes_are_read_or_refused(data):
    address = "hetero2:" + base64.urlsafe_b64encode(data).decode()
    with contextlib.suppress(BlobError):
        str(to_endpoint(address))


def test_noise_on_every_socket_changes_nothing(foreign):
    one, sender = foreign
    rng = np.random.default_rng(0)
    good = sender.frame(values(1))
    for _ in range(200):
        data = bytearray(good)
        for at in rng.integers(0, len(good), 3):
            data[at] = rng.integers(256)
        sender.data.send(bytes(data))
        sender.control.send(bytes(data))
        with contextlib.suppress(BlockingIOError):
            sender.local.send(bytes(data), socket.MSG_DONTWAIT)
        one.channel.pump(0)
    sender.data.send(sender.frame(values(77)))
    while not any(isinstance(m, Values) and number_of(m) == 77 for m in list(one.messages.queue)):
        one.channel.pump(LONG_S)
    two = ChannelEndpoint(Path(sender.endpoint.path).parent)
    two.channel.send(one.address, Dropped(TASK.request))
    while Dropped(TASK.request) != one.messages.get(timeout=LONG_S):
        pass
    two.channel.close()


def test_unsolicited_message_in_anothers_name_is_ignored(
    make_endpoint,
):
    one, two = make_endpoint(host="127.0.0.1", curve=False), make_endpoint()
    one.channel.watch(two.address)
    wait_for(lambda: one.channel.clock_offset_s(two.address) is not None)
    sender = Foreign(one)
    sender.say(protocol.Leave(), two.address)
    sender.say(protocol.Status(0.5, 0.5, {b"identity": 3}, {"n": 1.0}), two.address)
    sender.say(protocol.Drop([DROP]), two.address)
    assert one.messages.get(timeout=LONG_S) == Dropped(TASK.request)  # arrives after the others
    assert not one.channel.is_suspected(two.address)
    assert one.channel.status_of(two.address) == {}
    two.channel.close()
    assert one.ended_addresses.get(timeout=LONG_S) == two.address
    sender.close()


@pytest.mark.parametrize("curve", [True, False])
def test_strangers_at_network_ports_change_nothing(make_endpoint, monkeypatch, curve):
    one, friend = (make_endpoint(host="127.0.0.1", curve=curve, heartbeat_s=0.05) for _ in range(2))
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    friend.channel.send(one.address, values(1))
    check(one.next(), 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    endpoint = to_endpoint(one.address)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    rng = np.random.default_rng(1)
    strangers = []
    for port in (endpoint.data_port, endpoint.control_port):
        for logged_text in (b"", b"GET / HTTP/1.1\r\n\r\n", greeting, rng.bytes(10_000)):
            for more in (b"", b"\x02" + b"\xff" * 8, rng.bytes(1_000)):  # a frame of 2**64 bytes
                stranger = socket.create_connection(("127.0.0.1", port))
                stranger.sendall(logged_text + more)
                strangers.append(stranger)
    friend.channel.send(one.address, values(2))
    friend.channel.send(one.address, Dropped(TASK.request))
    end_s = time.monotonic() + LONG_S
    while one.messages.qsize() < 2:
        assert time.monotonic() < end_s
        one.channel.pump(1.0)
    came = [one.messages.get() for _ in range(2)]
    assert Dropped(TASK.request) in came
    check(next(m for m in came if isinstance(m, Values)), 2)
    for stranger in strangers:
        stranger.close()
    # The endpoints already use a few connections.
    wait_for(lambda: len(list(Path("/proc/self/fd").iterdir())) < before + len(strangers) / 2)
    assert one.losses.empty()


def test_oversized_control_message_closes_its_connection(make_endpoint, caplog):
    one = make_endpoint(host="127.0.0.1", curve=False)
    endpoint = to_endpoint(one.address)
    sender = Foreign(one)
    control = sender.context.socket(zmq.DEALER)
    control.connect(f"tcp://127.0.0.1:{endpoint.control_port}")
    control.send(bytes(MAX_CONTROL_NBYTES + 1))
    end_s = time.monotonic() + LONG_S
    while one.messages.empty():  # messages before the reconnection may be lost
        assert time.monotonic() < end_s
        control.send(protocol.pack_control(protocol.Drop([DROP]), endpoint.identity, b"somebody"))
        time.sleep(0.05)
    assert "control message of" not in caplog.text  # the channel never received it
    sender.close()
