"""Simulated network: messages take time, and may be lost, duplicated or delayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hetero.devices.plugin.program import nbytes_of
from hetero.scheduler.channels import envelope
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.universe.world import Process, World
from hetero.scheduler.vocabulary.messages import Dropped, Failure, Keep, Message, Outputs, Values

#: Approximate size of a message without its tensors, in bytes.
_HEAD_NBYTES: Final = 200

#: Network faults for a message: takes sender, receiver and message; returns the additional delay of
#: each delivered copy. An empty result means that the message is lost.
Weather = Callable[[Process, Process, Message], Sequence[float]]


def fair(sender: Process, receiver: Process, message: Message) -> Sequence[float]:
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
        self, world: World, link: Callable[[str, str], Link], *, is_coded: bool = True
    ) -> None:
        self._world = world
        self._link = link
        self._is_coded = is_coded
        self.weather: Weather = fair
        self.links: dict[tuple[str, str], Link] = {}
        self._endpoints: dict[str, tuple[Process, float, Receiver]] = {}
        #: Called with sender and receiver for each lost message.
        self.on_lost: Callable[[Process, Process], None] = lambda sender, receiver: None

    def connect(
        self, process: Process, address: str, cost_s: float, receive: Receiver
    ) -> WorldChannel:
        """Create an endpoint's channel; each received message takes `cost_s` of its process."""
        self._endpoints[address] = (process, cost_s, receive)
        return WorldChannel(self, process, address)

    def forget(self, address: str) -> None:
        """Remove an endpoint; messages to it are dropped."""
        self._endpoints.pop(address, None)

    def send(self, sender: Process, address: str, message: Message) -> None:
        """Send a message, which is dropped if its receiver no longer exists on arrival."""
        if not sender.is_alive or address not in self._endpoints:
            return
        receiver, cost_s, _ = self._endpoints[address]
        if self._is_coded:
            parts = [bytes(frame) for frame in envelope.to_frames(message)]
            message = envelope.from_frames(parts)
            if isinstance(message, Values | Outputs | Keep):
                message = message._replace(tensors=read_only(message.tensors))
            self._world.note(f"{sender.name} > {receiver.name}: {_line(message)}")
        node_pair = (sender.node, receiver.node)
        link = self.links.get(node_pair)
        if link is None:
            link = self.links[node_pair] = self._link(*node_pair)
        nbytes = _HEAD_NBYTES
        if isinstance(message, Values | Outputs | Keep):
            nbytes += nbytes_of(message.tensors)
        took_s = link.take_s(self._world.now, nbytes)
        delays_s = self.weather(sender, receiver, message)
        for more_s in delays_s:
            receiver.do(took_s + more_s, cost_s, self._arrive, address, message)
        if not delays_s:
            self._world.note("lost")
            self.on_lost(sender, receiver)

    def _arrive(self, address: str, message: Message) -> None:
        endpoint = self._endpoints.get(address)
        if endpoint is not None:
            endpoint[2](message)


class WorldChannel:
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


def _line(message: Message) -> str:
    if isinstance(message, Values | Outputs | Failure | Dropped):
        request = message.request if isinstance(message, Dropped) else message.task.request
        stage = "" if isinstance(message, Dropped) else f" stage {message.task.stage}"
        return (
            f"{type(message).__name__} {request.deployment} {request.id}.{request.attempt}{stage}"
        )
    return type(message).__name__
