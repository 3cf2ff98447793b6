"""What the client's machine keeps of a request, its story included."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hetero.devices.request.response import StageTiming
from hetero.devices.request.story import StoryLine as StoryLine
from hetero.devices.request.story import format_story
from hetero.scheduler.vocabulary import events


class RequestState(Enum):
    """Where a request is in its life."""

    NEW = "new"
    #: Not admitted yet: there is no room, or no route has all its devices.
    WAITING = "waiting"
    #: Admitted; its program runs on its caller's thread.
    DIRECT = "direct"
    #: Admitted, and waits for others that it can be joined with.
    JOINING = "joining"
    RUNNING = "running"
    #: Admitted; its attempt failed, and the next is made once there is a route, or after a pause.
    PARKED = "parked"
    #: Answered, and waits for the answers of those before it.
    HELD = "held"
    ANSWERED = "answered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    __hash__ = object.__hash__  # members are one object each; Enum's own is slow


@dataclass(slots=True)
class RequestRecord:
    """A request that was submitted."""

    submitted: events.Submitted
    #: Its number.
    id: int
    #: When it must be admitted.
    admit_by_s: float
    #: What it is counted for once it is admitted: its inputs, and what its stages may make.
    nbytes: int = 0
    state: RequestState = RequestState.NEW
    #: When it was admitted, and when it ended.
    admitted_s: float | None = None
    ended_s: float | None = None
    attempt: int = 0
    #: The attempt's route.
    route: int = 0
    #: Routes on which it need not be tried again.
    avoided: frozenset[int] = frozenset()
    #: Where it is parked: why, and until when at least.
    error: BaseException | None = None
    resume_s: float = 0.0
    #: How many failures of attempts may be its own fault.
    num_failed: int = 0
    #: How often a device was lost with it, and whether it may be why: it was there twice.
    num_lost: int = 0
    is_suspect: bool = False
    #: The device that is not heard since it was there.
    silent_on: str = ""
    #: What has come of the attempt: outputs by name, runs by stage.
    outputs: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, StageTiming] = field(default_factory=dict)
    #: Where requests are joined: the attempt that it is in with others; whether its rows have
    #: failed with theirs, and are tried alone; whether it is the first to tell of its runs.
    batch: Any = None
    is_alone: bool = False
    is_first: bool = True
    story: list[StoryLine] = field(default_factory=list)

    @property
    def where(self) -> str:
        """Where it is, for errors."""
        attempt = f", attempt {self.attempt}" if self.attempt else ""
        return f"request {self.id}{attempt}"

    def note(self, now_s: float, what: str) -> None:
        """Add a line to its story."""
        self.story.append(tuple.__new__(StoryLine, (now_s, self.attempt, what)))

    def note_submission(self) -> None:
        """Add the first line to its story."""
        trace = f", of trace {self.submitted.trace}" if self.submitted.trace else ""
        self.note(self.submitted.now_s, f"submitted with {self.submitted.nbytes} bytes{trace}")

    def begin_attempt(self, now_s: float, what: str, route: int, *, names_route: bool) -> None:
        """Count one more attempt, on a route."""
        self.attempt += 1
        self.route = route
        self.outputs, self.runs = {}, {}
        self.note(now_s, f"{what} on route {route}" if names_route else what)

    def lines(self) -> tuple[str, ...]:
        """Return its story as text."""
        return format_story(self.story)
