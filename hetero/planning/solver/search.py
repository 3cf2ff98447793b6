"""Plan: gather candidates, judge them all alike, choose, and prove how good the choice is."""

from __future__ import annotations

import math
import time
from concurrent.futures import Executor
from typing import Literal

from devices.errors import PlanError
from hetero.planning.solver import candidates as gather
from hetero.planning.solver import exact as exact_solver
from hetero.planning.solver.check import check
from hetero.planning.solver.contract import Contraction, collapse_groups
from hetero.planning.solver.evaluate import evaluate
from hetero.planning.solver.latency import critical_path
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Problem
from hetero.planning.solver.solution import Candidate, Solution
from hetero.planning.solver.tidy import tidy

Objective = Literal["throughput", "latency"]

#: Share of the time granted after which searches stop; judging and choosing take the rest.
SEARCHING = 0.93
#: Simpler plans within this share of the best bottleneck are preferred ...
TOLERANCE = 0.03
#: ... but not where the best is proven to be this near the bound, and the simpler one is not.
PROVEN = 0.02


def plan(
    problem: Problem,
    objective: Objective = "throughput",
    seconds: float = 10.0,
    seed: int = 0,
    *,
    contiguous: bool = False,
    mixing: bool = True,
    exact: bool | None = None,
    tolerance: float = TOLERANCE,
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
        Time granted. Searches are counted in steps that fit it on a slow core; one that the clock
        ends all the same is reported as ``cut_short``.
    seed : int
        Seed of all that is random: same problem, options and seed, same plan, unless cut short.
    contiguous : bool
        Only plans in which a device has one interval of a topological order.
    mixing : bool
        Whether several plans may share the requests, whole replicas included.
    exact : bool, optional
        Whether to ask the exact solver; None asks it where it is installed and the problem is small
        enough. It is ended by the clock, and its plan counts only when proven optimal.
    tolerance : float
        Simpler plans within this share of the best are preferred; 0 takes the best.
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
        ``support``, ``pins``, ``colocation``, ``memory``, ``subgraphs``.
    """
    begin = time.monotonic()
    check(problem)
    base = collapse_groups(problem)
    check(base.problem)
    found = gather.Gathered(base.problem, seconds, begin + seconds * SEARCHING, seed)
    size = base.problem.node_count * base.problem.device_count
    if exact is None:
        exact = exact_solver.is_available() and size <= gather.EXACT_SIZE
    gather.simple_bounds(found)
    gather.single_plans(found)
    if not contiguous:
        gather.simple_plans(found)
    gather.slices(found, thorough=contiguous)
    gather.need_plans(found, contiguous=contiguous, exact=exact)
    if not contiguous:
        gather.improve(found, exact=exact, pool=pool, workers=workers)
    elif exact:
        gather.block_bound(found)
        gather.exact_search(found, bound_only=True)
    if objective == "latency" and not contiguous:
        gather.shorten(found, problem, base)
    judged = [
        _judge(problem, tuple(names), (Part(base.expand(p), 1.0),))
        for p, names in found.plans.items()
    ]
    if mixing and not contiguous and objective == "throughput":
        whole = base.then(found.small)
        for name, mixed in gather.mixes(found):
            parts = tuple(Part(whole.expand(p.assignment), p.share) for p in mixed.parts)
            judged.append(_judge(problem, (name,), parts))
    chosen, rest = _choose(found, _within_cap(problem, judged), objective, tolerance)
    if not contiguous and objective == "throughput":
        chosen = _tidied(problem, base, chosen)
    return _report(problem, found, chosen, rest, time.monotonic() - begin)


def _judge(problem: Problem, names: tuple[str, ...], parts: tuple[Part, ...]) -> Candidate:
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


def _tidied(original: Problem, base: Contraction, chosen: Candidate) -> Candidate:
    """The chosen plan without fragments, where that leaves bottleneck and subgraphs no worse."""
    problem = base.problem
    parts = tuple(
        Part(base.expand(tidy(gather.wary(problem), base.project(p.assignment))), p.share)
        for p in chosen.parts
    )
    fresh = _judge(original, chosen.names, parts)
    better = fresh.bottleneck <= chosen.bottleneck * (1 + 1e-9)
    return fresh if better and fresh.subgraphs <= chosen.subgraphs else chosen


def _within_cap(problem: Problem, judged: list[Candidate]) -> list[Candidate]:
    cap = problem.max_subgraphs
    kept = [c for c in judged if cap is None or c.subgraphs <= cap]
    if not kept:
        least = min(judged, key=lambda c: c.subgraphs)
        raise PlanError(
            f"subgraphs: at most {cap} wanted, the fewest found are {least.subgraphs}; raise the "
            "cap, drop pins, or give a device that supports more nodes",
            nodes=(),
            constraint="subgraphs",
            fewest=least.subgraphs,
        )
    return kept


def _choose(
    found: gather.Gathered, judged: list[Candidate], objective: Objective, tolerance: float
) -> tuple[Candidate, list[Candidate]]:
    """The best by the objective; within the tolerance, the one with fewest parts and levels."""

    def score(c: Candidate) -> float:
        return c.latency if objective == "latency" else c.bottleneck

    ranked = sorted(judged, key=lambda c: (score(c), c.subgraphs, c.parts))
    least = score(ranked[0])
    limit = least * (1 + tolerance)
    proof = max((b.seconds for b in found.bounds if b.mixing), default=0.0)
    if objective == "throughput" and least <= proof * (1 + PROVEN):
        limit = min(limit, max(least, proof * (1 + PROVEN)))
    near = [c for c in ranked if score(c) <= limit * (1 + 1e-12)]
    chosen = min(near, key=lambda c: (len(c.parts), c.levels, c.subgraphs, score(c), c.parts))
    return chosen, [c for c in ranked if c is not chosen]


def _report(
    problem: Problem,
    found: gather.Gathered,
    chosen: Candidate,
    rest: list[Candidate],
    seconds: float,
) -> Solution:
    bounds = sorted(found.bounds, key=lambda b: (-b.seconds, b.name))
    mixed = len(chosen.parts) > 1
    bound = next(b for b in bounds if b.mixing or not mixed)
    busiest = max(range(len(chosen.loads)), key=lambda d: (chosen.loads[d], -d))
    return Solution(
        chosen=chosen,
        bound=bound,
        bounds=tuple(bounds),
        ratio=_ratio(chosen.bottleneck, bound.seconds),
        latency_bound=critical_path(problem),
        bottleneck_device=busiest,
        advice=_advice(problem, chosen, busiest),
        runners_up=tuple(rest),
        seconds=seconds,
        cut_short=found.cut_short,
    )


def _ratio(bottleneck: float, bound: float) -> float:
    if bottleneck == bound:
        return 1.0
    return bottleneck / bound if bound > 0 else math.inf


def _advice(problem: Problem, chosen: Candidate, busiest: int) -> tuple[str, ...]:
    """What would lower the bottleneck, and which devices it does not use."""
    others = [load for d, load in enumerate(chosen.loads) if d != busiest]
    halved = max([chosen.loads[busiest] / 2, *others])
    name = problem.devices[busiest]
    lines = []
    if halved < chosen.bottleneck * 0.99:
        lines.append(
            f"a second device like {name}, taking every other request of its subgraphs, would "
            f"bring the bottleneck from {chosen.bottleneck:.6g} s to {halved:.6g} s"
        )
    idle = [problem.devices[d] for d, load in enumerate(chosen.loads) if load == 0]
    if idle:
        lines.append(f"{', '.join(idle)}: no work; no plan found with it was better")
    return tuple(lines)
