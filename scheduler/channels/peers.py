"""The parties that a direct channel sends to: a socket for data and one for control each."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import zmq

from devices.errors import ClusterError
from scheduler.channels.direct_address import Endpoint, to_endpoint
from scheduler.channels.envelope import INLINE_NBYTES, MessageWriter
from scheduler.channels.inbox import MOST_DATAGRAM_NBYTES
from scheduler.channels.protocol import LENGTH, PREFIX, VERSION
from scheduler.channels.shared_memory import Slot, SlotPool
from scheduler.channels.sockets import Socket, Sockets
from scheduler.vocabulary.messages import Message

_log = logging.getLogger(__name__)

#: Control messages that wait for a party that does not read.
_MOST_CONTROL: Final = 256
#: From here on a slot of shared memory is faster than a datagram: see `benchmarks.channels`.
SHARED_NBYTES: Final = 64 * 1024
#: How long the last control messages may take.
_FAREWELL_MS: Final = 100
#: Bytes of messages that go together: with the lengths they are a datagram still.
_MOST_HELD_NBYTES: Final = MOST_DATAGRAM_NBYTES // 2
#: Measurements of a clock that are kept.
_SAMPLES: Final = 16


class Store(NamedTuple):
    """Where large tensors for parties on this node go."""

    pool: SlotPool
    #: From which size on; None: never.
    least_nbytes: int | None

    @property
    def inline_nbytes(self) -> int:
        """What is smaller travels in the head: one datagram."""
        return min(self.least_nbytes or SHARED_NBYTES, SHARED_NBYTES)


class Held:
    """Which thread's messages are held back, and for whom: what follows soon goes with them."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self.peers: list[Peer] = []

    @property
    def is_here(self) -> bool:
        """Whether the calling thread's are."""
        return self._thread is not None and self._thread == threading.get_ident()

    def begin(self) -> None:
        """Hold back the calling thread's."""
        self._thread = threading.get_ident()

    def end(self) -> None:
        """Send them, and hold back none."""
        self._thread = None
        peers, self.peers = self.peers, []
        for peer in peers:
            peer.send_held()


class Outgoing:
    """The sending end of a link, and what has gone on it."""

    __slots__ = ("count", "id", "nbytes")

    def __init__(self) -> None:
        self.id = os.urandom(8)
        self.count = 0
        self.nbytes = 0


class Peer:
    """One party that is sent to.

    What is about liveness is the control thread's; `silent` is read by all.

    Attributes
    ----------
    near, far : Outgoing
        The links by datagrams, which lose nothing, and by ZeroMQ.
    """

    def __init__(
        self,
        address: str,
        endpoint: Endpoint,
        sockets: Sockets,
        store: Store,
        now_s: float,
        held: Held,
    ) -> None:
        urls = endpoint.urls()
        if urls is None:
            raise ClusterError(
                f"{endpoint} is on another node and listens on its own only: give its channel "
                "the node's network address."
            )
        self.address = address
        self.endpoint = endpoint
        self._identity = endpoint.identity
        self._process = endpoint.process
        self.near = Outgoing()
        self.far = Outgoing()
        self.watched = False
        self.silent = False
        #: Whether whoever watches it was told that it is silent.
        self.told = False
        #: Whether the end of its process is waited for, or has come.
        self.guarded = False
        self.heard_s = now_s
        self.status: Mapping[str, float] = {}
        self.lost = 0
        #: Its clock at its last beat, and ours then.
        self.beat_s: tuple[float, float] | None = None
        #: (round trip, its clock less ours) of late.
        self.clocks: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._lock = threading.Lock()
        self._store = store
        self._put = self._fill if endpoint.is_near else None
        self._filled: list[tuple[Slot, int]] = []
        self._writer = MessageWriter(store.inline_nbytes if endpoint.is_near else INLINE_NBYTES)
        self._sockets = sockets
        self._data_url, control_url = urls
        self._data: Socket | None = None
        self._datagrams = _connected(endpoint.datagram_path) if endpoint.is_near else None
        self._control: Socket | None = sockets.push(control_url, endpoint.key)
        self._control.sndhwm = _MOST_CONTROL
        self._held = held
        #: What waits to go together, and its bytes.
        self._waiting: list[bytes] = []
        self._waiting_nbytes = 0

    def send(self, message: Message) -> None:
        """Send a message; it is dropped where the party is silent.

        Raises TypeError, BlobError: it cannot be sent.
        """
        with self._lock:
            if self.silent or self._control is None:
                self.far.count += 1  # so that it is missed, should the party be heard again
                return
            sent = None
            try:
                sent = self._send(message)
            finally:
                if self._filled:
                    self._store.pool.sent(self._filled, sent)
                    self._filled = []

    def _send(self, message: Message) -> tuple[bytes, int] | None:
        near = self.near
        number = near.count + 1
        if self._held.is_here and self._datagrams is not None:
            frames = self._writer.frames(message, self._put)
            if len(frames) == 1 and not self._filled:
                self._hold(frames[0])
                return None
            frames[0] = bytes(PREFIX.size) + frames[0]
            return self._send_far(frames)
        prefix = PREFIX.pack(self._identity, near.id, number, 0)
        frames = self._writer.frames(message, self._put, prefix)
        datagrams, head = self._datagrams, frames[0]
        if datagrams is not None and len(frames) == 1 and len(head) <= MOST_DATAGRAM_NBYTES:
            near.count = number  # first: where Ctrl-C comes next, it is missed, and not a double
            try:
                datagrams.send(head)
            except OSError:  # no room, or nobody there
                near.count -= 1
            else:
                return near.id, number
        return self._send_far(frames)

    def _hold(self, packed: bytes) -> None:
        if self._waiting and self._waiting_nbytes + len(packed) > _MOST_HELD_NBYTES:
            self._send_waiting()
        if not self._waiting:
            self._held.peers.append(self)
        self._waiting.append(packed)
        self._waiting_nbytes += len(packed)

    def send_held(self) -> None:
        """Send what waits to go together."""
        with self._lock:
            if self._waiting:
                self._send_waiting()

    def _send_waiting(self) -> None:
        waiting, self._waiting, self._waiting_nbytes = self._waiting, [], 0
        if self.silent or self._datagrams is None:
            self.far.count += len(waiting)
            return
        near = self.near
        prefix = PREFIX.pack(self._identity, near.id, near.count + 1, 1 - len(waiting))
        lengths = [LENGTH.pack(len(packed)) for packed in waiting[:-1]]
        try:
            self._datagrams.send(b"".join((prefix, *lengths, *waiting)))
        except OSError:  # no room, or nobody there
            for packed in waiting:
                self._send_far([bytes(PREFIX.size) + packed])
        else:
            near.count += len(waiting)

    def _fill(self, flat: np.ndarray) -> tuple[str, int, int, int, int] | None:
        """Put contents into shared memory, if they are large enough and there is room."""
        least_nbytes = self._store.least_nbytes
        if least_nbytes is None or flat.nbytes < least_nbytes:
            return None
        slot = self._store.pool.fill(flat, self._process)
        if slot is None:
            return None
        self._filled.append((slot, slot.generation))
        return slot.place

    def _send_far(self, frames: list[Any]) -> tuple[bytes, int] | None:
        far = self.far
        far.count += 1
        far.nbytes += sum(map(len, frames))
        if self._data is None:
            self._data = self._sockets.push(self._data_url, self.endpoint.key)
        prefix = PREFIX.pack(self._identity, far.id, far.count, len(frames) - 1)
        frames[0] = prefix + frames[0][PREFIX.size :]
        try:
            if len(frames) == 1:
                self._data.send(frames[0], zmq.DONTWAIT)
            else:
                self._data.send_multipart(frames, zmq.DONTWAIT, copy=False)
        except zmq.ZMQError as error:
            _log.warning("nothing can be sent to %s: %s", self.endpoint, error)
            return None
        return far.id, far.count

    def tell(self, own_address: str, kind: int, *fields: Any) -> None:
        """Send a control message; it is dropped where many wait already."""
        data = msgpack.packb((VERSION, self.endpoint.identity, kind, own_address, *fields))
        with self._lock:
            if self._control is not None:
                try:
                    self._control.send(data, zmq.DONTWAIT)
                except zmq.ZMQError as error:
                    _log.debug("no control message to %s: %s", self.endpoint, error)

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            if self._data is not None:
                self._data.close()
            if self._datagrams is not None:
                self._datagrams.close()
            if self._control is not None:
                self._control.close(0 if self.silent else _FAREWELL_MS)
            self._data = self._control = self._datagrams = None


class Peers:
    """All of them, by address."""

    def __init__(self, sockets: Sockets, store: Store) -> None:
        self._sockets = sockets
        self._store = store
        #: What is held back for them.
        self.held = Held()
        self._peers: dict[str, Peer] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __iter__(self) -> Iterator[Peer]:
        with self._lock:
            return iter(list(self._peers.values()))

    def find(self, address: str) -> Peer | None:
        """Return the peer of an address that was met."""
        return self._peers.get(address)

    def meet(self, address: str, now_s: float) -> tuple[Peer, bool] | None:
        """Return the peer of an address, and whether it is new; None once closed.

        Raises BlobError: it is no address; ClusterError: it cannot be reached from here.
        """
        with self._lock:
            peer = self._peers.get(address)
            if peer is not None:
                return peer, False
            if self._closed:
                return None
            endpoint = to_endpoint(address)
            peer = Peer(address, endpoint, self._sockets, self._store, now_s, self.held)
            self._peers[address] = peer
            return peer, True

    def forget(self, address: str) -> None:
        """Close what leads to an address."""
        with self._lock:
            peer = self._peers.pop(address, None)
        if peer is not None:
            peer.close()

    def close(self) -> None:
        """Close all, and meet nobody any more."""
        with self._lock:
            self._closed = True
            peers = list(self._peers.values())
            self._peers.clear()
        for peer in peers:
            peer.close()


def _connected(path: str) -> socket.socket | None:
    """Return a socket that sends datagrams to a path; None if nobody receives them there."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        made.connect(path)
    except OSError:
        made.close()
        return None
    return made
