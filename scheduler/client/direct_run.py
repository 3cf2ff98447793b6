"""Direct runs: requests without a record in the client's state machine.

The state machine counts such a request and stores this small object. It creates the full record
only on demand, or when it adopts the request.
"""

from __future__ import annotations

from typing import Any

from hetero.devices.request.request import Request
from hetero.scheduler.types import events
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.request_record import RequestRecord, RequestState


class DirectRun:
    """Request without a record; after its end, the source of its history.

    Attributes
    ----------
    request, input_nbytes, begun_s
        The submitted request, its input size, and the time of submission.
    is_sent : bool
        Whether devices run it. Otherwise its caller's thread does, which alone has access to it.
    request_id, route, names_route, nbytes
        Set at admission: the id, the route, whether there are other routes, and the expected bytes.
    ended_s : float or None
        Time of completion.
    is_admitted : bool
        Whether the client's machine, and the counter of bytes in flight, include it now.
    entered : stage or None
        The stage whose stream it occupies now.
    """

    __slots__ = (
        "begun_s",
        "ended_s",
        "entered",
        "input_nbytes",
        "is_admitted",
        "is_sent",
        "names_route",
        "nbytes",
        "request",
        "request_id",
        "route",
    )

    def __init__(
        self, request: Request, input_nbytes: int, begun_s: float, *, is_sent: bool = False
    ) -> None:
        self.request = request
        self.input_nbytes = input_nbytes
        self.begun_s = begun_s
        self.is_sent = is_sent
        self.ended_s: float | None = None
        self.request_id = self.route = self.nbytes = 0
        self.names_route = self.is_admitted = False
        self.entered: Any = None

    def record(self, limits: Limits) -> RequestRecord:
        """Build the full record of the request."""
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
        record.counted_nbytes, record.counted_attempts = self.nbytes, 1
        record.note_submission()
        record.begin_attempt(self.begun_s, "started", self.route, names_route=self.names_route)
        if self.ended_s is not None:
            record.state, record.ended_s = RequestState.ANSWERED, self.ended_s
            record.note(self.ended_s, "answered")
        return record
