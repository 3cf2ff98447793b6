"""Reception of messages: few system calls for each wait."""

from __future__ import annotations

import select
from typing import Any

import pytest

from hetero.scheduler.channels.inbox import Inbox


class RecordedEpoll:
    """Epoll object that records the timeouts of its polls."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self.timeouts: list[float | None] = []

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        self.timeouts.append(timeout)
        return self._epoll.poll(timeout)

    def close(self) -> None:
        self._epoll.close()


@pytest.mark.parametrize("counts_waits", [False, True])
def test_wait_takes_one_poll_unless_it_is_counted(tmp_path, counts_waits):
    inbox = Inbox(b"identity", str(tmp_path / "socket"), None, counts_waits=counts_waits)
    epoll: Any = RecordedEpoll(inbox._epoll)
    inbox._epoll = epoll
    try:
        assert inbox.next(0.001) is None
        assert epoll.timeouts == ([0.0, 0.001] if counts_waits else [0.001])
        assert inbox.num_waits == counts_waits
        assert inbox.next(0) is None
        assert inbox.num_waits == counts_waits  # it has not waited
        inbox.wake()
        assert inbox.next(None) is None
        assert inbox.num_waits == counts_waits
    finally:
        inbox.close()
