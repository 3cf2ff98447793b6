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
from hetero.planning.solver.mixing import MixPart
from hetero.planning.solver.problem import (
    Assignment,
    Problem,
    is_feasible,
    loads,
    with_dispatch_margin,
)

#: Objective of a plan: the time between two results (the bottleneck), or the latency of a request.
Hint = Literal["THROUGHPUT", "LATENCY"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan, or a mix of plans, with its predicted costs."""

    #: The methods that found it, in order: ``single ORT.0``, ``priority``, ``packing``,
    #: ``minimum cut``, ``best of all``, ``slicing``, ``annealing``, any of these with ``, tidied``;
    #: ``mix``, ``replicas``.
    names: tuple[str, ...]
    #: One plan, or several plans with their shares of the requests.
    parts: tuple[MixPart, ...]
    #: Seconds that each device is busy per request.
    loads: tuple[float, ...]
    #: The largest load: the time between two results.
    bottleneck: float
    #: Seconds of a single request; of the slowest plan in a mix.
    latency: float
    #: Number of subgraphs in all plans, and length of their longest chain.
    subgraphs: int
    levels: int

    @property
    def name(self) -> str:
        """The first method that found the plan."""
        return self.names[0]

    @property
    def assignment(self) -> Assignment:
        """The plan; in a mix, the one with the largest share."""
        return max(self.parts, key=lambda p: p.share).assignment

    def objective_s(self, hint: Hint) -> float:
        """Return the seconds to minimise for a hint."""
        return self.latency if hint == "LATENCY" else self.bottleneck


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen plan, its alternatives and proven bounds."""

    choice: Candidate
    #: The other candidates, best first; also mixes of more plans than allowed.
    runners_up: tuple[Candidate, ...]
    #: The proven bounds, largest first.
    bounds: tuple[Bound, ...]
    #: Whether the time limit ended the search early, so that another run may find another plan.
    cut_short: bool

    @property
    def bound(self) -> Bound:
        """The largest bound that is valid for the chosen plan."""
        mixed = len(self.choice.parts) > 1
        return next(b for b in self.bounds if b.covers_mixes or not mixed)


#: Predicts the costs of a plan: names of the methods that found it, plans with shares -> candidate.
Predictor = Callable[[tuple[str, ...], tuple[MixPart, ...]], Candidate]

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
    return name in ("priority", "mix", "replicas")


def predict_plans(
    problem: Problem,
    plans: Mapping[tuple[MixPart, ...], tuple[str, ...]],
    hint: Hint,
    predict: Predictor,
    deadline: float,
) -> tuple[list[Candidate], bool]:
    """Predict the costs of plans: the most promising first, then those that are always reported.

    `deadline`: ``time.monotonic()`` after which only the latter are predicted.
    Returns: the candidates, and whether the deadline passed.
    """
    problem = with_dispatch_margin(problem)

    def estimate(parts: tuple[MixPart, ...]) -> tuple[float, tuple[MixPart, ...]]:
        """Estimate the objective: the sum of loads for one request, the maximum for many."""
        loads_sum = sum(part.share * loads(problem, part.assignment) for part in parts)
        return float(np.sum(loads_sum) if hint == "LATENCY" else np.max(loads_sum)), parts

    def is_required(parts: tuple[MixPart, ...]) -> bool:
        return any(map(is_always_reported, plans[parts]))

    first, *rest = sorted(plans, key=estimate)
    candidates: list[Candidate] = []
    for parts in (first, *sorted(rest, key=is_required, reverse=True)):
        if candidates and not is_required(parts) and time.monotonic() > deadline:
            return candidates, True
        candidates.append(predict(plans[parts], parts))
    return candidates, False


def choose_candidate(
    problem: Problem,
    candidates: Sequence[Candidate],
    hint: Hint,
    max_parts: int | None,
    bound_s: float,
    required_name: str | None,
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """Choose the best candidate, and rank the others.

    The best candidate has the smallest objective. Within the tolerance, a simpler one with fewer
    plans and levels is preferred.

    `bound_s`: lower bound on the bottleneck of all plans and mixes.
    `required_name`: the name of the candidate to choose regardless of its objective.
    Returns: the chosen candidate, and the others, best first.
    """

    def objective_s(c: Candidate) -> float:
        return c.objective_s(hint)

    ranked = sorted(candidates, key=lambda c: (objective_s(c), c.subgraphs, c.parts))
    if required_name is not None:
        choice = next(c for c in ranked if required_name in c.names)
        _check_required(problem, required_name, choice)
        return choice, tuple(c for c in ranked if c is not choice)
    cap = problem.max_subgraphs
    ranked = [c for c in ranked if cap is None or c.subgraphs <= cap]
    eligible = [c for c in ranked if max_parts is None or len(c.parts) <= max_parts]
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
        return len(c.parts), c.levels, c.subgraphs, objective_s(c), math.fsum(c.loads), c.parts

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
