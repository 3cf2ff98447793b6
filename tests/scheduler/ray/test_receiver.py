"""Receiving of a client's messages by a single waiting caller, or by a thread."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from queue import Queue
from types import FrameType
from typing import Any

import pytest

from hetero.scheduler.channels import direct, inbox
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.ray import receiver, signals
from hetero.scheduler.ray.receiver import MessageReceiver
from hetero.scheduler.types.messages import Message
from tests.scheduler.endpoints import LONG_S, number_of, values, wait_for


class Client:
    """A channel with a receiver: awaited requests, and the thread that received each."""

    def __init__(self, folder: Path) -> None:
        self.awaited: set[int] = set()
        self.received: Queue[tuple[int, threading.Thread]] = Queue()
        self.channel = DirectChannel(self.receive, folder=folder)
        self.receiver = MessageReceiver(self.channel, lambda: len(self.awaited))

    def receive(self, message: Message) -> None:
        number = number_of(message)
        self.awaited.discard(number)
        self.received.put((number, threading.current_thread()))

    def ask(self, *numbers: int) -> None:
        self.awaited.update(numbers)

    def help(self, number: int) -> None:
        self.receiver.receive_until(lambda: number not in self.awaited)

    def next(self) -> tuple[int, threading.Thread]:
        return self.received.get(timeout=LONG_S)

    def close(self) -> None:
        self.receiver.close()
        self.channel.close()


@pytest.fixture
def client(folder, make_endpoint):
    client = Client(folder)
    yield client
    client.close()


def test_single_waiting_caller_receives_its_result(client, make_endpoint):
    device = make_endpoint()
    for number in range(20):
        client.ask(number)
        device.channel.send(client.channel.address, values(number))
        client.help(number)
        assert client.next() == (number, threading.current_thread())


def test_message_without_waiting_caller_is_received_by_thread(client, make_endpoint):
    device = make_endpoint()
    for number in range(20):
        client.ask(number)
        client.receiver.expect()
        device.channel.send(client.channel.address, values(number))
        assert client.next() == (number, client.receiver._thread)


def test_thread_receives_after_a_caller_leaves(client, make_endpoint):
    device = make_endpoint()
    for number in range(0, 20, 2):
        client.ask(number)
        helping = threading.Thread(target=client.help, args=(number,))
        helping.start()
        client.ask(number + 1)  # sent while, before or after the other is helped
        client.receiver.expect()
        device.channel.send(client.channel.address, values(number))
        assert client.next()[0] == number
        helping.join(LONG_S)
        assert not helping.is_alive()
        device.channel.send(client.channel.address, values(number + 1))
        assert client.next() == (number + 1, client.receiver._thread)


def test_second_waiting_caller_leaves_receiving_to_the_first(client, make_endpoint):
    device = make_endpoint()
    client.ask(1, 2)
    client.help(1)  # returns at once: it is not the only one
    for number in (1, 2):
        device.channel.send(client.channel.address, values(number))
        assert client.next() == (number, client.receiver._thread)


def test_receiving_caller_notices_its_dropped_request(client):
    client.ask(1)
    looked = threading.Event()

    def is_ended() -> bool:
        looked.set()
        return 1 not in client.awaited

    helping = threading.Thread(target=client.receiver.receive_until, args=(is_ended,))
    helping.start()
    assert looked.wait(LONG_S)
    client.awaited.clear()
    client.receiver.check_end()
    helping.join(LONG_S)
    assert not helping.is_alive()


def test_interrupted_caller_leaves_all_results_received(client, make_endpoint):
    device = make_endpoint()
    client.ask(1)

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.receiver.receive_until(interrupted)
    client.ask(2)
    client.receiver.expect()
    for number in (1, 2):
        device.channel.send(client.channel.address, values(number))
        assert client.next() == (number, client.receiver._thread)


def test_unprocessable_message_leaves_others_received(client, make_endpoint, caplog):
    device = make_endpoint()

    def receive(message: Message) -> None:
        if number_of(message) % 2:
            raise RuntimeError("of a message")
        client.receive(message)

    client.channel._receive = receive
    client.ask(1, 2)
    client.receiver.expect()
    for number in (1, 2):  # the thread's
        device.channel.send(client.channel.address, values(number))
    assert client.next() == (2, client.receiver._thread)
    client.awaited = {4}
    for number in (3, 4):
        device.channel.send(client.channel.address, values(number))
    client.help(4)  # a caller's
    assert client.next()[0] == 4
    wait_for(lambda: caplog.text.count("RuntimeError: of a message") == 2)


def test_ctrl_c_at_any_line_loses_no_message(client, make_endpoint):
    device = make_endpoint()
    traced = {code.__file__ for code in (receiver, signals, direct, inbox)}
    lines = interrupted = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in traced:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                signal.raise_signal(signal.SIGINT)
        return trace

    for at in range(1, 150):
        lines = 0
        client.ask(at)

        def is_ended(number: int = at, sent_messages: list[bool] = []) -> bool:  # noqa: B006 - one a round
            if not sent_messages:
                sent_messages.append(True)
                device.channel.send(client.channel.address, values(number))
            return number not in client.awaited

        sys.settrace(trace)
        try:
            client.receiver.receive_until(is_ended)
        except KeyboardInterrupt:
            interrupted += 1
            if client.received.empty():
                client.receiver.expect()
                is_ended()
        finally:
            sys.settrace(None)
        assert client.next()[0] == at
        assert client.received.empty()
    assert interrupted > 20
