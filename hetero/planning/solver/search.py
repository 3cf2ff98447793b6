"""Plan: gather candidates, judge them all alike, choose, and prove how good the choice is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from devices.errors import PlanError
from hetero.planning.solver import candidates as gather
from hetero.planning.solver import exact as exact_solver
from hetero.planning.solver.bounds import Bound
from hetero.planning.solver.candidates import TIDIED
from hetero.planning.solver.check import check
from hetero.planning.solver.contract import collapse_groups
from hetero.planning.solver.evaluate import evaluate
from hetero.planning.solver.latency import critical_path
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Assignment, Problem, is_feasible
from hetero.planning.solver.solution import Candidate, Objective, Solution

#: Gives a candidate its figures: the methods that found it, its parts.
Judge = Callable[[tuple[str, ...], tuple[Part, ...]], Candidate]

#: Simpler plans within this share of the best are preferred ...
TOLERANCE = 0.03
#: ... but not where the best is proven to be this near the bound, and the simpler one is not.
PROVEN = 0.02
#: Plans that are judged besides the landmarks.
MOST_JUDGED = 16
#: A search whose steps take this many times the seconds granted is ended by the clock.
PATIENCE = 10.0


def plan(
    problem: Problem,
    objective: Objective = "throughput",
    seconds: float = 10.0,
    seed: int = 0,
    *,
    contiguous: bool = False,
    max_parts: int | None = None,
    exact: bool | None = None,
    tolerance: float = TOLERANCE,
    given: Mapping[str, Assignment] | None = None,
    keep: str | None = None,
    judge: Judge | None = None,
    floor: Problem | None = None,
    cap_s: float | None = None,
    pool: Executor | None = None,
    workers: int = 1,
) -> Solution:
    """Plan a problem.

    Parameters
    ----------
    problem : Problem
        What is to be planned; its edges are acyclic.
    objective : {"throughput", "latency"}
        Least bottleneck, or least time of a single request.
    seconds : float
        Effort: the steps that an idle core takes in about that time.
    seed : int
        Seed of all that is random: same problem, options and seed, same plan, unless cut short.
    contiguous : bool
        Only plans in which a device has one interval of a topological order.
    max_parts : int, optional
        How many plans may share the requests; any number by default.
    exact : bool, optional
        Whether to ask the exact solver; None asks it where it is installed and the problem is small
        enough. Its plan counts only when proven optimal.
    tolerance : float
        Simpler plans within this share of the best are preferred; 0 takes the best.
    given : mapping of str to tuple of int, optional
        Plans to judge besides those found, by name; left out where they break a constraint.
    keep : str, optional
        The one of `given` to choose whatever else is found.
    judge : callable, optional
        Gives the figures by which plans are compared; `evaluate`'s by default.
    floor : Problem, optional
        The same nodes with costs that no judged plan falls below, for the bounds; `problem` by
        default.
    cap_s : float, optional
        Seconds after which the clock ends searches, as ``cut_short`` says; `PATIENCE` times the
        effort by default.
    pool : concurrent.futures.Executor, optional
        Where annealing runs go; one after the other here when None.
    workers : int
        Runs that ``pool`` has at a time; effort grows with it, so that a plan depends on it.

    Returns
    -------
    Solution

    Raises
    ------
    PlanError
        No plan meets the constraints: ``nodes`` are those that clash, ``constraint`` is one of
        ``support``, ``pins``, ``colocation``, ``memory``, ``subgraphs``. Or `keep` breaks one.
    """
    cap_s = seconds * PATIENCE if cap_s is None else cap_s
    check(problem)
    base = collapse_groups(problem)
    check(base.problem)
    lower = base.problem if floor is None else collapse_groups(floor).problem
    found = gather.Gathered(base.problem, lower, seconds, time.monotonic() + cap_s, seed)
    throughput = objective == "throughput"
    size = base.problem.node_count * base.problem.device_count
    if exact is None:
        exact = exact_solver.is_available() and size <= gather.EXACT_SIZE
    if throughput:
        gather.simple_bounds(found)
    else:
        path = critical_path(problem if floor is None else floor)
        found.bounds.append(Bound("critical path", path, mixing=True))
    gather.single_plans(found)
    if not contiguous:
        gather.simple_plans(found)
    gather.slices(found, thorough=contiguous)
    gather.need_plans(found, contiguous=contiguous, exact=exact)
    if not contiguous:
        gather.improve(found, exact=exact and throughput, pool=pool, workers=workers)
    elif exact and throughput:
        gather.block_bound(found)
        gather.exact_search(found, bound_only=True)
    if not throughput and not contiguous:
        gather.shorten(found, problem, base)
    listed = {n: a for n, a in (given or {}).items() if is_feasible(problem, a) or n == keep}
    ways: dict[tuple[Part, ...], list[str]] = {}
    for name, assignment in listed.items():
        ways.setdefault((Part(assignment, 1.0),), []).append(name)
    for assignment, names in found.plans.items():
        mine = ways.setdefault((Part(base.expand(assignment), 1.0),), [])
        mine += [n for n in names if n not in listed]
    if throughput and not contiguous:
        whole = base.then(found.small)
        for name, mixed in gather.mixes(found):
            parts = tuple(Part(whole.expand(p.assignment), p.share) for p in mixed.parts)
            ways.setdefault(parts, []).append(name)
    plans = {parts: tuple(names) for parts, names in ways.items() if names}
    judged = _judged(problem, plans, objective, judge)
    chooser = _Chooser(problem, objective, max_parts, tolerance)
    chosen, rest = chooser.run(judged, tuple(found.bounds), keep=keep)
    bounds = tuple(sorted(found.bounds, key=lambda b: (-b.seconds, b.name)))
    return Solution(objective, chosen, tuple(rest), bounds, found.cut_short)


def is_landmark(name: str) -> bool:
    """Whether a plan of that name is always reported, however good it is."""
    if name.startswith("single "):
        return not name.endswith(TIDIED)
    return name in ("priority", "mix", "replicas")


def _judged(
    problem: Problem,
    plans: Mapping[tuple[Part, ...], tuple[str, ...]],
    objective: Objective,
    judge: Judge | None,
) -> list[Candidate]:
    """Judge the landmarks and the most promising of the rest."""
    rough = [_evaluated(problem, names, parts) for parts, names in plans.items()]
    if judge is None:
        return rough
    cap = math.inf if problem.max_subgraphs is None else problem.max_subgraphs
    rough.sort(key=lambda c: (c.subgraphs > cap, c.figure(objective), c.subgraphs, c.parts))
    marks = [c for c in rough if any(map(is_landmark, c.names))]
    others = [c for c in rough if not any(map(is_landmark, c.names))][:MOST_JUDGED]
    return [judge(c.names, c.parts) for c in (*marks, *others)]


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


@dataclass(frozen=True, slots=True)
class _Chooser:
    """The rules by which one of the judged candidates is chosen."""

    problem: Problem
    objective: Objective
    max_parts: int | None
    tolerance: float

    def run(
        self,
        judged: list[Candidate],
        bounds: tuple[Bound, ...],
        *,
        keep: str | None,
    ) -> tuple[Candidate, list[Candidate]]:
        """Return the choice, and the others, best first."""
        if keep is not None:
            kept = next(c for c in judged if keep in c.names)
            self._check_kept(keep, kept)
            return kept, self._ranked([c for c in judged if c is not kept])
        judged = self._within_cap(judged)
        chosen = self._best(judged, bounds)
        return chosen, self._ranked([c for c in judged if c is not chosen])

    def _best(self, judged: list[Candidate], bounds: tuple[Bound, ...]) -> Candidate:
        """The best by the objective; within the tolerance, the one with fewest parts and levels."""
        ranked = self._ranked([c for c in judged if self._fits(c)])
        least = self._figure(ranked[0])
        limit = least * (1 + self.tolerance)
        proof = max((b.seconds for b in bounds if b.mixing), default=0.0)
        if self.objective == "throughput" and least <= proof * (1 + PROVEN):
            limit = min(limit, max(least, proof * (1 + PROVEN)))
        near = [c for c in ranked if self._figure(c) <= limit * (1 + 1e-12)]

        def simplicity(c: Candidate) -> tuple[object, ...]:
            return len(c.parts), c.levels, c.subgraphs, self._figure(c), math.fsum(c.loads), c.parts

        return min(near, key=simplicity)

    def _fits(self, candidate: Candidate) -> bool:
        return self.max_parts is None or len(candidate.parts) <= self.max_parts

    def _ranked(self, judged: list[Candidate]) -> list[Candidate]:
        return sorted(judged, key=lambda c: (self._figure(c), c.subgraphs, c.parts))

    def _figure(self, candidate: Candidate) -> float:
        return candidate.figure(self.objective)

    def _within_cap(self, judged: list[Candidate]) -> list[Candidate]:
        cap = self.problem.max_subgraphs
        kept = [c for c in judged if cap is None or c.subgraphs <= cap]
        if not any(map(self._fits, kept)):
            least = min(judged, key=lambda c: c.subgraphs)
            raise PlanError(
                f"subgraphs: at most {cap} wanted, the fewest found are {least.subgraphs}; raise "
                "the cap, drop pins, or give a device that supports more nodes",
                nodes=(),
                constraint="subgraphs",
                fewest=least.subgraphs,
            )
        return kept

    def _check_kept(self, name: str, kept: Candidate) -> None:
        """Raise where a plan that is to be kept breaks a constraint."""
        problem, cap = self.problem, self.problem.max_subgraphs
        broken = "memory, colocation or support"
        constraint = "memory"
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
