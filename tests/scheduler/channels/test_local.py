"""Connections between processes of a node: order, full buffers, and ended processes."""

from __future__ import annotations

import os
import select
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.errors import BlobError
from hetero.scheduler.channels import local
from hetero.scheduler.channels.local import (
    Arrival,
    LocalLink,
    LocalLinks,
    LocalListener,
    hello,
)

RECEIVER, SENDER = b"receiver", b"a sender"


class Listening:
    """Listener that stores received messages."""

    def __init__(self, path: str) -> None:
        self.epoll = select.epoll()
        self.listener = LocalListener(RECEIVER, path, self.epoll)

    def receive(self) -> list[Arrival]:
        """Receive all available messages."""
        came: list[Arrival] = []
        while events := self.epoll.poll(0):
            for descriptor, _ in events:
                if descriptor == self.listener.fileno():
                    self.listener.accept()
                else:
                    came.extend(self.listener.receive(descriptor))
        return came

    def close(self) -> None:
        self.listener.close()
        self.epoll.close()


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="het") as folder:
        yield str(Path(folder) / "local")


@pytest.fixture
def listening(path):
    links_made = Listening(path)
    yield links_made
    links_made.close()


@pytest.fixture
def links():
    links_made = LocalLinks()
    yield links_made
    links_made.close()


@pytest.fixture
def link(path, listening, links):
    links_made: list[LocalLink] = []

    def make(first: bytes = hello(RECEIVER, SENDER), ends: list[str] | None = None) -> LocalLink:
        on_end: Any = None if ends is None else (lambda: ends.append("ended"))
        links_made.append(LocalLink(path, first, links, on_end))
        return links_made[-1]

    yield make
    for one in links_made:
        one.close()


def contents(arrival: Arrival) -> tuple[bytes, list[bytes]]:
    sender, frames, start = arrival
    return sender, [bytes(frames[0][start:]), *map(bytes, frames[1:])]


@given(
    st.lists(
        st.lists(st.integers(0, 3 * local.MAX_PACKET_NBYTES), min_size=1, max_size=4), max_size=4
    )
)
def test_messages_of_all_sizes_arrive_in_order(sizes):
    with tempfile.TemporaryDirectory(prefix="het") as folder:
        path = str(Path(folder) / "local")
        listening, links = Listening(path), LocalLinks()
        link = LocalLink(path, hello(RECEIVER, SENDER), links, lambda: None)
        messages = [[os.urandom(size) for size in message] for message in sizes]
        for message in messages:
            link.send(message)
        came: list[Arrival] = []
        while len(came) < len(messages):
            links.poll()  # the socket was full
            came += listening.receive()
        assert [contents(arrival) for arrival in came] == [(SENDER, it) for it in messages]
        link.close()
        links.close()
        listening.close()


def test_small_messages_are_sent_together(link, listening):
    link().send_together([b"one", b"two"])
    assert list(map(contents, listening.receive())) == [(SENDER, [b"one"]), (SENDER, [b"two"])]


def test_urgent_message_is_not_sent_while_others_wait(link, listening, links):
    one = link()
    count = 0
    while one.try_send([b"number", b"%d" % count]):
        count += 1
    assert count > 20  # the kernel buffers many messages
    one.send([b"waits"])
    assert not one.try_send([b"too early"])
    came = listening.receive()
    links.poll()
    came += listening.receive()
    assert [contents(arrival)[1] for arrival in came] == [
        *([b"number%d" % number] for number in range(count)),
        [b"waits"],
    ]
    assert one.try_send([b"in time"])


def test_receiver_end_is_reported_once_and_drops_later_messages(link, listening, links):
    ends: list[str] = []
    one = link(ends=ends)
    one.send([b"unread"])
    links.poll()
    assert ends == []
    listening.close()
    links.poll()
    assert ends == ["ended"]
    one.send([b"x"])
    one.send([b"x" * 10**6])
    assert one.try_send([b"x"])
    one.flush()
    links.poll()
    assert ends == ["ended"]


def test_end_noticed_by_a_sender_is_reported_once(link, listening, links):
    ends: list[str] = []
    one = link(ends=ends)
    listening.close()
    one.send([b"x"])
    assert ends == ["ended"]
    links.poll()
    assert ends == ["ended"]


def test_end_noticed_by_queued_packets_is_reported_once(link, listening):
    ends: list[str] = []
    senders = [link(ends=ends) for _ in range(2)]
    for one in senders:
        while one.try_send([b"x" * 1000]):
            pass
        one.send([b"queued"])
    listening.close()
    senders[0].send([b"y"])
    senders[1].flush()
    assert ends == ["ended", "ended"]


def test_receiver_that_ends_before_the_first_packet_is_reported(
    path, links, listening, monkeypatch
):
    add = links.add

    def end_receiver(*arguments: Any) -> None:
        add(*arguments)
        listening.close()

    monkeypatch.setattr(links, "add", end_receiver)
    ends: list[str] = []
    one = LocalLink(path, hello(RECEIVER, SENDER), links, lambda: ends.append("ended"))
    assert ends == ["ended"]
    assert one.try_send([b"x"])


@pytest.mark.parametrize("is_left", [True, False])
def test_missing_listener_is_reported_at_once(path, links, is_left):
    if is_left:  # of a killed process
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
            left.bind(path)
    ends: list[str] = []
    LocalLink(path, b"", links, lambda: ends.append("ended")).send([b"x"])
    assert ends == ["ended"]


def test_reused_descriptor_does_not_end_a_link(link, listening):
    ends: list[str] = []
    one = link(ends=ends)
    one.end()
    assert ends == []
    one.send([b"x"])
    assert len(listening.receive()) == 1


def test_connection_before_accept_is_made_later(path, links, monkeypatch):
    monkeypatch.setattr(local, "_BACKLOG", 0)  # the kernel accepts one of them
    listening = Listening(path)
    links_made = [LocalLink(path, hello(RECEIVER, SENDER), links, lambda: None) for _ in range(5)]
    for number, one in enumerate(links_made):
        one.send([b"%d" % number])
        assert not one.try_send([b"not before"]) or number < 3
    came = set()
    while len(came) < 5:
        came |= {contents(arrival)[1][0] for arrival in listening.receive()} - {b"not before"}
        for one in links_made:
            one.flush()
    assert came == {b"%d" % number for number in range(5)}
    for one in links_made:
        one.close()
    listening.close()


@pytest.mark.parametrize(
    "first", [b"", b"HTS\xff", hello(b"somebody", SENDER), hello(RECEIVER, b"")]
)
def test_connection_with_another_greeting_is_closed(link, listening, links, first):
    ends: list[str] = []
    one = link(first, ends)
    one.send([b"x"])
    assert listening.receive() == []
    links.poll()
    assert ends == ["ended"]


def test_interrupted_large_message_is_reported_and_next_arrives(link, listening):
    one = link()
    packets = local._split_message([b"x" * 2 * local.MAX_PACKET_NBYTES])
    for packet in packets[:2]:
        one._send([packet])
    one.send([b"next"])
    with pytest.raises(BlobError, match="without its last parts"):
        listening.receive()


def test_duplicate_packet_damages_its_message_alone(link, listening):
    one = link()
    head, *parts = local._split_message([b"x" * local.MAX_PACKET_NBYTES * 2])
    for packet in (head, parts[0], parts[0]):  # as after Ctrl-C
        one._send([packet])
    with pytest.raises(BlobError, match=r"part 0 of a message.*expected part 1"):
        listening.receive()
    one.send([b"next"])
    assert list(map(contents, listening.receive())) == [(SENDER, [b"next"])]
