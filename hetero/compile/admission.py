"""How many requests in flight keep every stage of a model busy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from devices.plugin.properties import Config
from hetero.partition.cut import Cut


def optimal_requests(cuts: Sequence[Cut], configs: Mapping[str, Config]) -> int:
    """Return how many requests reach the throughput that the slowest device allows.

    That takes as many as pass through in the time of one, and for stages that come back to a
    device one a level, times the streams that a device runs at once; one more for each plan hides
    the hand-over.

    `cuts`: the ways of the requests.
    `configs`: the options of each device.
    Source: the asymptotic bounds of closed queueing networks.
    """
    enough = sum(1 + max(cut.plan.levels, default=0) for cut in cuts)
    report = cuts[0].report
    if report is not None and report.bottleneck_s > 0:
        enough = max(enough, math.ceil(report.latency_s / report.bottleneck_s))
    used = {device for cut in cuts for device in cut.plan.devices}
    streams = max((configs[device].get("NUM_STREAMS", 1) for device in used), default=1)
    return int(enough * max(1, streams)) + len(cuts)
