"""The solver's answer: plans are judged and one is chosen, with what is proven of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hetero.devices.errors import PlanError
from hetero.planning.solver.bounds import Bound
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Assignment, Problem, is_feasible, loads, wary

#: What a plan makes small: time between answers, so the bottleneck, or time of a single request.
Hint = Literal["THROUGHPUT", "LATENCY"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One judged plan."""

    #: Every method that gave it, the first one first: ``single ORT.0``, ``priority``, ``packing``,
    #: ``minimum cut``, ``best of all``, ``slicing``, ``annealing``, any of these with ``, tidied``;
    #: ``mix``, ``replicas``.
    names: tuple[str, ...]
    #: One plan, or several with the share of requests that each takes.
    parts: tuple[Part, ...]
    #: Seconds a device is busy per request.
    loads: tuple[float, ...]
    #: The largest load: one request leaves each time this many seconds pass.
    bottleneck: float
    #: Seconds of one request alone; of the slowest part in a mix.
    latency: float
    #: Number of subgraphs over all parts, and the deepest chain of them.
    subgraphs: int
    levels: int

    @property
    def name(self) -> str:
        """The method that found it first."""
        return self.names[0]

    @property
    def assignment(self) -> Assignment:
        """The plan; of a mix, the one with the largest share."""
        return max(self.parts, key=lambda p: p.share).assignment

    def figure(self, hint: Hint) -> float:
        """Seconds that are to be small."""
        return self.latency if hint == "LATENCY" else self.bottleneck


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen plan and its proof."""

    chosen: Candidate
    #: The other candidates, best first; also mixes of more parts than were allowed.
    runners_up: tuple[Candidate, ...]
    #: All that were proven of it, largest first. ``mixing`` marks those that also bound
    #: mixes and replicas from those that only hold without replication.
    bounds: tuple[Bound, ...]
    #: True where the clock ended a search early, so that another run may find another plan.
    cut_short: bool

    @property
    def bound(self) -> Bound:
        """The largest proven lower bound for the chosen kind of plan."""
        mixed = len(self.chosen.parts) > 1
        return next(b for b in self.bounds if b.mixing or not mixed)


#: Gives a candidate its figures: the methods that found it, its parts.
Judge = Callable[[tuple[str, ...], tuple[Part, ...]], Candidate]

#: Ends the name of a plan that was freed of fragments.
TIDIED = ", tidied"
#: Simpler plans within this share of the best are preferred ...
TOLERANCE = 0.03
#: ... but not where the best is proven to be this near the bound, and the simpler one is not.
PROVEN = 0.02


def is_landmark(name: str) -> bool:
    """Whether a plan of that name is always reported, however good it is."""
    if name.startswith("single "):
        return not name.endswith(TIDIED)
    return name in ("priority", "mix", "replicas")


def judged(
    problem: Problem,
    plans: Mapping[tuple[Part, ...], tuple[str, ...]],
    hint: Hint,
    judge: Judge,
    deadline: float,
) -> tuple[list[Candidate], bool]:
    """Judge all plans, the most promising first, then those that are always reported.

    `deadline`: ``time.monotonic()`` from which on only those are judged.
    Returns: the candidates, and whether the deadline came first.
    """
    problem = wary(problem)

    def promise(parts: tuple[Part, ...]) -> tuple[float, tuple[Part, ...]]:
        """Return a rough figure: one request waits for all that devices do, many for the most."""
        each = sum(part.share * loads(problem, part.assignment) for part in parts)
        return float(np.sum(each) if hint == "LATENCY" else np.max(each)), parts

    def is_told(parts: tuple[Part, ...]) -> bool:
        return any(map(is_landmark, plans[parts]))

    first, *rest = sorted(plans, key=promise)
    found: list[Candidate] = []
    for parts in (first, *sorted(rest, key=is_told, reverse=True)):
        if found and not is_told(parts) and time.monotonic() > deadline:
            return found, True
        found.append(judge(plans[parts], parts))
    return found, False


def choose(
    problem: Problem,
    candidates: Sequence[Candidate],
    hint: Hint,
    max_parts: int | None,
    proven: float,
    keep: str | None,
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """Return the choice, and the others, best first.

    It is the one that has least of what the hint wants small; within the tolerance, the one with
    fewest parts and levels.

    `proven`: seconds that no plan and no mix falls below.
    `keep`: the name of the one to choose whatever the others are.
    """

    def figure(c: Candidate) -> float:
        return c.figure(hint)

    ranked = sorted(candidates, key=lambda c: (figure(c), c.subgraphs, c.parts))
    if keep is not None:
        chosen = next(c for c in ranked if keep in c.names)
        _check_kept(problem, keep, chosen)
        return chosen, tuple(c for c in ranked if c is not chosen)
    cap = problem.max_subgraphs
    ranked = [c for c in ranked if cap is None or c.subgraphs <= cap]
    allowed = [c for c in ranked if max_parts is None or len(c.parts) <= max_parts]
    if not allowed:
        fewest = min(c.subgraphs for c in candidates)
        raise PlanError(
            f"subgraphs: at most {cap} wanted, the fewest found are {fewest}; raise the cap, drop "
            "pins, or give a device that supports more nodes",
            nodes=(),
            constraint="subgraphs",
            fewest=fewest,
        )
    least = figure(allowed[0])
    limit = least * (1 + TOLERANCE)
    if hint == "THROUGHPUT" and least <= proven * (1 + PROVEN):
        limit = min(limit, max(least, proven * (1 + PROVEN)))
    near = [c for c in allowed if figure(c) <= limit * (1 + 1e-12)]

    def simplicity(c: Candidate) -> tuple[object, ...]:
        return len(c.parts), c.levels, c.subgraphs, figure(c), math.fsum(c.loads), c.parts

    chosen = min(near, key=simplicity)
    return chosen, tuple(c for c in ranked if c is not chosen)


def _check_kept(problem: Problem, name: str, kept: Candidate) -> None:
    """Raise where a plan that is to be kept breaks a constraint."""
    cap = problem.max_subgraphs
    broken, constraint = "memory, colocation or support", "memory"
    if is_feasible(problem, kept.assignment):
        if cap is None or kept.subgraphs <= cap:
            return
        broken = f"the cap of {cap} subgraphs: it has {kept.subgraphs}"
        constraint = "subgraphs"
    raise PlanError(
        f"{name}: this plan breaks {broken}; lift the constraint, or plan by cost "
        "(MODEL_DISTRIBUTION_POLICY=AUTO)",
        nodes=(),
        constraint=constraint,
    )
