"""Requests that may be what ends devices: one of them runs at a time. Pure.

What ends a device is among those that it had. Those with which devices ended twice are tried again
one by one, so that the others are not taken for it; what ends one alone has failed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from scheduler.vocabulary.record import RequestRecord, RequestState


class Suspects:
    """Those that are parked, the next to be tried first, and the one that runs."""

    def __init__(self) -> None:
        self.parked: OrderedDict[int, RequestRecord] = OrderedDict()
        self.running: RequestRecord | None = None

    def blame(self, request: RequestRecord) -> None:
        """Take note that a device has ended with a request on it."""
        request.num_failed += request.is_suspect
        request.num_lost += 1
        request.is_suspect = request.num_lost > 1
        self.moved(request)

    def moved(self, request: RequestRecord) -> None:
        """Take in a request's state."""
        if request.is_suspect and request.state is RequestState.PARKED:
            self.parked.setdefault(request.id, request)
        else:
            self.parked.pop(request.id, None)
        if request is self.running and request.state is not RequestState.RUNNING:
            self.running = None

    def due(self, now_s: float) -> Iterator[RequestRecord]:
        """Return those that may be tried now, if none runs."""
        if self.running is None:
            yield from (r for r in self.parked.values() if now_s >= r.resume_s)
