"""Connections between the processes of a node: Unix sockets of sequenced packets.

A connection carries messages one way, in order; none is lost before it ends, and it ends at once
with either process. A packet wakes its receiver directly. ZeroMQ hands a message through a thread
at each end, which takes three times as long for a small one. Datagrams have no end, and the kernel
holds only ten of them for a receiver.

The first packet is a `hello`. Each other one starts with its kind and a number::

    MESSAGE   one message
    TOGETHER  several small messages, as msgpack
    FRAMES    the sizes of the frames of a large message, as msgpack
    PART      a part of a frame; numbered from 0 in its message
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta
from msgspec.msgpack import Decoder, encode

from hetero.devices.errors import BlobError
from hetero.scheduler.formats.unpack import refuse, unpack

_log = logging.getLogger(__name__)

#: Sent together, at most; the kernel takes no larger packets than its send buffers, of 208 kB.
MOST_PACKET_NBYTES: Final = 128 * 1024
#: Kind and number; padded, so that what follows is aligned.
HEADER: Final = struct.Struct("<iI8x")
MESSAGE: Final = 0
TOGETHER: Final = 1
FRAMES: Final = 2
PART: Final = 3
#: The last byte is raised whenever the form of packets changes; other versions are refused by name.
_HELLO: Final = b"HTS" + bytes([1])
_IDENTITY_NBYTES: Final = 8
_BACKLOG: Final = 4096
_NO_ROOM: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)

_SEVERAL: Final = Decoder(Annotated[list[bytes], Meta(min_length=1)])
_SIZES: Final = Decoder(
    Annotated[list[Annotated[int, Meta(ge=0, lt=2**40)]], Meta(min_length=1, max_length=65536)]
)
_MESSAGE_HEADER: Final = HEADER.pack(MESSAGE, 0)

#: A message as it came: its sender, its frames, and where in the first one its contents start.
Arrival = tuple[bytes, list[Any], int]


def hello(receiver: bytes, sender: bytes) -> bytes:
    """Return the first packet of a connection."""
    return _HELLO + receiver + sender


class LocalLinks:
    """The connections to other parties, watched for their end, and for room for what waits."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._links: dict[int, LocalLink] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable while `look` has something to do."""
        return self._epoll.fileno()

    def add(self, link: LocalLink, descriptor: int) -> None:
        """Watch a connection."""
        self._links[descriptor] = link
        self._epoll.register(descriptor, select.EPOLLRDHUP)

    def await_room(self, descriptor: int, is_awaited: bool) -> None:
        """Watch a connection for room, or no more."""
        awaited = select.EPOLLOUT if is_awaited else 0
        self._epoll.modify(descriptor, select.EPOLLRDHUP | awaited)

    def discard(self, descriptor: int) -> None:
        """Watch a connection no more, before it is closed."""
        if self._links.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def look(self) -> None:
        """Send what there is room for, and close connections that have ended."""
        for descriptor, events in self._epoll.poll(0):
            link = self._links.get(descriptor)
            if link is None:
                continue
            if events & ~select.EPOLLOUT:
                link.end()
            else:
                link.flush()

    def close(self) -> None:
        """Watch nothing more."""
        self._epoll.close()


class LocalLink:
    """The sending end of a connection; from any thread.

    `on_end`: called once, when the other end has closed, or nobody listens there.
    Raises OSError: there are no descriptors for it.
    """

    def __init__(
        self,
        path: str,
        first: bytes,
        links: LocalLinks,
        on_end: Callable[[], object],
    ) -> None:
        self._path = path
        self._links = links
        self._on_end = on_end
        self._lock = threading.Lock()
        #: Packets that found no room, in parts.
        self._waiting: deque[Sequence[Any]] = deque([(first,)])
        self._is_connected = False
        self._closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self.flush()

    def try_send(self, parts: Sequence[Any]) -> bool:
        """Send a message in one packet; return False if there is no room now."""
        with self._lock:
            if self._closed:
                return True
            return not self._waiting and self._is_sent((_MESSAGE_HEADER, *parts))

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message, now or once there is room; the frames' memory must stay as it is."""
        if len(frames) == 1 and len(frames[0]) <= MOST_PACKET_NBYTES - HEADER.size:
            self._send([(_MESSAGE_HEADER, frames[0])])
        else:
            self._send(_packets(frames))

    def send_together(self, messages: Sequence[bytes]) -> None:
        """Send small messages in one packet."""
        self._send([(HEADER.pack(TOGETHER, 0), encode(messages))])

    def _send(self, packets: Sequence[Sequence[Any]]) -> None:
        with self._lock:
            if self._closed:
                return
            if not self._waiting and len(packets) == 1 and self._is_sent(packets[0]):
                return
            was_empty = not self._waiting
            self._waiting.extend(packets)
            self._flush()
            if was_empty and self._waiting and self._is_connected:
                self._links.await_room(self._socket.fileno(), True)

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        with self._lock:
            if self._closed or not self._waiting:
                return
            self._flush()
            if not self._waiting and self._is_connected:
                self._links.await_room(self._socket.fileno(), False)

    def _flush(self) -> None:
        if not (self._is_connected or self._connect()):
            return
        while self._waiting and self._is_sent(self._waiting[0]):
            self._waiting.popleft()

    def _connect(self) -> bool:
        try:
            self._socket.connect(self._path)
        except OSError as error:
            if error.errno not in _NO_ROOM:  # it may be later that others were accepted
                self._end()
            return False
        self._is_connected = True
        self._links.add(self, self._socket.fileno())
        return True

    def _is_sent(self, packet: Sequence[Any]) -> bool:
        """Send a packet if there is room; what cannot go any more counts as sent."""
        if not self._is_connected:
            return False
        try:
            self._socket.sendmsg(packet)
        except OSError as error:
            if error.errno in _NO_ROOM:
                return False
            self._end()
        return True

    def end(self) -> None:
        """Close this end if the other one has closed."""
        with self._lock:
            if self._closed:
                return
            poller = select.poll()
            poller.register(self._socket, select.POLLRDHUP)
            if poller.poll(0):  # else an event of an earlier connection with this descriptor
                self._end()

    def _end(self) -> None:
        self._close()
        self._on_end()

    def close(self) -> None:
        """Close this end; what waits is lost."""
        with self._lock:
            if not self._closed:
                self._close()

    def _close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._links.discard(self._socket.fileno())
        self._socket.close()


def _packets(frames: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the packets of a large message."""
    most = MOST_PACKET_NBYTES - HEADER.size
    packets: list[Sequence[Any]] = [
        (HEADER.pack(FRAMES, 0), encode([len(frame) for frame in frames]))
    ]
    parts = (
        memoryview(frame)[start : start + most]
        for frame in frames
        for start in range(0, len(frame), most)
    )
    packets += [(HEADER.pack(PART, number), part) for number, part in enumerate(parts)]
    return packets


class _LargeMessage:
    """A message that comes in parts."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = deque(sizes)
        self._parts: list[bytes] = []
        self._nbytes = 0
        self._num_parts = 0
        self.frames: list[bytes] = []
        self._end_frames()

    @property
    def is_whole(self) -> bool:
        """Whether all has come."""
        return not self._sizes

    def add(self, number: int, part: bytes) -> None:
        """Add the next part.

        Raises BlobError: it is another one, or too long.
        """
        self._nbytes += len(part)
        if self.is_whole or number != self._num_parts or self._nbytes > self._sizes[0]:
            raise BlobError(f"message whose part {number} came after {self._num_parts} parts.")
        self._num_parts += 1
        self._parts.append(part)
        self._end_frames()

    def _end_frames(self) -> None:
        while self._sizes and self._nbytes == self._sizes[0]:
            self._sizes.popleft()
            self.frames.append(b"".join(self._parts))
            self._parts, self._nbytes = [], 0


class LocalListener:
    """Where other parties of the node connect; for one thread at a time."""

    def __init__(self, identity: bytes, path: str, epoll: select.epoll) -> None:
        self._identity = identity
        self._epoll = epoll
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._socket.bind(path)
        self._socket.listen(_BACKLOG)
        self._connections: dict[int, _Connection] = {}
        epoll.register(self._socket, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that is readable while `accept` has something to do."""
        return self._socket.fileno()

    def accept(self) -> None:
        """Accept connections.

        Raises OSError: there are no descriptors for them.
        """
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                made, _ = self._socket.accept()
                made.setblocking(False)
                self._connections[made.fileno()] = _Connection(made, self._identity)
                self._epoll.register(made, select.EPOLLIN)

    def receive(self, descriptor: int) -> Iterator[Arrival]:
        """Yield the messages in the next packet of a connection, which may be none.

        Raises BlobError: it is damaged; `sender` of the error's data: by whom.
        """
        connection = self._connections.get(descriptor)
        if connection is None:
            return
        try:
            packet = connection.socket.recv(MOST_PACKET_NBYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            packet = b""
        if packet and connection.sender:
            yield from connection.take(packet)
        elif not (packet and connection.is_greeted(packet)):
            del self._connections[descriptor]
            self._epoll.unregister(descriptor)
            connection.socket.close()

    def sender(self, descriptor: int) -> bytes:
        """Return whose connection it is; empty for nobody's."""
        connection = self._connections.get(descriptor)
        return b"" if connection is None else connection.sender

    def close(self) -> None:
        """Close all."""
        self._socket.close()
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()


class _Connection:
    """The receiving end of a connection."""

    def __init__(self, made: socket.socket, identity: bytes) -> None:
        self.socket = made
        self._identity = identity
        #: Whose it is; empty before its first packet.
        self.sender = b""
        self._large: _LargeMessage | None = None

    def is_greeted(self, packet: bytes) -> bool:
        """Take in the first packet; return whether it is for this party."""
        try:
            if not packet.startswith(_HELLO):
                refuse(packet[: len(_HELLO)], _HELLO, "connection")
            own_end = len(_HELLO) + _IDENTITY_NBYTES
            if packet[len(_HELLO) : own_end] != self._identity:
                raise BlobError("connection to another party.")
        except BlobError as error:
            _log.warning("a connection is refused: %s", error)
            return False
        self.sender = packet[own_end : own_end + _IDENTITY_NBYTES]
        return len(self.sender) == _IDENTITY_NBYTES

    def take(self, packet: bytes) -> Iterator[Arrival]:
        """Yield the messages that a packet has or completes.

        Raises BlobError: it is damaged, or a large message was cut short.
        """
        large, self._large = self._large, None
        if len(packet) < HEADER.size:
            raise BlobError(f"packet of {len(packet)} bytes.")
        kind, number = HEADER.unpack_from(packet)
        if kind == PART and large is not None:
            large.add(number, packet[HEADER.size :])
            yield from self._continue(large)
            return
        if kind == MESSAGE:
            yield self.sender, [packet], HEADER.size
        elif kind == TOGETHER:
            for part in unpack(memoryview(packet)[HEADER.size :], _SEVERAL, "messages"):
                yield self.sender, [part], 0
        elif kind == FRAMES:
            sizes = unpack(memoryview(packet)[HEADER.size :], _SIZES, "sizes")
            yield from self._continue(_LargeMessage(sizes))
        else:
            raise BlobError(f"packet of kind {kind}.")
        if large is not None:
            raise BlobError("message that is cut short.")

    def _continue(self, large: _LargeMessage) -> Iterator[Arrival]:
        """Yield a large message if it is whole; else wait for its next part."""
        if large.is_whole:
            yield self.sender, large.frames, 0
        else:
            self._large = large
