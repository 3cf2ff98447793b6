"""Direct channel: messages between processes, by Unix sockets within a node, by ZeroMQ otherwise.

Alternatives measured, with a chain of three relays on two cores: Ray's object references take
5.7 ms for 1 kB and 60 ms for 10 MB; ZeroMQ with raw frames takes 0.14 to 0.26 ms and 22 ms. ZeroMQ
with tensors in shared memory takes 9 ms for 10 MB: see `shared_memory`. For small messages within a
node see `local`. `python -m benchmarks.channels` compares this channel with ZeroMQ.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import zmq

from hetero.devices.errors import BlobError
from hetero.devices.plugin.program import Value
from hetero.scheduler.channels import envelope
from hetero.scheduler.channels.addresses import Endpoint, this_node, to_address
from hetero.scheduler.channels.channel import LaneReceiver, Receiver
from hetero.scheduler.channels.connections import Connections, HeartbeatTimes
from hetero.scheduler.channels.control import Callbacks, Control
from hetero.scheduler.channels.control_sockets import ControlSockets
from hetero.scheduler.channels.inbox import Inbox
from hetero.scheduler.channels.lane import MAGIC, LaneHead
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.channels.peers import SHARED_NBYTES, Peer, Peers
from hetero.scheduler.channels.shared_memory import SlotPool, SlotReader
from hetero.scheduler.channels.sockets import Sockets, check_resources, socket_path, tcp_url
from hetero.scheduler.processes.owned_files import process_start, remove_with
from hetero.scheduler.types.messages import Dropped, Message, Values


class DirectChannel:
    """Channel of one peer to peers in other processes.

    The threads that call `pump` deliver messages. A control thread of the channel calls the other
    callbacks and delivers `Dropped` messages, which may overtake earlier messages. Callbacks must
    return quickly. They may use the channel, except `close`.

    Parameters
    ----------
    receive
        Callback for messages.
    folder
        Folder of the Unix sockets, accessible to this user only (mode 0700), with a path of at most
        47 bytes. The default is a folder of the user in the folder for temporary files.
    host
        Network address of this node. Without it, only peers of this node reach the channel.
    curve
        Whether to encrypt messages between nodes, and to accept only peers that know the secret.
        Without encryption a message of 1 kB takes 0.8 of the time, one of 10 MB a third.
    secret
        Secret of the cluster: a CURVE secret key in Z85, see `zmq.curve_keypair`. By default only
        channels of this process reach each other over the network.
    shared_nbytes
        Size from which tensors to local peers use shared memory; None disables it.
    pool_nbytes
        Maximum size of the shared memory, by default a quarter of ``/dev/shm``. Further tensors use
        the sockets.
    heartbeat_s
        Time between two heartbeats. libzmq's own thread sends and answers them.
    timeout_s
        Time after which a peer without heartbeats is suspected.
    counts_waits
        Whether to update `num_waits`, which takes another system call for each wait.
    on_suspected
        Called once as ``on_suspected(address, silent_s)`` if a watched peer cannot be reached: its
        connection has ended, or heartbeats were not answered.
    on_ended
        Called once as ``on_ended(address)`` if a watched peer has closed its channel, or its
        process on this node has ended.
    on_live
        Called as ``on_live(address)`` if a suspected peer can be reached again.
    on_messages_lost
        Called as ``on_messages_lost(address)`` if messages from or to a peer were lost or damaged,
        or if the peer has lost messages to another one that is not suspected. Messages to it, or
        relayed by it, may have to be sent again.
    status
        Returns up to 64 values by name, which watching peers can read; called in any thread.

    Raises
    ------
    ClusterError
        The folder is not private, the host is not an address of this node, or the process has run
        out of descriptors.
    OverloadedError
        No threads can be started.
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
        counts_waits: bool = False,
        on_suspected: Callable[[str, float], None] = lambda address, silent_s: None,
        on_ended: Callable[[str], None] = lambda address: None,
        on_live: Callable[[str], None] = lambda address: None,
        on_messages_lost: Callable[[str], None] = lambda address: None,
        status: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        check_resources()
        self._receive = receive
        #: See `LaneChannel`.
        self.receive_lane: LaneReceiver | None = None
        identity, number = os.urandom(8), os.getpid()
        path = socket_path(folder, identity.hex()[:8])
        # Neither ZeroMQ nor the kernel removes the files.
        self._remove_files = remove_with(self, Path(path).parent, f"{Path(path).name}.*")
        self._sockets = Sockets(curve=curve and host is not None, secret=secret)
        data, data_port = None, 0
        if host is not None:
            data, data_port = self._sockets.listen(zmq.DEALER, tcp_url(host), secured=True)
        # A lost peer is detected after one interval and libzmq's timeout, plus a little time to
        # report it.
        heartbeats = HeartbeatTimes(heartbeat_s, max(heartbeat_s, timeout_s - 1.2 * heartbeat_s))
        control_sockets = ControlSockets(self._sockets, f"{path}.control", host, heartbeats)
        endpoint = Endpoint(
            identity,
            this_node(),
            number,
            process_start(number),
            path,
            host or "",
            data_port,
            control_sockets.port,
            self._sockets.public_key,
        )
        #: Address of this channel. It contains the public key: pass it to trusted peers only.
        self.address = to_address(endpoint)
        self._inbox = Inbox(identity, endpoint.local_path, data, counts_waits=counts_waits)
        self._closing = threading.Lock()
        #: Held by the thread that waits for messages.
        self._execution_lock = threading.Lock()
        self._closed = False
        self._pool = SlotPool(pool_nbytes)
        remote = None if host is None else Connections(self._sockets)
        self._peers = Peers(self.address, control_sockets.wake, remote, self._pool, shared_nbytes)
        #: See `PumpedChannel`.
        self.wake = self._inbox.wake
        self.cork, self.uncork = self._peers.cork, self._peers.uncork
        self._slots = SlotReader()
        #: See `LaneChannel`.
        self.stored_tensor = self._slots.take
        self._control = Control(
            self._peers,
            self._inbox,
            self._slots,
            control_sockets,
            Callbacks(receive, on_suspected, on_ended, on_live, on_messages_lost, status),
            heartbeat_s=heartbeat_s,
            timeout_s=timeout_s,
        )

    def send(self, address: str, message: Message) -> None:
        """Send a message without waiting for the peer, whether or not it can be reached.

        Messages may overtake each other. A message to this channel itself is delivered at once, in
        the calling thread. The caller must not write to the tensors of the message afterwards.

        Raises TypeError, BlobError: the message cannot be encoded, or the address is invalid.
        Raises ClusterError: the peer is on another node and cannot be reached from this one.
        """
        peer = self._peers.by_address.get(address)
        if peer is None:
            if address == self.address:
                if isinstance(message, Values):
                    message = message._replace(tensors=read_only(message.tensors))
                self._receive(message)
                return
            peer = self._add_peer(address)
            if peer is None:
                return
        if type(message) is Dropped:
            peer.drop_request(envelope.to_frames(message)[0])
        else:
            peer.send(message)

    def send_lane(
        self, address: str, head: LaneHead, timings: bytes, tensors: Sequence[Value]
    ) -> bool:
        """Send a packed message to a known local peer; return False if it has to go as a `Message`.

        Raises ClusterError: the process has run out of descriptors.
        """
        peer = self._peers.by_address.get(address)
        return peer is not None and peer.send_lane(head, timings, tensors)

    def copy_to_shared_memory(self, array: np.ndarray) -> np.ndarray | None:
        """Copy an array to shared memory; see `LaneChannel`."""
        min_nbytes = self._peers.shared_nbytes
        if min_nbytes is None or array.nbytes < min_nbytes:
            return None
        return self._pool.copy_to_slot(array)

    def pump(self, timeout_s: float | None = None) -> int:
        """Receive one message and deliver it in the calling thread.

        Several threads may call it: one of them waits for a message, the others for their turn. The
        turn passes on before the message is delivered.

        `timeout_s`: time to wait, including the turn: 0 does not wait, None waits until a message
            arrives, or `wake` or `close` is called.
        Returns: 1 if a message was delivered, otherwise 0.
        """
        if self._closed or not self._execution_lock.acquire(
            True, -1 if timeout_s is None else timeout_s
        ):
            return 0
        try:
            arrival = None if self._closed else self._inbox.next(timeout_s)
        finally:
            self._execution_lock.release()
        if arrival is None:
            return 0
        sender, frames, start = arrival
        try:
            if self.receive_lane is not None and frames[0].startswith(MAGIC, start):
                self.receive_lane(frames[0], start)
                return 1
            message = envelope.from_frames(frames, self._slots.view, start)
        except BlobError as error:
            # The message is complete: a second copy of it would be unreadable too.
            failure = envelope.unreadable_task(frames, error, start)
            if failure is None:
                self._inbox.losses.append((sender, str(error)))
                return 0
            message = failure
        self._receive(message)
        return 1

    @property
    def num_waits(self) -> int:
        """Number of times that `pump` had to wait because no message was available."""
        return self._inbox.num_waits

    def watch(self, address: str, *, polls: bool = True) -> None:
        """Start to report the liveness of a peer by the callbacks.

        `polls`: whether to request its status once a second.
        Raises BlobError, ClusterError: see `send`.
        """
        peer = self._peers.by_address.get(address) or self._add_peer(address)
        if peer is not None:
            peer.is_watched, peer.is_polled = True, polls

    def unwatch(self, address: str) -> None:
        """Stop to report the liveness of a peer; it is forgotten if it stays suspected."""
        peer = self._peers.by_address.get(address)
        if peer is not None:
            peer.is_watched = peer.is_polled = False
            peer.health.is_reported = peer.health.is_end_reported = False

    def is_suspected(self, address: str) -> bool:
        """Return whether a peer cannot be reached; True for an unknown peer."""
        peer = self._peers.by_address.get(address)
        return peer is None or peer.is_suspected

    def clock_offset_s(self, address: str) -> float | None:
        """Return a watched peer's monotonic clock minus this process's; None before a status.

        It is 0 within a node, whose processes share a clock. Otherwise it comes from the recent
        status with the shortest round trip; its error is at most half of that round trip.
        """
        peer = self._peers.by_address.get(address)
        if peer is None or not peer.health.clocks:
            return None
        return 0.0 if peer.is_local else min(peer.health.clocks)[1]

    def silent_s(self, address: str) -> float | None:
        """Return the time since a suspected peer was reached; 0 if live, None if unknown."""
        peer = self._peers.by_address.get(address)
        if peer is None or not peer.is_suspected:
            return None if peer is None else 0.0
        return time.monotonic() - peer.health.heard_s

    def status_of(self, address: str) -> Mapping[str, float]:
        """Return the values of a watched peer's last status; empty before the first one."""
        peer = self._peers.by_address.get(address)
        return {} if peer is None else peer.health.status

    def close(self) -> None:
        """Close the channel and notify the peers; pending messages are dropped."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._control.stop()
        while not self._execution_lock.acquire(timeout=0.01):
            self._inbox.wake()
        # Before the peers are notified: then they reuse the slots that were not taken.
        self._slots.close()
        self._inbox.close()
        self._execution_lock.release()
        self._control.close()
        self._peers.close()
        self._pool.close()
        self._sockets.context.term()
        self._remove_files()

    def _add_peer(self, address: str) -> Peer | None:
        return self._peers.add(address, time.monotonic())
