"""Candidate plans: their predicted costs, and the choice among them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hetero.devices.errors import PlanError
from hetero.planning.solver.bounds import Bound
from hetero.planning.solver.problem import (
    Assignment,
    Problem,
    device_seconds,
    is_feasible,
    with_dispatch_margin,
)
from hetero.planning.solver.replicas import Replicas

#: Objective of a plan: the time between two results (the bottleneck), or the latency of a request.
Hint = Literal["THROUGHPUT", "LATENCY"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with its replicas and predicted costs."""

    #: The methods that found it, in order: ``single ORT.0``, ``priority``, ``packing``,
    #: ``minimum cut``, ``best of all``, ``slicing``, ``annealing``, any of these with ``, tidied``;
    #: ``fit``, ``replicas``.
    names: tuple[str, ...]
    #: The plan's devices; those of each replica if there are several.
    replicas: Replicas
    #: Seconds that each device is busy per request.
    loads: tuple[float, ...]
    #: The largest load: the time between two results.
    bottleneck: float
    #: Seconds of a single request, on the slowest replica.
    latency: float
    #: Number of subgraphs of a replica, and length of their longest chain.
    subgraphs: int
    levels: int

    @property
    def name(self) -> str:
        """The first method that found the plan."""
        return self.names[0]

    @property
    def assignment(self) -> Assignment:
        """The devices of the replica with the largest share."""
        return max(self.replicas, key=lambda r: r.share).assignment

    def objective_s(self, hint: Hint) -> float:
        """Return the seconds to minimise for a hint."""
        return self.latency if hint == "LATENCY" else self.bottleneck


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen plan, its alternatives and proven bounds."""

    choice: Candidate
    #: The other candidates, best first; also replicas if they are not allowed.
    runners_up: tuple[Candidate, ...]
    #: The proven bounds, largest first.
    bounds: tuple[Bound, ...]
    #: Whether the time limit ended the search early, so that another run may find another plan.
    cut_short: bool

    @property
    def bound(self) -> Bound:
        """The largest bound that is valid for the chosen plan."""
        has_replicas = len(self.choice.replicas) > 1
        return next(b for b in self.bounds if b.covers_replicas or not has_replicas)


#: Predicts the costs of a plan: names of the methods that found it, replicas -> candidate.
Predictor = Callable[[tuple[str, ...], Replicas], Candidate]

#: Suffix of the name of a plan after `remove_fragments`.
TIDIED_SUFFIX = ", tidied"
#: Simpler plans within this fraction of the best are preferred ...
TOLERANCE = 0.03
#: ... unless the best is within this fraction of its bound and the simpler plan is not.
MAX_PROVEN_GAP = 0.02


def is_always_reported(name: str) -> bool:
    """Return whether plans of this name are always reported, for comparison."""
    if name.startswith("single "):
        return not name.endswith(TIDIED_SUFFIX)
    return name in ("fit", "priority", "replicas")


def predict_plans(
    problem: Problem,
    plans: Mapping[Replicas, tuple[str, ...]],
    hint: Hint,
    predict: Predictor,
    deadline: float,
) -> tuple[list[Candidate], bool]:
    """Predict the costs of plans: the most promising first, then those that are always reported.

    `deadline`: ``time.monotonic()`` after which only the latter are predicted.
    Returns: the candidates, and whether the deadline passed.
    """
    problem = with_dispatch_margin(problem)

    def estimate(replicas: Replicas) -> tuple[float, Replicas]:
        """Estimate the objective: the sum of loads for one request, the maximum for many."""
        loads_sum = sum(r.share * device_seconds(problem, r.assignment) for r in replicas)
        return float(np.sum(loads_sum) if hint == "LATENCY" else np.max(loads_sum)), replicas

    def is_required(replicas: Replicas) -> bool:
        return any(map(is_always_reported, plans[replicas]))

    first, *rest = sorted(plans, key=estimate)
    candidates: list[Candidate] = []
    for replicas in (first, *sorted(rest, key=is_required, reverse=True)):
        if candidates and not is_required(replicas) and time.monotonic() > deadline:
            return candidates, True
        candidates.append(predict(plans[replicas], replicas))
    return candidates, False


def choose_candidate(
    problem: Problem,
    candidates: Sequence[Candidate],
    hint: Hint,
    replicates: bool,
    bound_s: float,
    required_name: str | None,
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """Choose the best candidate, and rank the others.

    The best candidate has the smallest objective. Within the tolerance, a simpler one with fewer
    levels, subgraphs and replicas is preferred.

    `replicates`: whether a plan may have several replicas.
    `bound_s`: lower bound on the bottleneck of all plans and replicas.
    `required_name`: the name of the candidate to choose regardless of its objective.
    Returns: the chosen candidate, and the others, best first.
    """

    def objective_s(c: Candidate) -> float:
        return c.objective_s(hint)

    ranked = sorted(candidates, key=lambda c: (objective_s(c), c.subgraphs, c.replicas))
    if required_name is not None:
        choice = next(c for c in ranked if required_name in c.names)
        _check_required(problem, required_name, choice)
        return choice, tuple(c for c in ranked if c is not choice)
    cap = problem.max_subgraphs
    ranked = [c for c in ranked if cap is None or c.subgraphs <= cap]
    eligible = [c for c in ranked if replicates or len(c.replicas) == 1]
    if not eligible:
        fewest = min(c.subgraphs for c in candidates)
        raise PlanError(
            f"subgraphs: expected at most {cap}, but the smallest plan has {fewest}; raise the "
            "limit, remove pins, or add a device that supports more nodes",
            nodes=(),
            constraint="subgraphs",
            fewest=fewest,
        )
    best_s = objective_s(eligible[0])
    limit = best_s * (1 + TOLERANCE)
    if hint == "THROUGHPUT" and best_s <= bound_s * (1 + MAX_PROVEN_GAP):
        limit = min(limit, max(best_s, bound_s * (1 + MAX_PROVEN_GAP)))
    near_best = [c for c in eligible if objective_s(c) <= limit * (1 + 1e-12)]

    def simplicity(c: Candidate) -> tuple[object, ...]:
        num_replicas, total_s = len(c.replicas), math.fsum(c.loads)
        return c.levels, c.subgraphs, num_replicas, objective_s(c), total_s, c.replicas

    choice = min(near_best, key=simplicity)
    return choice, tuple(c for c in ranked if c is not choice)


def _check_required(problem: Problem, name: str, candidate: Candidate) -> None:
    """Raise PlanError if the required candidate violates a constraint."""
    cap = problem.max_subgraphs
    violation, constraint = "memory, colocation or support", "memory"
    if is_feasible(problem, candidate.assignment):
        if cap is None or candidate.subgraphs <= cap:
            return
        violation = f"the limit of {cap} subgraphs: it has {candidate.subgraphs}"
        constraint = "subgraphs"
    raise PlanError(
        f"{name}: this plan violates {violation}; relax the constraint, or plan by cost "
        "(MODEL_DISTRIBUTION_POLICY=AUTO)",
        nodes=(),
        constraint=constraint,
    )
