"""The direct channel: messages between processes over ZeroMQ, on one node or between nodes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import zmq

from hetero.devices.errors import BlobError
from hetero.scheduler.channels import envelope
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.control import Callbacks, Control
from hetero.scheduler.channels.direct_address import Endpoint, this_node, to_address
from hetero.scheduler.channels.inbox import Inbox
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.channels.peers import SHARED_NBYTES, Peer, Peers
from hetero.scheduler.channels.protocol import Leave
from hetero.scheduler.channels.shared_memory import SlotPool, SlotReader
from hetero.scheduler.channels.sockets import (
    ControlSockets,
    Sockets,
    check_room,
    socket_path,
    tcp_url,
)
from hetero.scheduler.processes.owned_files import process_start, remove_with
from hetero.scheduler.vocabulary.messages import Dropped, Message, Values

_log = logging.getLogger(__name__)


class DirectChannel:
    """A party's way to parties in other processes.

    What comes is received by whoever calls `pump`; liveness has a thread of its own, which calls
    the callbacks, and hands in `Dropped`: these overtake what was sent before. Callbacks must
    return quickly, and may use the channel, but for `close`.

    `receive`: takes the messages that come: in the threads that pump, and in the control thread.
    `folder`: where the sockets lie: for this user alone (mode 0700), at most 47 bytes. By default a
        folder of the user's among the temporary ones.
    `host`: this node's network address, for parties on other nodes; without it only those on this
        node reach the party.
    `curve`: whether what goes between nodes is encrypted, and taken only from those who know the
        secret. Without, a message takes about 0.8 of the time at 1 kB, a third at 10 MB.
    `secret`: what all parties of a cluster know, as CURVE's secret key in Z85: `zmq.curve_keypair`
        makes one. By default only this process's channels reach each other by the network.
    `shared_nbytes`: size from which on tensors for parties on this node go through shared memory;
        None: never.
    `pool_nbytes`: how much shared memory may be used, by default a quarter of ``/dev/shm``; what
        does not fit goes over the sockets.
    `beat_s`: seconds between two beats.
    `timeout_s`: silence after which a party is taken for lost.
    `on_silent`: called as ``on_silent(address, silent_s)``, once, when a watched party has been
        silent for the time-out; at once, with 0 seconds, when its process on this node has ended or
        its channel was closed.
    `on_heard`: called as ``on_heard(address)`` when a party that was silent is heard again.
    `on_lost`: called as ``on_lost(address)`` when messages from or to a party were lost or damaged
        on their way, or when that party says so of its own. What was sent to it, or through it, may
        have to be sent anew.
    `status`: returns up to 64 numbers by name, that each beat carries; called in any thread.
    Raises ClusterError: it cannot listen: the folder is not private, the host is not this node's;
        or too few files may be opened.
    Raises OverloadedError: the system has no threads for it.
    """

    def __init__(
        self,
        receive: Receiver,
        *,
        folder: Path | None = None,
        host: str | None = None,
        curve: bool = True,
        secret: bytes | None = None,
        shared_nbytes: int | None = SHARED_NBYTES,
        pool_nbytes: int | None = None,
        beat_s: float = 0.25,
        timeout_s: float = 2.0,
        on_silent: Callable[[str, float], None] = lambda address, silent_s: None,
        on_heard: Callable[[str], None] = lambda address: None,
        on_lost: Callable[[str], None] = lambda address: None,
        status: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        check_room()
        self._receive = receive
        identity, number = os.urandom(8), os.getpid()
        path = socket_path(folder, identity.hex()[:8])
        # Neither ZeroMQ nor the kernel does it.
        self._remove = remove_with(self, Path(path).parent, f"{Path(path).name}.*")
        self._sockets = Sockets(curve=curve and host is not None, secret=secret)
        data = [self._sockets.listen(zmq.PULL, f"ipc://{path}.data")[0]]
        data_port = 0
        if host is not None:
            # CURVE holds for a whole socket, and would slow this node's own messages down as well.
            far, data_port = self._sockets.listen(zmq.PULL, tcp_url(host), secured=True)
            data.append(far)
        self._control_sockets = ControlSockets(self._sockets, f"{path}.control", host)
        ports = (data_port, self._control_sockets.port)
        process, key = (number, process_start(number)), self._sockets.public_key
        endpoint = Endpoint(identity, this_node(), *process, path, host or "", *ports, key)
        #: Where others reach this party; it holds the key, so hand it to friends only.
        self.address = to_address(endpoint)
        self._inbox = Inbox(identity, endpoint.datagram_path, data)
        self._closing = threading.Lock()
        self._turn = threading.Lock()
        self._closed = False
        self._pool = SlotPool(pool_nbytes)
        self._peers = Peers(
            self.address, self._sockets, self._control_sockets, self._pool, shared_nbytes
        )
        #: See `PumpedChannel`.
        self.wake = self._inbox.wake
        self.hold, self.let_go = self._peers.hold, self._peers.let_go
        self._slots = SlotReader()
        self._control = Control(
            self._peers,
            self._inbox,
            self._slots,
            Callbacks(receive, on_silent, on_heard, on_lost, status),
            beat_s=beat_s,
            timeout_s=timeout_s,
        )

    def send(self, address: str, message: Message) -> None:
        """Send a message; never waits for the other party, and does not raise if it is gone.

        Messages may overtake each other. What a party sends itself is handed in at once, in this
        thread. Tensors of a message must not be written to afterwards.

        Raises TypeError, BlobError: the message holds what cannot be sent, or `address` is none.
        Raises ClusterError: the party is on another node and listens on its own only.
        """
        peer = self._peers.met.get(address)
        if peer is None:
            if address == self.address:
                if isinstance(message, Values):
                    message = message._replace(tensors=read_only(message.tensors))
                self._receive(message)
                return
            peer = self._meet(address)
            if peer is None:
                return
        if type(message) is Dropped:
            peer.drop(envelope.frames(message)[0])
        else:
            peer.send(message)

    def pump(self, timeout_s: float | None = None) -> int:
        """Receive one message and hand it to `receive`, in this thread.

        Any number of threads may call it; one waits for messages, the others for their turn. The
        turn is passed on before the message is handed in.

        `timeout_s`: how long to wait for a message, the turn included: 0 takes what is there, None
            waits until one comes, or `wake`, or `close`.
        Returns: 1 if a message was handed in; 0 if none came in time, or a double, or a damaged
            one.
        """
        if self._closed or not self._turn.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return 0
        try:
            arrival = None if self._closed else self._inbox.next(timeout_s)
        finally:
            self._turn.release()
        if arrival is None:
            return 0
        link, number, frames, start = arrival
        try:
            message = envelope.message(frames, self._slots.view, start)
        except BlobError as error:
            self._inbox.losses.append((link, number, number, str(error)))
            return 0
        self._receive(message)
        return 1

    @property
    def num_waits(self) -> int:
        """How many times a `pump` has found nothing there, and has waited."""
        return self._inbox.num_waits

    def watch(self, address: str) -> None:
        """Tell of a party from now on when it is silent or heard again.

        Raises BlobError, ClusterError: as `send` does.
        """
        peer = self._peers.met.get(address) or self._meet(address)
        if peer is not None:
            peer.watched = True

    def unwatch(self, address: str) -> None:
        """Tell nothing more of a party; it is forgotten once it is silent for long."""
        peer = self._peers.met.get(address)
        if peer is not None:
            peer.watched = peer.told = False

    def is_silent(self, address: str) -> bool:
        """Whether nothing is heard of a party now; so of one that was never met."""
        peer = self._peers.met.get(address)
        return peer is None or peer.silent

    def clock_offset_s(self, address: str) -> float | None:
        """Return a party's monotonic clock less ours, seconds; None before two of its beats.

        0 on one node, where all share a clock. Else from the beat of late, of it or its relay, with
        the shortest way there and back; wrong by at most half of that.
        """
        peer = self._peers.met.get(address)
        if peer is None or not peer.clocks:
            return None
        return 0.0 if peer.endpoint.is_near else min(peer.clocks)[1]

    def silent_s(self, address: str) -> float | None:
        """Return for how long nothing was heard of a party; None for one never met."""
        peer = self._peers.met.get(address)
        return None if peer is None else time.monotonic() - peer.heard_s

    def status_of(self, address: str) -> Mapping[str, float]:
        """Return the numbers in a party's last beat; empty before the first."""
        peer = self._peers.met.get(address)
        return {} if peer is None else peer.status

    def close(self) -> None:
        """Stop at once, and say so: what is on its way is dropped, threads that pump return 0."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._control.close()
        while not self._turn.acquire(timeout=0.01):
            self._inbox.wake()
        self._inbox.close()
        self._turn.release()
        incoming = self._inbox.incoming.items()
        for peer in self._peers:
            counts = {link: it.count for link, it in incoming if it.address == peer.address}
            peer.tell(Leave(counts))
        self._control_sockets.close()
        self._peers.close()
        self._pool.close()
        self._slots.close()
        self._sockets.context.term()
        self._remove()

    def _meet(self, address: str) -> Peer | None:
        peer = self._peers.meet(address, time.monotonic())
        self._control_sockets.wake()  # for its first beat
        return peer
