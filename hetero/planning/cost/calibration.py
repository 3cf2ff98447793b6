"""Fitting what subgraphs take to what their nodes take, alone and beside busy neighbours.

``t(S) = dispatch + fusion * sum of t(v)``: a subgraph costs something to call, and its nodes less
than alone where the device runs neighbours as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hetero.planning.cost.costs import ClientTime, Line, Pace, Source, Time

#: Share of a subgraph's time that its call may take: its nodes take something too.
MOST_DISPATCH: Final = 0.9
#: Percentile of the rounds that tells what a call costs.
QUICK: Final = 25


def fit_subgraphs(
    whole: tuple[float, float] | None, cuts: Sequence[float], least_s: float = 0.0
) -> tuple[Time, Time]:
    """Fit dispatch and fusion so that the largest subgraph, most often the whole, takes its time.

    `whole`: the sum of its nodes' seconds, and its own; None where they are not known.
    `cuts`: what each cut of it cost in seconds, each time that it was cut: their median counts.
    `least_s`: seconds of a subgraph with next to no work: no call is cheaper, whatever disturbed
        the cuts.
    Returns: dispatch in seconds, and fusion as a factor: ``calibrated`` where it was cut.
    """
    if whole is None or whole[0] <= 0:
        return Time(least_s, "estimated"), Time(1.0, "estimated")
    nodes_s, seconds = whole
    cut_s = float(np.median(cuts)) if cuts else 0.0
    dispatch = min(max(cut_s, least_s), MOST_DISPATCH * seconds)
    source: Source = "calibrated" if cuts else "estimated"
    return Time(dispatch, source), Time((seconds - dispatch) / nodes_s, source)


@dataclass(frozen=True, slots=True)
class Round:
    """A subgraph's runs: one request at a time, and directly after it with many in flight."""

    #: Median seconds of a run, one at a time.
    quiet_s: float
    #: Mean seconds of a run with many in flight, and seconds between two answers then.
    run_s: float
    period_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """Requests one at a time: median seconds before, in and after their runs."""

    there_s: float
    run_s: float
    back_s: float


def fit_way(line: Line, seconds: Sequence[float], nbytes: float) -> Line:
    """Return a way's line through what it took real requests.

    Small ones in a row find all threads awake; real ones tell what each request takes, small ones
    what a byte does.

    `line`: of small requests.
    `seconds`: of real ones, with so many bytes; the line stays where there are none.
    """
    if not seconds:
        return line
    start = max(0.0, float(np.median(seconds)) - line.b * nbytes)
    return Line(start, line.b, "calibrated")


def fit_pace(rounds: Sequence[Round], call_s: float, least_s: float = 0.0) -> Pace:
    """Return what a device takes while requests follow each other.

    What a call costs is in every round: the quickest ones have it, and little of what only
    disturbed. What else stands between two answers grows with the work, as load does. The median of
    the rounds counts there.

    `call_s`: seconds that a call keeps the device busy besides, where there are no rounds.
    `least_s`: seconds that it does at least, as far as rounds have room for it.
    """
    rounds = [r for r in rounds if r.quiet_s > 0]
    if not rounds:
        return Pace(overhead=Time(call_s, "estimated"))
    quick_s = float(np.percentile([r.period_s - r.run_s for r in rounds], QUICK))
    call_s = min(max(quick_s, least_s, 0.0), MOST_DISPATCH * min(r.period_s for r in rounds))
    load = float(np.median([(r.period_s - call_s) / r.quiet_s for r in rounds]))
    return Pace(Time(load, "calibrated"), Time(call_s, "calibrated"))


def fit_client(seconds: Mapping[int, Sequence[float]]) -> ClientTime:
    """Return what requests need one after the other.

    Whatever else the machine does makes requests slower, never faster: the least of the times is
    their own.

    `seconds`: number of stages of a request -> seconds between answers, each time, less what
        devices computed in them.
    """
    least = {stages: min(found) for stages, found in seconds.items() if found}
    if not least:
        return ClientTime()
    fewest, most = min(least), max(least)
    each = max(0.0, least[most] - least[fewest]) / max(1, most - fewest)
    first = max(0.0, least[fewest] - fewest * each)
    return ClientTime(Time(first, "calibrated"), Time(each, "calibrated"))
