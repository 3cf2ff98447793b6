"""The planner: fuse, singles, slices, two annealings, tidy, mixes, bounds; then judge and choose.

Effort is counted in steps that follow from the seconds granted, so that a seed gives one plan on
any machine. An idle core needs a good half of the seconds for them; what takes longer is ended by
the clock, and the solution says so.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hetero.devices.errors import PlanError
from hetero.planning.solver.bounds import Bound, critical_path, largest_node, priced_cut, work
from hetero.planning.solver.candidates import TIDIED, Hint, Judge, Solution, choose, judged
from hetero.planning.solver.contraction import coarsen, collapse_groups, fuse_cycles
from hetero.planning.solver.graph import depth_first
from hetero.planning.solver.heuristics import pack, priority, serial_cuts
from hetero.planning.solver.local_search import anneal, tidy
from hetero.planning.solver.mixing import Part, mix
from hetero.planning.solver.problem import (
    Assignment,
    Problem,
    allowed,
    check,
    is_feasible,
    loads,
    wary,
)
from hetero.planning.solver.slicing import MAX_NODES, slice_order

#: Graphs of at most this many nodes are searched as they are ...
SMALL = 900
#: ... larger ones are coarsened to about this many supernodes first.
SUPERNODES = 450
#: Annealing proposals for each second granted: a core makes them in half of it, where a graph has
#: no more nodes than this.
PROPOSALS_PER_SECOND, QUICK_NODES = 100_000, 400
#: Times the best plan's bottleneck up to which the next one is annealed as well.
NEAR = 1.2
#: Plans times nodes for each second granted, up to which each plan is judged.
FEW_PER_SECOND = 16_000
#: Nodes times devices up to which the priced minimum cut is worth its time.
CUT_SIZE = 14_000
#: Plans that are tidied, the best first.
TIDIED_PLANS = 4
#: Shares of the seconds after which the clock ends searching, and judging.
CLOCK = (0.8, 1.0)


def plan(
    problem: Problem,
    judge: Judge,
    hint: Hint = "THROUGHPUT",
    seconds: float = 10.0,
    seed: int = 0,
    *,
    contiguous: bool = False,
    max_parts: int | None = None,
    given: Mapping[str, Assignment] | None = None,
    keep: str | None = None,
    floor: Problem | None = None,
) -> Solution:
    """Plan a problem: same problem, options and seed, same plan, unless it is cut short.

    `problem`: its edges are acyclic.
    `judge`: gives the figures by which plans are compared.
    `seconds`: the most time for it; the effort follows from it.
    `contiguous`: only plans in which a device has one interval of a topological order.
    `max_parts`: how many plans may share the requests; any number by default.
    `given`: plans to judge besides those found; left out where they break a constraint.
    `keep`: the one of `given` to choose whatever else is found.
    `floor`: the same nodes with costs that no judged plan falls below, for the bounds.
    Raises PlanError: no plan meets the constraints, or `keep` breaks one: ``nodes`` are those that
        clash, ``constraint`` is ``support``, ``pins``, ``colocation``, ``memory`` or ``subgraphs``.
    """
    search_s, judge_s = (time.monotonic() + share * seconds for share in CLOCK)
    check(problem)
    base = collapse_groups(problem)
    check(base.problem)
    if base.problem.node_count > SMALL:
        base = base.then(fuse_cycles(base.problem))
        base = base.then(coarsen(base.problem, SUPERNODES))
    throughput = hint == "THROUGHPUT"
    search = _Search(base.problem, seconds, seed, search_s)

    search.add_simple(contiguous=contiguous, cuts=not throughput)
    search.add_slices()
    if not search.plans:
        search.add_packed(contiguous=contiguous)
    if not contiguous:
        if throughput:
            search.anneal()
        else:
            search.add_all()
        search.tidy()
    ways: dict[tuple[Part, ...], list[str]] = {}
    given = {n: a for n, a in (given or {}).items() if is_feasible(problem, a) or n == keep}
    for name, assignment in given.items():
        ways.setdefault((Part(assignment, 1.0),), []).append(name)
    for assignment, names in search.plans.items():
        mine = ways.setdefault((Part(base.expand(assignment), 1.0),), [])
        mine += [name for name in names if name not in given]
    if throughput and not contiguous:
        for name, parts in search.mixes():
            expanded = tuple(Part(base.expand(p.assignment), p.share) for p in parts)
            ways.setdefault(expanded, []).append(name)
    bounds = _bounds(problem if floor is None else floor, hint)
    plans = {parts: tuple(names) for parts, names in ways.items() if names}
    candidates, late = judged(problem, plans, hint, judge, judge_s)
    proven = max((b.seconds for b in bounds if b.mixing), default=0.0)
    chosen, rest = choose(problem, candidates, hint, max_parts, proven, keep)
    return Solution(chosen, rest, bounds, search.cut_short or late)


def _bounds(floor: Problem, hint: Hint) -> tuple[Bound, ...]:
    """Return what is proven of a problem, the largest first."""
    if hint == "LATENCY":
        return (critical_path(floor),)
    base = collapse_groups(floor).problem
    found = [largest_node(base), work(base)]
    if base.node_count * base.device_count <= CUT_SIZE and (cut := priced_cut(base)) is not None:
        found.append(cut)
    return tuple(sorted(found, key=lambda b: (-b.seconds, b.name)))


@dataclass(slots=True)
class _Search:
    """The plans found so far, and how long to go on."""

    #: Without colocation groups, and coarsened where it is large.
    problem: Problem
    #: Time granted, from which steps follow.
    seconds: float
    seed: int
    #: ``time.monotonic()`` at which searches stop.
    deadline: float
    #: Plan of the problem's nodes -> the methods that found it, the first one first.
    plans: dict[Assignment, list[str]] = field(default_factory=dict)
    cut_short: bool = False

    def add(self, name: str, assignment: Assignment | None) -> None:
        """Keep a plan of the problem's nodes under the name of its finder, if it is feasible."""
        if assignment is not None and is_feasible(self.problem, assignment):
            names = self.plans.setdefault(assignment, [])
            if name not in names:
                names.append(name)

    def best(self) -> list[Assignment]:
        """Return the plans kept, least bottleneck first."""
        return sorted(self.plans, key=lambda p: (loads(self.problem, p).max(), p))

    def add_simple(self, *, contiguous: bool, cuts: bool) -> None:
        """Add each device alone, the priority list, and minimum cuts."""
        problem = self.problem
        for d, name in enumerate(problem.devices):
            self.add(f"single {name}", (d,) * problem.node_count)
        if contiguous:
            return
        self.add("priority", priority(problem))
        for cut in serial_cuts(problem) if cuts else ():
            self.add("minimum cut", cut)

    def add_slices(self) -> None:
        """Slice two orders of the graph, its cycles fused."""
        fused = fuse_cycles(self.problem)
        if fused.problem.node_count > MAX_NODES:
            return
        n, edges = fused.problem.node_count, fused.problem.edges()
        # From the sinks backwards, a short branch comes right before the join that needs it.
        backwards = depth_first(n, [(v, u) for u, v in edges])[::-1]
        for order in (depth_first(n, edges), backwards):
            sliced = slice_order(fused.problem, order)
            if sliced is not None:
                self.add("slicing", fused.expand(sliced[1]))

    def add_packed(self, *, contiguous: bool) -> None:
        """Add a plan that just fits the memory.

        Raises PlanError where there is none, naming the largest nodes.
        """
        problem = self.problem
        if contiguous:
            raise PlanError(
                f"intervals: no order tried could be cut into one interval for each of "
                f"{', '.join(problem.devices)} that supports it and has room for it; plan without "
                "`contiguous`",
                nodes=(),
                constraint="contiguous",
            )
        self.add("packing", pack(problem))
        if self.plans:
            return
        heavy = sorted(range(problem.node_count), key=lambda v: (-problem.weights[v], v))[:6]
        names = tuple(problem.names[v] for v in heavy)
        rooms = zip(problem.devices, problem.memory.tolist(), strict=True)
        raise PlanError(
            f"memory: {float(problem.weights.sum()):.0f} bytes of constants, of which "
            f"{', '.join(map(repr, names))} have the most, were not packed into "
            f"{', '.join(f'{d} ({m:.0f})' for d, m in rooms)}; give a device more memory, add one, "
            "or drop pins and colocation groups",
            nodes=names,
            constraint="memory",
        )

    def add_all(self) -> None:
        """Add every plan, where there are few enough to judge each.

        Annealing of larger graphs by their latency found nothing better than minimum cuts.
        """
        able = [np.flatnonzero(row).tolist() for row in allowed(self.problem)]
        if math.prod(map(len, able)) <= self.seconds * FEW_PER_SECOND / max(len(able), 20):
            for assignment in itertools.product(*able):
                self.add("best of all", assignment)

    def anneal(self) -> None:
        """Anneal twice: from the best plan, and from the next one or again where that is far."""
        problem = wary(self.problem)
        first, *others = self.best()
        most = NEAR * loads(problem, first).max()
        second = next((p for p in others if loads(problem, p).max() <= most), first)
        quick = min(1.0, QUICK_NODES / problem.node_count)
        proposals = int(self.seconds * PROPOSALS_PER_SECOND * quick / 2)
        middle_s = (time.monotonic() + self.deadline) / 2
        for turn, (start, end_s) in enumerate(((first, middle_s), (second, self.deadline))):
            found, late = anneal(
                problem, start, proposals=proposals, seed=2 * self.seed + turn, deadline=end_s
            )
            self.cut_short |= late
            self.add("annealing", found)

    def tidy(self) -> None:
        """Free the best plans of fragments."""
        for assignment in self.best()[:TIDIED_PLANS]:
            name = self.plans[assignment][0]
            self.add(name + TIDIED, tidy(wary(self.problem), assignment))

    def mixes(self) -> Iterator[tuple[str, tuple[Part, ...]]]:
        """Yield the best mix of all plans found, and of whole-model replicas, each by its name."""
        problem = self.problem
        n, k = problem.times.shape
        alone = [p for d in range(k) if is_feasible(problem, p := (d,) * n)]
        for name, plans in (("mix", [*self.best()[:8], *alone]), ("replicas", alone)):
            parts = mix(problem, plans, price=name == "mix")
            if len(parts) > 1:
                yield name, parts
