"""Plan: gather candidates, judge them all alike, choose, and prove how good the choice is."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Literal

from devices.errors import PlanError
from hetero.planner import exact as exact_solver
from hetero.planner import order as orders
from hetero.planner.bounds import Bound, largest_node, priced_cut, work
from hetero.planner.check import check
from hetero.planner.contract import Contraction, coarsen, collapse_groups, fuse_cycles
from hetero.planner.evaluate import evaluate
from hetero.planner.greedy import pack, priority, single
from hetero.planner.latency import descend, serial_cuts
from hetero.planner.local_search import HOT, NORM, Found, anneal
from hetero.planner.min_cut import two_way
from hetero.planner.mixing import Part, mix
from hetero.planner.problem import Assignment, Problem, combine, is_feasible, loads
from hetero.planner.slicing import slice_order
from hetero.planner.solution import Candidate, Solution
from hetero.planner.tidy import tidy

Objective = Literal["throughput", "latency"]

#: Supernodes that slicing and annealing work on; larger graphs are coarsened to about this many.
SUPERNODES = 450
#: Annealing proposals for each second granted: below what a slow core does, so that the count and
#: not the clock ends a search, and a seed gives one plan.
PROPOSALS_PER_SECOND = 90_000
#: Proposals of one annealing run: at most, and for each supernode at most.
RUN, RUN_PER_NODE = 900_000, 6_000
#: Norm and starting temperature of successive runs; what reaches the best values on the study's
#: instances first.
RUNS = ((NORM, HOT), (NORM, HOT), (12, 0.2), (NORM, 0.02), (12, HOT), (NORM, 0.2))
#: Random orders that slicing tries for each second granted, on graphs of at most `SUPERNODES`.
ORDERS_PER_SECOND = 3
#: Latency trials for each second granted.
TRIALS_PER_SECOND = 60
#: Nodes times devices up to which the exact solver is asked.
EXACT_SIZE = 3_500
#: Simpler plans within this share of the best bottleneck are preferred ...
TOLERANCE = 0.03
#: ... but not where the best is proven to be this near the bound, and the simpler one is not.
PROVEN = 0.02


@dataclass(slots=True)
class _Search:
    """What one call of `plan` gathers: plans of the original nodes by name, bounds, the clock."""

    problem: Problem
    base: Contraction
    objective: Objective
    deadline: float
    seed: int
    seconds: float
    plans: dict[Assignment, str] = field(default_factory=dict)
    bounds: list[Bound] = field(default_factory=list)
    cut_short: bool = False

    def add(self, name: str, assignment: Assignment | None) -> None:
        """Keep a plan of the base problem's nodes, under the name of who found it first."""
        if assignment is not None and is_feasible(self.base.problem, assignment):
            self.plans.setdefault(assignment, name)

    def cost(self, assignment: Assignment) -> float:
        """Bottleneck of a plan of the base problem's nodes, without dispatch."""
        problem = self.base.problem
        return float(combine(problem, *loads(problem, assignment)).max())

    def best(self) -> list[Assignment]:
        """The plans kept, least bottleneck first."""
        return sorted(self.plans, key=lambda p: (self.cost(p), p))


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
) -> Solution:
    """Plan a problem.

    Parameters
    ----------
    problem : Problem
        What is to be planned.
    objective : {"throughput", "latency"}
        Least bottleneck, or least time of a single request.
    seconds : float
        Time granted. Searches are counted in steps that fit it on a slow core; one that the clock
        ends all the same is reported as ``cut_short``.
    seed : int
        Seed of all that is random: same problem, options and seed, same plan.
    contiguous : bool
        Only plans in which a device has one interval of a topological order.
    mixing : bool
        Whether several plans may share the requests, whole replicas included.
    exact : bool, optional
        Whether to ask the exact solver; None asks it where it is installed and the problem is small
        enough.
    tolerance : float
        Simpler plans within this share of the best are preferred; 0 takes the best.
    pool : concurrent.futures.Executor, optional
        Where annealing runs go; here, one after the other, when None. The plan is the same.

    Returns
    -------
    Solution

    Raises
    ------
    PlanError
        No plan meets the constraints; it names the nodes and the constraint that clash.
    """
    begin = time.monotonic()
    check(problem)
    search = _Search(
        problem, collapse_groups(problem), objective, begin + seconds * 0.95, seed, seconds
    )
    base = search.base.problem
    search.bounds += [largest_node(base), work(base)[0]]
    if base.node_count * base.device_count <= EXACT_SIZE * 4:
        proven = priced_cut(base)
        search.bounds += [proven] if proven is not None else []
    if exact is None:
        exact = exact_solver.is_available() and (
            base.node_count * base.device_count <= EXACT_SIZE
        )
    _simple_plans(search, contiguous)
    _slices(search, contiguous)
    _need_plans(search)
    if not contiguous:
        _improve(search, exact, pool)
    elif exact:
        _block_bound(search)
    for assignment in search.best()[:4] if not contiguous else []:
        search.add(f"{search.plans[assignment]}, tidied", tidy(base, assignment))
    if objective == "latency":
        _shorten(search)
    candidates = _judge(search)
    if mixing and not contiguous and objective == "throughput":
        candidates += _mixes(search)
    if problem.max_subgraphs is not None:
        candidates = _within_cap(problem, candidates)
    chosen, rest = _choose(search, candidates, tolerance)
    return _report(search, chosen, rest, time.monotonic() - begin)


def _need_plans(search: _Search) -> None:
    if search.plans:
        return
    problem = search.problem
    heavy = sorted(range(problem.node_count), key=lambda v: (-problem.weights[v], v))[:6]
    names = tuple(problem.names[v] for v in heavy)
    raise PlanError(
        f"memory: {float(problem.weights.sum()):.0f} bytes of constants, of which "
        f"{', '.join(map(repr, names))} are the largest, found no packing into "
        f"{', '.join(f'{d} ({m:.0f})' for d, m in zip(problem.devices, problem.memory, strict=True))}"
        "; give a device more memory, add one, or drop pins and colocation groups",
        nodes=names,
        constraint="memory",
    )


def _simple_plans(search: _Search, contiguous: bool) -> None:
    """Single devices, and unless intervals are wanted, priority lists, packing and cuts."""
    base = search.base.problem
    k = base.device_count
    for d in range(k):
        search.add(f"single {base.devices[d]}", single(base, d))
    if contiguous:
        return
    search.add("priority", priority(base))
    first = [base.classes.index(c) for c in sorted(set(base.classes))]
    for d in first:
        search.add(
            f"priority from {base.devices[d]}",
            priority(base, [d, *(e for e in range(k) if e != d)]),
        )
    search.add("packing", pack(base))
    if len(first) == 2 and base.node_count <= 20 * SUPERNODES:
        for share in (0.5, 0.35, 0.65, 0.2, 0.8):
            found = two_way(base, first[0], first[1], (share, 1 - share))
            search.add("minimum cut", None if found is None else found[1])


def _slices(search: _Search, contiguous: bool) -> None:
    """Slice several orders of the graph, cycles fused, coarsened where it is large."""
    fused = fuse_cycles(search.base.problem)
    small = coarsen(fused.problem, SUPERNODES)
    problem = small.problem
    n = problem.node_count
    if n > 5 * SUPERNODES:
        return
    states = math.prod(problem.classes.count(c) + 1 for c in set(problem.classes))
    tries = int(search.seconds * ORDERS_PER_SECOND * (4 if contiguous else 1))
    # An order costs about n² a state; all of them stay within a tenth of the time granted.
    tries = min(tries, int(search.seconds * 4e7 / (n * n * states + 1)), 300)
    most = math.inf
    kept: list[tuple[float, Assignment]] = []
    for ranks in _orders(problem, tries, search.seed):
        found = slice_order(problem, ranks, most=most * (1 + 1e-12))
        if found is not None:
            most = min(most, found[0])
            kept.append(found)
        if time.monotonic() > search.deadline:
            search.cut_short = True
            break
    for _, assignment in sorted(kept)[:3]:
        search.add("slicing", fused.expand(small.expand(assignment)))


def _orders(problem: Problem, tries: int, seed: int) -> Iterator[list[int]]:
    """Topological orders: level by level, branch by branch, by depth, then random ones."""
    n, edges = problem.node_count, problem.edges()
    yield orders.depth_first(n, edges, range(n))
    yield orders.breadth_first(n, edges)
    depth = orders.depths(n, edges)
    yield orders.by_key(n, edges, depth)
    yield orders.depth_first(n, edges, [-d for d in depth])
    # What ends a long chain comes late: the reverse of a depth-first order from the sinks.
    back = orders.depth_first(n, [(v, u) for u, v in edges], range(n))
    yield back[::-1]
    rng = random.Random(seed)
    for turn in range(tries):
        keys = [rng.random() for _ in range(n)]
        if turn % 2:
            yield orders.depth_first(n, edges, keys)
        else:
            yield orders.by_key(n, edges, [d + 3 * r for d, r in zip(depth, keys, strict=True)])


def _improve(search: _Search, exact: bool, pool: Executor | None) -> None:
    """Annealing from the best plans, on supernodes first where the graph is large; then exact."""
    base = search.base.problem
    fine = base.node_count <= 2 * SUPERNODES
    small = (
        Contraction(base, tuple(range(base.node_count)))
        if fine
        else coarsen(fuse_cycles(base).problem, SUPERNODES)
    )
    if not fine and len(small.supernode) != base.node_count:
        fine, small = True, Contraction(base, tuple(range(base.node_count)))
    problem = small.problem
    total = int(search.seconds * PROPOSALS_PER_SECOND)
    each = min(RUN, RUN_PER_NODE * problem.node_count, total)
    runs = max(1, min(len(RUNS), total // max(each, 1)))
    starts = [
        p for p in (small.project(p) for p in search.best()[:8]) if is_feasible(problem, p)
    ]
    if starts:
        jobs = []
        for turn in range(runs):
            norm, hot = RUNS[turn]
            start = starts[min(turn // 2, len(starts) - 1)]
            seed = search.seed * 1000 + turn
            options = (problem, start, each, seed, search.deadline, hot, norm)
            jobs.append(options)
        if exact and pool is not None:
            _block_bound_later = pool.submit(_run, jobs[0])
            futures = [_block_bound_later, *(pool.submit(_run, job) for job in jobs[1:])]
            _block_bound(search)
            found = [f.result() for f in futures]
        elif pool is not None:
            found = list(pool.map(_run, jobs))
        else:
            found = [_run(job) for job in jobs]
        for run in found:
            search.cut_short |= run.cut_short
            search.add("annealing", small.expand(run.assignment))
    if not fine:
        _refine(search)
    if exact:
        if pool is None or not starts:
            _block_bound(search)
        _exact_search(search)


Job = tuple[Problem, Assignment, int, int, float, float, int]


def _run(job: Job) -> Found:
    problem, start, proposals, seed, deadline, hot, norm = job
    return anneal(
        problem, start, proposals=proposals, seed=seed, deadline=deadline, hot=hot, norm=norm
    )


def _refine(search: _Search) -> None:
    """After coarse annealing, a cool run on the nodes themselves."""
    best = search.best()[0]
    proposals = int(search.seconds * PROPOSALS_PER_SECOND / 3)
    run = anneal(
        search.base.problem,
        best,
        proposals=proposals,
        seed=search.seed,
        deadline=search.deadline,
        hot=0.003,
    )
    search.cut_short |= run.cut_short
    search.add("annealing", run.assignment)


def _left(search: _Search) -> float:
    return search.deadline - time.monotonic()


def _proven(search: _Search) -> float:
    return max(b.seconds for b in search.bounds)


def _block_bound(search: _Search) -> None:
    known = search.cost(search.best()[0])
    if _proven(search) >= known * (1 - 1e-4) or _left(search) < 0.05:
        return
    found = exact_solver.bottleneck_block(
        search.base.problem, known=known, seconds=min(_left(search), search.seconds * 0.4)
    )
    search.bounds += [found] if found is not None else []


def _exact_search(search: _Search) -> None:
    """The whole problem exactly; a solution counts only when proven, so that time cannot choose."""
    best = search.best()[0]
    if _proven(search) >= search.cost(best) * (1 - 1e-4) or _left(search) < 0.1:
        return
    solved = exact_solver.solve(search.base.problem, seconds=_left(search), start=best)
    if math.isfinite(solved.bound.seconds):
        search.bounds.append(solved.bound)
    if solved.optimal and solved.assignment is not None:
        search.add("exact", solved.assignment)


def _shorten(search: _Search) -> None:
    """Latency: serial cuts, then descent on the simulated time from the shortest plans."""
    base = search.base.problem
    if base.node_count <= 20 * SUPERNODES:
        for found in serial_cuts(base):
            search.add("minimum cut", found)

    def judge(assignment: Assignment) -> float:
        return evaluate(search.problem, search.base.expand(assignment)).latency

    shortest = sorted(search.best(), key=lambda p: (judge(p), p))[:2]
    trials = int(search.seconds * TRIALS_PER_SECOND * 400 / max(base.node_count, 400))
    for start in shortest:
        found, late = descend(
            base, start, judge, trials=trials, seed=search.seed, deadline=search.deadline
        )
        search.cut_short |= late
        search.add("descent on latency", found)


def _judge(search: _Search) -> list[Candidate]:
    return [
        _candidate(search.problem, name, (Part(search.base.expand(p), 1.0),))
        for p, name in search.plans.items()
    ]


def _mixes(search: _Search) -> list[Candidate]:
    """The best mix of all plans found, and of whole-model replicas alone."""
    base = search.base.problem
    if base.node_count > 20 * SUPERNODES:
        return []
    singles = [p for d in range(base.device_count) if (p := single(base, d)) is not None]
    found = []
    for name, plans in (("mix", list(search.plans)), ("replicas", singles)):
        mixed = mix(base, plans) if name == "mix" or len(plans) > 1 else None
        if mixed is None:
            continue
        if mixed.bound is not None:
            search.bounds.append(mixed.bound)
        if len(mixed.parts) > 1:
            parts = tuple(Part(search.base.expand(p.assignment), p.share) for p in mixed.parts)
            found.append(_candidate(search.problem, name, parts))
    return found


def _candidate(problem: Problem, name: str, parts: tuple[Part, ...]) -> Candidate:
    judged = [evaluate(problem, part.assignment) for part in parts]
    together = sum(
        (e.loads * p.share for e, p in zip(judged, parts, strict=True)), 0.0 * judged[0].loads
    )
    return Candidate(
        name=name,
        parts=parts,
        loads=tuple(together.tolist()),
        bottleneck=float(together.max()),
        latency=float(max(e.latency for e in judged)),
        subgraphs=sum(e.subgraphs for e in judged),
        levels=max(e.levels for e in judged),
    )


def _within_cap(problem: Problem, candidates: list[Candidate]) -> list[Candidate]:
    cap = problem.max_subgraphs
    kept = [c for c in candidates if cap is None or c.subgraphs <= cap]
    if not kept:
        least = min(candidates, key=lambda c: c.subgraphs)
        raise PlanError(
            f"subgraphs: at most {cap} wanted, the fewest found are {least.subgraphs}; raise the "
            "cap, drop pins, or give a device that supports more nodes",
            nodes=(),
            constraint="subgraphs",
            fewest=least.subgraphs,
        )
    return kept


def _choose(
    search: _Search, candidates: list[Candidate], tolerance: float
) -> tuple[Candidate, list[Candidate]]:
    """The best by the objective; within the tolerance, the one with fewest parts and levels."""

    def score(c: Candidate) -> float:
        return c.latency if search.objective == "latency" else c.bottleneck

    ranked = sorted(candidates, key=lambda c: (score(c), c.subgraphs, c.parts))
    least = score(ranked[0])
    limit = least * (1 + tolerance)
    proof = max((b.seconds for b in search.bounds if b.mixing), default=0.0)
    if search.objective == "throughput" and least <= proof * (1 + PROVEN):
        limit = min(limit, max(least, proof * (1 + PROVEN)))
    near = [c for c in ranked if score(c) <= limit * (1 + 1e-12)]
    chosen = min(
        near,
        key=lambda c: (len(c.parts), c.levels, c.subgraphs, score(c), c.parts),
    )
    return chosen, [c for c in ranked if c is not chosen]


def _report(
    search: _Search, chosen: Candidate, rest: Iterable[Candidate], seconds: float
) -> Solution:
    bounds = sorted(search.bounds, key=lambda b: (-b.seconds, b.name))
    mixed = len(chosen.parts) > 1
    fitting = [b for b in bounds if b.mixing or not mixed]
    bound = fitting[0]
    busiest = max(range(len(chosen.loads)), key=lambda d: (chosen.loads[d], -d))
    return Solution(
        chosen=chosen,
        bound=bound,
        bounds=tuple(bounds),
        ratio=chosen.bottleneck / bound.seconds if bound.seconds > 0 else math.inf,
        bottleneck_device=busiest,
        advice=_advice(search.problem, chosen, busiest),
        runners_up=tuple(rest),
        seconds=seconds,
        cut_short=search.cut_short,
    )


def _advice(problem: Problem, chosen: Candidate, busiest: int) -> tuple[str, ...]:
    """What would lower the bottleneck: a second device of the busiest kind, or its memory."""
    others = [load for d, load in enumerate(chosen.loads) if d != busiest]
    halved = max([chosen.loads[busiest] / 2, *others])
    name = problem.devices[busiest]
    lines = []
    if halved < chosen.bottleneck * 0.99:
        lines.append(
            f"a second device like {name}, sharing its subgraphs, would bring the bottleneck from "
            f"{chosen.bottleneck:.6g} s to {halved:.6g} s"
        )
    idle = [problem.devices[d] for d, load in enumerate(chosen.loads) if load == 0]
    if idle:
        lines.append(f"{', '.join(idle)} has no work: using it would not lower the bottleneck found")
    return tuple(lines)
