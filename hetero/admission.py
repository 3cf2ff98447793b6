"""How many requests in flight keep every stage of a model busy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero.cache.blob import Cut
from hetero.planning import PlannedAffinity


def optimal_requests(cuts: Sequence[Cut]) -> int:
    """Return how many requests reach the throughput that the slowest device allows.

    That takes as many as pass through in the time of one, and for stages that come back to a
    device one a level; one more for each plan hides the hand-over.

    `cuts`: the ways of the requests.
    Source: the asymptotic bounds of closed queueing networks.
    """
    enough = sum(1 + max(cut.plan.levels, default=0) for cut in cuts)
    affinity = cuts[0].affinity
    report = affinity.report if isinstance(affinity, PlannedAffinity) else None
    if report is not None and report.bottleneck_s > 0:
        enough = max(enough, math.ceil(report.latency_s / report.bottleneck_s))
    return enough + len(cuts)
