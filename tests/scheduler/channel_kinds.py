"""Executors in this process with each kind of channel."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hetero.scheduler import InProcessExecutor, create_executor
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.channels.memory import Switchboard
from tests.support.loopback import LoopbackChannel

KINDS = ("memory", "loopback", "direct")


class Pumped:
    """Endpoint of a direct channel with a thread that delivers its messages."""

    def __init__(self, receive: Receiver, folder: Path) -> None:
        self._channel = DirectChannel(receive, folder=folder)
        self.address, self.send = self._channel.address, self._channel.send
        self._closed = False
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        while not self._closed:
            self._channel.pump(60)
        self._channel.close()

    def close(self) -> None:
        self._closed = True
        self._channel.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(60)


class DirectSwitchboard:
    """Switchboard whose endpoints communicate by sockets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def connect(self, name: str, receive: Receiver) -> Pumped:
        return Pumped(receive, self._folder)


@contextmanager
def executor_on(kind: str, **options: Any) -> Iterator[InProcessExecutor]:
    """Create an in-process executor that sends messages by a kind of channel."""
    with (
        tempfile.TemporaryDirectory(prefix="het") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        boards: dict[str, Any] = {
            "memory": Switchboard,
            "loopback": partial(Switchboard, LoopbackChannel),
            "direct": partial(DirectSwitchboard, Path(folder)),
        }
        patch.setattr("hetero.scheduler.inprocess.Switchboard", boards[kind])
        executor = create_executor("inprocess", **options)
        yield executor
        executor.close()
