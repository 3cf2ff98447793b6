"""The channel inside one process: arrays go by reference, read-only, and nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.vocabulary.messages import Keep, Message, Values


class Switchboard:
    """The parties of one process, by address; `kind` is the class of their channels."""

    def __init__(self, kind: type[MemoryChannel] | None = None) -> None:
        self._kind = kind or MemoryChannel
        self._receivers: dict[str, Receiver] = {}

    def connect(self, address: str, receive: Receiver) -> MemoryChannel:
        """Return a party's channel."""
        self._receivers[address] = receive
        return self._kind(address, self._receivers)


class MemoryChannel:
    """One party's channel; whoever sends calls the receiver, which only takes in."""

    def __init__(self, address: str, receivers: dict[str, Receiver]) -> None:
        self.address = address
        self._receivers = receivers

    def send(self, address: str, message: Message) -> None:
        """Hand a message to its receiver; one that is gone hears nothing."""
        receive = self._receivers.get(address)
        if receive is None:
            return
        if type(message) is Values:
            task, given, runs = message
            message = tuple.__new__(Values, (task, read_only(given), runs))
        elif isinstance(message, Keep):
            message = message._replace(tensors=read_only(message.tensors))
        receive(message)

    def close(self) -> None:
        """Take nothing more."""
        self._receivers.pop(self.address, None)


def read_only(value: Any) -> Any:
    """Return a value whose arrays cannot be written to: other stages read the same memory."""
    kind = type(value)
    if kind is np.ndarray:
        if value.flags.writeable:
            value = value.view()
            value.flags.writeable = False
        return value
    if kind is list:
        return [read_only(item) for item in value]
    # To ask for an abstract class takes longest: remote tensors are kept from it.
    if kind is dict or (not hasattr(value, "nbytes") and isinstance(value, Mapping)):
        found = {}
        for name, item in value.items():
            if type(item) is np.ndarray and item.flags.writeable:  # most by far
                item = item.view()
                item.flags.writeable = False
            elif not hasattr(item, "nbytes"):
                item = read_only(item)
            found[name] = item
        return found
    return value
