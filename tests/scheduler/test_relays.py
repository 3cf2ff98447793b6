"""Relays: one party of another node says how the others there are, and to them who asked."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

from hetero.scheduler.channels.direct_address import Endpoint, this_node, to_address, to_endpoint
from hetero.scheduler.channels.peers import Peer
from hetero.scheduler.channels.protocol import (
    MOST_CONTROL_NBYTES,
    Beat,
    Roll,
    Row,
    control_message,
    packed_status,
)
from hetero.scheduler.channels.relays import Relays, pages
from hetero.scheduler.channels.sockets import ControlSockets
from hetero.scheduler.channels.stamps import Stamp
from tests.scheduler.elsewhere import Elsewhere
from tests.scheduler.parties import BEAT_S, LONG_S, Party, wait_for

#: Of a client and its relay: beats, who is asked for, and how those are.
MOST_A_BEAT = 4
BEATS = 10
TIMEOUT_S = 100.0 * LONG_S
OPTIONS: dict[str, Any] = {"host": "127.0.0.1", "curve": False, "beat_s": BEAT_S, "timeout_s": 5.0}


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Elsewhere]]:
    made: list[Elsewhere] = []
    with tempfile.TemporaryDirectory(prefix="het", ignore_cleanup_errors=True) as folder:

        def make(number: int = 1) -> Elsewhere:
            made.append(Elsewhere(Path(folder), number))
            return made[-1]

        yield make
        for process in made:
            process.close()


class Counted:
    """Parties' control messages, and their beats."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: Counter[ControlSockets] = Counter()
        self.beats: Counter[Stamp] = Counter()
        send, drain, write = ControlSockets.send, ControlSockets.drain, Stamp.write

        def sending(sockets: ControlSockets, endpoint: Endpoint, data: bytes) -> bool:
            self.messages[sockets] += 1
            return send(sockets, endpoint, data)

        def draining(sockets: ControlSockets) -> Iterator[bytes]:
            for data in drain(sockets):
                self.messages[sockets] += bool(data)
                yield data

        def writing(stamp: Stamp, *said: Any) -> None:
            self.beats[stamp] += 1
            write(stamp, *said)

        monkeypatch.setattr(ControlSockets, "send", sending)
        monkeypatch.setattr(ControlSockets, "drain", draining)
        monkeypatch.setattr(Stamp, "write", writing)

    def few(self, one: Party, addresses: list[str], num_silent: int = 0) -> bool:
        """Whether a party hears all with the messages of one, and those to who is silent.

        It has more where somebody was late.
        """
        sockets, stamp = one.channel._control_sockets, one.channel._control._stamp
        looks = [one.channel.status_of(address).get("looks", 0.0) for address in addresses]
        messages, beats = self.messages[sockets], self.beats[stamp]
        wait_for(lambda: self.beats[stamp] >= beats + BEATS)
        num = self.beats[stamp] - beats
        if self.messages[sockets] - messages > (MOST_A_BEAT + num_silent) * (num + 2):
            return False
        later = [one.channel.status_of(address).get("looks", 0.0) for address in addresses]
        return all(then < now for then, now in zip(looks, later, strict=True))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def relay_of(one: Party) -> Peer:
    (relay,) = one.channel._control._relays.asks
    return relay


def test_beats_between_nodes_do_not_grow_with_their_parties(
    party: Callable[..., Party], elsewhere: Callable[..., Elsewhere], counted: Counted
) -> None:
    one, two = party(**OPTIONS), party(**OPTIONS)
    addresses: list[str] = []
    for number in (4, 20):
        addresses += elsewhere(number).addresses
        for it in (one, two):
            for address in addresses:
                it.channel.watch(address)
        for it in (one, two):
            wait_for(partial(counted.few, it, addresses))
    assert one.silent.empty()
    offsets = [one.channel.clock_offset_s(address) for address in addresses]
    assert all(offset is not None and abs(offset) < 1.0 for offset in offsets)  # it is one clock


@pytest.mark.parametrize(
    ("is_relay", "number"),
    [
        (True, signal.SIGKILL),
        (False, signal.SIGSTOP),
        pytest.param(True, signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(False, signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_who_ends_or_stops_is_silent_and_nobody_else(
    party: Callable[..., Party],
    elsewhere: Callable[..., Elsewhere],
    counted: Counted,
    number: int,
    is_relay: bool,
) -> None:
    one = party(**OPTIONS)
    processes = {it.addresses[0]: it.process.pid for it in (elsewhere() for _ in range(4))}
    for address in processes:
        one.channel.watch(address)
    wait_for(lambda: counted.few(one, list(processes)))
    relay = relay_of(one).address
    lost = relay if is_relay else next(address for address in processes if address != relay)
    os.kill(processes[lost], number)
    assert one.silent.get(timeout=LONG_S)[0] == lost
    others = [address for address in processes if address != lost]
    wait_for(partial(counted.few, one, others, 1))  # by another relay, if need be
    assert one.silent.empty()
    if number == signal.SIGSTOP:
        os.kill(processes[lost], signal.SIGCONT)
        assert one.heard.get(timeout=LONG_S) == lost
        wait_for(lambda: counted.few(one, list(processes)))
        assert one.silent.empty()


@pytest.fixture
def two_met(party: Callable[..., Party]) -> tuple[Party, list[Peer]]:
    """A party, and two of another node that it has met, as it thinks."""
    one = party(host="127.0.0.1", curve=False, beat_s=LONG_S, timeout_s=TIMEOUT_S)
    peers = []
    for port in (9, 19):
        address = to_address(
            Endpoint(os.urandom(8), "elsewhere", 1, "1", "", "127.0.0.1", port, port)
        )
        one.channel.watch(address)
        peers.append(one.channel._peers.met[address])
        peers[-1].clocks.append((0.1, 0.0))
        peers[-1].idle_s = time.monotonic()
    return one, peers


def test_a_relay_is_kept_until_it_is_late(two_met: tuple[Party, list[Peer]]) -> None:
    _, (first, second) = two_met
    relays = Relays(1.0)
    for now_s, said_s, relay, other in (
        (10.0, (10.0, 9.0), first, second),
        (11.0, (10.5, 11.0), first, second),
        (12.0, (10.5, 11.0), second, first),
        (13.0, (13.0, 12.5), second, first),
    ):
        first.said_s, second.said_s = said_s
        relays.choose([first, second], now_s)
        assert relays.asks == {relay: [other.address]}
    second.covered_s = first.covered_s = 13.0
    relays.choose([first, second], 13.0)
    assert relays.asks == {second: []}
    first.outranks_s = 13.0
    relays.choose([first, second], 13.0)
    assert not relays.asks


def test_a_clock_is_not_measured_by_what_was_said_long_ago(
    two_met: tuple[Party, list[Peer]],
) -> None:
    one, (relay, _) = two_met
    for held_s, want in ((2 * TIMEOUT_S, [(0.1, 0.0)]), (1.0, [(0.1, 0.0), (0.5, 7.25)])):
        now_s = time.monotonic()
        echo_s = now_s - held_s - 0.5
        status = packed_status(0, {})
        beat = Beat(b"far link", b"near", 0, now_s + 7.0, echo_s, held_s, status, False)
        one.channel._control._hear(relay.address, beat, now_s)
        assert [*relay.clocks] == [pytest.approx(sample) for sample in want]


def call(one: Party, sender: Peer, peer: Peer, age_s: float, looks: float) -> None:
    """Have a party say how another one is."""
    row = Row(peer.endpoint.identity, age_s, 0.0, 0.0, packed_status(0, {"looks": looks}), 1)
    identity = to_endpoint(one.address).identity
    data = control_message(Roll([row]), identity, sender.address)
    sender.said_s = now_s = time.monotonic()
    one.channel._control._take(data, now_s)


def test_what_is_said_of_others_counts_where_it_is_fresh_and_of_ones_own_node(
    two_met: tuple[Party, list[Peer]],
) -> None:
    one, (relay, other) = two_met
    call(one, relay, other, 0.1, 1.0)
    assert other.status == {"looks": 1.0}
    heard_s = other.heard_s
    for age_s in (-1.0, 1e3, float("nan")):
        call(one, relay, other, age_s, 2.0)
    relay.endpoint = relay.endpoint._replace(node="third")
    call(one, relay, other, 0.0, 3.0)
    other.endpoint = other.endpoint._replace(node=this_node())
    relay.endpoint = relay.endpoint._replace(node=this_node())
    call(one, relay, other, 0.0, 4.0)
    assert (other.status, other.heard_s) == ({"looks": 1.0}, heard_s)


def test_a_party_that_is_silent_or_owes_answers_has_to_be_heard_itself(
    two_met: tuple[Party, list[Peer]],
) -> None:
    one, (relay, other) = two_met
    other.silent = True
    call(one, relay, other, 0.0, 1.0)
    assert other.silent
    assert other.status == {}
    other.silent = False
    other.idle_s = other.said_s = time.monotonic() - 2 * TIMEOUT_S
    call(one, relay, other, 0.0, 2.0)
    assert other.status == {}
    other.idle_s = time.monotonic() - TIMEOUT_S / 2
    call(one, relay, other, 0.0, 3.0)
    assert other.status == {"looks": 3.0}


def test_what_is_said_of_very_many_goes_in_a_few_messages_of_bounded_size() -> None:
    roll = [
        Row(b"identity", 0.5, 0.1, 9.0, packed_status(i, {f"number {j}": 1.0 for j in range(i)}), 1)
        for i in range(64)
    ]
    for rows in (roll, 1000 * roll[:7], 10_000 * roll[:1]):
        sent = list(pages(rows))
        assert [row for page in sent for row in page] == rows
        nbytes = [len(msgpack.packb(page)) for page in sent]
        assert max(nbytes) <= MOST_CONTROL_NBYTES - 2048  # the rest is the sender's address
        assert sum(nbytes) >= (len(sent) - 1) * MOST_CONTROL_NBYTES // 8
