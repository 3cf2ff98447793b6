"""Gather candidate plans and bounds: every method, its effort, and where its results go.

Effort is counted in steps that follow from the seconds granted, so that a seed gives one plan on
any machine; the clock only ends what takes many times as long, and then says so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from devices.errors import PlanError
from hetero.planning.solver import exact as exact_solver
from hetero.planning.solver import order as orders
from hetero.planning.solver.bounds import Bound, largest_node, priced_cut, work
from hetero.planning.solver.contract import Contraction, coarsen, fuse_cycles
from hetero.planning.solver.evaluate import evaluate
from hetero.planning.solver.greedy import pack, priority, single
from hetero.planning.solver.latency import descend, serial_cuts
from hetero.planning.solver.local_search import HOT, NORM, Found, anneal
from hetero.planning.solver.min_cut import two_way
from hetero.planning.solver.mixing import Mix, mix
from hetero.planning.solver.problem import Assignment, Problem, combine, is_feasible, loads
from hetero.planning.solver.slicing import MAX_NODES, slice_order
from hetero.planning.solver.tidy import tidy

#: Ends the name of a plan that was freed of fragments.
TIDIED = ", tidied"
#: Graphs of at most this many nodes are searched as they are ...
SMALL = 900
#: ... larger ones are coarsened to about this many supernodes first.
SUPERNODES = 450
#: Annealing proposals for each second granted and worker: below what most cores do, so that the
#: count and not the clock ends a search.
PROPOSALS_PER_SECOND = 150_000
#: Proposals of one annealing run: at most, and for each supernode at most.
RUN, RUN_PER_NODE = 900_000, 3_000
#: Norm and starting temperature of successive annealing runs: first from the simple plans and the
#: slices, then from the best of what that found. Hot runs cross hills, cool ones settle the flat
#: ground near an optimum; on the published instances each was the best somewhere.
ROUNDS = (
    ((NORM, HOT), (NORM, 0.02), (12, 0.2), (NORM, 0.5)),
    ((60, 0.003), (NORM, HOT), (NORM, 0.02), (12, HOT)),
)
#: Annealing runs of one round at most.
MOST_RUNS = 8
#: Random orders that slicing tries for each second granted; four times that when only intervals are
#: wanted.
ORDERS_PER_SECOND = 3
#: Latency trials for each second granted, on a graph of 400 nodes.
TRIALS_PER_SECOND = 60
#: Nodes times devices up to which the exact solver is asked.
EXACT_SIZE = 3_500
#: Nodes times devices up to which the priced minimum cut is worth its time.
CUT_SIZE = 14_000
#: Prices of the first of two classes at which minimum cuts are tried; its rival has the rest.
SHARES = (0.5, 0.35, 0.65, 0.2, 0.8)


@dataclass(slots=True)
class Gathered:
    """Plans and bounds of one planning call, and its clock."""

    #: Without colocation groups.
    problem: Problem
    #: What bounds are proven on: costs that no plan falls below.
    floor: Problem
    #: Effort granted, from which steps follow.
    seconds: float
    #: ``time.monotonic()`` at which searches stop.
    deadline: float
    #: Seed of everything random.
    seed: int
    #: The problem that searches work on: itself where it is small, coarsened otherwise.
    small: Contraction = field(init=False)
    #: Plan of the problem's nodes -> the methods that found it, the first one first.
    plans: dict[Assignment, list[str]] = field(default_factory=dict)
    bounds: list[Bound] = field(default_factory=list)
    cut_short: bool = False

    def __post_init__(self) -> None:
        n = self.problem.node_count
        if n <= SMALL:
            self.small = Contraction(self.problem, tuple(range(n)))
        else:
            fused = fuse_cycles(self.problem)
            self.small = fused.then(coarsen(fused.problem, SUPERNODES))

    @property
    def is_coarse(self) -> bool:
        """Whether searches work on supernodes."""
        return self.small.problem is not self.problem

    def add(self, name: str, assignment: Assignment | None) -> None:
        """Keep a feasible plan of the problem's nodes under the name of its finder."""
        if assignment is not None and is_feasible(self.problem, assignment):
            names = self.plans.setdefault(assignment, [])
            if name not in names:
                names.append(name)

    def cost(self, assignment: Assignment) -> float:
        """Bottleneck of a plan, seconds, without dispatch."""
        return float(combine(self.problem, *loads(self.problem, assignment)).max())

    def best(self) -> list[Assignment]:
        """The plans kept, least bottleneck first."""
        return sorted(self.plans, key=lambda p: (self.cost(p), p))

    def starts(self) -> list[Assignment]:
        """The best plans as plans of the supernodes, as far as they are that."""
        projected = dict.fromkeys(self.small.project(p) for p in self.best()[:8])
        return [p for p in projected if is_feasible(self.small.problem, p)]

    def proven(self) -> float:
        """The largest bound so far, seconds."""
        return max(b.seconds for b in self.bounds)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


def simple_bounds(found: Gathered) -> None:
    """Bounds that take milliseconds."""
    problem = found.floor
    found.bounds += [largest_node(problem), work(problem)]
    if problem.node_count * problem.device_count <= CUT_SIZE:
        proven = priced_cut(problem)
        found.bounds += [proven] if proven is not None else []


def single_plans(found: Gathered) -> None:
    """Each device alone, where it supports and holds everything."""
    for d, name in enumerate(found.problem.devices):
        found.add(f"single {name}", single(found.problem, d))


def simple_plans(found: Gathered) -> None:
    """Priority lists, a packing by memory, minimum cuts between two classes."""
    problem, k = found.problem, found.problem.device_count
    found.add("priority", priority(problem))
    first = [problem.classes.index(c) for c in sorted(set(problem.classes))]
    for d in first:
        rest = (e for e in range(k) if e != d)
        found.add(f"priority from {problem.devices[d]}", priority(problem, [d, *rest]))
    found.add("packing", pack(problem))
    if len(first) == 2:
        for share in SHARES:
            cut = two_way(found.small.problem, first[0], first[1], (share, 1 - share))
            found.add("minimum cut", None if cut is None else found.small.expand(cut[1]))


def slices(found: Gathered, *, thorough: bool) -> None:
    """Slice several orders of the graph, its cycles fused; the best three are kept."""
    fused = fuse_cycles(found.small.problem)
    problem = fused.problem
    n = problem.node_count
    if n > MAX_NODES:
        return
    states = math.prod(problem.classes.count(c) + 1 for c in set(problem.classes))
    tries = int(found.seconds * ORDERS_PER_SECOND * (4 if thorough else 1))
    # An order takes about n² steps for each state; together at most a tenth of the time granted.
    tries = min(tries, int(found.seconds * 4e7 / (n * n * states + 1)), 300)
    most = math.inf
    kept: list[tuple[float, Assignment]] = []
    for order in _orders(problem, tries, found.seed):
        sliced = slice_order(problem, order, most=most * (1 + 1e-12))
        if sliced is not None:
            most = min(most, sliced[0])
            kept.append(sliced)
        if found.left() < 0:
            found.cut_short = True
            break
    for _, assignment in sorted(kept)[:3]:
        found.add("slicing", found.small.expand(fused.expand(assignment)))


def _orders(problem: Problem, tries: int, seed: int) -> Iterator[list[int]]:
    """Topological orders: branch by branch, level by level, by depth, then random ones."""
    n, edges = problem.node_count, problem.edges()
    yield orders.depth_first(n, edges, range(n))
    yield orders.breadth_first(n, edges)
    depth = orders.depths(n, edges)
    yield orders.by_key(n, edges, depth)
    yield orders.depth_first(n, edges, [-d for d in depth])
    # From the sinks backwards: a short branch comes right before the join that needs it.
    yield orders.depth_first(n, [(v, u) for u, v in edges], range(n))[::-1]
    rng = random.Random(seed)
    for turn in range(tries):
        keys = [rng.random() for _ in range(n)]
        if turn % 2:
            yield orders.depth_first(n, edges, keys)
        else:
            yield orders.by_key(n, edges, [d + 3 * r for d, r in zip(depth, keys, strict=True)])


def need_plans(found: Gathered, *, contiguous: bool, exact: bool) -> None:
    """See that there is a plan at all; the solver, if it may be asked, packs what is very tight.

    Raises PlanError, naming the largest nodes.
    """
    problem = found.problem
    if exact and not found.plans and not contiguous:
        steps = int(found.seconds * exact_solver.STEPS_PER_SECOND)
        solved = exact_solver.solve(problem, steps=steps, seconds=found.left())
        found.cut_short |= solved.cut_short
        found.add("exact", solved.assignment)
    if found.plans:
        return
    if contiguous:
        raise PlanError(
            f"intervals: no order tried could be cut into one interval for each of "
            f"{', '.join(problem.devices)} that supports it and has room for it; plan without "
            "`contiguous`",
            nodes=(),
            constraint="contiguous",
        )
    heavy = sorted(range(problem.node_count), key=lambda v: (-problem.weights[v], v))[:6]
    names = tuple(problem.names[v] for v in heavy)
    rooms = zip(problem.devices, problem.memory.tolist(), strict=True)
    raise PlanError(
        f"memory: {float(problem.weights.sum()):.0f} bytes of constants, of which "
        f"{', '.join(map(repr, names))} have the most, were not packed into "
        f"{', '.join(f'{d} ({m:.0f})' for d, m in rooms)}; give a device more memory, add one, or "
        "drop pins and colocation groups",
        nodes=names,
        constraint="memory",
    )


def improve(found: Gathered, *, exact: bool, pool: Executor | None, workers: int) -> None:
    """Anneal from the best plans, refine what was coarse, prove, and search exactly."""
    problem = found.small.problem
    searched = [wary(problem), problem] if problem.dispatch is not None else [problem]
    total = int(found.seconds * PROPOSALS_PER_SECOND * workers / len(ROUNDS))
    each = min(RUN, RUN_PER_NODE * problem.node_count, total)
    runs = max(1, min(MOST_RUNS, total // max(each, 1)))
    for number, settings in enumerate(ROUNDS):
        starts = found.starts()
        jobs: list[Job] = []
        for turn in range(runs if starts else 0):
            norm, hot = settings[turn % len(settings)]
            # Every other run starts from the best plan, the rest from the next ones.
            start = starts[(turn + 1) // 2 % len(starts) if turn % 2 else 0]
            seed = (found.seed * len(ROUNDS) + number) * MOST_RUNS + turn
            on = searched[turn % len(searched)]
            jobs.append((on, start, each, seed, found.deadline, hot, norm))
        if pool is None:
            results = [_run(job) for job in jobs]
        else:
            futures = [pool.submit(_run, job) for job in jobs]
            if exact and not number:
                # A bound for the plans so far takes the time in which others anneal.
                block_bound(found)
            results = [future.result() for future in futures]
        for result in results:
            found.cut_short |= result.cut_short
            found.add("annealing", found.small.expand(result.assignment))
    if found.is_coarse:
        _refine(found)
    if exact:
        if pool is None:
            block_bound(found)
        exact_search(found)
    for assignment in found.best()[:4]:
        found.add(found.plans[assignment][0] + TIDIED, tidy(wary(found.problem), assignment))


def wary(problem: Problem) -> Problem:
    """The problem with the cost of a subgraph put on what it receives.

    A device's subgraphs other than its first receive something, so that this counts their dispatch,
    often more than once: searches see only loads, and this makes them shy of fragments.
    """
    if problem.dispatch is None:
        return problem
    return replace(problem, receive=problem.receive + problem.dispatch)


#: Problem, start, proposals, seed, deadline, starting temperature, norm.
Job = tuple[Problem, Assignment, int, int, float, float, int]


def _run(job: Job) -> Found:
    problem, start, proposals, seed, deadline, hot, norm = job
    return anneal(
        problem, start, proposals=proposals, seed=seed, deadline=deadline, hot=hot, norm=norm
    )


def _refine(found: Gathered) -> None:
    """After annealing supernodes, a cool run on the nodes themselves."""
    result = anneal(
        found.problem,
        found.best()[0],
        proposals=int(found.seconds * PROPOSALS_PER_SECOND / 3),
        seed=found.seed,
        deadline=found.deadline,
        hot=0.003,
    )
    found.cut_short |= result.cut_short
    found.add("annealing", result.assignment)


def block_bound(found: Gathered) -> None:
    """The bottleneck block's bound, where it could still say more than what is proven."""
    known = found.cost(found.best()[0])
    if found.proven() >= known * (1 - 1e-4):
        return
    steps = int(found.seconds * exact_solver.STEPS_PER_SECOND)
    proven, late = exact_solver.bottleneck_block(
        found.floor, known=known, steps=steps, seconds=found.left()
    )
    found.cut_short |= late
    found.bounds += [proven] if proven is not None else []


def exact_search(found: Gathered, *, bound_only: bool = False) -> None:
    """The whole problem exactly; its plan counts only when proven, its bound always."""
    best = found.best()[0]
    if found.proven() >= found.cost(best) * (1 - 1e-4):
        return
    steps = int(found.seconds * exact_solver.STEPS_PER_SECOND)
    solved = exact_solver.solve(found.problem, steps=steps, seconds=found.left(), start=best)
    found.cut_short |= solved.cut_short
    if math.isfinite(solved.bound.seconds) and found.floor is found.problem:
        found.bounds.append(solved.bound)
    if solved.optimal and not bound_only:
        found.add("exact", solved.assignment)


def shorten(found: Gathered, original: Problem, base: Contraction) -> None:
    """Plans for one request: serial minimum cuts, then descent on its simulated time.

    `base`: from the original's nodes to the gathered problem's.
    """
    for cut in serial_cuts(found.small.problem):
        found.add("minimum cut", found.small.expand(cut))
    whole = base.then(found.small)

    def judge(assignment: Assignment) -> float:
        return evaluate(original, whole.expand(assignment)).latency

    starts = found.starts()
    for start in sorted(starts, key=lambda p: (judge(p), p))[:2]:
        trials = found.seconds * TRIALS_PER_SECOND * 400 / max(original.node_count, 20)
        shorter, late = descend(
            found.small.problem,
            start,
            judge,
            trials=int(trials),
            seed=found.seed,
            deadline=found.deadline,
        )
        found.cut_short |= late
        found.add("descent on latency", found.small.expand(shorter))


def mixes(found: Gathered) -> list[tuple[str, Mix]]:
    """The best mix of all plans found, and of whole-model replicas alone, each by its name."""
    problem = found.small.problem
    alone = [p for d in range(problem.device_count) if (p := single(problem, d)) is not None]
    together = []
    for name, plans in (("mix", [*found.starts(), *alone]), ("replicas", alone)):
        mixed = mix(problem, plans, price=name == "mix") if plans else None
        if mixed is None:
            continue
        # Pricing supernodes proves nothing about the nodes inside.
        if mixed.bound is not None and not found.is_coarse and found.floor is found.problem:
            found.bounds.append(mixed.bound)
        if len(mixed.parts) > 1:
            together.append((name, mixed))
    return together
