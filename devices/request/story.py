"""The story of a request: what happened to it and when, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import merge
from typing import NamedTuple

from hetero.devices.request.response import StageTiming


class StoryLine(NamedTuple):
    """One line of a request's life.

    Attributes
    ----------
    time_s : float
        When, by the client's monotonic clock.
    attempt : int
        Which attempt; 0 before the first.
    what : str
        What happened.
    """

    time_s: float
    attempt: int
    what: str


def format_story(lines: Sequence[StoryLine], runs: Iterable[StageTiming] = ()) -> tuple[str, ...]:
    """Return a story as text, in milliseconds since its first line.

    `runs`: the stages of the last attempt; each is listed where it started.
    """
    if not lines:
        return ()
    attempt = max(line.attempt for line in lines)
    stages = sorted(StoryLine(run.started_s, attempt, _stage(run)) for run in runs)
    begun_s = lines[0].time_s
    return tuple(
        f"{(line.time_s - begun_s) * 1e3:.3f} ms, attempt {line.attempt}: {line.what}"
        for line in merge(lines, stages, key=lambda line: line.time_s)
    )


def _stage(run: StageTiming) -> str:
    return (
        f"stage {run.stage} on {run.device} started after {run.queued_s * 1e3:.3f} ms in its "
        f"queue, ran {run.run_s * 1e3:.3f} ms, gave {run.output_nbytes} bytes"
    )
