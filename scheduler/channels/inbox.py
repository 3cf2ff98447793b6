"""Where a direct channel's messages come in: datagrams from its own node, ZeroMQ from anywhere.

A Unix datagram wakes its receiver at once, where ZeroMQ hands it through a thread at each end: for
a small message that is a third of the time. The kernel holds only a few per receiver, so what finds
no room, or is too large, goes through ZeroMQ.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from collections import deque
from typing import Annotated, Any, Final

import zmq
from msgspec import Meta
from msgspec.msgpack import Decoder

from hetero.devices.errors import BlobError
from hetero.scheduler.channels.protocol import PREFIX, TOGETHER
from hetero.scheduler.channels.sockets import Socket
from hetero.scheduler.formats.unpack import unpack

_log = logging.getLogger(__name__)

#: The kernel takes no larger datagrams than its send buffers, of 208 kB.
MOST_DATAGRAM_NBYTES: Final = 128 * 1024
#: So often ZeroMQ comes first, that datagrams without end do not starve it.
_FAR_FIRST: Final = 16
_TOGETHER: Final = Decoder(Annotated[list[bytes], Meta(min_length=1)])

#: One message as it came: its sender, its frames, and where the first one's contents start.
Arrival = tuple[bytes, list[Any], int]
#: A message, or what is none.
_Found = Arrival | tuple[()]


class Inbox:
    """The sockets. `next` is for one thread at a time.

    `losses`: (sender, why) of messages that did not come whole.
    `num_waits`: how many times a thread has waited.
    """

    def __init__(self, identity: bytes, path: str, far: list[Socket]) -> None:
        self.losses: deque[tuple[bytes, str]] = deque()
        self.num_waits = 0
        #: What came with other messages in a datagram.
        self._unread: deque[Arrival] = deque()
        self._identity = identity
        self._path = path
        self._far = far
        self._near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._near.bind(path)
        self._poll = select.poll()
        self._poll.register(self._near, select.POLLIN)
        for pull in far:
            self._poll.register(pull.fileno(), select.POLLIN)
        #: Whether ZeroMQ may have something: its descriptors tell only of what comes after a look
        #: that found nothing.
        self._is_far_due = True
        self._turns = 0

    def next(self, timeout_s: float | None) -> Arrival | None:
        """Return the next message; None in time without one, or woken, or for what is none."""
        if self._unread:
            return self._unread.popleft()
        arrival = self._received()
        if arrival is None and timeout_s != 0:
            arrival = self._wait(timeout_s)
        return arrival or None

    def _datagram(self, head: bytes) -> _Found:
        if len(head) < PREFIX.size or not head.startswith(self._identity):
            return _not_ours(head)
        _, sender, num_more = PREFIX.unpack_from(head)
        if num_more != TOGETHER:
            return sender, [head], PREFIX.size
        try:
            parts = unpack(memoryview(head)[PREFIX.size :], _TOGETHER, "messages")
        except BlobError as error:
            self.losses.append((sender, str(error)))
            return ()
        self._unread.extend((sender, [part], 0) for part in parts)
        return self._unread.popleft()

    def _message(self, frames: list[Any]) -> _Found:
        head: bytes = frames[0]
        if len(head) < PREFIX.size or not head.startswith(self._identity):
            return _not_ours(head)
        _, sender, num_more = PREFIX.unpack_from(head)
        if len(frames) != num_more + 1:
            self.losses.append((sender, "it is cut short"))
            return ()
        return sender, frames, PREFIX.size

    def wake(self) -> None:
        """Make `next` return, now or once it is called; from any thread."""
        with contextlib.suppress(OSError):  # full: it does not wait; closed: nobody calls it
            self._near.sendto(b"", self._path)

    def close(self) -> None:
        """Close the sockets."""
        self._near.close()
        for pull in self._far:
            pull.close()

    def _wait(self, timeout_s: float | None) -> _Found | None:
        self.num_waits += 1
        now_s = time.monotonic()
        end_s = None if timeout_s is None else now_s + timeout_s
        arrival = None
        # ZeroMQ's descriptor may be ready without a message.
        while arrival is None and (end_s is None or now_s <= end_s):
            ready = self._poll.poll(None if end_s is None else (end_s - now_s) * 1e3 + 1)
            if len(ready) != 1 or ready[0][0] != self._near.fileno():
                self._is_far_due = True
            arrival = self._received()
            if arrival is None:
                now_s = time.monotonic()
        return arrival

    def _received(self) -> _Found | None:
        """Return what is there; None for nothing, and nothing for what is no message."""
        self._turns += 1
        if not self._turns % _FAR_FIRST and (arrival := self._from_far()) is not None:
            return arrival
        try:
            return self._datagram(self._near.recv(MOST_DATAGRAM_NBYTES))
        except BlockingIOError:
            return self._from_far() if self._is_far_due else None

    def _from_far(self) -> _Found | None:
        for pull in self._far:
            while int(pull.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                frames: list[Any] = [pull.recv()]
                while pull.getsockopt(zmq.RCVMORE):
                    frames.append(pull.recv(copy=False).buffer)
                self._far.reverse()  # the other one comes first next time
                self._is_far_due = True
                return self._message(frames)
        self._is_far_due = False
        return None


def _not_ours(head: bytes) -> tuple[()]:
    if head:  # else somebody woke us
        _log.warning("a message of %d bytes for another party is dropped", len(head))
    return ()
