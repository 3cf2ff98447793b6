"""One channel for many deployments of a client: messages go to the deployment of their request."""

from __future__ import annotations

from scheduler.channels.channel import Channel, Receiver
from scheduler.vocabulary.messages import Dropped, Free, Message


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
        return _Part(self.channel, self._receivers, deployment)


class _Part:
    """A deployment's part of the channel."""

    def __init__(self, channel: Channel, receivers: dict[str, Receiver], deployment: str) -> None:
        self.address = channel.address
        self.send = channel.send
        self._receivers = receivers
        self._deployment = deployment

    def close(self) -> None:
        """Hand in nothing more."""
        self._receivers.pop(self._deployment, None)
