"""Endpoints of direct channels: test messages, and queues of received events."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

from hetero.devices.request.request import Request
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.types.messages import Message, Task, Values

#: Timeout of every wait.
LONG_S = 60
TASK = Task(Request(deployment="key/model:0", id=1), 0)


class ChannelEndpoint:
    """A direct channel with queues of its events."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.messages: Queue[Message] = Queue()
        self.suspected: Queue[tuple[str, float]] = Queue()
        self.ended_addresses: Queue[str] = Queue()
        self.live_addresses: Queue[str] = Queue()
        self.losses: Queue[str] = Queue()
        self.channel = DirectChannel(
            self.messages.put,
            folder=folder,
            on_suspected=lambda address, silent_s: self.suspected.put((address, silent_s)),
            on_ended=self.ended_addresses.put,
            on_live=self.live_addresses.put,
            on_messages_lost=self.losses.put,
            **options,
        )
        self.address = self.channel.address

    def next(self) -> Message:
        while self.messages.empty():
            assert self.channel.pump(LONG_S)
        return self.messages.get()


def values(number: int, size: int = 4) -> Values:
    return Values(Task(Request(id=number), 0), {"x": np.full(size, number, np.int32)})


def check(message: Message, number: int, size: int = 4) -> None:
    assert isinstance(message, Values)
    assert message.task.request.id == number
    np.testing.assert_array_equal(message.tensors["x"], np.full(size, number, np.int32))
    assert not message.tensors["x"].flags.writeable


def number_of(message: Message) -> int:
    assert isinstance(message, Values)
    return message.task.request.id


def wait_for(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


#: Program of another process whose channel returns each message, and keeps it.
ECHO = """
import sys
from pathlib import Path
from hetero.scheduler.channels.direct import DirectChannel
_, folder, client = sys.argv
kept = []
def answer(message):
    kept.append(message)
    channel.send(client, message)
channel = DirectChannel(answer, folder=Path(folder))
print(channel.address, flush=True)
while True:
    channel.pump(1)
"""


@contextmanager
def echo_process(folder: Path, client: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `ECHO` until the end of the block; return the process and its address."""
    with subprocess.Popen(
        [sys.executable, "-c", ECHO, folder, client],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait()
            for left in folder.glob(f"*-{process.pid}-*"):
                left.unlink(missing_ok=True)  # the other endpoint removes them as well
