"""The parties that a direct channel sends to, and what waits to be sent to them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import zmq

from hetero.devices.errors import BlobError, ClusterError
from hetero.scheduler.channels.connections import Connections
from hetero.scheduler.channels.direct_address import Endpoint, to_endpoint
from hetero.scheduler.channels.envelope import INLINE_NBYTES, MessageWriter
from hetero.scheduler.channels.local import MOST_PACKET_NBYTES, LocalLink, LocalLinks, hello
from hetero.scheduler.channels.protocol import PREFIX
from hetero.scheduler.channels.shared_memory import Place, Slot, SlotPool
from hetero.scheduler.channels.sockets import MOST_FRAME_NBYTES
from hetero.scheduler.vocabulary.messages import Message

#: From here on a slot of shared memory is faster than a packet: see `benchmarks.channels`.
SHARED_NBYTES: Final = 64 * 1024
#: Bytes of messages that go together: with the lengths they are a packet still.
_MOST_HELD_NBYTES: Final = MOST_PACKET_NBYTES // 2
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
        if not (endpoint.is_near or (endpoint.data_url and peers.remote)):
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
        self._identity = endpoint.identity
        self._process = endpoint.process
        self._lock = threading.Lock()
        self._closed = False
        self._peers = peers
        self._sender = to_endpoint(peers.own).identity
        self._put = self._fill if endpoint.is_near else None
        self._filled: list[tuple[Slot, int]] = []
        # What is smaller travels in the head: one packet.
        near_nbytes = min(peers.shared_nbytes or SHARED_NBYTES, SHARED_NBYTES)
        self._writer = MessageWriter(near_nbytes if endpoint.is_near else INLINE_NBYTES)
        self._link: LocalLink | None = None
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
        frames = self._writer.frames(message, self._put)
        if not self.is_near:
            self._send_remote(frames)
        elif self._peers.holder == threading.get_ident() and len(frames) == 1 and not self._filled:
            self._hold(frames[0])
        else:
            (self._link or self._connect()).send(frames)

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
        if self.is_suspected or self._closed:
            self.num_dropped += len(waiting)
        elif len(waiting) == 1:
            (self._link or self._connect()).send(waiting)
        else:
            (self._link or self._connect()).send_together(waiting)

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

    def _send_remote(self, frames: list[Any]) -> None:
        if (most := max(map(len, frames))) > MOST_FRAME_NBYTES:
            raise BlobError(
                f"a tensor of {most} bytes for {self.endpoint}: between nodes one has at most "
                f"{MOST_FRAME_NBYTES}. Split it, or put both stages on one node."
            )
        frames[0] = PREFIX.pack(self._identity, self._sender, len(frames) - 1) + frames[0]
        try:
            self._peers.send_remote(self, frames, copy=len(frames) == 1)
        except zmq.ZMQError as error:
            raise self._unsent(error) from error

    def connect(self) -> None:
        """Connect to a party on this node, unless that is done.

        Raises ClusterError: there are no descriptors for it.
        """
        if self._lock.acquire(blocking=False):  # else somebody sends, and connects
            try:
                if self._link is None and not self._closed:
                    self._connect()
            finally:
                self._lock.release()

    def _connect(self) -> LocalLink:
        peers, first = self._peers, hello(self._identity, self._sender)
        try:
            self._link = LocalLink(self.endpoint.local_path, first, peers.local, self._note_end)
        except OSError as error:
            raise self._unsent(error) from error
        return self._link

    def _note_end(self) -> None:
        self._peers.ended.append(self)
        self._peers.wake()

    def _unsent(self, error: Exception) -> ClusterError:
        return ClusterError(
            f"nothing can be sent to {self.endpoint}: {error}. If descriptors have run out, raise "
            "the limit (ulimit -n).",
            cause=str(error),
        )

    def flush(self) -> None:
        """Send what waits for the other side, as far as there is room."""
        if self._link is not None:
            self._link.flush()

    def drop(self, request: bytes) -> None:
        """Tell that nobody waits for a request any more."""
        self.drops.append(request)
        self._peers.dropping.append(self)
        self._peers.wake()

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._closed = True
            if self._link is not None:
                self._link.close()


class Peers:
    """All of them, by address, and what they share.

    `own`: the channel's own address.
    `wake`: has the control thread look at what is new.
    `remote`: the data connections to parties on other nodes; None: none can be reached.
    `pool`, `shared_nbytes`: where large tensors for parties on this node go, and from which size
        on; None: never.
    """

    def __init__(
        self,
        own: str,
        wake: Callable[[], object],
        remote: Connections | None,
        pool: SlotPool,
        shared_nbytes: int | None,
    ) -> None:
        self.own = own
        self.wake = wake
        self.remote = remote
        self.local = LocalLinks()
        self.pool = pool
        self.shared_nbytes = shared_nbytes
        #: By the addresses of those that were met, and by their identities.
        self.met: dict[str, Peer] = {}
        self.by_identity: dict[bytes, Peer] = {}
        #: Those that are not connected to yet; whose connection has ended; with drops to be sent.
        self.new: deque[Peer] = deque()
        self.ended: deque[Peer] = deque()
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
        self.wake()
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
        self.local.close()
        if self.remote is not None:
            with self._remote_lock:
                self.remote.close()
