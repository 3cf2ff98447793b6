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
from hetero.scheduler.channels.connections import Connections, Heartbeats
from hetero.scheduler.channels.control import Callbacks, Control
from hetero.scheduler.channels.control_sockets import ControlSockets
from hetero.scheduler.channels.direct_address import Endpoint, this_node, to_address
from hetero.scheduler.channels.inbox import Inbox
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.channels.peers import SHARED_NBYTES, Peer, Peers
from hetero.scheduler.channels.shared_memory import SlotPool, SlotReader
from hetero.scheduler.channels.sockets import Sockets, check_room, socket_path, tcp_url
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
    `heartbeat_s`: seconds between two heartbeats of ZeroMQ, which its own threads send and answer.
    `timeout_s`: seconds after which a party that answers none is suspected.
    `on_suspected`: called as ``on_suspected(address, silent_s)``, once, when a watched party cannot
        be reached: its connection has ended, or it has answered no heartbeat for the time-out.
    `on_ended`: called as ``on_ended(address)``, once, when a watched party's process on this node
        has ended, or its channel was closed.
    `on_live`: called as ``on_live(address)`` when a party that was suspected answers again.
    `on_messages_lost`: called as ``on_messages_lost(address)`` when messages from or to a party
        were lost or damaged, or when that party says so of messages between it and another one that
        is not suspected. What was sent to it, or through it, may have to be sent anew.
    `status`: returns up to 64 numbers by name, for those who watch; called in any thread.
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
        heartbeat_s: float = 0.5,
        timeout_s: float = 2.0,
        on_suspected: Callable[[str, float], None] = lambda address, silent_s: None,
        on_ended: Callable[[str], None] = lambda address: None,
        on_live: Callable[[str], None] = lambda address: None,
        on_messages_lost: Callable[[str], None] = lambda address: None,
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
            far, data_port = self._sockets.listen(zmq.DEALER, tcp_url(host), secured=True)
            data.append(far)
        # The time runs from the first heartbeat that is not answered.
        heartbeats = Heartbeats(heartbeat_s, max(heartbeat_s, timeout_s - 1.2 * heartbeat_s))
        control = ControlSockets(self._sockets, f"{path}.control", host, heartbeats)
        ports = (data_port, control.port)
        process, key = (number, process_start(number)), self._sockets.public_key
        endpoint = Endpoint(identity, this_node(), *process, path, host or "", *ports, key)
        #: Where others reach this party; it holds the key, so hand it to friends only.
        self.address = to_address(endpoint)
        self._inbox = Inbox(identity, endpoint.datagram_path, data)
        self._closing = threading.Lock()
        self._turn = threading.Lock()
        self._closed = False
        self._pool = SlotPool(pool_nbytes)
        remote = None if host is None else Connections(self._sockets)
        self._peers = Peers(self.address, self._sockets, remote, self._pool, shared_nbytes)
        #: See `PumpedChannel`.
        self.wake = self._inbox.wake
        self.hold, self.let_go = self._peers.hold, self._peers.let_go
        self._slots = SlotReader()
        self._control = Control(
            self._peers,
            self._inbox,
            self._slots,
            control,
            Callbacks(receive, on_suspected, on_ended, on_live, on_messages_lost, status),
            heartbeat_s=heartbeat_s,
            timeout_s=timeout_s,
        )
        self._wake_control = control.wake

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
            self._wake_control()
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
        sender, frames, start = arrival
        try:
            message = envelope.message(frames, self._slots.view, start)
        except BlobError as error:
            self._inbox.losses.append((sender, str(error)))
            return 0
        self._receive(message)
        return 1

    @property
    def num_waits(self) -> int:
        """How many times a `pump` has found nothing there, and has waited."""
        return self._inbox.num_waits

    def watch(self, address: str, *, polls: bool = True) -> None:
        """Report from now on when a party is suspected, ends, or is live again.

        `polls`: whether to ask for its status again and again.
        Raises BlobError, ClusterError: as `send` does.
        """
        peer = self._peers.met.get(address) or self._meet(address)
        if peer is not None:
            peer.watched, peer.polled = True, polls

    def unwatch(self, address: str) -> None:
        """Report nothing more of a party; it is forgotten once it has been suspected for long."""
        peer = self._peers.met.get(address)
        if peer is not None:
            peer.watched = peer.polled = peer.health.is_reported = False

    def is_suspected(self, address: str) -> bool:
        """Whether a party cannot be reached now; so it is with one that was never met."""
        peer = self._peers.met.get(address)
        return peer is None or peer.is_suspected

    def clock_offset_s(self, address: str) -> float | None:
        """Return a watched party's monotonic clock less ours, in seconds; None before a status.

        0 on one node, where all share a clock. Else from the status of late with the shortest way
        there and back; wrong by at most half of that.
        """
        peer = self._peers.met.get(address)
        if peer is None or not peer.health.clocks:
            return None
        return 0.0 if peer.endpoint.is_near else min(peer.health.clocks)[1]

    def silent_s(self, address: str) -> float | None:
        """Return for how long a party cannot be reached, 0 if it can; None for one never met."""
        peer = self._peers.met.get(address)
        if peer is None or not peer.is_suspected:
            return None if peer is None else 0.0
        return time.monotonic() - peer.health.heard_s

    def status_of(self, address: str) -> Mapping[str, float]:
        """Return the numbers in a watched party's last status; empty before the first."""
        peer = self._peers.met.get(address)
        return {} if peer is None else peer.health.status

    def close(self) -> None:
        """Stop at once, and say so: what is on its way is dropped, threads that pump return 0."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._control.stop()
        while not self._turn.acquire(timeout=0.01):
            self._inbox.wake()
        self._inbox.close()
        self._turn.release()
        self._slots.close()  # before peers hear of it: what is not taken by then is theirs again
        self._control.close()
        self._peers.close()
        self._pool.close()
        self._sockets.context.term()
        self._remove()

    def _meet(self, address: str) -> Peer | None:
        peer = self._peers.meet(address, time.monotonic())
        self._wake_control()
        return peer
