"""Channel within one process: arrays travel by reference, read-only, without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.types.messages import Message, StoreTensors, Values


class Switchboard:
    """The peers of one process by address.

    `kind`: class of their channels.
    """

    def __init__(self, kind: type[MemoryChannel] | None = None) -> None:
        self._kind = kind or MemoryChannel
        self._receivers: dict[str, Receiver] = {}

    def connect(self, address: str, receive: Receiver) -> MemoryChannel:
        """Return the channel of a new peer."""
        self._receivers[address] = receive
        return self._kind(address, self._receivers)


class MemoryChannel:
    """Channel of one peer; it calls the receiver in the sender's thread."""

    def __init__(self, address: str, receivers: dict[str, Receiver]) -> None:
        self.address = address
        self._receivers = receivers

    def send(self, address: str, message: Message) -> None:
        """Deliver a message to its receiver; drop it if the receiver has closed its channel."""
        receive = self._receivers.get(address)
        if receive is None:
            return
        if type(message) is Values:
            task, tensors, timings = message
            message = tuple.__new__(Values, (task, read_only(tensors), timings))
        elif isinstance(message, StoreTensors):
            message = message._replace(tensors=read_only(message.tensors))
        receive(message)

    def close(self) -> None:
        """Receive no more messages."""
        self._receivers.pop(self.address, None)


def read_only(value: Any) -> Any:
    """Return a value with read-only arrays, since several stages read the same memory."""
    kind = type(value)
    if kind is np.ndarray:
        if value.flags.writeable:
            value = value.view()
            value.flags.writeable = False
        return value
    if kind is list:
        return [read_only(item) for item in value]
    # The check for an abstract class is the slowest: remote tensors are excluded before it.
    if kind is dict or (not hasattr(value, "nbytes") and isinstance(value, Mapping)):
        items = {}
        for name, item in value.items():
            if type(item) is np.ndarray and item.flags.writeable:  # the most frequent case
                item = item.view()
                item.setflags(write=False)  # faster than `flags.writeable`
            elif not hasattr(item, "nbytes"):
                item = read_only(item)
            items[name] = item
        return items
    return value
