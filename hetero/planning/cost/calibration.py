"""From samples to figures: what devices take, alone and beside busy neighbours.

What else a machine does makes runs longer, never shorter: a low quantile stands for many samples.
They have settled once their halves say the same; where they never do, other work spoiled them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from hetero.planning.cost.costs import Pace

#: Percentile that stands for many samples.
LOW: Final = 10
#: Samples that both halves together have before they can have settled.
LEAST_SAMPLES: Final = 10
#: By how much the halves of settled samples differ at most, and those of spoiled ones at least.
SETTLED: Final = 1.05
SPOILED: Final = 1.5
#: Share of a subgraph's time that its call may take: its nodes take something too.
MOST_CALL: Final = 0.9
#: Seconds that a call is assumed to keep a device busy besides, where that was not measured.
ASSUMED_CALL_S: Final = 1e-4


def low(samples: Sequence[float]) -> float:
    """Return the low quantile that stands for samples."""
    return float(np.percentile(samples, LOW))


def _drift(samples: Sequence[float]) -> float:
    """Return the larger of both halves' figures by the smaller one."""
    half = len(samples) // 2
    first, second = low(samples[:half]), low(samples[half:])
    return max(first, second) / max(min(first, second), 1e-12)


def settled(samples: Sequence[float]) -> bool:
    """Whether more samples would say the same."""
    return len(samples) >= LEAST_SAMPLES and _drift(samples) <= SETTLED


def spoiled(samples: Sequence[float]) -> bool:
    """Whether samples are of a machine that was now busy, now idle."""
    return len(samples) >= LEAST_SAMPLES and _drift(samples) > SPOILED


class Round(NamedTuple):
    """A subgraph's runs: one request at a time, and directly after it with many in flight."""

    #: Seconds of a run, one at a time.
    quiet_s: float
    #: Seconds of a run with many in flight, and seconds between two answers then.
    run_s: float
    period_s: float


def fit_pace(rounds: Sequence[Round]) -> Pace:
    """Return what a device takes while requests follow each other.

    What a call costs is in every round: the quickest ones have it, and little of what only
    disturbed. What else stands between two answers grows with the work, as load does.
    """
    rounds = [r for r in rounds if r.quiet_s > 0]
    if not rounds:
        return Pace(overhead_s=ASSUMED_CALL_S)
    quick_s = max(low([r.period_s - r.run_s for r in rounds]), 0.0)
    call_s = min(quick_s, MOST_CALL * min(r.period_s for r in rounds))
    load = low([(r.period_s - call_s) / r.quiet_s for r in rounds])
    return Pace(load, call_s, "calibrated")


def rounds_spoiled(rounds: Sequence[Round]) -> bool:
    """Whether not even the two quickest rounds say the same of a device's load."""
    loads = sorted(r.period_s / r.quiet_s for r in rounds if r.quiet_s > 0)
    return len(loads) > 1 and loads[1] > SPOILED * loads[0]
