"""History of a request as text: one line for each event and stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import merge
from typing import NamedTuple

from hetero.devices.request.response import StageTiming


class StoryLine(NamedTuple):
    """One event in the history of a request.

    Attributes
    ----------
    time_s : float
        Time of the event by the client's monotonic clock.
    attempt : int
        Number of the attempt; 0 before the first.
    event : str
        Description of the event.
    """

    time_s: float
    attempt: int
    event: str


def format_story(
    lines: Sequence[StoryLine], timings: Iterable[StageTiming] = ()
) -> tuple[str, ...]:
    """Return a history as text, with times in milliseconds since the first event.

    `timings` are the stages of the last attempt; each becomes a line at its start time.
    """
    if not lines:
        return ()
    attempt = max(line.attempt for line in lines)
    stages = sorted(StoryLine(t.started_s, attempt, _stage_text(t)) for t in timings)
    start_s = lines[0].time_s
    return tuple(
        f"{(line.time_s - start_s) * 1e3:.3f} ms, attempt {line.attempt}: {line.event}"
        for line in merge(lines, stages, key=lambda line: line.time_s)
    )


def _stage_text(timing: StageTiming) -> str:
    return (
        f"stage {timing.stage} on {timing.device} started after {timing.queued_s * 1e3:.3f} ms in "
        f"its queue, ran {timing.run_s * 1e3:.3f} ms, returned {timing.output_nbytes} bytes"
    )
