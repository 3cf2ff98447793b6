"""Simulated network: messages take time, and may be lost, duplicated or delayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hetero.devices.plugin.program import Value, nbytes_of
from hetero.scheduler.channels import envelope
from hetero.scheduler.channels.channel import LaneReceiver, Receiver
from hetero.scheduler.channels.lane import LaneHead, pack_message, read_head
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.simulation.simulator import Process, Simulator
from hetero.scheduler.types.messages import Dropped, Failure, Message, Outputs, StoreTensors, Values

#: Approximate size of a message without its tensors, in bytes.
_HEAD_NBYTES: Final = 200

#: Network faults for a message, or a packed one: takes sender, receiver and message; returns the
#: additional delay of each delivered copy. An empty result means that the message is lost.
NetworkFaults = Callable[[Process, Process, Message | bytes], Sequence[float]]


def no_faults(sender: Process, receiver: Process, message: Message | bytes) -> Sequence[float]:
    """Deliver each message once, without additional delay."""
    return (0.0,)


@dataclass(slots=True)
class Link:
    """Connection from one node to another, or within a node; it sends one message at a time."""

    delay_s: float = 0.0
    nbytes_per_s: float = 0.0
    #: Time when it is free again; total time in use; total time that messages waited for it.
    free_s: float = 0.0
    busy_s: float = 0.0
    queued_s: float = 0.0

    def take_s(self, now_s: float, nbytes: int) -> float:
        """Send a message of `nbytes`; return the time until it arrives, in seconds."""
        if not self.nbytes_per_s:
            return self.delay_s
        start_s, took_s = max(now_s, self.free_s), nbytes / self.nbytes_per_s
        self.queued_s += start_s - now_s
        self.busy_s += took_s
        self.free_s = start_s + took_s
        return self.free_s - now_s + self.delay_s


class Network:
    """Simulated network: endpoints, and the links between their nodes.

    `link`: takes two nodes, returns a new link from the first to the second.
    `is_coded`: whether messages are serialized, as between processes.
    """

    def __init__(
        self, simulator: Simulator, link: Callable[[str, str], Link], *, is_coded: bool = True
    ) -> None:
        self._simulator = simulator
        self._link = link
        self._is_coded = is_coded
        self.faults: NetworkFaults = no_faults
        self.links: dict[tuple[str, str], Link] = {}
        self._endpoints: dict[str, tuple[Process, float, Receiver]] = {}
        self._lanes: dict[str, SimLaneChannel] = {}
        #: Called with sender and receiver for each lost message.
        self.on_lost: Callable[[Process, Process], None] = lambda sender, receiver: None

    def connect(
        self, process: Process, address: str, cost_s: float, receive: Receiver
    ) -> SimChannel:
        """Create an endpoint's channel; each received message takes `cost_s` of its process."""
        self._endpoints[address] = (process, cost_s, receive)
        if not self._is_coded:
            return SimChannel(self, process, address)
        channel = self._lanes[address] = SimLaneChannel(self, process, address)
        return channel

    def forget(self, address: str) -> None:
        """Remove an endpoint; messages to it are dropped."""
        self._endpoints.pop(address, None)
        self._lanes.pop(address, None)

    def send(self, sender: Process, address: str, message: Message) -> None:
        """Send a message, which is dropped if its receiver no longer exists on arrival."""
        if not sender.is_alive or address not in self._endpoints:
            return
        receiver, _, _ = self._endpoints[address]
        if self._is_coded:
            parts = [bytes(frame) for frame in envelope.to_frames(message)]
            message = envelope.from_frames(parts)
            if isinstance(message, Values | Outputs | StoreTensors):
                message = message._replace(tensors=read_only(message.tensors))
            self._simulator.note(f"{sender.name} > {receiver.name}: {_line(message)}")
        nbytes = _HEAD_NBYTES
        if isinstance(message, Values | Outputs | StoreTensors):
            nbytes += nbytes_of(message.tensors)
        self._deliver(sender, address, message, nbytes)

    def send_lane(self, sender: Process, address: str, data: bytes) -> None:
        """Deliver a packed message to its receiver, if that exists by then."""
        if sender.is_alive and address in self._endpoints:
            receiver, _, _ = self._endpoints[address]
            self._simulator.note(f"{sender.name} > {receiver.name}: lane {read_head(data, 0)}")
            self._deliver(sender, address, data, len(data))

    def _deliver(
        self, sender: Process, address: str, message: Message | bytes, nbytes: int
    ) -> None:
        receiver, cost_s, _ = self._endpoints[address]
        node_pair = (sender.node, receiver.node)
        link = self.links.get(node_pair)
        if link is None:
            link = self.links[node_pair] = self._link(*node_pair)
        took_s = link.take_s(self._simulator.now, nbytes)
        delays_s = self.faults(sender, receiver, message)
        for more_s in delays_s:
            receiver.do(took_s + more_s, cost_s, self._arrive, address, message)
        if not delays_s:
            self._simulator.note("lost")
            self.on_lost(sender, receiver)

    def _arrive(self, address: str, message: Message | bytes) -> None:
        if isinstance(message, bytes):
            lanes = self._lanes.get(address)
            if lanes is not None and lanes.receive_lane is not None:
                lanes.receive_lane(message, 0)
        elif (endpoint := self._endpoints.get(address)) is not None:
            endpoint[2](message)


class SimChannel:
    """`Channel` of a simulated endpoint."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self._network = network
        self._process = process
        self.address = address

    def send(self, address: str, message: Message) -> None:
        """Send a message."""
        self._network.send(self._process, address, message)

    def close(self) -> None:
        """Stop receiving messages."""
        self._network.forget(self.address)


class SimLaneChannel(SimChannel):
    """An endpoint's channel that also sends packed messages."""

    receive_lane: LaneReceiver | None = None
    stored_tensor = None

    def send_lane(
        self, address: str, head: LaneHead, timings: bytes, tensors: Sequence[Value]
    ) -> bool:
        """Send a packed message; return False if a value does not fit into one."""
        parts = pack_message(head, timings, tensors)
        if parts is not None:
            self._network.send_lane(self._process, address, b"".join(parts))
        return parts is not None

    def copy_to_shared_memory(self, array: np.ndarray) -> np.ndarray | None:
        """Return None: simulated nodes have no shared memory."""
        return None


def _line(message: Message) -> str:
    if isinstance(message, Values | Outputs | Failure | Dropped):
        request = message.request if isinstance(message, Dropped) else message.task.request
        stage = "" if isinstance(message, Dropped) else f" stage {message.task.stage}"
        return (
            f"{type(message).__name__} {request.deployment} {request.id}.{request.attempt}{stage}"
        )
    return type(message).__name__
