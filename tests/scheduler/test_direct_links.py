"""Links between nodes that are slow or break, what is said beside data, and limits of both."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

from hetero.devices.errors import BlobError
from hetero.devices.request.request import Request
from hetero.scheduler.channels import direct_address
from hetero.scheduler.channels.direct_address import Endpoint, to_address, to_endpoint
from hetero.scheduler.channels.peers import Peer
from hetero.scheduler.channels.protocol import packed_status
from hetero.scheduler.vocabulary.messages import Dropped, Message
from tests.scheduler.parties import LONG_S, TASK, Party, check, number_of, values, wait_for


class SlowLink:
    """A proxy on the way to a party's data port: so many bytes in a second, until it is cut."""

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
def slow_link(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Party, Party, SlowLink, str]]:
    """Two parties, as on two nodes, and the address of the second one by a slow link."""
    first, second = (party(host="127.0.0.1", curve=False, beat_s=0.05) for _ in range(2))
    monkeypatch.setattr(direct_address, "this_node", lambda: "elsewhere")
    endpoint = to_endpoint(second.address)
    link = SlowLink(endpoint.data_port, 5e6)
    address = to_address(endpoint._replace(data_port=link.port))
    second.channel._peers.own = address  # its beats name it as well
    yield first, second, link, address
    link.close()


def test_a_slow_link_loses_nothing(slow_link: tuple[Party, Party, SlowLink, str]) -> None:
    first, second, _, address = slow_link
    count = 2_500_000  # 10 MB take two seconds, forty beats
    first.channel.send(address, values(1, count))
    first.channel.send(address, values(2))
    check(second.next(), 1, count)
    check(second.next(), 2)
    assert first.lost.empty()
    assert second.lost.empty()


def test_what_a_broken_connection_has_lost_is_sent_again(
    slow_link: tuple[Party, Party, SlowLink, str],
) -> None:
    first, second, link, address = slow_link
    first.channel.send(address, values(1, 5_000_000))
    wait_for(lambda: link.nbytes > 1_000_000)
    link.reset()
    first.channel.send(address, values(2))
    end_s = time.monotonic() + LONG_S
    while second.came.qsize() < 2:
        assert time.monotonic() < end_s
        second.channel.pump(1.0)
    both = sorted((second.came.get(), second.came.get()), key=number_of)
    check(both[0], 1, 5_000_000)
    check(both[1], 2)
    assert first.lost.empty()
    assert second.lost.empty()
    peer = first.channel._peers.met.get(address)
    assert peer is not None
    wait_for(lambda: peer.far.again(1, 10**6) is None)  # it is known to have come


def test_all_arrive_once_over_a_link_that_breaks_again_and_again(
    slow_link: tuple[Party, Party, SlowLink, str],
) -> None:
    first, second, link, address = slow_link
    count, sizes = 60, (4, 1_000, 40_000)
    came: list[int] = []
    end_s = time.monotonic() + LONG_S
    for number in range(count):
        before = link.nbytes
        first.channel.send(address, values(number, sizes[number % 3]))
        if not number % 7:  # with some on their way, or a part of one
            while link.nbytes == before:
                assert time.monotonic() < end_s
                time.sleep(0.001)
            link.reset()
        second.channel.pump(0.01)
    while len(came) < count:
        assert time.monotonic() < end_s
        second.channel.pump(1.0)
        while not second.came.empty():
            message = second.came.get()
            check(message, number_of(message), sizes[number_of(message) % 3])
            came.append(number_of(message))
    assert sorted(came) == list(range(count))
    assert first.lost.empty()
    assert second.lost.empty()


def test_beats_to_all_go_on_while_a_tensor_is_on_its_way_into_a_channel(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"host": "127.0.0.1", "beat_s": 0.02, "timeout_s": 2 * LONG_S}
    first, second, third = (party(**options) for _ in range(3))
    monkeypatch.setattr(direct_address, "this_node", lambda: "elsewhere")
    for other in (second, third):
        first.channel.watch(other.address)
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
            peer = other.channel._peers.met.get(first.address)
            assert peer is not None
            before = peer.beat_s
            end_s = time.monotonic() + LONG_S
            while peer.beat_s == before:
                assert time.monotonic() < end_s
                time.sleep(0.005)
    go_on.set()
    sending.join(LONG_S)
    check(second.next(), 1)


@pytest.mark.parametrize("number", [12_000])
@pytest.mark.parametrize("far", [False, True])
def test_every_dropped_request_is_told(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch, number: int, far: bool
) -> None:
    first, second = party(host="127.0.0.1"), party(host="127.0.0.1")
    if far:
        monkeypatch.setattr(direct_address, "this_node", lambda: "elsewhere")
    for i in range(number):
        first.channel.send(second.address, Dropped(Request(id=i)))
    came = [second.came.get(timeout=LONG_S) for _ in range(number)]
    assert [message.request.id for message in came if isinstance(message, Dropped)] == [
        *range(number)
    ]


def test_a_client_whose_key_is_not_the_clusters_is_refused(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = zmq.curve_keypair()[1]
    one, friend = (party(host="127.0.0.1", secret=secret) for _ in range(2))
    stranger = party(host="127.0.0.1", secret=zmq.curve_keypair()[1])
    monkeypatch.setattr(direct_address, "this_node", lambda: "elsewhere")
    stranger.channel.send(one.address, values(1))
    stranger.channel.send(one.address, Dropped(TASK.request))
    friend.channel.send(one.address, Dropped(TASK.request))
    assert one.came.get(timeout=LONG_S) == Dropped(TASK.request)
    friend.channel.send(one.address, values(2))
    check(one.next(), 2)
    assert one.channel.pump(0.5) == 0
    assert one.came.empty()
    assert one.channel.is_silent(stranger.address)


def test_a_frame_that_is_too_large_is_refused_and_the_next_one_comes(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero.scheduler.channels.sockets.MOST_FRAME_NBYTES", 10_000)
    one, two = (party(host="127.0.0.1", beat_s=0.05) for _ in range(2))
    monkeypatch.setattr(direct_address, "this_node", lambda: "elsewhere")
    two.channel.send(one.address, values(1, 100_000))  # its own limit is another
    pumping = threading.Thread(target=one.channel.pump, args=(LONG_S,))
    pumping.start()
    assert two.lost.get(timeout=LONG_S) == one.address
    one.channel.wake()
    pumping.join(LONG_S)
    two.channel.send(one.address, values(2))
    check(one.next(), 2)
    monkeypatch.setattr("hetero.scheduler.channels.peers.MOST_FRAME_NBYTES", 10_000)
    with pytest.raises(BlobError, match="400000 bytes"):
        two.channel.send(one.address, values(3, 100_000))


def test_thousands_of_parties_are_watched(party: Callable[..., Party]) -> None:
    one = party(host="127.0.0.1", curve=False, beat_s=1.0, timeout_s=3.0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(1100):  # more than libzmq's sockets by default
        elsewhere = Endpoint(os.urandom(8), "elsewhere", 1, "1", "", "127.0.0.1", 9, 9)
        one.channel.watch(to_address(elsewhere))
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 1100 + 10
    assert len({one.silent.get(timeout=LONG_S)[0] for _ in range(1100)}) == 1100


def test_beats_make_only_so_many_parties_known(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero.scheduler.channels.peers._MOST_STRANGERS", 2)
    one = party(beat_s=0.02)
    others = [party(beat_s=0.02) for _ in range(4)]
    for other in others:
        other.channel.watch(one.address)
    wait_for(lambda: len(list(one.channel._peers)) == 2)
    for other in others:  # those that it asks for are met all the same
        one.channel.watch(other.address)
    wait_for(lambda: all(one.channel.status_of(it.address) is not None for it in others))
    assert len(list(one.channel._peers)) == 4


def _is_met(one: Party, other: Party) -> bool:
    return one.channel.clock_offset_s(other.address) is not None


def test_a_party_that_does_not_hear_is_silent_though_it_is_heard(
    party: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (party(host="127.0.0.1", beat_s=0.05, timeout_s=1.0) for _ in range(2))
    monkeypatch.setattr(direct_address, "this_node", lambda: "elsewhere")
    one.channel.watch(other.address)
    other.channel.watch(one.address)
    wait_for(lambda: one.channel.clock_offset_s(other.address) is not None)
    deaf = other.channel._control_sockets
    hears = deaf.drain

    def drain() -> Iterator[bytes]:
        for data in hears():
            if not data:
                yield data

    with monkeypatch.context() as patch:
        patch.setattr(deaf, "drain", drain)
        for a, b in ((one, other), (other, one)):
            assert a.silent.get(timeout=LONG_S)[0] == b.address
    for a, b in ((one, other), (other, one)):
        assert a.heard.get(timeout=LONG_S) == b.address


def test_who_was_stopped_itself_blames_nobody_for_what_it_did_not_hear(
    party: Callable[..., Party],
) -> None:
    one, two = party(timeout_s=LONG_S), party()
    one.channel.watch(two.address)
    wait_for(lambda: _is_met(one, two))
    control, stopped_s = one.channel._control, 3 * LONG_S
    (peer,) = one.channel._peers
    status = packed_status(0, {})
    control._tend(peer, status, time.monotonic() + stopped_s, late_s=stopped_s)
    assert one.silent.empty()
    control._tend(peer, status, time.monotonic() + 3 * stopped_s, late_s=0.0)
    assert one.silent.get(timeout=LONG_S)[0] == two.address


def test_what_comes_on_new_links_while_a_party_is_forgotten_changes_nothing(
    party: Callable[..., Party],
) -> None:
    one, two = party(), party()
    one.channel.watch(two.address)
    wait_for(lambda: _is_met(one, two))
    inbox = one.channel._inbox

    class Address(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            inbox.link(os.urandom(8))  # as a thread that pumps does
            return super().__eq__(other)

        __hash__ = str.__hash__

    (peer,) = one.channel._peers
    for incoming in list(inbox.incoming.values()):
        incoming.address = Address(incoming.address)
    one.channel._control._forget(peer)
    assert two.address not in {incoming.address for incoming in inbox.incoming.values()}
