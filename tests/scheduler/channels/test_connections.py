"""Connections between nodes: slow and broken links, control messages, limits."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
import zmq

from hetero.devices.errors import BlobError
from hetero.devices.request.request import Request
from hetero.scheduler.channels import addresses
from hetero.scheduler.channels.addresses import Endpoint, to_address, to_endpoint
from hetero.scheduler.channels.control import PATIENCE
from hetero.scheduler.channels.peers import Peer
from hetero.scheduler.types.messages import Dropped, Message
from tests.scheduler.endpoints import (
    LONG_S,
    TASK,
    ChannelEndpoint,
    check,
    number_of,
    values,
    wait_for,
)


class SlowLink:
    """Proxy to an endpoint's data port with a limited rate, which the test can cut."""

    def __init__(self, port: int, bytes_per_s: float) -> None:
        self._to = port
        self._bytes_per_s = bytes_per_s
        self._open: list[socket.socket] = []
        self.nbytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += (near, far)
                for pipe in ((near, far, self._bytes_per_s), (far, near, 1e12)):
                    threading.Thread(target=self._carry, args=pipe, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, bytes_per_s: float) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(64 * 1024):
                target.sendall(data)
                self.nbytes += len(data)
                time.sleep(len(data) / bytes_per_s)

    def reset(self) -> None:
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def close(self) -> None:
        self._listener.close()
        self.reset()


@pytest.fixture
def slow_link(make_endpoint, monkeypatch):
    """Two endpoints on separate nodes, and the second one's address through a slow link."""
    first, second = (
        make_endpoint(host="127.0.0.1", curve=False, heartbeat_s=0.05) for _ in range(2)
    )
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    endpoint = to_endpoint(second.address)
    link = SlowLink(endpoint.data_port, 5e6)
    yield first, second, link, to_address(endpoint._replace(data_port=link.port))
    link.close()


@pytest.mark.slow
def test_slow_link_loses_no_message_and_suspects_no_peer(
    slow_link,
):
    first, second, _, address = slow_link
    count = 2_500_000  # 10 MB take two seconds, forty heartbeats
    first.channel.watch(address)
    first.channel.send(address, values(1, count))
    first.channel.send(address, values(2))
    check(second.next(), 1, count)
    check(second.next(), 2)
    assert first.losses.empty()
    assert first.suspected.empty()


def test_broken_connection_is_reported_and_replaced(
    slow_link,
):
    first, second, link, address = slow_link
    first.channel.send(address, values(1, 5_000_000))
    wait_for(lambda: link.nbytes > 1_000_000)
    link.reset()
    assert first.losses.get(timeout=LONG_S) == address
    first.channel.send(address, values(2))
    check(second.next(), 2)  # and nothing of the first
    assert first.losses.empty()


def test_unstable_link_delivers_at_most_once_and_reports_losses(
    slow_link,
):
    first, second, link, address = slow_link
    sizes = (4, 1_000, 40_000)
    came: list[int] = []
    want, num_tries = set(range(60)), 0
    while want:  # like a client, which resends possibly lost messages with other numbers
        for number in sorted(want):
            before = link.nbytes
            first.channel.send(address, values(60 * num_tries + number, sizes[number % 3]))
            if (
                not (number + 1) % 7 and num_tries < 3
            ):  # while messages, or a part of one, are in transit
                wait_for(lambda before=before: link.nbytes > before)
                link.reset()
        num_tries += 1
        is_lost = False
        while want and not is_lost:
            with contextlib.suppress(Empty):
                is_lost = first.losses.get_nowait() == address
            second.channel.pump(0.05)
            while not second.messages.empty():
                message = second.messages.get()
                check(message, number_of(message), sizes[number_of(message) % 60 % 3])
                came.append(number_of(message))
                want.discard(number_of(message) % 60)
    assert len(came) == len(set(came))


def test_loss_between_endpoints_is_reported_to_an_observer(
    slow_link,
    make_endpoint,
):
    first, second, link, address = slow_link
    client = make_endpoint(host="127.0.0.1", curve=False, heartbeat_s=0.05)
    client.channel.watch(first.address)
    client.channel.watch(second.address)
    stranger = make_endpoint(host="127.0.0.1", curve=False, heartbeat_s=0.05)
    stranger.channel.watch(first.address)  # it has no connection to the second endpoint
    for one in (client, stranger):
        wait_for(partial(_is_met, one, first))
    first.channel.send(address, values(1, 5_000_000))
    wait_for(lambda: link.nbytes > 1_000_000)
    link.reset()
    assert client.losses.get(timeout=LONG_S) == first.address
    health = stranger.channel._peers.by_address[first.address].health
    wait_for(lambda: to_endpoint(second.address).identity in health.num_lost)
    assert stranger.losses.empty()
    assert client.losses.empty()


def test_control_messages_continue_during_a_tensor_transfer(make_endpoint, monkeypatch):
    options = {"host": "127.0.0.1", "heartbeat_s": 0.02, "timeout_s": 2 * LONG_S}
    first, second, third = (make_endpoint(**options) for _ in range(3))
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    for other in (second, third):
        other.channel.watch(first.address)
        wait_for(partial(_is_met, other, first))
    encoding, go_on = threading.Event(), threading.Event()
    send = Peer._send

    def slowly(peer: Peer, message: Message) -> Any:
        encoding.set()
        assert go_on.wait(LONG_S)
        return send(peer, message)

    monkeypatch.setattr(Peer, "_send", slowly)
    sending = threading.Thread(target=first.channel.send, args=(second.address, values(1)))
    sending.start()
    assert encoding.wait(LONG_S)
    for other in (second, third):
        for _ in range(3):
            health = other.channel._peers.by_address[first.address].health
            wait_for(lambda before=health.heard_s, health=health: health.heard_s > before)
    go_on.set()
    sending.join(LONG_S)
    check(second.next(), 1)


@pytest.mark.parametrize("number", [12_000])
@pytest.mark.parametrize("far", [False, True])
def test_every_dropped_request_arrives(
    make_endpoint,
    monkeypatch,
    number,
    far,
):
    first, second = make_endpoint(host="127.0.0.1"), make_endpoint(host="127.0.0.1")
    if far:
        monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    for i in range(number):
        first.channel.send(second.address, Dropped(Request(id=i)))
    came = [second.messages.get(timeout=LONG_S) for _ in range(number)]
    assert [message.request.id for message in came if isinstance(message, Dropped)] == [
        *range(number)
    ]


def test_client_with_another_key_is_refused(make_endpoint, monkeypatch):
    secret = zmq.curve_keypair()[1]
    one, friend = (make_endpoint(host="127.0.0.1", secret=secret) for _ in range(2))
    stranger = make_endpoint(host="127.0.0.1", secret=zmq.curve_keypair()[1])
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    stranger.channel.send(one.address, values(1))
    stranger.channel.send(one.address, Dropped(TASK.request))
    friend.channel.send(one.address, Dropped(TASK.request))
    assert one.messages.get(timeout=LONG_S) == Dropped(TASK.request)
    friend.channel.send(one.address, values(2))
    check(one.next(), 2)
    assert one.channel.pump(0.5) == 0
    assert one.messages.empty()
    assert one.channel.is_suspected(stranger.address)


def test_oversized_frame_is_refused_and_the_next_arrives(make_endpoint, monkeypatch):
    monkeypatch.setattr("hetero.scheduler.channels.sockets.MAX_FRAME_NBYTES", 10_000)
    one, two = (make_endpoint(host="127.0.0.1", heartbeat_s=0.05) for _ in range(2))
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    two.channel.send(one.address, values(1, 100_000))  # the sender's limit is another
    pumping = threading.Thread(target=one.channel.pump, args=(LONG_S,))
    pumping.start()
    assert two.losses.get(timeout=LONG_S) == one.address
    one.channel.wake()
    pumping.join(LONG_S)
    two.channel.send(one.address, values(2))
    check(one.next(), 2)
    monkeypatch.setattr("hetero.scheduler.channels.peers.MAX_FRAME_NBYTES", 10_000)
    with pytest.raises(BlobError, match="400000 bytes"):
        two.channel.send(one.address, values(3, 100_000))


@pytest.mark.slow
def test_thousands_of_endpoints_are_observed(make_endpoint):
    one = make_endpoint(host="127.0.0.1", curve=False, heartbeat_s=1.0, timeout_s=3.0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(1100):  # more than libzmq's sockets by default
        elsewhere = Endpoint(os.urandom(8), "elsewhere", 1, "1", "", "127.0.0.1", 9, 9)
        one.channel.watch(to_address(elsewhere))
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 1100 + 10
    assert len({one.suspected.get(timeout=LONG_S)[0] for _ in range(1100)}) == 1100


def _is_met(one: ChannelEndpoint, other: ChannelEndpoint) -> bool:
    return one.channel.clock_offset_s(other.address) is not None


class OneWayLink:
    """Proxy to an endpoint's control port that can drop one direction."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: list[socket.socket] = []
        #: Whether each direction delivers: to the endpoint, and from it.
        self.passes = {True: True, False: True}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += (near, far)
                for pipe in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._carry, args=pipe, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_there: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(64 * 1024):
                if self.passes[is_there]:
                    target.sendall(data)
        target.close()

    def close(self) -> None:
        self._listener.close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.mark.parametrize("is_deaf", [True, False])
def test_endpoint_cut_off_in_one_direction_is_suspected(make_endpoint, monkeypatch, is_deaf):
    one, other = (
        make_endpoint(host="127.0.0.1", heartbeat_s=0.05, timeout_s=1.0) for _ in range(2)
    )
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    endpoint = to_endpoint(other.address)
    link = OneWayLink(endpoint.control_port)
    address = to_address(endpoint._replace(control_port=link.port))
    one.channel.watch(address)
    wait_for(lambda: one.channel.clock_offset_s(address) is not None)
    link.passes[is_deaf] = False
    assert one.suspected.get(timeout=LONG_S)[0] == address
    link.passes[is_deaf] = True
    assert one.live_addresses.get(timeout=LONG_S) == address
    assert one.ended_addresses.empty()
    link.close()


def test_closed_channel_is_reported_to_other_nodes(make_endpoint, monkeypatch):
    one, other = (make_endpoint(host="127.0.0.1") for _ in range(2))
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    one.channel.watch(other.address)
    other.channel.watch(one.address)
    for a, b in ((one, other), (other, one)):
        wait_for(partial(_is_met, a, b))
    other.channel.close()
    assert one.ended_addresses.get(timeout=LONG_S) == other.address
    assert one.channel.is_suspected(other.address)
    one.channel.unwatch(other.address)
    wait_for(lambda: other.address not in one.channel._peers.by_address)


def test_suspended_endpoint_suspects_no_peer(make_endpoint):
    one, two = make_endpoint(heartbeat_s=LONG_S, timeout_s=3 * LONG_S), make_endpoint()
    control, later_s = one.channel._control, time.monotonic() + 10 * LONG_S
    control.stop()  # a socket is not safe in two threads: from here, this test takes the steps
    one.channel.watch(two.address)
    (peer,) = one.channel._peers
    control._check_peer(peer, later_s, True)
    assert not peer.is_suspected
    control._connect_peers()
    control._closed = False  # a closed channel receives nothing
    wait_for(lambda: control._receive() or peer.health.is_live)
    peer.health.status = {PATIENCE: 0.0}
    for _ in range(3):
        control._check_peer(peer, later_s, True)
    assert one.suspected.empty()


def test_endpoint_whose_port_was_taken_over_has_ended(make_endpoint, monkeypatch):
    one, new = (make_endpoint(host="127.0.0.1", curve=False, heartbeat_s=0.05) for _ in range(2))
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    old = to_address(to_endpoint(new.address)._replace(identity=b"formerly"))
    one.channel.watch(old)
    assert one.ended_addresses.get(timeout=LONG_S) == old
    one.channel.watch(new.address)
    wait_for(partial(_is_met, one, new))
    assert not one.channel.is_suspected(new.address)


def test_endpoint_is_suspected_if_another_uses_its_port(make_endpoint, monkeypatch):
    one, old = (make_endpoint(host="127.0.0.1", curve=False, heartbeat_s=0.05) for _ in range(2))
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    one.channel.watch(old.address)
    wait_for(partial(_is_met, one, old))
    one.channel.watch(to_address(to_endpoint(old.address)._replace(identity=b"later on")))
    assert one.suspected.get(timeout=LONG_S)[0] == old.address
