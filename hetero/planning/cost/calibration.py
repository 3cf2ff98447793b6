"""Calibration: run times and load factors of devices, fitted to noisy samples.

Other processes make runs longer, never shorter, so a low percentile represents many samples.
Samples have settled once both halves have nearly the same low percentile. If the halves differ a
lot, other processes disturbed the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from hetero.planning.cost.costs import LoadFactors

#: The percentile that represents many samples.
LOW_PERCENTILE: Final = 10
#: The minimum number of samples of a settled measurement.
MIN_SAMPLES: Final = 10
#: Ratio of the halves' percentiles: at most this in settled samples ...
MAX_SETTLED_DRIFT: Final = 1.05
#: ... and more than this in disturbed samples.
MIN_DISTURBED_DRIFT: Final = 1.5
#: The maximum fraction of a subgraph's time that its call overhead may take.
MAX_CALL_FRACTION: Final = 0.9
#: Call overhead in seconds if it was not measured.
DEFAULT_CALL_S: Final = 1e-4


def low_percentile(samples: Sequence[float]) -> float:
    """Return the low percentile that represents samples."""
    return float(np.percentile(samples, LOW_PERCENTILE))


def _drift(samples: Sequence[float]) -> float:
    """Return the ratio of the halves' low percentiles, at least 1."""
    half = len(samples) // 2
    first, second = low_percentile(samples[:half]), low_percentile(samples[half:])
    return max(first, second) / max(min(first, second), 1e-12)


def has_settled(samples: Sequence[float]) -> bool:
    """Return whether samples have settled: more of them would not change the result."""
    return len(samples) >= MIN_SAMPLES and _drift(samples) <= MAX_SETTLED_DRIFT


def was_disturbed(samples: Sequence[float]) -> bool:
    """Return whether other processes disturbed the samples."""
    return len(samples) >= MIN_SAMPLES and _drift(samples) > MIN_DISTURBED_DRIFT


class LoadRound(NamedTuple):
    """Run times of a subgraph, first without load, then with many requests in flight."""

    #: Seconds of a run with one request at a time.
    unloaded_s: float
    #: Seconds of a run with many requests in flight, and seconds between two results.
    run_s: float
    period_s: float


def fit_load_factors(rounds: Sequence[LoadRound]) -> LoadFactors:
    """Fit the load factors of a device to measured rounds.

    Every round includes the call overhead; the fastest rounds contain the least noise. The rest of
    the time between two results is proportional to the work and counts as the time factor.
    """
    rounds = [r for r in rounds if r.unloaded_s > 0]
    if not rounds:
        return LoadFactors(overhead_s=DEFAULT_CALL_S)
    min_gap_s = max(low_percentile([r.period_s - r.run_s for r in rounds]), 0.0)
    call_s = min(min_gap_s, MAX_CALL_FRACTION * min(r.period_s for r in rounds))
    time_factor = low_percentile([(r.period_s - call_s) / r.unloaded_s for r in rounds])
    return LoadFactors(time_factor, call_s, "calibrated")


def rounds_disagree(rounds: Sequence[LoadRound]) -> bool:
    """Return whether even the two fastest rounds disagree about a device's load."""
    loads = sorted(r.period_s / r.unloaded_s for r in rounds if r.unloaded_s > 0)
    return len(loads) > 1 and loads[1] > MIN_DISTURBED_DRIFT * loads[0]
