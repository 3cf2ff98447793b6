"""Reception of messages: from local connections, and from other nodes by ZeroMQ."""

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

#: Pause before connections are accepted again if the process has run out of descriptors.
_ACCEPT_PAUSE_S: Final = 0.01


class Inbox:
    """Receiving sockets of a channel; call `next` from one thread at a time.

    `remote`: socket for messages from other nodes, or None.
    `counts_waits`: whether to update `num_waits`, which takes another system call for each wait.
    `losses`: (sender's identity, reason) of each message that arrived damaged.
    `num_waits`: number of times that `next` had to wait.
    """

    def __init__(
        self, identity: bytes, path: str, remote: Socket | None, *, counts_waits: bool = False
    ) -> None:
        self.losses: deque[tuple[bytes, str]] = deque()
        self.num_waits = 0
        self._counts_waits = counts_waits
        #: Messages that arrived in one packet with others.
        self._arrivals: deque[Arrival] = deque()
        self._identity = identity
        self._remote = remote
        self._wakeup = Wakeup(counts=True)
        self._epoll = select.epoll()
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._local = LocalListener(identity, path, self._epoll)
        #: Descriptors of the sockets that are not connections of local peers.
        self._wakeup_descriptor = self._wakeup.fileno()
        self._listener_descriptor = self._local.fileno()
        self._remote_descriptor: int | None = None
        if remote is not None:
            self._remote_descriptor = remote.fileno()
            self._epoll.register(self._remote_descriptor, select.EPOLLIN)
        #: Whether the ZeroMQ socket may have a message. Its descriptor reports only those that
        #: arrive after the socket was empty.
        self._may_have_remote = remote is not None
        #: Descriptors that were readable at the last poll and have not been read since.
        self._ready: deque[int] = deque()

    def next(self, timeout_s: float | None) -> Arrival | None:
        """Return the next message; None after the timeout or `wake`.

        `timeout_s`: time to wait, anew after other events; None waits without limit.
        """
        # Each message passes here in every process: one frame, and few calls.
        arrivals, ready = self._arrivals, self._ready
        while not arrivals:
            if not ready:
                waits_at_once = not (self._counts_waits or self._may_have_remote)
                events = self._epoll.poll(timeout_s if waits_at_once else 0.0)
                if not (events or self._may_have_remote):
                    if waits_at_once or timeout_s == 0:
                        return None
                    self.num_waits += 1
                    if not (events := self._epoll.poll(timeout_s)):
                        return None
                for descriptor, _ in events:
                    ready.append(descriptor)
                remote = self._remote_descriptor
                if self._may_have_remote and remote is not None and remote not in ready:
                    ready.append(remote)
            descriptor = ready.popleft()
            if descriptor in self._local.connections:
                try:
                    received = self._local.receive(descriptor)
                    if type(received) is tuple and received:  # one message: the usual case
                        arrival: Arrival = received[0]
                        return arrival
                    arrivals.extend(received)
                except BlobError as error:
                    self.losses.append((self._local.sender(descriptor), str(error)))
            elif not self._receive(descriptor):
                return None
        return arrivals.popleft()

    def _receive(self, descriptor: int) -> bool:
        """Handle a descriptor that is no local connection; return False for a wakeup."""
        if descriptor == self._wakeup_descriptor:
            self._wakeup.clear()
            return False
        if descriptor == self._listener_descriptor:
            try:
                self._local.accept()
            except OSError as error:
                _log.warning("a local connection cannot be accepted: %s", error)
                time.sleep(_ACCEPT_PAUSE_S)
        elif self._remote is not None and descriptor == self._remote_descriptor:
            self._receive_remote(self._remote)
        return True

    def _receive_remote(self, remote: Socket) -> None:
        self._may_have_remote = bool(int(remote.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
        if not self._may_have_remote:
            return
        frames: list[Any] = [remote.recv()]
        while remote.getsockopt(zmq.RCVMORE):
            frames.append(remote.recv(copy=False).buffer)
        head: bytes = frames[0]
        if len(head) < PREFIX.size or not head.startswith(self._identity):
            _log.warning("dropped a message of %d bytes for another peer", len(head))
            return
        _, sender, num_more = PREFIX.unpack_from(head)
        if len(frames) == num_more + 1:
            self._arrivals.append((sender, frames, PREFIX.size))
        else:
            self.losses.append((sender, f"{len(frames)} frames, expected {num_more + 1}"))

    def wake(self) -> None:
        """Make one call of `next` return None: the current or the next one."""
        self._wakeup.set()

    def close(self) -> None:
        """Close the sockets."""
        self._epoll.close()
        self._local.close()
        self._wakeup.close()
        if self._remote is not None:
            self._remote.close()
