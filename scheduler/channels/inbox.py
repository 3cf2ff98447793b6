"""Where a direct channel's messages come in: local connections, and ZeroMQ from other nodes."""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from typing import Any, Final

import zmq

from hetero.devices.errors import BlobError
from hetero.scheduler.channels.local import Arrival, LocalListener
from hetero.scheduler.channels.protocol import PREFIX
from hetero.scheduler.channels.sockets import Socket, Wakeup

_log = logging.getLogger(__name__)

#: Seconds until connections are accepted again after the process had no descriptor for one.
_FULL_S: Final = 0.01


class Inbox:
    """The sockets. `next` is for one thread at a time.

    `remote`: the socket of other nodes; None without.
    `losses`: (sender, why) of messages that did not come whole.
    `num_waits`: how many times a thread has waited.
    """

    def __init__(self, identity: bytes, path: str, remote: Socket | None) -> None:
        self.losses: deque[tuple[bytes, str]] = deque()
        self.num_waits = 0
        #: What came with other messages in a packet.
        self._unread: deque[Arrival] = deque()
        self._identity = identity
        self._remote = remote
        self._wakeup = Wakeup(counts=True)
        self._epoll = select.epoll()
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._local = LocalListener(identity, path, self._epoll)
        if remote is not None:
            self._epoll.register(remote.fileno(), select.EPOLLIN)
        #: Whether ZeroMQ may have something: its descriptor tells only of what comes after a look
        #: that found nothing.
        self._is_remote_due = remote is not None
        #: Descriptors that had something when they were looked at last, each once.
        self._ready: deque[int] = deque()

    def next(self, timeout_s: float | None) -> Arrival | None:
        """Return the next message; None in time without one, or woken."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._unread:
            if not self._ready and not self._look(0.0):
                if timeout_s == 0:
                    return None
                self.num_waits += 1
                left_s = -1.0 if end_s is None else max(0.0, end_s - time.monotonic())
                if not self._look(left_s):
                    return None
            if not self._receive(self._ready.popleft()):
                return None
        return self._unread.popleft()

    def _look(self, timeout_s: float) -> bool:
        """See where there is something; return whether there is."""
        is_remote_due = self._is_remote_due
        self._ready.extend(
            found for found, _ in self._epoll.poll(0.0 if is_remote_due else timeout_s)
        )
        if is_remote_due and self._remote is not None and self._remote.fileno() not in self._ready:
            self._ready.append(self._remote.fileno())
        return bool(self._ready)

    def _receive(self, descriptor: int) -> bool:
        """Receive what a descriptor has next; return False if it is the one that wakes."""
        if descriptor == self._wakeup.fileno():
            self._wakeup.clear()
            return False
        if descriptor == self._local.fileno():
            try:
                self._local.accept()
            except OSError as error:
                _log.warning("no connection can be accepted: %s", error)
                time.sleep(_FULL_S)
        elif self._remote is not None and descriptor == self._remote.fileno():
            self._receive_remote(self._remote)
        else:
            try:
                self._unread.extend(self._local.receive(descriptor))
            except BlobError as error:
                self.losses.append((self._local.sender(descriptor), str(error)))
        return True

    def _receive_remote(self, remote: Socket) -> None:
        self._is_remote_due = bool(int(remote.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
        if not self._is_remote_due:
            return
        frames: list[Any] = [remote.recv()]
        while remote.getsockopt(zmq.RCVMORE):
            frames.append(remote.recv(copy=False).buffer)
        head: bytes = frames[0]
        if len(head) < PREFIX.size or not head.startswith(self._identity):
            _log.warning("a message of %d bytes for another party is dropped", len(head))
            return
        _, sender, num_more = PREFIX.unpack_from(head)
        if len(frames) == num_more + 1:
            self._unread.append((sender, frames, PREFIX.size))
        else:
            self.losses.append((sender, "it is cut short"))

    def wake(self) -> None:
        """Make `next` return, now or once it is called; from any thread."""
        self._wakeup.set()

    def close(self) -> None:
        """Close the sockets."""
        self._epoll.close()
        self._local.close()
        self._wakeup.close()
        if self._remote is not None:
            self._remote.close()
