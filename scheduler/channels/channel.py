"""What a channel is: it takes messages to other parties, and hands in those that come.

A client has one for all of its deployments: a message goes to the deployment of its request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from hetero.scheduler.vocabulary.messages import Dropped, Free, Message

#: Takes what comes for a party.
Receiver = Callable[[Message], None]


class Channel(Protocol):
    """A party's way to the others, made with the party's `Receiver`.

    Tensors that come are read-only; those that are sent must not be written to afterwards.
    """

    @property
    def address(self) -> str:
        """Where others reach this party; only channels of one kind know what is in it."""

    def send(self, address: str, message: Message) -> None:
        """Send a message.

        Never waits for the other party, and does not raise because it is gone: whoever watches
        the devices finds that out.
        """

    def close(self) -> None:
        """Send and hand in nothing more; again is harmless."""


class PumpedChannel(Channel, Protocol):
    """A channel whose messages come from other processes: some thread has to wait for them."""

    def pump(self, timeout_s: float) -> int:
        """Wait for messages and hand in those that have come; return how many.

        Any thread may; they take turns.
        """

    def wake(self) -> None:
        """Make one `pump`, that waits or the next, return early."""

    @property
    def num_waits(self) -> int:
        """How many times a `pump` has found nothing there, and has waited."""

    def hold(self) -> None:
        """Keep small messages for this node, that the calling thread sends, until `let_go`.

        Those for one party then go as one: it wakes once. One thread at a time may hold; what it
        holds goes with the next beat at the latest.
        """

    def let_go(self) -> None:
        """Send what is held, and hold no more."""


class SharedChannel:
    """A client's channel, shared by its deployments.

    `channel`: is given what `receive` returns; set before the first deployment connects.
    """

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self._receivers: dict[str, Receiver] = {}

    def receive(self, message: Message) -> None:
        """Hand a message in; one for a deployment that is closed comes too late."""
        if isinstance(message, Dropped | Free):  # only devices are sent these
            return
        receive = self._receivers.get(message.task.request.deployment)
        if receive is not None:
            receive(message)

    def connect(self, deployment: str, receive: Receiver) -> Channel:
        """Return a deployment's channel."""
        assert self.channel is not None
        self._receivers[deployment] = receive
        forget = partial(self._receivers.pop, deployment, None)
        return _Part(self.channel.address, self.channel.send, forget)


class _Part(NamedTuple):
    """A deployment's part of the channel."""

    address: str
    send: Callable[[str, Message], None]
    close: Callable[[], Any]
