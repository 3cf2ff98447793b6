"""Direct runs: requests whose programs their callers' own threads run.

The client's machine counts such a request, and keeps this small object of it. The request's record
is made from it if somebody asks for it, or if the machine adopts the request.
"""

from __future__ import annotations

from typing import Any

from hetero.devices.request.request import Request
from hetero.scheduler.vocabulary import events
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.record import RequestRecord, RequestState


class DirectRun:
    """One request that its caller's thread runs; also its history, once it has ended.

    Attributes
    ----------
    request, input_nbytes, begun_s
        What was submitted, and when.
    request_id, route, names_route, nbytes
        Given when it is admitted: its number, its route and whether there are others, and the bytes
        that it is counted for.
    ended_s : float or None
        When it was answered.
    is_admitted, is_counted : bool
        Whether the client's machine, and the count of bytes in flight, count it now.
    entered : stage or None
        The stage of which it has a stream now.
    """

    __slots__ = (
        "begun_s",
        "ended_s",
        "entered",
        "input_nbytes",
        "is_admitted",
        "is_counted",
        "names_route",
        "nbytes",
        "request",
        "request_id",
        "route",
    )

    def __init__(self, request: Request, input_nbytes: int, begun_s: float) -> None:
        self.request = request
        self.input_nbytes = input_nbytes
        self.begun_s = begun_s
        self.ended_s: float | None = None
        self.request_id = self.route = self.nbytes = 0
        self.names_route = self.is_admitted = self.is_counted = False
        self.entered: Any = None

    def record(self, limits: Limits) -> RequestRecord:
        """Return the record that the machine would have kept of it."""
        submitted = events.Submitted(
            self.begun_s,
            self.request_id,
            self.input_nbytes,
            limits.deadline_s(self.begun_s, self.request.timeout_s),
            self.request.waits,
            self.request.priority,
            trace=self.request.trace,
        )
        record = RequestRecord(
            submitted,
            self.request_id,
            self.begun_s + limits.admission_timeout_s,
            self.nbytes,
            RequestState.DIRECT,
            self.begun_s,
        )
        record.note_submission()
        record.begin_attempt(self.begun_s, "started", self.route, names_route=self.names_route)
        if self.ended_s is not None:
            record.state, record.ended_s = RequestState.ANSWERED, self.ended_s
            record.note(self.ended_s, "answered")
        return record
