"""What a Core lets be seen of its requests: a trace of them, and figures about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from devices.errors import HeteroError
from hetero.trace import Trace
from scheduler.executor import DeviceDescriptor
from scheduler.observer import Observer


class Observed(ABC):
    """A Core's side that is looked at; its executor tells the observers of requests."""

    def __init__(self) -> None:
        self._observers: Final[list[Observer]] = []

    @property
    @abstractmethod
    def device_descriptors(self) -> tuple[DeviceDescriptor, ...]:
        """Every device."""

    def trace(self, path: str | Path, *, requests: int = 10_000) -> Trace:
        """Return a block whose requests are traced: ``with core.trace("trace.json"): ...``.

        The file shows, on one clock, each request's wait for admission and its time in flight, each
        stage's run and its time in its device's queue, and the wires between stages.

        Parameters
        ----------
        path : path
            The file, for https://ui.perfetto.dev or ``chrome://tracing``; it appears when the block
            ends, also by an error or Ctrl-C.
        requests : int
            How many are kept: the last to end. Each takes about a kilobyte for each stage.

        Raises
        ------
        ArgumentError
            `requests` is not positive.
        """
        return Trace(path, self._observers, self._nodes, requests)

    def _nodes(self) -> Mapping[str, str]:
        try:
            return {device.name: device.node for device in self.device_descriptors}
        except HeteroError:  # the cluster is lost: what is known is told without the nodes' names
            return {}
