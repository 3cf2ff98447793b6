"""The control thread of a direct channel: beats, silence, clocks, losses, and requests dropped.

It has sockets of its own, so that large tensors never hold it up, and answers while the party's
other threads compute.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq

from hetero.devices.errors import BlobError, ClusterError
from hetero.scheduler.channels import envelope, protocol
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.direct_address import to_endpoint
from hetero.scheduler.channels.inbox import Inbox
from hetero.scheduler.channels.peers import Peer, Peers
from hetero.scheduler.channels.relays import Relays, pages
from hetero.scheduler.channels.shared_memory import SlotReader
from hetero.scheduler.channels.stamps import Stamp, StampReader
from hetero.scheduler.processes.owned_files import Process, sweep
from hetero.scheduler.processes.threads import start_thread
from hetero.scheduler.vocabulary.messages import Dropped

_log = logging.getLogger(__name__)

#: Peers that nobody watches are forgotten after so many time-outs without a beat.
_FORGOTTEN_AFTER: Final = 10
#: How old, in beats, may be what one party says of another.
_FRESH_BEATS: Final = 2
#: Seconds between two looks at what has not been used.
_TIDY_S: Final = 10.0
#: In a status: how long the party may be silent, seconds, while its process goes on.
PATIENCE: Final = "patience_s"


@dataclass(slots=True)
class Callbacks:
    """Whom the control thread tells what; see `DirectChannel`."""

    receive: Receiver
    on_silent: Callable[[str, float], None]
    on_heard: Callable[[str], None]
    on_lost: Callable[[str], None]
    status: Callable[[], Mapping[str, float]]


class Control:
    """The thread and its state."""

    def __init__(
        self,
        peers: Peers,
        inbox: Inbox,
        slots: SlotReader,
        callbacks: Callbacks,
        *,
        beat_s: float,
        timeout_s: float,
    ) -> None:
        own = to_endpoint(peers.own)
        self._identity = own.identity
        self._folder = Path(own.path).parent
        self._sockets = peers.control
        self._peers = peers
        self._pool = peers.pool
        self._inbox = inbox
        self._slots = slots
        self._callbacks = callbacks
        self._stamp = Stamp(own.stamp_path)
        self._beat_s = beat_s
        self._fresh_s = _FRESH_BEATS * beat_s
        self._relays = Relays(self._fresh_s)
        # The last beat may be so much older than what ended them.
        self._silent_after_s = timeout_s - beat_s
        self._forgotten_after_s = timeout_s * _FORGOTTEN_AFTER
        self._num_lost = 0
        #: File descriptors that tell the end of processes on this node.
        self._processes: dict[int, Process] = {}
        self._poller = zmq.Poller()
        self._sockets.register(self._poller)
        self._closed = False
        self._thread = start_thread(self._run, "hetero-control")

    def close(self) -> None:
        """Stop the thread."""
        self._closed = True
        self._sockets.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        next_s = time.monotonic()
        tidy_s = next_s + _TIDY_S
        while not self._closed:
            wait_s = max(0.0, next_s - time.monotonic())
            for found, _ in self._poller.poll(int(wait_s * 1e3) + 1):
                if found in self._processes:
                    self._end(found, self._processes[found])
            self._guarded(self._drain)
            now_s = time.monotonic()
            while self._peers.new:  # the first beat says whose link it is
                peer = self._peers.new.popleft()
                self._guarded(self._send_beat, peer, now_s, self._packed_status())
            if self._closed or now_s < next_s:
                continue
            self._guarded(self._tell_losses)
            status, late_s = self._packed_status(), now_s - next_s
            peers = list(self._peers)
            far = [peer for peer in peers if not peer.endpoint.is_near]
            askers = [peer for peer in far if self._relays.is_asked_by(peer, now_s)]
            self._stamp.write(now_s, status, self._relays.roll(askers, now_s))
            for peer in peers:
                if peer.endpoint.is_near:
                    self._guarded(self._tend, peer, status, now_s, late_s)
            self._relays.choose(far, now_s)  # by what those of this node say
            for peer in far:
                self._guarded(self._tend, peer, status, now_s, late_s)
            if now_s >= tidy_s:
                self._guarded(self._pool.give_back)
                self._guarded(self._slots.tidy)
                tidy_s = now_s + _TIDY_S
            next_s = now_s + self._beat_s
        for descriptor in self._processes:
            os.close(descriptor)
        for peer in self._peers:
            peer.close_stamp()
        self._stamp.close()

    def _drain(self) -> None:
        for data in self._sockets.drain():
            if self._closed:
                return
            if data:
                self._guarded(self._take, data, time.monotonic())

    @staticmethod
    def _guarded(action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except (BlobError, ClusterError) as error:
            _log.warning("a control message is dropped: %s", error)
        except Exception:  # a callback's fault must not end the thread
            _log.exception("the control thread of a channel goes on")

    def _take(self, data: bytes, now_s: float) -> None:
        sender, said = protocol.read_control(data, self._identity)
        peer = self._peers.met.get(sender)
        if isinstance(said, protocol.Beat):
            self._hear(sender, said, now_s)
        elif isinstance(said, protocol.Drop):
            for request in said.requests:
                self._guarded(self._drop, request)
        elif peer is None:
            return
        elif isinstance(said, protocol.Leave):
            if said.counts.keys().isdisjoint((peer.near.id, peer.far.id)):
                return  # it does not know our links: another says it in its name
            for link in (peer.near.id, peer.far.id):
                self._pool.free_undelivered(link, said.counts.get(link, 0) + 1, 2**64)
            self._lose(peer)
        elif isinstance(said, protocol.Missed) and said.link == peer.far.id:
            peer.send_again(said.mark, said.numbers)
        elif isinstance(said, protocol.Lost) and said.link in (peer.near.id, peer.far.id):
            first, last = said.first, said.last
            _log.warning("%s lost messages %d to %d: %s", peer.endpoint, first, last, said.why)
            self._pool.free_undelivered(said.link, first, last)
            self._callbacks.on_lost(sender)
        elif isinstance(said, protocol.Ask):
            peer.asked_s = now_s
            for address in said.addresses:
                self._guarded(self._relay, peer, address, now_s)
        elif isinstance(said, protocol.Roll) and not peer.silent and peer.clocks:
            self._hear_roll(peer, said.rows, now_s)

    def _relay(self, asker: Peer, address: str, now_s: float) -> None:
        """See how a party of this node is from now on, and have it see our stamp."""
        endpoint = to_endpoint(address)
        if not endpoint.is_near or endpoint.identity == self._identity:
            return
        if self._peers.meet(address, now_s, stranger=True) is not None:
            asker.asked.add(address)

    def _drop(self, request: bytes) -> None:
        message = envelope.message([request])
        if isinstance(message, Dropped):
            self._callbacks.receive(message)

    def _hear(self, sender: str, beat: protocol.Beat, now_s: float) -> None:
        peer = self._peers.meet(sender, now_s, stranger=True)
        if peer is None:
            return
        peer.owed, peer.acked = peer.owed or beat.is_owed, beat.came
        peer.has_left = False
        peer.link = beat.far
        self._inbox.link(beat.far).address = self._inbox.link(beat.near).address = sender
        # What it has heard of us is as old: a link that is cut one way is of no use.
        heard_s = now_s - beat.held_s if beat.held_s > self._fresh_s else now_s
        if not peer.endpoint.is_near:
            peer.said_s = max(peer.said_s, heard_s)
        peer.beat_s = (beat.clock_s, now_s)
        if beat.echo_s is not None and beat.held_s <= self._silent_after_s:  # since clocks drift
            round_s = max(0.0, now_s - beat.echo_s - beat.held_s)
            peer.clocks.append((round_s, beat.clock_s + round_s / 2 - now_s))
        is_heard = self._heard(peer, heard_s, now_s)
        if is_heard:
            peer.came(beat.came)
        self._said(peer, beat.status, is_heard)

    def _look_at(self, peer: Peer, now_s: float) -> None:
        """See how a party of this node is, by its stamp."""
        if peer.has_left:
            return
        if peer.stamp is None:
            try:
                peer.stamp = StampReader(peer.endpoint.stamp_path)
            except (FileNotFoundError, ValueError):  # it says nothing, or in another way
                return
            except OSError:  # for want of descriptors: nobody knows
                peer.heard_s = now_s
                return
        if found := peer.stamp.read():
            clock_s, status, roll = found
            peer.said_s = min(clock_s, now_s)
            self._said(peer, status, self._heard(peer, clock_s, now_s))
            self._hear_roll(peer, roll, now_s)

    def _hear_roll(self, sender: Peer, roll: list[protocol.Row], now_s: float) -> None:
        """Take in what a party says of those of its node; or, on ours, of those of other nodes.

        One that is silent has to be heard itself, and so has one that should have answered.
        """
        is_near, said_s = sender.endpoint.is_near, sender.said_s
        clock = (0.0, 0.0) if is_near else min(sender.clocks)
        for identity, age_s, round_s, offset_s, status, num_asked in roll:
            peer = self._peers.by_identity.get(identity)
            if peer is None or peer.silent or peer.endpoint.is_near:
                continue
            if not (is_near or peer.endpoint.node == sender.endpoint.node):
                continue
            unanswered_s = now_s - max(peer.idle_s, peer.said_s)
            if unanswered_s > self._silent_after_s or not 0 <= age_s <= self._fresh_s:
                continue
            peer.covered_s = max(peer.covered_s, said_s)
            if is_near and self._relays.outranks(peer, num_asked):
                peer.outranks_s = said_s
            peer.clocks.append((clock[0] + round_s, clock[1] + offset_s))
            self._said(peer, status, self._heard(peer, said_s - age_s, now_s))

    def _heard(self, peer: Peer, heard_s: float, now_s: float) -> bool:
        """Take in when a party was heard; return whether it is not silent."""
        peer.heard_s = max(peer.heard_s, min(heard_s, now_s))  # a clock may be ahead of ours
        if now_s - peer.heard_s > self._silent_after_s:
            return False
        if peer.silent:
            peer.silent, peer.renew = False, not peer.endpoint.is_near
        return True

    def _said(self, peer: Peer, status: bytes, is_heard: bool) -> None:
        num_lost, peer.status = protocol.unpacked_status(status)
        peer.packed_status = status
        if is_heard and peer.told:
            peer.told = False
            self._callbacks.on_heard(peer.address)
        if is_heard and num_lost > peer.lost:
            peer.lost = num_lost
            self._callbacks.on_lost(peer.address)

    def _packed_status(self) -> bytes:
        status: dict[str, float] = {}
        try:
            status = {name: float(value) for name, value in self._callbacks.status().items()}
        except Exception:  # beats go on without
            _log.exception("a channel's status cannot be told")
        return protocol.packed_status(self._num_lost, status)

    def _send_beat(self, peer: Peer, now_s: float, status: bytes, *, is_owed: bool = True) -> None:
        echo_s, held_s = (None, 0.0) if peer.beat_s is None else peer.beat_s
        if echo_s is not None:
            held_s = now_s - held_s
        came = self._inbox.link(peer.link).whole if peer.link else 0
        links = (peer.far.id, peer.near.id, came)
        peer.owed = False
        peer.say(protocol.Beat(*links, now_s, echo_s, held_s, status, is_owed))

    def _tend(self, peer: Peer, status: bytes, now_s: float, late_s: float) -> None:
        num_dropped = peer.num_dropped
        self._num_lost += num_dropped - peer.num_told
        peer.num_told = num_dropped
        if late_s > self._beat_s:
            peer.heard_s += late_s  # we ourselves were stopped, and heard nobody
        if peer.endpoint.is_near:
            self._guarded(self._look_at, peer, now_s)
        is_idle = peer.clocks and peer.far.count == peer.acked and not peer.is_untold
        if is_idle:
            peer.idle_s = now_s
        is_needed = not (is_idle and self._is_seen(peer, now_s))
        if is_needed or peer.owed:
            self._send_beat(peer, now_s, status, is_owed=is_needed)
        if peer in self._relays.asks:
            peer.say(protocol.Ask(self._relays.asks[peer]))
        is_asked = self._relays.is_asked_by(peer, now_s)
        peer.asked = {it for it in peer.asked if is_asked and it in self._peers.met}
        asked = [self._peers.met[address] for address in peer.asked]
        for page in pages(self._relays.roll(asked, now_s)):
            peer.say(protocol.Roll(page))
        peer.send_held(wait=False)  # the thread that holds it may be stuck
        self._guard_process(peer)
        silent_s = now_s - peer.heard_s
        if silent_s > self._silent_after_s and not self._is_busy(peer, silent_s):
            self._silence(peer, silent_s)
        if silent_s > self._forgotten_after_s and not peer.watched:
            self._forget(peer)

    def _is_seen(self, peer: Peer, now_s: float) -> bool:
        """Whether a party hears of us without beats of ours, and needs none to hear of others."""
        if peer.endpoint.is_near:
            return True
        relays = self._relays
        if peer.silent or peer in relays.asks or relays.is_asked_by(peer, now_s):
            return False
        return relays.is_covered(peer, now_s)

    def _is_busy(self, peer: Peer, silent_s: float) -> bool:
        """Whether a party says nothing because its code keeps the interpreter to itself.

        Its process, on this node, goes on; how long that may be, it has said.
        """
        if peer.beat_s is None or not peer.endpoint.is_near:
            return False
        process, patience_s = peer.endpoint.process, peer.status.get(PATIENCE, math.inf)
        if process.number == os.getpid() or silent_s > self._silent_after_s + patience_s:
            return False
        return not (process.is_stopped or process.is_gone)

    def _silence(self, peer: Peer, silent_s: float) -> None:
        peer.silent = True
        if peer.watched and not peer.told:
            peer.told = True
            self._callbacks.on_silent(peer.address, silent_s)

    def _guard_process(self, peer: Peer) -> None:
        """Have the end of a peer's process told at once, where it is on this node."""
        process = peer.endpoint.process
        if peer.guarded or not peer.endpoint.is_near or process.number == os.getpid():
            return
        peer.guarded = True
        if process in self._processes.values():
            return
        descriptor = -1
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(process.number)
            self._processes[descriptor] = process
            self._poller.register(descriptor, zmq.POLLIN)
        if process.is_gone:
            self._end(descriptor, process)

    def _end(self, descriptor: int, process: Process) -> None:
        """Take in that a process has ended; `descriptor` told it, or is none."""
        if self._processes.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)
            os.close(descriptor)
        self._guarded(self._pool.free_all_of, process)
        self._guarded(self._slots.forget, process)
        self._guarded(sweep, self._folder)
        for peer in self._peers:
            if peer.endpoint.process == process:
                self._guarded(self._lose, peer)

    def _lose(self, peer: Peer) -> None:
        """Take in that nothing more will come from a peer."""
        peer.heard_s = -float("inf")
        peer.close_stamp()
        peer.has_left = True
        self._silence(peer, 0.0)

    def _forget(self, peer: Peer) -> None:
        self._peers.forget(peer.address)
        peer.close_stamp()
        incoming = self._inbox.incoming
        for link, it in list(incoming.items()):
            if it.address == peer.address:
                del incoming[link]

    def _tell_losses(self) -> None:
        inbox = self._inbox
        while inbox.missed:
            link, (mark, numbers) = inbox.missed.popitem()
            peer = self._peers.met.get(inbox.link(link).address)
            if peer is not None:
                peer.tell(protocol.Missed(link, mark, numbers))
        lost_by: set[Peer] = set()
        while inbox.losses:
            link, first, last, why = inbox.losses.popleft()
            self._num_lost += last - first + 1
            peer = self._peers.met.get(inbox.link(link).address)
            if peer is not None:
                peer.tell(protocol.Lost(link, first, last, why))
                lost_by.add(peer)
            of = link.hex() if peer is None else peer.endpoint
            _log.warning("messages %d to %d of %s are lost: %s", first, last, of, why)
        for peer in lost_by:
            self._callbacks.on_lost(peer.address)
