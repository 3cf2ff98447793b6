"""Interfaces of channels: they send messages to other peers and deliver those that arrive.

A peer is a client or a device. A client has one channel for all its deployments: a message belongs
to the deployment of its request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np

from hetero.devices.plugin.program import Value
from hetero.scheduler.channels.lane import Get, LaneHead, lane_key, read_head, release_tensors
from hetero.scheduler.types.messages import Dropped, FreeTensors, Message

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


#: Callback for packed messages: takes bytes and the start of the message in them. Raises BlobError:
#: the head is damaged.
LaneReceiver = Callable[[bytes, int], None]


class LaneChannel(Channel, Protocol):
    """Channel that also sends packed messages to local peers.

    `receive_lane`: callback for those that arrive; None if the peer does not accept them.
    `stored_tensor`: returns a received tensor that is in shared memory; None without such memory.
    """

    receive_lane: LaneReceiver | None
    stored_tensor: Get | None

    def send_lane(
        self, address: str, head: LaneHead, timings: bytes, tensors: Sequence[Value]
    ) -> bool:
        """Send a packed message; return False if it has to be sent as a `Message`.

        See `hetero.scheduler.channels.lane.pack_message`.
        """

    def copy_to_shared_memory(self, array: np.ndarray) -> np.ndarray | None:
        """Copy an array to shared memory, from where `send_lane` sends it without another copy.

        Returns None if there is no room, or the array is too small for shared memory.
        """


def has_lanes(channel: Channel) -> TypeGuard[LaneChannel]:
    """Return whether a channel sends packed messages."""
    return hasattr(channel, "send_lane")


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
        #: `lane_key` of a deployment -> callback for its packed messages.
        self.lanes: dict[int, Callable[[bytes, LaneHead], None]] = {}

    def receive(self, message: Message) -> None:
        """Deliver a message to its deployment; drop it if that is closed."""
        if isinstance(message, Dropped | FreeTensors):  # sent to devices only
            return
        receive = self._receivers.get(message.task.request.deployment)
        if receive is not None:
            receive(message)

    def receive_lane(self, data: bytes, start: int) -> None:
        """Deliver a packed message to its deployment; drop it if that is closed.

        Raises BlobError: its head is damaged.
        """
        head = read_head(data, start)
        receive = self.lanes.get(head.deployment)
        if receive is not None:
            receive(data, head)
        elif self.channel is not None and has_lanes(self.channel):
            release_tensors(data, head, self.channel.stored_tensor)

    def connect(self, deployment: str, receive: Receiver) -> Channel:
        """Return a channel for one deployment."""
        assert self.channel is not None
        self._receivers[deployment] = receive
        disconnect = partial(self._disconnect, deployment)
        return _DeploymentChannel(self.channel.address, self.channel.send, disconnect)

    def _disconnect(self, deployment: str) -> None:
        self._receivers.pop(deployment, None)
        self.lanes.pop(lane_key(deployment), None)


class _DeploymentChannel(NamedTuple):
    """Channel of one deployment; it sends by the shared channel."""

    address: str
    send: Callable[[str, Message], None]
    close: Callable[[], Any]
