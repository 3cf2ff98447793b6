"""Interfaces of channels: they send messages to other peers and deliver those that arrive.

A peer is a client or a device. A client has one channel for all its deployments: a message belongs
to the deployment of its request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from hetero.scheduler.vocabulary.messages import Dropped, Free, Message

#: Callback for the messages that arrive.
Receiver = Callable[[Message], None]


class Channel(Protocol):
    """A peer's connection to the other peers; it delivers messages to the peer's `Receiver`.

    Received tensors are read-only. A sender must not write to tensors that it has sent.
    """

    @property
    def address(self) -> str:
        """Address of this peer; its format depends on the kind of channel."""

    def send(self, address: str, message: Message) -> None:
        """Send a message without waiting for the receiver.

        It does not raise if the receiver has ended; the liveness of devices is tracked elsewhere.
        """

    def close(self) -> None:
        """Stop sending and delivering messages; calling it again has no effect."""


class PumpedChannel(Channel, Protocol):
    """A channel between processes, whose messages some thread has to wait for."""

    def pump(self, timeout_s: float) -> int:
        """Wait for a message and deliver it; return the number of delivered messages.

        Several threads may call it; they take turns.
        """

    def wake(self) -> None:
        """Make one call of `pump` return early: the current or the next one."""

    @property
    def num_waits(self) -> int:
        """Number of times that `pump` had to wait because no message was available."""

    def cork(self) -> None:
        """Buffer small messages of this thread to local peers until `uncork`, as TCP_CORK does.

        The messages to one peer then travel together and wake it once. One thread at a time may
        cork. Buffered messages are sent with the next heartbeat at the latest.
        """

    def uncork(self) -> None:
        """Send the buffered messages and stop buffering."""


class SharedChannel:
    """A client's channel, shared by its deployments.

    `channel`: the channel that delivers to `receive`; set it before the first `connect`.
    """

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self._receivers: dict[str, Receiver] = {}

    def receive(self, message: Message) -> None:
        """Deliver a message to its deployment; drop it if that is closed."""
        if isinstance(message, Dropped | Free):  # sent to devices only
            return
        receive = self._receivers.get(message.task.request.deployment)
        if receive is not None:
            receive(message)

    def connect(self, deployment: str, receive: Receiver) -> Channel:
        """Return a channel for one deployment."""
        assert self.channel is not None
        self._receivers[deployment] = receive
        disconnect = partial(self._receivers.pop, deployment, None)
        return _DeploymentChannel(self.channel.address, self.channel.send, disconnect)


class _DeploymentChannel(NamedTuple):
    """Channel of one deployment; it sends by the shared channel."""

    address: str
    send: Callable[[str, Message], None]
    close: Callable[[], Any]
