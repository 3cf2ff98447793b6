"""The control thread of a direct channel: liveness of peers, clocks, losses, dropped requests.

ZeroMQ's heartbeats tell which peers are connected. Their status is asked for once a second, for
clocks, for losses, and for numbers that they publish.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq

from hetero.devices.errors import BlobError, ClusterError
from hetero.scheduler.channels import envelope, protocol
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.connections import Connections
from hetero.scheduler.channels.control_sockets import ControlSockets
from hetero.scheduler.channels.direct_address import to_endpoint
from hetero.scheduler.channels.inbox import Inbox
from hetero.scheduler.channels.peers import Peer, Peers
from hetero.scheduler.channels.shared_memory import SlotReader
from hetero.scheduler.processes.owned_files import Process, sweep
from hetero.scheduler.processes.threads import start_thread
from hetero.scheduler.vocabulary.messages import Dropped

_log = logging.getLogger(__name__)

#: Heartbeats between two requests for a peer's status.
_STATUS_HEARTBEATS: Final = 2
#: Peers that nobody watches are forgotten after so many time-outs without an answer.
_FORGOTTEN_AFTER: Final = 10
#: Seconds between two looks at what has not been used.
_TIDY_S: Final = 10.0
#: Bytes of dropped requests that go together.
_MOST_DROPPED_NBYTES: Final = 32 * 1024
#: Peers whose losses are remembered; and parties that are told when the channel ends.
_MOST_LOST: Final = 64
_MOST_ASKERS: Final = 4096
#: In a status: how long its party may leave requests for it unanswered, seconds.
PATIENCE: Final = "patience_s"


@dataclass(slots=True)
class Callbacks:
    """The channel's callbacks; see `DirectChannel`."""

    receive: Receiver
    on_suspected: Callable[[str, float], None]
    on_ended: Callable[[str], None]
    on_live: Callable[[str], None]
    on_messages_lost: Callable[[str], None]
    status: Callable[[], Mapping[str, float]]


class Control:
    """The thread and its state."""

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
        own = to_endpoint(peers.own)
        self._identity = own.identity
        self._folder = Path(own.path).parent
        self._sockets = sockets
        self._peers = peers
        self._pool = peers.pool
        self._inbox = inbox
        self._slots = slots
        self._callbacks = callbacks
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        #: Identity -> messages that were lost between its party and this one.
        self._lost: dict[bytes, int] = {}
        #: Identity -> what replies to its party, of those who have asked for a status.
        self._askers: dict[bytes, Callable[[bytes], object]] = {}
        #: Peers with dropped requests that are yet to be sent.
        self._dropping: set[Peer] = set()
        #: File descriptors that report the end of processes on this node.
        self._processes: dict[int, Process] = {}
        self._poller = zmq.Poller()
        sockets.register(self._poller)
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
        """Tell those who have asked for a status that the channel has ended; once stopped."""
        for identity, reply in self._askers.items():
            reply(protocol.pack_control(protocol.Leave(), identity, self._identity))
        self._sockets.close()

    def _run(self) -> None:
        next_s = tidy_s = time.monotonic()
        num_beats = 0
        while not self._closed:
            wait_s = max(0.0, next_s - time.monotonic())
            for found, _ in self._poller.poll(int(wait_s * 1e3) + 1):
                if found in self._processes:
                    self._end_process(found, self._processes[found])
            self._guarded(self._receive)
            self._guarded(self._connect_new)
            self._guarded(self._send_drops)
            now_s = time.monotonic()
            if self._closed or now_s < next_s:
                continue
            self._guarded(self._take_losses)
            is_due = not num_beats % _STATUS_HEARTBEATS
            for peer in self._peers:
                self._guarded(self._tend, peer, now_s, is_due)
            if now_s >= tidy_s:
                self._guarded(self._pool.give_back)
                self._guarded(self._slots.tidy)
                tidy_s = now_s + _TIDY_S
            next_s = now_s + self._heartbeat_s
            num_beats += 1
        for descriptor in self._processes:
            os.close(descriptor)

    @staticmethod
    def _guarded(action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except (BlobError, ClusterError) as error:
            _log.warning("a control message is dropped: %s", error)
        except Exception:  # a callback's fault must not end the thread
            _log.exception("the control thread of a channel goes on")

    # Messages.

    def _receive(self) -> None:
        for data, reply in self._sockets.receive():
            if self._closed:
                return
            self._guarded(self._take, data, reply)
        for connections in self._sockets.connections:
            for identity, data in connections.receive():
                self._guarded(self._hear, identity, data)
            for identity, is_up in connections.changes():
                self._guarded(self._note_connection, identity, is_up)
        if self._peers.remote is not None:
            for identity, is_up in self._peers.remote.changes():
                if not is_up:
                    self._guarded(self._note_data_loss, identity)
        self._guarded(self._sockets.admit)

    def _take(self, data: bytes, reply: Callable[[bytes], object]) -> None:
        """Take in a control message of another party."""
        receiver, sender, message = protocol.read_control(data)
        if isinstance(message, protocol.StatusRequest):  # maybe of one that had this port before
            status = protocol.Status(message.clock_s, time.monotonic(), self._lost, self._status())
            reply(protocol.pack_control(status, sender, self._identity))
            self._askers.pop(sender, None)
            self._askers[sender] = reply
            if len(self._askers) > _MOST_ASKERS:
                del self._askers[next(iter(self._askers))]
        elif receiver != self._identity:
            raise BlobError("control message for another party.")
        elif isinstance(message, protocol.Drop):
            for request in message.requests:
                self._guarded(self._drop, request)

    def _drop(self, request: bytes) -> None:
        message = envelope.message([request])
        if isinstance(message, Dropped):
            self._callbacks.receive(message)

    def _status(self) -> dict[str, float]:
        try:
            return protocol.bounded_status(self._callbacks.status())
        except Exception:  # others hear the rest without
            _log.exception("a channel's status cannot be told")
            return {}

    def _hear(self, identity: bytes, data: bytes) -> None:
        """Take in a peer's status, or its end."""
        _, sender, status = protocol.read_control(data)
        peer, now_s = self._peers.by_identity.get(identity), time.monotonic()
        if peer is None or peer.has_ended:
            return
        connections = self._connections(peer)
        if connections is None or not connections.is_up(identity):
            return  # it has sent this before its connection ended
        if isinstance(status, protocol.Leave) or sender != identity:  # another has its port
            self._end(peer)
        if peer.has_ended or not isinstance(status, protocol.Status):
            return
        health = peer.health
        round_s = max(0.0, now_s - status.echo_s)
        health.clocks.append((round_s, status.clock_s + round_s / 2 - now_s))
        health.heard_s, health.num_unanswered = now_s, 0
        health.status = status.values
        if peer.is_suspected:
            self._peers.renew(peer)
            peer.is_suspected = False
        health.is_live = True
        if health.is_reported:
            health.is_reported = False
            self._callbacks.on_live(peer.address)
        lost, health.lost = health.lost, status.lost
        if any(n > lost.get(of, 0) and self._is_counted_on(of) for of, n in status.lost.items()):
            self._callbacks.on_messages_lost(peer.address)

    def _is_counted_on(self, identity: bytes) -> bool:
        """Whether what a peer lost of a party is news: of one that is suspected, all is lost."""
        peer = self._peers.by_identity.get(identity)
        return identity == self._identity or (peer is not None and not peer.is_suspected)

    def _connections(self, peer: Peer) -> Connections | None:
        return self._sockets.near if peer.is_near else self._sockets.far

    def _send(self, peer: Peer, message: protocol.ControlMessage) -> bool:
        """Send a control message to a peer that is connected; return whether there was room."""
        connections, identity = self._connections(peer), peer.endpoint.identity
        if connections is None or not connections.is_up(identity):
            return False
        data = protocol.pack_control(message, identity, self._identity)
        try:
            return connections.send(identity, [data])
        except zmq.ZMQError as error:
            _log.debug("no control message to %s: %s", peer.endpoint, error)
            return False

    def _ask(self, peer: Peer) -> None:
        self._send(peer, protocol.StatusRequest(time.monotonic()))
        peer.health.num_unanswered += 1

    def _send_drops(self) -> None:
        while self._peers.dropping:
            self._dropping.add(self._peers.dropping.popleft())
        self._dropping -= {peer for peer in self._dropping if not self._has_sent_drops(peer)}

    def _has_sent_drops(self, peer: Peer) -> bool:
        """Send dropped requests as far as there is room; whether some are left."""
        while peer.drops and not peer.has_ended:
            requests: list[bytes] = []
            nbytes = 0
            while peer.drops and nbytes < _MOST_DROPPED_NBYTES:
                requests.append(peer.drops.popleft())
                nbytes += len(requests[-1])
            if not self._send(peer, protocol.Drop(requests)):
                peer.drops.extendleft(reversed(requests))
                return True
        return False

    # Liveness.

    def _connect_new(self) -> None:
        while self._peers.new:
            peer = self._peers.new.popleft()
            endpoint = peer.endpoint
            connections = self._connections(peer)
            if connections is not None:
                connections.connect(endpoint.identity, endpoint.control_url, endpoint.key)

    def _note_connection(self, identity: bytes, is_up: bool) -> None:
        """Take in that a peer's connection was made, or has ended."""
        peer = self._peers.by_identity.get(identity)
        if peer is None:
            return
        if is_up:
            self._ask(peer)
        elif peer.is_near and peer.endpoint.process.is_gone:
            self._end_process(-1, peer.endpoint.process)
        else:
            self._suspect(peer)

    def _tend(self, peer: Peer, now_s: float, is_due: bool) -> None:
        health = peer.health
        peer.send_held(wait=False)  # the thread that holds it may be stuck
        if not peer.guarded:
            self._guard_process(peer)
        if num_dropped := peer.num_dropped - peer.num_counted:
            peer.num_counted += num_dropped
            self._count_lost(peer.endpoint.identity, num_dropped)
        connections = self._connections(peer)
        is_up = connections is not None and connections.is_up(peer.endpoint.identity)
        if not (is_up or peer.is_suspected):
            # Counted, and not timed: this process may have been stopped itself, or its interpreter.
            health.num_waits += 1
            if health.num_waits * self._heartbeat_s > self._timeout_s:
                self._suspect(peer)
        if is_due and is_up and peer.polled:
            if self._is_overdue(peer):
                self._suspect(peer)
            self._ask(peer)
        if peer.is_suspected and peer.watched:
            self._report(peer)
        elif peer.is_suspected:
            silent_s = now_s - health.heard_s
            if peer.has_ended or silent_s > self._timeout_s * _FORGOTTEN_AFTER:
                self._forget(peer)

    def _is_overdue(self, peer: Peer) -> bool:
        """Whether a peer has answered fewer requests than its stages may keep it from answering."""
        health = peer.health
        most_s = self._timeout_s + health.status.get(PATIENCE, math.inf)
        return (health.num_unanswered - 1) * _STATUS_HEARTBEATS * self._heartbeat_s > most_s

    def _suspect(self, peer: Peer) -> None:
        """Take in that a peer cannot be reached; its process may go on."""
        if peer.is_suspected:
            return
        health = peer.health
        health.heard_s = max(health.heard_s, time.monotonic() - self._timeout_s)
        peer.is_suspected, health.is_live = True, False
        self._note_data_loss(peer.endpoint.identity)
        if peer.watched:
            self._report(peer)

    def _report(self, peer: Peer) -> None:
        """Report, once, that a watched peer is suspected, or that it has ended."""
        health = peer.health
        if peer.has_ended and not health.is_end_reported:
            health.is_reported = health.is_end_reported = True
            self._callbacks.on_ended(peer.address)
        elif not health.is_reported:
            health.is_reported = True
            self._callbacks.on_suspected(peer.address, time.monotonic() - health.heard_s)

    def _guard_process(self, peer: Peer) -> None:
        """Have the end of a peer's process reported at once, where it is on this node."""
        process = peer.endpoint.process
        peer.guarded = True
        if not peer.is_near or process.number == os.getpid():
            return
        if process in self._processes.values():
            return
        descriptor = -1
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(process.number)
            self._processes[descriptor] = process
            self._poller.register(descriptor, zmq.POLLIN)
        if process.is_gone:
            self._end_process(descriptor, process)

    def _end_process(self, descriptor: int, process: Process) -> None:
        """Take in that a process has ended; `descriptor` reported it, or is none."""
        if self._processes.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)
            os.close(descriptor)
        self._guarded(self._pool.free_all_of, process)
        self._guarded(self._slots.forget, process)
        self._guarded(sweep, self._folder)
        for peer in self._peers:
            if peer.endpoint.process == process:
                self._guarded(self._end, peer)

    def _end(self, peer: Peer) -> None:
        """Take in that a peer's channel has ended, for good."""
        peer.has_ended = True
        peer.is_suspected, peer.health.is_live = True, False
        self._note_data_loss(peer.endpoint.identity)
        self._pool.free_untaken(peer.endpoint.identity)
        if peer.watched:
            self._report(peer)

    def _forget(self, peer: Peer) -> None:
        if connections := self._connections(peer):
            connections.disconnect(peer.endpoint.identity)
        self._peers.forget(peer.address)

    # Losses.

    def _note_data_loss(self, identity: bytes) -> None:
        """Take in that what is on its way to a peer on another node may be lost."""
        peer = self._peers.by_identity.get(identity)
        if peer is None or not peer.may_lose:
            return
        peer.may_lose = False
        self._count_lost(identity, 1)
        if not peer.is_suspected:
            _log.warning("%s: its connection has ended, messages may be lost", peer.endpoint)
            self._callbacks.on_messages_lost(peer.address)

    def _take_losses(self) -> None:
        """Report messages that came damaged."""
        lost_by: set[bytes] = set()
        losses: deque[tuple[bytes, str]] = self._inbox.losses
        while losses:
            sender, why = losses.popleft()
            self._count_lost(sender, 1)
            lost_by.add(sender)
            peer = self._peers.by_identity.get(sender)
            of = sender.hex() if peer is None else peer.endpoint
            _log.warning("a message of %s is lost: %s", of, why)
        for sender in lost_by:
            if sender in self._peers.by_identity:
                self._callbacks.on_messages_lost(self._peers.by_identity[sender].address)

    def _count_lost(self, identity: bytes, number: int) -> None:
        self._lost[identity] = self._lost.pop(identity, 0) + number
        while len(self._lost) > _MOST_LOST:
            del self._lost[next(iter(self._lost))]
