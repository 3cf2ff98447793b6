"""The network: messages between processes take time, and may be lost, doubled, late."""

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

#: Bytes of a message besides its tensors, about.
_HEAD_NBYTES: Final = 200

#: Decides what becomes of a message: takes both processes, returns how much later than it should
#: each copy of it comes; none: it is lost.
Weather = Callable[[Process, Process, Message], Sequence[float]]


def fair(sender: Process, receiver: Process, message: Message) -> Sequence[float]:
    """Have each message come, once."""
    return (0.0,)


@dataclass(slots=True)
class Link:
    """A way from one node to another, or within one; messages go one after the other."""

    delay_s: float = 0.0
    nbytes_per_s: float = 0.0
    #: Until when it is in use; how long it was in all, and how long messages waited for it.
    free_s: float = 0.0
    busy_s: float = 0.0
    queued_s: float = 0.0

    def take_s(self, now_s: float, nbytes: int) -> float:
        """Send so many bytes; return how long that takes."""
        if not self.nbytes_per_s:
            return self.delay_s
        start_s, took_s = max(now_s, self.free_s), nbytes / self.nbytes_per_s
        self.queued_s += start_s - now_s
        self.busy_s += took_s
        self.free_s = start_s + took_s
        return self.free_s - now_s + self.delay_s


class Network:
    """Who is where, and what is between them.

    `link`: takes two nodes, returns a new link from the first to the second.
    `is_coded`: whether messages travel as bytes, as they do between processes.
    """

    def __init__(
        self, world: World, link: Callable[[str, str], Link], *, is_coded: bool = True
    ) -> None:
        self._world = world
        self._link = link
        self._is_coded = is_coded
        self.weather: Weather = fair
        self.links: dict[tuple[str, str], Link] = {}
        self._parties: dict[str, tuple[Process, float, Receiver]] = {}
        #: Told of each message that is lost: sender and receiver.
        self.on_lost: Callable[[Process, Process], None] = lambda sender, receiver: None

    def connect(
        self, process: Process, address: str, cost_s: float, receive: Receiver
    ) -> WorldChannel:
        """Return a party's channel; each message that comes takes `cost_s` of its process."""
        self._parties[address] = (process, cost_s, receive)
        return WorldChannel(self, process, address)

    def forget(self, address: str) -> None:
        """Hand in nothing more."""
        self._parties.pop(address, None)

    def send(self, sender: Process, address: str, message: Message) -> None:
        """Have a message come to its receiver, if it is there by then."""
        if not sender.is_alive or address not in self._parties:
            return
        receiver, cost_s, _ = self._parties[address]
        if self._is_coded:
            parts = [bytes(frame) for frame in envelope.to_frames(message)]
            message = envelope.from_frames(parts)
            if isinstance(message, Values | Outputs | Keep):
                message = message._replace(tensors=read_only(message.tensors))
            self._world.note(f"{sender.name} > {receiver.name}: {_line(message)}")
        way = (sender.node, receiver.node)
        link = self.links.get(way)
        if link is None:
            link = self.links[way] = self._link(*way)
        nbytes = _HEAD_NBYTES
        if isinstance(message, Values | Outputs | Keep):
            nbytes += nbytes_of(message.tensors)
        took_s = link.take_s(self._world.now, nbytes)
        late = self.weather(sender, receiver, message)
        for more_s in late:
            receiver.do(took_s + more_s, cost_s, self._arrive, address, message)
        if not late:
            self._world.note("lost")
            self.on_lost(sender, receiver)

    def _arrive(self, address: str, message: Message) -> None:
        party = self._parties.get(address)
        if party is not None:
            party[2](message)


class WorldChannel:
    """One party's `Channel`."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self._network = network
        self._process = process
        self.address = address

    def send(self, address: str, message: Message) -> None:
        """Send a message."""
        self._network.send(self._process, address, message)

    def close(self) -> None:
        """Hand in nothing more."""
        self._network.forget(self.address)


def _line(message: Message) -> str:
    if isinstance(message, Values | Outputs | Failure | Dropped):
        request = message.request if isinstance(message, Dropped) else message.task.request
        stage = "" if isinstance(message, Dropped) else f" stage {message.task.stage}"
        return (
            f"{type(message).__name__} {request.deployment} {request.id}.{request.attempt}{stage}"
        )
    return type(message).__name__
