"""Judge the plans that were found, and choose one of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from devices.errors import PlanError
from hetero.planning.solver.evaluate import evaluate
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Problem, is_feasible
from hetero.planning.solver.solution import Candidate, Objective

#: Gives a candidate its figures: the methods that found it, its parts.
Judge = Callable[[tuple[str, ...], tuple[Part, ...]], Candidate]

#: Ends the name of a plan that was freed of fragments.
TIDIED = ", tidied"
#: Simpler plans within this share of the best are preferred ...
TOLERANCE = 0.03
#: ... but not where the best is proven to be this near the bound, and the simpler one is not.
PROVEN = 0.02
#: Plans that are judged besides the landmarks.
MOST_JUDGED = 16


def is_landmark(name: str) -> bool:
    """Whether a plan of that name is always reported, however good it is."""
    if name.startswith("single "):
        return not name.endswith(TIDIED)
    return name in ("priority", "mix", "replicas")


def judged(
    problem: Problem,
    plans: Mapping[tuple[Part, ...], tuple[str, ...]],
    objective: Objective,
    judge: Judge | None,
    deadline: float,
) -> tuple[list[Candidate], bool]:
    """Judge the landmarks and the most promising of the rest.

    `judge`: gives the figures; `evaluate`'s if None.
    `deadline`: ``time.monotonic()`` from which on only the landmarks and the best are judged.
    Returns: the candidates, and whether the deadline came first.
    """
    rough = [_evaluated(problem, names, parts) for parts, names in plans.items()]
    if judge is None:
        return rough, False
    cap = math.inf if problem.max_subgraphs is None else problem.max_subgraphs
    rough.sort(key=lambda c: (c.subgraphs > cap, c.figure(objective), c.subgraphs, c.parts))
    marks = [c for c in rough if any(map(is_landmark, c.names))]
    others = [c for c in rough if not any(map(is_landmark, c.names))][:MOST_JUDGED]
    found: list[Candidate] = []
    for place, c in enumerate((*others[:1], *marks, *others[1:])):
        if place > len(marks) and time.monotonic() > deadline:
            return found, True
        found.append(judge(c.names, c.parts))
    return found, False


def _evaluated(problem: Problem, names: tuple[str, ...], parts: tuple[Part, ...]) -> Candidate:
    evaluations = [evaluate(problem, part.assignment) for part in parts]
    loads = [
        math.fsum(float(e.loads[d]) * p.share for e, p in zip(evaluations, parts, strict=True))
        for d in range(problem.device_count)
    ]
    return Candidate(
        names=names,
        parts=parts,
        loads=tuple(loads),
        bottleneck=max(loads),
        latency=max(e.latency for e in evaluations),
        subgraphs=sum(e.subgraphs for e in evaluations),
        levels=max(e.levels for e in evaluations),
    )


def choose(
    problem: Problem,
    candidates: Sequence[Candidate],
    objective: Objective,
    max_parts: int | None,
    proven: float,
    keep: str | None,
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """Return the choice, and the others, best first.

    It is the best by the objective; within the tolerance, the one with fewest parts and levels.

    `proven`: seconds that no plan and no mix falls below.
    `keep`: the name of the one to choose whatever the others are.
    Raises PlanError: no candidate has as few subgraphs as are wanted, or `keep`'s breaks a
        constraint.
    """

    def figure(c: Candidate) -> float:
        return c.figure(objective)

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
    if objective == "throughput" and least <= proven * (1 + PROVEN):
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
