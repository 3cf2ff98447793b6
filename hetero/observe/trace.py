"""Tracing: the last requests of a Core, kept as they end and written when the block ends."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from hetero.devices.errors import ArgumentError
from hetero.observe.trace_events import trace_events
from hetero.scheduler.formats.publish import publish
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest, Observer


class Trace:
    """Traces requests until it is closed; made by `Core.trace`.

    As a block it is closed at the block's end.

    Attributes
    ----------
    path : pathlib.Path
        The file: JSON in Google's Trace Event Format, for https://ui.perfetto.dev or
        ``chrome://tracing``. It appears whole when it is closed.
    is_written : bool
        Whether the file is there; an error before the first request leaves none.
    num_left_out : int
        Requests that ended before the last ones, which are all that is kept, besides those that
        have not ended with the block.
    """

    def __init__(
        self,
        path: str | Path,
        observers: list[Observer],
        nodes: Callable[[], Mapping[str, str]],
        in_flight: Callable[[], Sequence[ObservedRequest]],
        requests: int,
    ) -> None:
        if requests < 1:
            raise ArgumentError(f"requests={requests}: a trace keeps at least one.")
        self.path = Path(path)
        self.num_left_out = 0
        self.is_written = False
        self._observers = observers
        self._nodes = nodes
        self._in_flight = in_flight
        self._devices: deque[DeviceEvent] = deque(maxlen=1000)
        self._kept: deque[ObservedRequest] = deque(maxlen=requests)
        if not os.access(self.path.absolute().parent, os.W_OK) or self.path.is_dir():
            raise ArgumentError(
                f"trace {self.path}: no file can be written there; give another path."
            )
        observers.append(self)

    def close(self) -> None:
        """Trace no more, and write the file."""
        self.__exit__()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, kind: object = None, error: object = None, traceback: object = None) -> None:
        if self not in self._observers:
            return
        self._observers.remove(self)
        requests = [*self._kept, *self._in_flight()]
        if requests or error is None:
            publish(self.path, partial(self._write, requests))
            self.is_written = True

    def ended(self, request: ObservedRequest) -> None:
        """Keep a request."""
        self.num_left_out += len(self._kept) == self._kept.maxlen
        self._kept.append(request)

    def ran(self, request: ObservedRequest) -> None:
        """Keep nothing more: the request itself tells of its stages."""

    def device(self, event: DeviceEvent) -> None:
        """Keep what became of a device; the last thousand such."""
        self._devices.append(event)

    def _write(self, requests: Sequence[ObservedRequest], file: BinaryIO) -> None:
        about: dict[str, Any] = {"requests": len(requests), "left_out": self.num_left_out}
        nodes = self._nodes() if requests else {}
        events = trace_events(requests, nodes, tuple(self._devices), now_s=time.monotonic())
        file.write(b'{"displayTimeUnit": "ms", "otherData": %s,\n' % json.dumps(about).encode())
        file.write(b'"traceEvents": [')
        for number, event in enumerate(events):
            file.write(b",\n" if number else b"\n")
            file.write(json.dumps(event).encode())
        file.write(b"\n]}\n")
