"""Control thread of a direct channel: liveness of peers, clocks, losses and dropped requests.

ZeroMQ's heartbeats detect whether a peer can be reached. In addition, the thread requests the
status of watched peers once a second: clock, losses and values that the peer publishes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq

from hetero.devices.errors import BlobError, ClusterError
from hetero.scheduler.channels import envelope, protocol
from hetero.scheduler.channels.addresses import to_endpoint
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.connections import Connections
from hetero.scheduler.channels.control_sockets import ControlSockets
from hetero.scheduler.channels.inbox import Inbox
from hetero.scheduler.channels.peers import Peer, Peers
from hetero.scheduler.channels.shared_memory import SlotReader
from hetero.scheduler.processes.owned_files import Process, sweep
from hetero.scheduler.processes.threads import start_thread
from hetero.scheduler.types.messages import Dropped

_log = logging.getLogger(__name__)

#: Number of heartbeats between two status requests to a peer.
_STATUS_HEARTBEATS: Final = 2
#: Number of timeouts after which a suspected peer that nobody watches is forgotten.
_FORGET_TIMEOUTS: Final = 10
#: Delay before a local peer is suspected because its control connection has ended. If its process
#: has ended, its data connection reports that by then.
_SUSPECT_DELAY_S: Final = 0.05
#: Time between two searches for unused shared memory.
_TIDY_S: Final = 10.0
#: Maximum size of the dropped requests in one message.
_MAX_DROPPED_NBYTES: Final = 32 * 1024
#: Maximum number of peers whose losses are counted, and of peers notified of the channel's end.
_MAX_LOSERS: Final = 64
_MAX_REQUESTERS: Final = 4096
#: Status value: time for which a peer may leave status requests unanswered.
PATIENCE: Final = "stall_allowance_s"


@dataclass(slots=True)
class Callbacks:
    """Callbacks of a channel; see `DirectChannel`."""

    receive: Receiver
    on_suspected: Callable[[str, float], None]
    on_ended: Callable[[str], None]
    on_live: Callable[[str], None]
    on_messages_lost: Callable[[str], None]
    status: Callable[[], Mapping[str, float]]


class Control:
    """The control thread and its state."""

    def __init__(
        self,
        peers: Peers,
        inbox: Inbox,
        slots: SlotReader,
        sockets: ControlSockets,
        callbacks: Callbacks,
        *,
        heartbeat_s: float,
        timeout_s: float,
    ) -> None:
        endpoint = to_endpoint(peers.own_address)
        self._identity = endpoint.identity
        self._folder = Path(endpoint.path).parent
        self._sockets = sockets
        self._peers = peers
        self._pool = peers.pool
        self._inbox = inbox
        self._slots = slots
        self._callbacks = callbacks
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        #: Identity -> number of messages lost between that peer and this channel.
        self._num_lost: dict[bytes, int] = {}
        #: Identity -> reply function, for each peer that has requested a status.
        self._requesters: dict[bytes, Callable[[bytes], object]] = {}
        #: Peers with dropped requests that are still to be sent.
        self._dropping: set[Peer] = set()
        #: Local peer without control connection -> time at which it is suspected.
        self._suspicions: dict[Peer, float] = {}
        #: Local processes of channels that have ended; the processes may end as well.
        self._ending_processes: set[Process] = set()
        self._poller = zmq.Poller()
        sockets.register(self._poller)
        self._poller.register(peers.local, zmq.POLLIN)
        if peers.remote is not None:
            self._poller.register(peers.remote.monitor, zmq.POLLIN)
        self._closed = False
        self._thread = start_thread(self._run, "hetero-control")

    def stop(self) -> None:
        """Stop the thread."""
        self._closed = True
        self._sockets.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close(self) -> None:
        """Notify other peers of the channel's end, and close the sockets; call `stop` before."""
        for identity, reply in self._requesters.items():
            reply(protocol.pack_control(protocol.Leave(), identity, self._identity))
        self._sockets.close()

    def _run(self) -> None:
        next_s = tidy_s = time.monotonic()
        num_heartbeats = 0
        while not self._closed:
            wait_s = max(0.0, min((next_s, *self._suspicions.values())) - time.monotonic())
            self._poller.poll(int(wait_s * 1e3) + 1)
            self._call_and_log(self._poll_local)
            self._call_and_log(self._receive)
            self._call_and_log(self._connect_peers)
            self._call_and_log(self._send_dropped_requests)
            now_s = time.monotonic()
            self._call_and_log(self._raise_suspicions, now_s)
            if self._closed or now_s < next_s:
                continue
            self._call_and_log(self._report_damaged_messages)
            self._call_and_log(self._clean_up_processes)
            is_status_due = not num_heartbeats % _STATUS_HEARTBEATS
            for peer in self._peers:
                self._call_and_log(self._check_peer, peer, now_s, is_status_due)
            if now_s >= tidy_s:
                self._call_and_log(self._pool.remove_unused)
                self._call_and_log(self._slots.unmap_removed)
                tidy_s = now_s + _TIDY_S
            next_s = now_s + self._heartbeat_s
            num_heartbeats += 1

    @staticmethod
    def _call_and_log(action: Callable[..., None], *arguments: Any) -> None:
        """Call a function and log its errors: they must not end the thread."""
        try:
            action(*arguments)
        except (BlobError, ClusterError) as error:
            _log.warning("dropped a control message: %s", error)
        except Exception:
            _log.exception("error in the control thread of a channel")

    # Messages.

    def _receive(self) -> None:
        for data, reply in self._sockets.receive():
            if self._closed:
                return
            self._call_and_log(self._handle_message, data, reply)
        for connections in self._sockets.connections:
            for identity, data in connections.receive():
                self._call_and_log(self._handle_reply, identity, data)
            for identity, is_up in connections.changes():
                self._call_and_log(self._handle_connection, identity, is_up)
        if self._peers.remote is not None:
            for identity, is_up in self._peers.remote.changes():
                if not is_up:
                    self._call_and_log(self._handle_data_loss, identity)
        self._call_and_log(self._sockets.authenticate)

    def _handle_message(self, data: bytes, reply: Callable[[bytes], object]) -> None:
        """Handle a message of a peer that connected to this channel."""
        receiver, sender, message = protocol.read_control(data)
        if isinstance(message, protocol.StatusRequest):
            # Also answered if it is addressed to a previous user of the port; see `_handle_reply`.
            now_s = time.monotonic()
            status = protocol.Status(message.clock_s, now_s, self._num_lost, self._status_values())
            reply(protocol.pack_control(status, sender, self._identity))
            self._requesters.pop(sender, None)
            self._requesters[sender] = reply
            if len(self._requesters) > _MAX_REQUESTERS:
                del self._requesters[next(iter(self._requesters))]
        elif receiver != self._identity:
            raise BlobError("control message that is addressed to another peer.")
        elif isinstance(message, protocol.Drop):
            for request in message.requests:
                self._call_and_log(self._deliver_dropped, request)

    def _deliver_dropped(self, request: bytes) -> None:
        message = envelope.from_frames([request])
        if isinstance(message, Dropped):
            self._callbacks.receive(message)

    def _status_values(self) -> dict[str, float]:
        try:
            return protocol.bounded_status(self._callbacks.status())
        except Exception:
            _log.exception("error in the status callback of a channel")
            return {}

    def _handle_reply(self, identity: bytes, data: bytes) -> None:
        """Handle a reply that arrived on the connection to a peer."""
        _, sender, message = protocol.read_control(data)
        peer, now_s = self._peers.by_identity.get(identity), time.monotonic()
        if peer is None or peer.has_ended:
            return
        connections = self._connections(peer)
        if connections is None or not connections.is_up(identity):
            return  # sent before the connection was lost
        # A reply of another sender means that the port was assigned again.
        if isinstance(message, protocol.Leave) or sender != identity:
            self._end(peer)
        elif isinstance(message, protocol.Status):
            self._handle_status(peer, message, now_s)

    def _handle_status(self, peer: Peer, status: protocol.Status, now_s: float) -> None:
        health = peer.health
        round_trip_s = max(0.0, now_s - status.echo_s)
        health.clocks.append((round_trip_s, status.clock_s + round_trip_s / 2 - now_s))
        health.heard_s, health.num_unanswered = now_s, 0
        health.status = status.values
        if peer.is_suspected:
            self._peers.reconnect(peer)
            peer.is_suspected = False
        health.is_live = True
        if health.is_reported:
            health.is_reported = False
            self._callbacks.on_live(peer.address)
        previous, health.num_lost = health.num_lost, status.num_lost
        if any(
            number > previous.get(identity, 0) and self._is_reachable(identity)
            for identity, number in status.num_lost.items()
        ):
            self._callbacks.on_messages_lost(peer.address)

    def _is_reachable(self, identity: bytes) -> bool:
        """Return whether an identity is this channel's, or of a peer that is not suspected.

        Losses of other peers are no news: everything that was sent to them counts as lost.
        """
        peer = self._peers.by_identity.get(identity)
        return identity == self._identity or (peer is not None and not peer.is_suspected)

    def _connections(self, peer: Peer) -> Connections | None:
        return self._sockets.local if peer.is_local else self._sockets.remote

    def _send(self, peer: Peer, message: protocol.ControlMessage) -> bool:
        """Send a control message; return False if the peer is not connected, or its queue full."""
        connections, identity = self._connections(peer), peer.endpoint.identity
        if connections is None or not connections.is_up(identity):
            return False
        data = protocol.pack_control(message, identity, self._identity)
        try:
            return connections.send(identity, [data])
        except zmq.ZMQError as error:
            _log.debug("control message to %s was not sent: %s", peer.endpoint, error)
            return False

    def _request_status(self, peer: Peer) -> None:
        self._send(peer, protocol.StatusRequest(time.monotonic()))
        peer.health.num_unanswered += 1

    def _send_dropped_requests(self) -> None:
        while self._peers.dropping:
            self._dropping.add(self._peers.dropping.popleft())
        self._dropping = {peer for peer in self._dropping if not self._try_send_dropped(peer)}

    def _try_send_dropped(self, peer: Peer) -> bool:
        """Send a peer's dropped requests; return False if some are still to be sent."""
        while peer.dropped_requests and not peer.has_ended:
            requests: list[bytes] = []
            nbytes = 0
            while peer.dropped_requests and nbytes < _MAX_DROPPED_NBYTES:
                requests.append(peer.dropped_requests.popleft())
                nbytes += len(requests[-1])
            if not self._send(peer, protocol.Drop(requests)):
                peer.dropped_requests.extendleft(reversed(requests))
                return False
        return True

    # Liveness.

    def _connect_peers(self) -> None:
        while self._peers.unconnected:
            peer = self._peers.unconnected.popleft()
            endpoint, connections = peer.endpoint, self._connections(peer)
            if connections is not None:
                connections.connect(endpoint.identity, endpoint.control_url, endpoint.key)
            if peer.is_local:
                self._call_and_log(peer.connect)

    def _handle_connection(self, identity: bytes, is_up: bool) -> None:
        """Handle the start (`is_up`) or end of a control connection."""
        peer = self._peers.by_identity.get(identity)
        if peer is None:
            return
        if is_up:
            self._suspicions.pop(peer, None)
            self._request_status(peer)
        elif peer.is_local:
            self._suspicions[peer] = time.monotonic() + _SUSPECT_DELAY_S
        else:
            self._suspect(peer)

    def _raise_suspicions(self, now_s: float) -> None:
        """Suspect the local peers whose delay is over."""
        for peer in [peer for peer, due_s in self._suspicions.items() if due_s <= now_s]:
            del self._suspicions[peer]
            self._call_and_log(self._suspect, peer)

    def _check_peer(self, peer: Peer, now_s: float, is_status_due: bool) -> None:
        """Check a peer; called at each heartbeat."""
        health = peer.health
        peer.uncork(wait=False)  # the thread that corked the messages may be stuck
        peer.flush()
        if num_dropped := peer.num_dropped - peer.num_counted:
            peer.num_counted += num_dropped
            self._count_lost(peer.endpoint.identity, num_dropped)
        connections = self._connections(peer)
        is_up = connections is not None and connections.is_up(peer.endpoint.identity)
        if not (is_up or peer.is_suspected):
            # Counted instead of timed: this process, or its interpreter, may have been stopped.
            health.num_waits += 1
            if health.num_waits * self._heartbeat_s > self._timeout_s:
                self._suspect(peer)
        if is_status_due and is_up and peer.is_polled:
            if self._is_overdue(peer):
                self._suspect(peer)
            self._request_status(peer)
        if peer.is_suspected and peer.is_watched:
            self._report(peer)
        elif peer.is_suspected:
            silent_s = now_s - health.heard_s
            if peer.has_ended or silent_s > self._timeout_s * _FORGET_TIMEOUTS:
                self._forget(peer)

    def _is_overdue(self, peer: Peer) -> bool:
        """Return whether a peer has left status requests unanswered for longer than it may.

        Its stages may hold the interpreter lock for as long as they may run.
        """
        health = peer.health
        limit_s = self._timeout_s + health.status.get(PATIENCE, math.inf)
        return (health.num_unanswered - 1) * _STATUS_HEARTBEATS * self._heartbeat_s > limit_s

    def _suspect(self, peer: Peer) -> None:
        """Suspect a peer that cannot be reached; its process may still run."""
        if peer.is_suspected:
            return
        health = peer.health
        health.heard_s = max(health.heard_s, time.monotonic() - self._timeout_s)
        peer.is_suspected, health.is_live = True, False
        self._handle_data_loss(peer.endpoint.identity)
        if peer.is_watched:
            self._report(peer)

    def _report(self, peer: Peer) -> None:
        """Report once that a watched peer is suspected, and once that it has ended."""
        health = peer.health
        if peer.has_ended and not health.is_end_reported:
            health.is_reported = health.is_end_reported = True
            self._callbacks.on_ended(peer.address)
        elif not health.is_reported:
            health.is_reported = True
            self._callbacks.on_suspected(peer.address, time.monotonic() - health.heard_s)

    def _poll_local(self) -> None:
        """Handle the ends of local connections: their channel or process has ended."""
        self._peers.local.poll()
        while self._peers.disconnected:
            peer = self._peers.disconnected.popleft()
            self._ending_processes.add(peer.endpoint.process)
            self._call_and_log(self._end, peer)

    def _clean_up_processes(self) -> None:
        """Release the resources of local processes that have ended."""
        for process in [process for process in self._ending_processes if process.is_gone]:
            self._ending_processes.discard(process)
            self._call_and_log(self._pool.free_all_of, process)
            self._call_and_log(self._slots.unmap_process, process)
            self._call_and_log(sweep, self._folder)

    def _end(self, peer: Peer) -> None:
        """Handle the end of a peer's channel."""
        peer.has_ended = True
        peer.is_suspected, peer.health.is_live = True, False
        self._handle_data_loss(peer.endpoint.identity)
        self._pool.free_untaken(peer.endpoint.identity)
        if peer.is_watched:
            self._report(peer)

    def _forget(self, peer: Peer) -> None:
        if connections := self._connections(peer):
            connections.disconnect(peer.endpoint.identity)
        self._suspicions.pop(peer, None)
        self._dropping.discard(peer)
        self._peers.forget(peer.address)

    # Losses.

    def _handle_data_loss(self, identity: bytes) -> None:
        """Handle the end of a data connection: messages on their way to the peer may be lost."""
        peer = self._peers.by_identity.get(identity)
        if peer is None or not peer.may_lose:
            return
        peer.may_lose = False
        self._count_lost(identity, 1)
        if not peer.is_suspected:
            _log.warning("connection to %s has ended; messages may be lost", peer.endpoint)
            self._callbacks.on_messages_lost(peer.address)

    def _report_damaged_messages(self) -> None:
        """Report messages that arrived damaged."""
        senders: set[bytes] = set()
        losses = self._inbox.losses
        while losses:
            sender, reason = losses.popleft()
            self._count_lost(sender, 1)
            senders.add(sender)
            peer = self._peers.by_identity.get(sender)
            name = sender.hex() if peer is None else peer.endpoint
            _log.warning("lost a message from %s: %s", name, reason)
        for sender in senders & self._peers.by_identity.keys():
            self._callbacks.on_messages_lost(self._peers.by_identity[sender].address)

    def _count_lost(self, identity: bytes, number: int) -> None:
        self._num_lost[identity] = self._num_lost.pop(identity, 0) + number
        while len(self._num_lost) > _MAX_LOSERS:
            del self._num_lost[next(iter(self._num_lost))]
