"""The parties that a direct channel sends to, and what waits to be sent to them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import zmq
from msgspec.msgpack import encode

from hetero.devices.errors import BlobError, ClusterError
from hetero.scheduler.channels.direct_address import Endpoint, to_endpoint
from hetero.scheduler.channels.envelope import INLINE_NBYTES, MessageWriter
from hetero.scheduler.channels.inbox import MOST_DATAGRAM_NBYTES
from hetero.scheduler.channels.links import Outgoing
from hetero.scheduler.channels.protocol import (
    GONE,
    MARK,
    MARK_NUMBER,
    PREFIX,
    TOGETHER,
    Drop,
    Said,
    control_message,
)
from hetero.scheduler.channels.shared_memory import Place, Slot, SlotPool
from hetero.scheduler.channels.sockets import MOST_FRAME_NBYTES, ControlSockets, Socket, Sockets
from hetero.scheduler.channels.stamps import StampReader
from hetero.scheduler.vocabulary.messages import Message

_log = logging.getLogger(__name__)

#: From here on a slot of shared memory is faster than a datagram: see `benchmarks.channels`.
SHARED_NBYTES: Final = 64 * 1024
#: Bytes of dropped requests that go together: with the sender's address a control message still.
_MOST_DROPPED_NBYTES: Final = 32 * 1024
#: With so many parties, further ones are not met for their beats alone: each is beaten to in turn.
_MOST_STRANGERS: Final = 4096
#: Bytes of messages that go together: with the lengths they are a datagram still.
_MOST_HELD_NBYTES: Final = MOST_DATAGRAM_NBYTES // 2
#: Measurements of a clock that are kept.
_SAMPLES: Final = 16


class Peer:
    """One party that is sent to.

    What is about liveness is the control thread's; `silent` is read by all. Data and control
    messages have a lock each: however long a tensor takes, beats do not wait for it.

    `near`, `far`: the links by datagrams, which lose nothing, and by ZeroMQ, which sends again what
        a broken connection has lost.
    """

    def __init__(self, address: str, endpoint: Endpoint, peers: Peers, now_s: float) -> None:
        if not endpoint.data_url:
            raise ClusterError(
                f"{endpoint} is on another node and listens on its own only: give its channel "
                "the node's network address."
            )
        self.address = address
        self.endpoint = endpoint
        self._identity = endpoint.identity
        self._process = endpoint.process
        self.near = Outgoing(os.urandom(8))
        self.far = Outgoing(os.urandom(8))
        #: How many messages were dropped as it was silent, and of how many that was told.
        self.num_dropped = self.num_told = 0
        self.watched = False
        self.silent = False
        #: Whether whoever watches it was told that it is silent.
        self.told = False
        #: Whether the end of its process is waited for, or has come.
        self.guarded = False
        #: Whether its connection has to be made anew: a cut link's may hang for long.
        self.renew = False
        #: Whether a beat of its is to be answered; and up to which of our far link's messages came,
        #: as it has said.
        self.owed = False
        self.acked = 0
        #: Its own far link, and what had gone on ours when it was heard last.
        self.link = b""
        self.sent = 0
        self.heard_s = now_s
        #: When it said itself that it is there, by its stamp, or by a beat that shows that it hears
        #: us; and how it is, as it has said.
        self.said_s = -math.inf
        self.packed_status = b""
        #: Its stamp, once somebody has looked; it is not looked at once it has left, or ended.
        self.stamp: StampReader | None = None
        self.has_left = False
        #: When there was nothing to say to it of the links.
        self.idle_s = -math.inf
        #: When others said that it is there, and to it that we are; and when they did so as it asks
        #: them for us, and for more parties than we would ask for.
        self.covered_s = self.outranks_s = -math.inf
        #: When it asked us last to be its relay, and for which parties.
        self.asked_s = -math.inf
        self.asked: set[str] = set()
        self.status: Mapping[str, float] = {}
        self.lost = 0
        #: Its clock at its last beat, and ours then.
        self.beat_s: tuple[float, float] | None = None
        #: (round trip, its clock less ours) of late.
        self.clocks: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._lock = threading.Lock()
        self._closed = False
        self._peers = peers
        self._put = self._fill if endpoint.is_near else None
        self._filled: list[tuple[Slot, int]] = []
        # What is smaller travels in the head: one datagram.
        near_nbytes = min(peers.shared_nbytes or SHARED_NBYTES, SHARED_NBYTES)
        self._writer = MessageWriter(near_nbytes if endpoint.is_near else INLINE_NBYTES)
        self._data: Socket | None = None
        self._datagrams: socket.socket | None = None
        self._near = endpoint.is_near
        self._telling = threading.Lock()
        #: What found no room.
        self._untold: deque[Said] = deque()
        #: What waits to go together, and its bytes.
        self._waiting: list[bytes] = []
        self._waiting_nbytes = 0

    def send(self, message: Message) -> None:
        """Send a message; it is dropped where the party is silent.

        Raises TypeError, BlobError: it cannot be sent.
        """
        with self._lock:
            if self.silent or self._closed:
                self.num_dropped += 1
                return
            sent = None
            try:
                sent = self._send(message)
            finally:
                if self._filled:
                    self._peers.pool.sent(self._filled, sent)
                    self._filled = []

    def _send(self, message: Message) -> tuple[bytes, int] | None:
        near = self.near
        if self._near and self._datagrams is None:
            self._datagrams = _connected(self.endpoint.datagram_path)
        frames = self._writer.frames(message, self._put)
        datagrams, head = self._datagrams, frames[0]
        if datagrams is None or len(frames) > 1:
            return self._send_far(frames)
        if self._peers.holder == threading.get_ident() and not self._filled:
            self._hold(head)
            return None
        if len(head) <= MOST_DATAGRAM_NBYTES - PREFIX.size:
            near.count += 1  # first: where Ctrl-C comes next, it is missed, and not a double
            try:
                datagrams.sendmsg((PREFIX.pack(self._identity, near.id, near.count, 0), head))
            except OSError:  # no room, or nobody there
                near.count -= 1
            else:
                return near.id, near.count
        return self._send_far(frames)

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

    def came(self, number: int) -> None:
        """Take in that messages up to `number` came by ZeroMQ, unless somebody sends now.

        Where more had to have come, say so on the data's own way.
        """
        with self._unless_sending() as is_free:
            if is_free:
                far = self.far
                far.came(number)
                if number < self.sent:  # it had a beat's time to come
                    far.num_marks += 1
                    mark = MARK_NUMBER.pack(far.num_marks)
                    head = PREFIX.pack(self._identity, far.id, far.count, MARK)
                    self._connection().send(head + mark, zmq.DONTWAIT)
                self.sent = far.count

    def send_again(self, mark: int, numbers: list[int]) -> None:
        """Send what did not come by ZeroMQ before a mark did, unless somebody sends now."""
        with self._unless_sending() as is_free:
            for number in numbers if is_free else ():
                frames = self.far.again(number, mark)
                if frames is None:
                    frames = [PREFIX.pack(self._identity, self.far.id, number, GONE)]
                if frames:
                    self._connection().send_multipart(frames, zmq.DONTWAIT, copy=False)

    @contextlib.contextmanager
    def _unless_sending(self) -> Iterator[bool]:
        """Hold the lock, if it is free and the party heard; what fails is done again later."""
        is_free = self._lock.acquire(blocking=False)
        try:
            with contextlib.suppress(zmq.ZMQError):
                yield is_free and not (self.silent or self._closed)
        finally:
            if is_free:
                self._lock.release()

    def _send_waiting(self) -> None:
        waiting, self._waiting, self._waiting_nbytes = self._waiting, [], 0
        if self.silent or self._datagrams is None:
            self.num_dropped += len(waiting)
            return
        near = self.near
        prefix = PREFIX.pack(self._identity, near.id, near.count + 1, TOGETHER)
        try:
            self._datagrams.send(prefix + encode(waiting))
        except OSError:  # no room, or nobody there
            for packed in waiting:
                self._send_far([packed])
        else:
            near.count += 1

    def _fill(self, flat: np.ndarray) -> Place | None:
        """Put contents into shared memory, if they are large enough and there is room."""
        least = self._peers.shared_nbytes
        if least is None or flat.nbytes < least:
            return None
        slot = self._peers.pool.fill(flat, self._process)
        if slot is None:
            return None
        self._filled.append((slot, slot.generation))
        return slot.place

    def _send_far(self, frames: list[Any]) -> tuple[bytes, int] | None:
        far = self.far
        if (most := max(map(len, frames))) > MOST_FRAME_NBYTES:
            raise BlobError(
                f"a tensor of {most} bytes for {self.endpoint}: between nodes one has at most "
                f"{MOST_FRAME_NBYTES}. Split it, or put both stages on one node."
            )
        far.count += 1
        prefix = PREFIX.pack(self._identity, far.id, far.count, len(frames) - 1)
        frames[0] = prefix + frames[0]
        if not self._near:
            far.keep(frames)
        try:
            connection = self._connection()
            if len(frames) == 1:
                connection.send(frames[0], zmq.DONTWAIT)
            else:
                connection.send_multipart(frames, zmq.DONTWAIT, copy=False)
        except zmq.ZMQError as error:
            raise ClusterError(
                f"nothing can be sent to {self.endpoint}: {error}. If descriptors have run out, "
                "raise the limit (ulimit -n).",
                cause=str(error),
            ) from error
        return far.id, far.count

    def _connection(self) -> Socket:
        if self._data is not None and self.renew:
            self._data.close()
            self._data = None
        self.renew = False
        if self._data is None:
            data = self._peers.sockets.socket(zmq.PUSH)
            self._peers.sockets.connect(data, self.endpoint.data_url, self.endpoint.key)
            self._data = data
        return self._data

    def tell(self, said: Said) -> None:
        """Send a control message, now or once there is room."""
        with self._telling:
            self._untold.append(said)
            self._tell()

    def drop(self, request: bytes) -> None:
        """Tell that nobody waits for a request any more."""
        with self._telling:
            last = self._untold[-1] if self._untold else None
            if isinstance(last, Drop) and sum(map(len, last.requests)) < _MOST_DROPPED_NBYTES:
                last.requests.append(request)
            else:
                self._untold.append(Drop([request]))
            self._tell()

    def say(self, said: Said) -> None:
        """Send what had no room, and this; without room it is dropped: a later one will do."""
        with self._telling:
            if self._tell():
                self._sent(said)

    @property
    def is_untold(self) -> bool:
        """Whether it has yet to hear something that found no room."""
        return bool(self._untold)

    def _tell(self) -> bool:
        """Send what waits, as far as there is room; return whether all has gone."""
        while self._untold:
            if not self._sent(self._untold[0]):
                return False
            self._untold.popleft()
        return True

    def _sent(self, said: Said) -> bool:
        data = control_message(said, self._identity, self._peers.own)
        return self._peers.control.send(self.endpoint, data)

    def close_stamp(self) -> None:
        """Look at its stamp no more."""
        if self.stamp is not None:
            self.stamp.close()
            self.stamp = None

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._closed = True
            if self._data is not None:
                self._data.close()
            if self._datagrams is not None:
                self._datagrams.close()
            self._data = self._datagrams = None
        self._peers.control.forget(self.endpoint)


class Peers:
    """All of them, by address, and what they share.

    `own`: the channel's own address.
    `pool`, `shared_nbytes`: where large tensors for parties on this node go, and from which size
        on; None: never.
    """

    def __init__(
        self,
        own: str,
        sockets: Sockets,
        control: ControlSockets,
        pool: SlotPool,
        shared_nbytes: int | None,
    ) -> None:
        self.own = own
        self.sockets = sockets
        self.control = control
        self.pool = pool
        self.shared_nbytes = shared_nbytes
        #: By the addresses of those that were met, and by their identities.
        self.met: dict[str, Peer] = {}
        self.by_identity: dict[bytes, Peer] = {}
        #: Those that have had no beat yet.
        self.new: deque[Peer] = deque()
        #: Which thread's messages are held back, and for whom: what follows soon goes with them.
        self.holder: int | None = None
        self.held: list[Peer] = []
        self._lock = threading.Lock()
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

    def __iter__(self) -> Iterator[Peer]:
        with self._lock:
            return iter(list(self.met.values()))

    def meet(self, address: str, now_s: float, *, stranger: bool = False) -> Peer | None:
        """Return the peer of an address; None once closed.

        `stranger`: its beats alone make it known; None where there are very many of those.

        Raises BlobError: it is no address; ClusterError: it cannot be reached from here.
        """
        with self._lock:
            peer = self.met.get(address)
            if peer is not None:
                return peer
            if self._closed:
                return None
            if stranger and len(self.met) >= _MOST_STRANGERS:
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

    def close(self) -> None:
        """Close all, and meet nobody any more."""
        with self._lock:
            self._closed = True
            peers = list(self.met.values())
            self.met.clear()
        for peer in peers:
            peer.close()


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
