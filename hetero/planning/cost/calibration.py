"""Fitting what subgraphs take to what their nodes take, alone and beside busy neighbours.

``t(S) = dispatch + fusion * sum of t(v)``: a subgraph costs something to call, and its nodes less
than alone where the device runs neighbours as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.planning.cost.costs import Time
from hetero.planning.cost.work import nonnegative


def fit_subgraphs(samples: Sequence[tuple[float, float]]) -> tuple[Time, Time]:
    """Fit dispatch and fusion.

    `samples`: for each measured subgraph the sum of its nodes' seconds, and its own.
    Returns: dispatch in seconds, and fusion as a factor: ``calibrated`` from three samples on,
        otherwise ``estimated`` as nothing and 1.
    """
    rows = [(s, t) for s, t in samples if s > 0 and t > 0]
    if len(rows) < 3:
        return Time(0.0, "estimated"), Time(1.0, "estimated")
    nodes = np.array([s for s, _ in rows])
    whole = np.array([t for _, t in rows])
    # Large subgraphs are what plans are made of: weighing by the root leaves them in charge.
    weight = 1 / np.sqrt(whole)
    table = np.stack([np.ones_like(nodes), nodes], axis=1) * weight[:, None]
    dispatch, fusion = nonnegative(table, whole * weight)
    if fusion <= 0:
        return Time(0.0, "calibrated"), Time(float(whole.sum() / nodes.sum()), "calibrated")
    return Time(float(dispatch), "calibrated"), Time(float(fusion), "calibrated")


def fit_load(
    alone_s: float, call_s: float, rounds: Sequence[tuple[float, float]]
) -> tuple[Time, Time]:
    """Return what times are multiplied by while all devices are busy, and what a call costs then.

    The median of the rounds counts: what disturbed a few of them is not a property of the device.

    `alone_s`: median seconds of a subgraph's run on an otherwise idle machine.
    `call_s`: seconds that a call keeps the device busy besides, at least.
    `rounds`: with all devices busy: mean seconds of a run, and seconds between two answers.
    Returns: a factor of at least 1, and seconds; ``estimated`` without rounds.
    """
    if not rounds or alone_s <= 0:
        return Time(1.0, "estimated"), Time(call_s, "estimated")
    load = max(1.0, float(np.median([run for run, _ in rounds])) / alone_s)
    between = float(np.median([period - run for run, period in rounds]))
    return Time(load, "calibrated"), Time(max(call_s, between), "calibrated")
