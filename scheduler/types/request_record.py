"""Record of a request in the client's state machine: state, attempts and history."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hetero.devices.request.response import StageTiming
from hetero.devices.request.story import StoryLine as StoryLine
from hetero.devices.request.story import format_story
from hetero.scheduler.types import events


class RequestState(Enum):
    """State of a request."""

    NEW = "new"
    #: Not admitted yet: the queue is full, or no route has all its devices.
    WAITING = "waiting"
    #: Admitted; its program runs on the caller's thread.
    DIRECT = "direct"
    #: Admitted; waits for its batch to fill.
    JOINING = "joining"
    RUNNING = "running"
    #: Admitted; its attempt failed. The next one starts when a route is free, or after a pause.
    PARKED = "parked"
    #: Complete; waits for earlier requests, because results are delivered in order.
    AWAITING_TURN = "awaiting turn"
    ANSWERED = "answered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    __hash__ = object.__hash__  # members are unique objects; the hash of Enum is slow


@dataclass(slots=True)
class RequestRecord:
    """State and history of a request."""

    submitted: events.Submitted
    #: Number of the request.
    id: int
    #: Time by which it must be admitted.
    admit_by_s: float
    #: Bytes in flight that it counts for: its inputs and the expected outputs of stages.
    nbytes: int = 0
    state: RequestState = RequestState.NEW
    #: Times of admission and end.
    admitted_s: float | None = None
    ended_s: float | None = None
    attempt: int = 0
    #: Route of the attempt.
    route: int = 0
    #: Routes that are not tried again.
    avoided: frozenset[int] = frozenset()
    #: Error of the last attempt, and earliest time of the next, while parked.
    error: BaseException | None = None
    resume_s: float = 0.0
    #: Number of failures that the request itself may have caused.
    num_failed: int = 0
    #: Number of device losses during its attempts; with two, it may be a poison request.
    num_lost: int = 0
    is_quarantined: bool = False
    #: Device of its attempt that misses heartbeats.
    silent_on: str = ""
    #: Outputs by name and timings by stage of the current attempt.
    outputs: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, StageTiming] = field(default_factory=dict)
    #: With dynamic batching: its batch; whether it is tried alone after its batch failed; whether
    #: it is the first of its batch, which reports the timings.
    batch: Any = None
    is_alone: bool = False
    is_first: bool = True
    #: Bytes and attempts that the counter of bytes in flight includes.
    counted_nbytes: int = field(default=0, compare=False, repr=False)
    counted_attempts: int = field(default=0, compare=False, repr=False)
    story: list[StoryLine] = field(default_factory=list)

    @property
    def where(self) -> str:
        """Request and attempt, for error messages."""
        attempt = f", attempt {self.attempt}" if self.attempt else ""
        return f"request {self.id}{attempt}"

    def note(self, now_s: float, text: str) -> None:
        """Add a line to the history."""
        self.story.append(tuple.__new__(StoryLine, (now_s, self.attempt, text)))

    def note_submission(self) -> None:
        """Add the first line to the history."""
        trace = f", of trace {self.submitted.trace}" if self.submitted.trace else ""
        self.note(self.submitted.now_s, f"submitted with {self.submitted.nbytes} bytes{trace}")

    def begin_attempt(self, now_s: float, text: str, route: int, *, names_route: bool) -> None:
        """Begin the next attempt, on a route, and add a line to the history."""
        self.attempt += 1
        self.route = route
        self.outputs, self.runs = {}, {}
        self.note(now_s, f"{text} on route {route}" if names_route else text)

    def lines(self) -> tuple[str, ...]:
        """Return the history as text."""
        return format_story(self.story)
