"""Peers that a direct channel sends to: their connections, queued messages and liveness."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import zmq

from hetero.devices.errors import BlobError, ClusterError
from hetero.devices.plugin.program import Value
from hetero.scheduler.channels.addresses import Endpoint, to_endpoint
from hetero.scheduler.channels.connections import Connections
from hetero.scheduler.channels.envelope import INLINE_NBYTES, MessageWriter
from hetero.scheduler.channels.lane import LaneHead, pack_message
from hetero.scheduler.channels.local import MAX_PACKET_NBYTES, LocalLink, LocalLinks, hello
from hetero.scheduler.channels.protocol import PREFIX
from hetero.scheduler.channels.shared_memory import Place, Slot, SlotPool
from hetero.scheduler.channels.sockets import MAX_FRAME_NBYTES
from hetero.scheduler.types.messages import Message

#: Default size from which shared memory is faster than a packet: see `benchmarks.channels`.
SHARED_NBYTES: Final = 64 * 1024
#: Maximum size of corked messages; together with their lengths they fit into one packet.
_MAX_CORKED_NBYTES: Final = MAX_PACKET_NBYTES // 2
#: Number of recent measurements of a peer's clock.
_NUM_SAMPLES: Final = 16


@dataclass(slots=True)
class Health:
    """Liveness of a peer; only the control thread writes it.

    `heard_s`: time of the last status; after a failure, the latest possible time of contact.
    `is_live`: whether a status has arrived since the last failure.
    `num_waits`: number of heartbeats for which the first connection is pending.
    `is_reported`, `is_end_reported`: whether `on_suspected` or `on_ended` has been called.
    `num_unanswered`: number of status requests since the last status.
    `status`: values of the last status.
    `num_lost`: identity -> number of messages that the peer has lost, by the last status.
    `clocks`: recent (round trip, peer's clock minus own clock).
    """

    heard_s: float
    is_live: bool = False
    num_waits: int = 0
    is_reported: bool = False
    is_end_reported: bool = False
    num_unanswered: int = 0
    status: Mapping[str, float] = field(default_factory=dict)
    num_lost: Mapping[bytes, int] = field(default_factory=dict)
    clocks: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))


class Peer:
    """One peer.

    `is_local`: whether it is on this node.
    `is_suspected`: whether it cannot be reached; messages to it are dropped and counted.
    `has_ended`: whether its channel has ended; it stays suspected.
    `is_watched`: whether callbacks report its liveness.
    `is_polled`: whether its status is requested once a second.
    `may_lose`: whether messages sent since the last loss would be lost with the connection.
    `num_dropped`, `num_counted`: number of dropped messages, and of those counted as lost.
    `dropped_requests`: encoded `Dropped` messages that are still to be sent.

    Raises ClusterError: it is on another node, and either channel has no network address.
    """

    def __init__(self, address: str, endpoint: Endpoint, peers: Peers, now_s: float) -> None:
        if not (endpoint.is_local or (endpoint.data_url and peers.remote)):
            raise ClusterError(
                f"{endpoint} is on another node; expected both channels to have a network address. "
                "Create them with the address of their node (host)."
            )
        self.address = address
        self.endpoint = endpoint
        self.health = Health(now_s)
        self.is_local = endpoint.is_local
        self.is_suspected = self.has_ended = False
        self.is_watched = self.is_polled = False
        self.may_lose = False
        self.num_dropped = self.num_counted = 0
        self.dropped_requests: deque[bytes] = deque()
        self._identity = endpoint.identity
        self._own_identity = to_endpoint(peers.own_address).identity
        self._process = endpoint.process
        self._lock = threading.Lock()
        self._closed = False
        self._peers = peers
        self._put = self._fill_slot if self.is_local else None
        #: Slots of the message that is being sent, with their generations.
        self._slots: list[tuple[Slot, int]] = []
        # Smaller tensors travel in the head of a message, so that it fits into one packet.
        local_nbytes = min(peers.shared_nbytes or SHARED_NBYTES, SHARED_NBYTES)
        self._writer = MessageWriter(local_nbytes if self.is_local else INLINE_NBYTES)
        self._link: LocalLink | None = None
        self._corked: list[bytes] = []
        self._corked_nbytes = 0

    def send(self, message: Message) -> None:
        """Send a message; drop it if the peer is suspected.

        Raises TypeError, BlobError: the message cannot be encoded.
        Raises ClusterError: the process has run out of descriptors.
        """
        with self._lock:
            if self.is_suspected or self._closed:
                self.num_dropped += 1
                return
            is_sent = False
            try:
                self._send(message)
                is_sent = True
            finally:
                if self._slots:
                    self._end_filling(is_sent)

    def _send(self, message: Message) -> None:
        frames = self._writer.frames(message, self._put)
        if not self.is_local:
            self._send_remote(frames)
        elif (
            self._peers.corking_thread == threading.get_ident()
            and len(frames) == 1
            and not self._slots
        ):
            self._cork(frames[0])
        else:
            (self._link or self._connect()).send(frames)

    def send_lane(self, head: LaneHead, timings: bytes, tensors: Sequence[Value]) -> bool:
        """Send a packed message to a local peer; return False if it has to go as a `Message`."""
        if not self.is_local:
            return False
        with self._lock:
            if self.is_suspected or self._closed:
                return False
            is_sent = False
            try:
                parts = pack_message(head, timings, tensors, self._fill_slot)
                if parts is None:
                    return False
                corking_thread = self._peers.corking_thread
                if corking_thread and corking_thread == threading.get_ident() and not self._slots:
                    self._cork(b"".join(parts))
                else:
                    link = self._link or self._connect()
                    if not link.try_send(parts):
                        link.send([b"".join(parts)])  # a copy: the tensors' memory may be reused
                is_sent = True
            finally:
                if self._slots:
                    self._end_filling(is_sent)
            return True

    def _end_filling(self, is_sent: bool) -> None:
        """Free the slots of a message that was not sent."""
        if not is_sent:
            self._peers.pool.take_back(self._slots)
        self._slots = []

    def _cork(self, head: bytes) -> None:
        if self._corked and self._corked_nbytes + len(head) > _MAX_CORKED_NBYTES:
            self._send_corked()
        if not self._corked:
            self._peers.corked.append(self)
        self._corked.append(head)
        self._corked_nbytes += len(head)

    def uncork(self, *, wait: bool = True) -> None:
        """Send corked messages.

        `wait`: whether to wait for a thread that is sending to this peer.
        """
        if self._corked and self._lock.acquire(blocking=wait):
            try:
                if self._corked:
                    self._send_corked()
            finally:
                self._lock.release()

    def _send_corked(self) -> None:
        messages, self._corked, self._corked_nbytes = self._corked, [], 0
        if self.is_suspected or self._closed:
            self.num_dropped += len(messages)
        elif len(messages) == 1:
            (self._link or self._connect()).send(messages)
        else:
            (self._link or self._connect()).send_together(messages)

    def _fill_slot(self, flat: np.ndarray) -> Place | None:
        """Copy a large tensor to shared memory; return None if it is small, or no slot is free."""
        min_nbytes = self._peers.shared_nbytes
        if min_nbytes is None or flat.nbytes < min_nbytes:
            return None
        slot = self._peers.pool.fill(flat, self._process, self._identity)
        if slot is None:
            return None
        self._slots.append((slot, slot.generation))
        return slot.place

    def _send_remote(self, frames: list[Any]) -> None:
        if (nbytes := max(map(len, frames))) > MAX_FRAME_NBYTES:
            raise BlobError(
                f"tensor of {nbytes} bytes for {self.endpoint}: expected at most "
                f"{MAX_FRAME_NBYTES} bytes between nodes. Split the tensor, or place both stages "
                "on one node."
            )
        frames[0] = PREFIX.pack(self._identity, self._own_identity, len(frames) - 1) + frames[0]
        try:
            self._peers.send_remote(self, frames, copy=len(frames) == 1)
        except zmq.ZMQError as error:
            raise self._send_error(error) from error

    def connect(self) -> None:
        """Connect to a local peer, unless another thread does so.

        Raises ClusterError: the process has run out of descriptors.
        """
        if self._lock.acquire(blocking=False):  # otherwise a thread is sending, and connects
            try:
                if self._link is None and not self._closed:
                    self._connect()
            finally:
                self._lock.release()

    def _connect(self) -> LocalLink:
        peers, first = self._peers, hello(self._identity, self._own_identity)
        try:
            self._link = LocalLink(self.endpoint.local_path, first, peers.local, self._note_end)
        except OSError as error:
            raise self._send_error(error) from error
        return self._link

    def _note_end(self) -> None:
        self._peers.disconnected.append(self)
        self._peers.wake()

    def _send_error(self, error: Exception) -> ClusterError:
        return ClusterError(
            f"no message can be sent to {self.endpoint}: {error}. If the process has run out of "
            "descriptors, raise their limit (ulimit -n).",
            cause=str(error),
        )

    def flush(self) -> None:
        """Send queued packets to a local peer until its buffer is full."""
        if self._link is not None:
            self._link.flush()

    def drop_request(self, message: bytes) -> None:
        """Queue an encoded `Dropped` message for the control thread."""
        self.dropped_requests.append(message)
        self._peers.dropping.append(self)
        self._peers.wake()

    def close(self) -> None:
        """Close the connection, and send nothing more."""
        with self._lock:
            self._closed = True
            if self._link is not None:
                self._link.close()


class Peers:
    """All peers of a channel, and the resources that they share.

    `own_address`: address of this channel.
    `wake`: wakes the control thread.
    `remote`: data connections to other nodes; None if this channel has no network address.
    `pool`: shared memory for large tensors to local peers.
    `shared_nbytes`: size from which tensors use it; None disables it.
    """

    def __init__(
        self,
        own_address: str,
        wake: Callable[[], object],
        remote: Connections | None,
        pool: SlotPool,
        shared_nbytes: int | None,
    ) -> None:
        self.own_address = own_address
        self.wake = wake
        self.remote = remote
        self.local = LocalLinks()
        self.pool = pool
        self.shared_nbytes = shared_nbytes
        self.by_address: dict[str, Peer] = {}
        self.by_identity: dict[bytes, Peer] = {}
        #: Queues for the control thread: peers to connect to, peers whose connection has ended,
        #: and peers with dropped requests (possibly more than once).
        self.unconnected: deque[Peer] = deque()
        self.disconnected: deque[Peer] = deque()
        self.dropping: deque[Peer] = deque()
        #: The thread whose messages are corked, and the peers with corked messages.
        self.corking_thread: int | None = None
        self.corked: list[Peer] = []
        self._lock = threading.Lock()
        self._remote_lock = threading.Lock()
        self._closed = False

    def cork(self) -> None:
        """Start buffering the messages of the calling thread."""
        self.corking_thread = threading.get_ident()

    def uncork(self) -> None:
        """Send the buffered messages and stop buffering."""
        self.corking_thread = None
        corked, self.corked = self.corked, []
        for peer in corked:
            peer.uncork()

    def send_remote(self, peer: Peer, frames: list[Any], copy: bool) -> None:
        """Send frames to a peer on another node."""
        endpoint = peer.endpoint
        with self._remote_lock:
            if self.remote is None or self._closed:
                return
            if endpoint.identity not in self.remote:
                self.remote.connect(endpoint.identity, endpoint.data_url, endpoint.key)
            peer.may_lose = True
            self.remote.send(endpoint.identity, frames, copy=copy)

    def reconnect(self, peer: Peer) -> None:
        """Replace the data connection to a peer on another node."""
        if self.remote is not None and not peer.is_local:
            with self._remote_lock:
                self.remote.reconnect(peer.endpoint.identity)

    def __iter__(self) -> Iterator[Peer]:
        with self._lock:
            return iter(list(self.by_address.values()))

    def add(self, address: str, now_s: float) -> Peer | None:
        """Return the peer of an address, new if it is not known; None if the channel is closed.

        Raises BlobError: the address is invalid.
        Raises ClusterError: the peer cannot be reached from this node.
        """
        with self._lock:
            peer = self.by_address.get(address)
            if peer is not None:
                return peer
            if self._closed:
                return None
            peer = Peer(address, to_endpoint(address), self, now_s)
            self.by_address[address] = self.by_identity[peer.endpoint.identity] = peer
            self.unconnected.append(peer)
        self.wake()
        return peer

    def forget(self, address: str) -> None:
        """Remove a peer, and close its data connection."""
        with self._lock:
            peer = self.by_address.pop(address, None)
        if peer is not None:
            self.by_identity.pop(peer.endpoint.identity, None)
            peer.close()
            if self.remote is not None:
                with self._remote_lock:
                    self.remote.disconnect(peer.endpoint.identity)

    def close(self) -> None:
        """Close all connections, and add no more peers."""
        with self._lock:
            self._closed = True
            peers = list(self.by_address.values())
            self.by_address.clear()
        for peer in peers:
            peer.close()
        self.local.close()
        if self.remote is not None:
            with self._remote_lock:
                self.remote.close()
