"""The parties that a direct channel sends to, and what waits to be sent to them."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import zmq
from msgspec.msgpack import encode

from hetero.devices.errors import BlobError, ClusterError
from hetero.scheduler.channels.connections import Connections
from hetero.scheduler.channels.direct_address import Endpoint, to_endpoint
from hetero.scheduler.channels.envelope import INLINE_NBYTES, MessageWriter
from hetero.scheduler.channels.inbox import MOST_DATAGRAM_NBYTES
from hetero.scheduler.channels.protocol import PREFIX, TOGETHER
from hetero.scheduler.channels.shared_memory import Place, Slot, SlotPool
from hetero.scheduler.channels.sockets import MOST_FRAME_NBYTES, Socket, Sockets
from hetero.scheduler.vocabulary.messages import Message

#: From here on a slot of shared memory is faster than a datagram: see `benchmarks.channels`.
SHARED_NBYTES: Final = 64 * 1024
#: Bytes of messages that go together: with the lengths they are a datagram still.
_MOST_HELD_NBYTES: Final = MOST_DATAGRAM_NBYTES // 2
#: Measurements of a clock that are kept.
_SAMPLES: Final = 16


@dataclass(slots=True)
class Health:
    """What is known of a peer's liveness; the control thread writes it.

    `heard_s`: when it answered last, was met, or can have been heard at the latest.
    `is_live`: whether it has answered since it was met, or suspected.
    `num_waits`: heartbeats that its first connection has been waited for.
    `is_reported`, `is_end_reported`: whether whoever watches it knows that it is suspected; ended.
    `num_unanswered`: requests for its status since its last answer.
    `status`: the numbers in its last answer.
    `lost`: identity -> messages that it has lost of its party, as it said last.
    `clocks`: (round trip, its clock less ours) of late.
    """

    heard_s: float
    is_live: bool = False
    num_waits: int = 0
    is_reported: bool = False
    is_end_reported: bool = False
    num_unanswered: int = 0
    status: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[bytes, int] = field(default_factory=dict)
    clocks: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))


class Peer:
    """One party that is sent to; its `health` is the control thread's.

    `is_near`: whether it is on this node.
    `is_suspected`: whether it cannot be reached: what is sent is dropped, and counted.
    `has_ended`: whether that is so for good.
    `watched`: whether somebody is to know of that; `polled`: and of its status, once a second.
    `may_lose`: whether what was sent is lost if its connection ends.
    """

    def __init__(self, address: str, endpoint: Endpoint, peers: Peers, now_s: float) -> None:
        if not endpoint.data_url or not (endpoint.is_near or peers.remote):
            raise ClusterError(
                f"{endpoint} is on another node, and it or this party listens on its own only: "
                "give both channels their nodes' network addresses."
            )
        self.address = address
        self.endpoint = endpoint
        self.health = Health(now_s)
        self.is_suspected = self.has_ended = False
        self.watched = self.polled = False
        self.may_lose = False
        #: Messages that were dropped, and those of them that were counted as lost.
        self.num_dropped = self.num_counted = 0
        #: Requests that nobody waits for any more, yet to be sent.
        self.drops: deque[bytes] = deque()
        #: Whether the end of its process is waited for, or has come.
        self.guarded = False
        self._identity = endpoint.identity
        self._process = endpoint.process
        self._lock = threading.Lock()
        self._closed = False
        self._peers = peers
        self._sender = to_endpoint(peers.own).identity
        self._put = self._fill if endpoint.is_near else None
        self._filled: list[tuple[Slot, int]] = []
        # What is smaller travels in the head: one datagram.
        near_nbytes = min(peers.shared_nbytes or SHARED_NBYTES, SHARED_NBYTES)
        self._writer = MessageWriter(near_nbytes if endpoint.is_near else INLINE_NBYTES)
        self._data: Socket | None = None
        self._datagrams: socket.socket | None = None
        self.is_near = endpoint.is_near
        #: What waits to go together, and its bytes.
        self._waiting: list[bytes] = []
        self._waiting_nbytes = 0

    def send(self, message: Message) -> None:
        """Send a message; it is dropped where the party is suspected.

        Raises TypeError, BlobError: it cannot be sent.
        """
        with self._lock:
            if self.is_suspected or self._closed:
                self.num_dropped += 1
                return
            has_gone = False
            try:
                self._send(message)
                has_gone = True
            finally:
                if self._filled:
                    if not has_gone:
                        self._peers.pool.take_back(self._filled)
                    self._filled = []

    def _send(self, message: Message) -> None:
        if self.is_near and self._datagrams is None:
            self._datagrams = _connected(self.endpoint.datagram_path)
        frames = self._writer.frames(message, self._put)
        datagrams, head = self._datagrams, frames[0]
        if datagrams is None or len(frames) > 1:
            self._send_far(frames)
            return
        if self._peers.holder == threading.get_ident() and not self._filled:
            self._hold(head)
            return
        if len(head) <= MOST_DATAGRAM_NBYTES - PREFIX.size:
            try:
                datagrams.sendmsg((self._head(0), head))
            except OSError:  # no room, or nobody there
                pass
            else:
                return
        self._send_far(frames)

    def _head(self, num_more: int) -> bytes:
        return PREFIX.pack(self._identity, self._sender, num_more)

    def _hold(self, packed: bytes) -> None:
        if self._waiting and self._waiting_nbytes + len(packed) > _MOST_HELD_NBYTES:
            self._send_waiting()
        if not self._waiting:
            self._peers.held.append(self)
        self._waiting.append(packed)
        self._waiting_nbytes += len(packed)

    def send_held(self, *, wait: bool = True) -> None:
        """Send what waits to go together; `wait`: even if somebody else sends now."""
        if self._waiting and self._lock.acquire(blocking=wait):
            try:
                if self._waiting:
                    self._send_waiting()
            finally:
                self._lock.release()

    def _send_waiting(self) -> None:
        waiting, self._waiting, self._waiting_nbytes = self._waiting, [], 0
        if self.is_suspected or self._datagrams is None:
            self.num_dropped += len(waiting)
            return
        try:
            self._datagrams.send(self._head(TOGETHER) + encode(waiting))
        except OSError:  # no room, or nobody there
            for packed in waiting:
                self._send_far([packed])

    def _fill(self, flat: np.ndarray) -> Place | None:
        """Put contents into shared memory, if they are large enough and there is room."""
        least = self._peers.shared_nbytes
        if least is None or flat.nbytes < least:
            return None
        slot = self._peers.pool.fill(flat, self._process, self._identity)
        if slot is None:
            return None
        self._filled.append((slot, slot.generation))
        return slot.place

    def _send_far(self, frames: list[Any]) -> None:
        if (most := max(map(len, frames))) > MOST_FRAME_NBYTES:
            raise BlobError(
                f"a tensor of {most} bytes for {self.endpoint}: between nodes one has at most "
                f"{MOST_FRAME_NBYTES}. Split it, or put both stages on one node."
            )
        frames[0] = self._head(len(frames) - 1) + frames[0]
        copy = len(frames) == 1
        try:
            if self.is_near:
                self._connection().send_multipart(frames, zmq.DONTWAIT, copy=copy)
            else:
                self._peers.send_remote(self, frames, copy)
        except zmq.ZMQError as error:
            raise ClusterError(
                f"nothing can be sent to {self.endpoint}: {error}. If descriptors have run out, "
                "raise the limit (ulimit -n).",
                cause=str(error),
            ) from error

    def _connection(self) -> Socket:
        if self._data is None:
            data = self._peers.sockets.socket(zmq.PUSH)
            self._peers.sockets.connect(data, self.endpoint.data_url, self.endpoint.key)
            self._data = data
        return self._data

    def drop(self, request: bytes) -> None:
        """Tell that nobody waits for a request any more."""
        self.drops.append(request)
        self._peers.dropping.append(self)

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._closed = True
            if self._data is not None:
                self._data.close()
            if self._datagrams is not None:
                self._datagrams.close()
            self._data = self._datagrams = None


class Peers:
    """All of them, by address, and what they share.

    `own`: the channel's own address.
    `remote`: the data connections to parties on other nodes; None: none can be reached.
    `pool`, `shared_nbytes`: where large tensors for parties on this node go, and from which size
        on; None: never.
    """

    def __init__(
        self,
        own: str,
        sockets: Sockets,
        remote: Connections | None,
        pool: SlotPool,
        shared_nbytes: int | None,
    ) -> None:
        self.own = own
        self.sockets = sockets
        self.remote = remote
        self.pool = pool
        self.shared_nbytes = shared_nbytes
        #: By the addresses of those that were met, and by their identities.
        self.met: dict[str, Peer] = {}
        self.by_identity: dict[bytes, Peer] = {}
        #: Those that are not connected to yet; those with drops to be sent, maybe several times.
        self.new: deque[Peer] = deque()
        self.dropping: deque[Peer] = deque()
        #: Which thread's messages are held back, and for whom: what follows soon goes with them.
        self.holder: int | None = None
        self.held: list[Peer] = []
        self._lock = threading.Lock()
        self._remote_lock = threading.Lock()
        self._closed = False

    def hold(self) -> None:
        """Hold back the calling thread's messages."""
        self.holder = threading.get_ident()

    def let_go(self) -> None:
        """Send them, and hold back none."""
        self.holder = None
        held, self.held = self.held, []
        for peer in held:
            peer.send_held()

    def send_remote(self, peer: Peer, frames: list[Any], copy: bool) -> None:
        """Send frames to a peer on another node."""
        endpoint = peer.endpoint
        with self._remote_lock:
            if self.remote is None or self._closed:
                return
            if not self.remote.knows(endpoint.identity):
                self.remote.connect(endpoint.identity, endpoint.data_url, endpoint.key)
            peer.may_lose = True
            self.remote.send(endpoint.identity, frames, copy=copy)

    def renew(self, peer: Peer) -> None:
        """Make a peer's data connection anew, if it is on another node."""
        if self.remote is not None and not peer.is_near:
            with self._remote_lock:
                self.remote.renew(peer.endpoint.identity)

    def __iter__(self) -> Iterator[Peer]:
        with self._lock:
            return iter(list(self.met.values()))

    def meet(self, address: str, now_s: float) -> Peer | None:
        """Return the peer of an address; None once closed.

        Raises BlobError: it is no address; ClusterError: it cannot be reached from here.
        """
        with self._lock:
            peer = self.met.get(address)
            if peer is not None:
                return peer
            if self._closed:
                return None
            peer = Peer(address, to_endpoint(address), self, now_s)
            self.met[address] = self.by_identity[peer.endpoint.identity] = peer
            self.new.append(peer)
            return peer

    def forget(self, address: str) -> None:
        """Close what leads to an address."""
        with self._lock:
            peer = self.met.pop(address, None)
        if peer is not None:
            self.by_identity.pop(peer.endpoint.identity, None)
            peer.close()
            if self.remote is not None:
                with self._remote_lock:
                    self.remote.disconnect(peer.endpoint.identity)

    def close(self) -> None:
        """Close all, and meet nobody any more."""
        with self._lock:
            self._closed = True
            peers = list(self.met.values())
            self.met.clear()
        for peer in peers:
            peer.close()
        if self.remote is not None:
            with self._remote_lock:
                self.remote.close()


def _connected(path: str) -> socket.socket | None:
    """Return a socket that sends datagrams to a path; None if nobody receives them there."""
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    except OSError:  # for want of descriptors
        return None
    try:
        made.connect(path)
    except OSError:
        made.close()
        return None
    return made
