"""Cores in this process whose channels record the tensors that they carry."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from queue import Queue
from types import MappingProxyType
from typing import Any

import hetero
from hetero.devices.plugin.program import nbytes_of
from hetero.scheduler.channels.memory import MemoryChannel, Switchboard
from hetero.scheduler.types.messages import Message
from tests.scheduler.endpoints import wait_for
from tests.support.loopback import LoopbackChannel


class Counting(LoopbackChannel):
    """Channel that records sender, receiver and size of tensors."""

    crossed: Queue[tuple[str, str, int]] = Queue()

    def send(self, address: str, message: Message) -> None:
        nbytes = nbytes_of(getattr(message, "tensors", None) or {})
        if nbytes and address != self.address:
            sender, to = (party.partition("/")[0] for party in (self.address, address))
            self.crossed.put((sender, to, nbytes))
        super().send(address, message)


def crossed() -> list[tuple[str, str, int]]:
    """Return the transfers since the last call."""
    return [Counting.crossed.get() for _ in range(Counting.crossed.qsize())]


def core_on(
    kind: type[MemoryChannel], devices: Mapping[str, int] = MappingProxyType({"CPU": 2})
) -> hetero.Core:
    """Return a Core with this class of channels."""
    core = hetero.Core("inprocess", devices=devices)
    executor: Any = core.executor
    executor._switchboard = Switchboard(kind)
    executor._deployments.memory._connect = executor._switchboard.connect
    # Otherwise the callers' threads run requests, which bypass the channel.
    executor._workers.help_with = None
    crossed()
    return core


def kept_nbytes(core: hetero.Core) -> float:
    """Return the size of all resident tensors; NaN until each device has reported."""
    load = core.executor.load()
    return sum(device.status.get("kept_nbytes", math.nan) for device in load.devices.values())


def await_freed(core: hetero.Core, nbytes: int) -> None:
    """Wait until the resident tensors have this size; tensors are freed asynchronously."""

    def is_so() -> bool:
        gc.collect()
        return kept_nbytes(core) == nbytes

    wait_for(is_so)


#: y = x + 1 - 2, with one node for each of two devices.
CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
chain (float[n] x) => (float[n] y)
<float one = {1.0}, float two = {2.0}> { h = Add (x, one) y = Sub (h, two) }"""


DEVICES = "HETERO:CPU.0,CPU.1"
