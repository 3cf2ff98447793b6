"""Plan search: contraction, heuristics, slicing, simulated annealing, replicas, bounds and choice.

The effort is a number of steps derived from the time limit, so the same seed gives the same plan on
any machine. An idle core needs about half of the time limit for them. On a slower machine the time
limit ends the search; `Solution.cut_short` reports it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hetero.devices.errors import PlanError
from hetero.planning.solver.bounds import Bound, critical_path, largest_node, priced_cut, total_work
from hetero.planning.solver.candidates import (
    TIDIED_SUFFIX,
    Hint,
    Predictor,
    Solution,
    choose_candidate,
    predict_plans,
)
from hetero.planning.solver.contraction import coarsen, collapse_groups, fuse_cycles
from hetero.planning.solver.graph import topological_order
from hetero.planning.solver.heuristics import minimum_cut_plans, pack_memory, priority_plan
from hetero.planning.solver.local_search import anneal, remove_fragments
from hetero.planning.solver.problem import (
    Assignment,
    Problem,
    allowed_devices,
    check_constraints,
    device_seconds,
    is_feasible,
    with_dispatch_margin,
)
from hetero.planning.solver.replicas import (
    Replica,
    Replicas,
    replicate_cuts,
    whole_model_replicas,
)
from hetero.planning.solver.slicing import MAX_NODES, slice_order

#: Graphs of at most this many nodes are searched without coarsening ...
MAX_UNCOARSENED_NODES = 900
#: ... larger ones are first coarsened to about this many supernodes.
SUPERNODES = 450
#: Annealing proposals per second of the time limit: a core takes half of the time for them, for
#: graphs of at most `QUICK_NODES` nodes.
PROPOSALS_PER_SECOND, QUICK_NODES = 100_000, 400
#: The second annealing starts from the second-best plan if its bottleneck is within this ratio.
SECOND_START_RATIO = 1.2
#: All plans are enumerated up to this number of plans times nodes, per second of the time limit.
ENUMERATIONS_PER_SECOND = 16_000
#: Maximum number of nodes times devices for the bound by minimum cuts.
MAX_CUT_SIZE = 14_000
#: Number of plans whose fragments are removed, the best first.
MAX_TIDIED_PLANS = 4
#: Number of plans that are replicated on free devices, the best first.
MAX_REPLICATED_PLANS = 8
#: Fractions of the time limit after which the search ends, and the prediction of plans.
DEADLINE_FRACTIONS = (0.8, 1.0)


def search_plan(
    problem: Problem,
    predict: Predictor,
    hint: Hint = "THROUGHPUT",
    seconds: float = 10.0,
    seed: int = 0,
    *,
    contiguous: bool = False,
    replicates: bool = True,
    fixed_plans: Mapping[str, Assignment] | None = None,
    required_name: str | None = None,
    floor: Problem | None = None,
) -> Solution:
    """Search the best plan for a problem; deterministic unless the time limit ends the search.

    `problem`: an acyclic graph.
    `predict`: predicts the costs by which plans are compared.
    `seconds`: the time limit; it also determines the effort.
    `contiguous`: only plans in which each device has one interval of a topological order.
    `replicates`: whether to choose replicas if they are best.
    `fixed_plans`: further plans to compare; those that violate a constraint are omitted.
    `required_name`: the name in `fixed_plans` of the plan to choose in any case.
    `floor`: the same problem with minimum costs, for the bounds.
    Raises PlanError: no plan meets the constraints, or the required plan violates one. ``nodes``
        are the nodes in conflict; ``constraint`` is ``support``, ``pins``, ``colocation``,
        ``memory`` or ``subgraphs``.
    """
    start_s = time.monotonic()
    search_deadline, predict_deadline = (start_s + f * seconds for f in DEADLINE_FRACTIONS)
    check_constraints(problem)
    base = collapse_groups(problem)
    check_constraints(base.problem)
    if base.problem.node_count > MAX_UNCOARSENED_NODES:
        base = base.compose(fuse_cycles(base.problem))
        base = base.compose(coarsen(base.problem, SUPERNODES))
    is_throughput = hint == "THROUGHPUT"
    search = _Search(base.problem, seconds, seed, search_deadline)

    search.add_heuristics(contiguous=contiguous, cuts=not is_throughput)
    search.add_slices()
    if not search.plans:
        search.add_packing(contiguous=contiguous)
    if not contiguous:
        if is_throughput:
            search.anneal()
        else:
            search.add_all()
        search.remove_fragments()
    names_by_plan: dict[Replicas, list[str]] = {}
    fixed_plans = {
        name: assignment
        for name, assignment in (fixed_plans or {}).items()
        if is_feasible(problem, assignment) or name == required_name
    }
    for name, assignment in fixed_plans.items():
        names_by_plan.setdefault((Replica(assignment),), []).append(name)
    for assignment, names in search.plans.items():
        own_names = names_by_plan.setdefault((Replica(base.expand(assignment)),), [])
        own_names += [name for name in names if name not in fixed_plans]
    if is_throughput and not contiguous:
        for replicas in search.replicas():
            expanded = tuple(Replica(base.expand(r.assignment), r.share) for r in replicas)
            names_by_plan.setdefault(expanded, []).append("replicas")
    bounds = _bounds(problem if floor is None else floor, hint)
    plans = {replicas: tuple(names) for replicas, names in names_by_plan.items() if names}
    candidates, is_late = predict_plans(problem, plans, hint, predict, predict_deadline)
    bound_s = max((b.seconds for b in bounds if b.covers_replicas), default=0.0)
    choice, rest = choose_candidate(problem, candidates, hint, replicates, bound_s, required_name)
    return Solution(choice, rest, bounds, search.cut_short or is_late)


def _bounds(floor: Problem, hint: Hint) -> tuple[Bound, ...]:
    """Return the proven bounds of a problem, the largest first."""
    if hint == "LATENCY":
        return (critical_path(floor),)
    base = collapse_groups(floor).problem
    bounds = [largest_node(base), total_work(base)]
    is_small = base.node_count * base.device_count <= MAX_CUT_SIZE
    if is_small and (cut := priced_cut(base)) is not None:
        bounds.append(cut)
    return tuple(sorted(bounds, key=lambda b: (-b.seconds, b.name)))


@dataclass(slots=True)
class _Search:
    """The plans found so far, and the methods that find more."""

    #: Without colocation groups; coarsened if large.
    problem: Problem
    #: The time limit, which determines the effort.
    seconds: float
    seed: int
    #: ``time.monotonic()`` at which the search ends.
    deadline: float
    #: Plan -> the methods that found it, in order.
    plans: dict[Assignment, list[str]] = field(default_factory=dict)
    cut_short: bool = False

    def add(self, name: str, assignment: Assignment | None) -> None:
        """Add a plan under the name of its method, if it is feasible."""
        if assignment is not None and is_feasible(self.problem, assignment):
            names = self.plans.setdefault(assignment, [])
            if name not in names:
                names.append(name)

    def ranked_plans(self) -> list[Assignment]:
        """Return all plans, the smallest bottleneck first."""
        return sorted(self.plans, key=lambda p: (device_seconds(self.problem, p).max(), p))

    def add_heuristics(self, *, contiguous: bool, cuts: bool) -> None:
        """Add single devices, the priority list, and minimum cuts."""
        problem = self.problem
        for d, name in enumerate(problem.devices):
            self.add(f"single {name}", (d,) * problem.node_count)
        if contiguous:
            return
        self.add("priority", priority_plan(problem))
        for cut in minimum_cut_plans(problem) if cuts else ():
            self.add("minimum cut", cut)

    def add_slices(self) -> None:
        """Add the slicings of two topological orders of the graph."""
        contraction = fuse_cycles(self.problem)
        if contraction.problem.node_count > MAX_NODES:
            return
        n, edges = contraction.problem.node_count, contraction.problem.edges()
        # In the reverse order, a short branch comes directly before the node that joins it.
        backwards = topological_order(n, [(v, u) for u, v in edges])[::-1]
        for order in (topological_order(n, edges), backwards):
            slicing = slice_order(contraction.problem, order)
            if slicing is not None:
                self.add("slicing", contraction.expand(slicing[1]))

    def add_packing(self, *, contiguous: bool) -> None:
        """Add a plan that fits the devices' memory.

        Raises PlanError: there is none; with the largest nodes.
        """
        problem = self.problem
        if contiguous:
            raise PlanError(
                "intervals: found no topological order with one interval for each of "
                f"{', '.join(problem.devices)} that the device supports and has memory for; use "
                "another policy than PIPELINE_PARALLEL",
                nodes=(),
                constraint="contiguous",
            )
        self.add("packing", pack_memory(problem))
        if self.plans:
            return
        largest = sorted(range(problem.node_count), key=lambda v: (-problem.weights[v], v))[:6]
        names = tuple(problem.names[v] for v in largest)
        rooms = zip(problem.devices, problem.memory.tolist(), strict=True)
        raise PlanError(
            f"memory: {float(problem.weights.sum()):.0f} bytes of constants were not packed into "
            f"{', '.join(f'{d} ({m:.0f})' for d, m in rooms)}; the largest nodes are "
            f"{', '.join(map(repr, names))}. Give a device more memory, add a device, or remove "
            "pins and colocation groups",
            nodes=names,
            constraint="memory",
        )

    def add_all(self) -> None:
        """Add all plans, if their number is small enough.

        For the latency of larger graphs, annealing found nothing better than minimum cuts.
        """
        options = [np.flatnonzero(row).tolist() for row in allowed_devices(self.problem)]
        limit = self.seconds * ENUMERATIONS_PER_SECOND / max(len(options), 20)
        if math.prod(map(len, options)) <= limit:
            for assignment in itertools.product(*options):
                self.add("best of all", assignment)

    def anneal(self) -> None:
        """Anneal twice: from the best plan, and from the second best if it is close to the best."""
        problem = with_dispatch_margin(self.problem)
        first, *others = self.ranked_plans()
        limit = SECOND_START_RATIO * device_seconds(problem, first).max()
        second = next((p for p in others if device_seconds(problem, p).max() <= limit), first)
        speed = min(1.0, QUICK_NODES / problem.node_count)
        proposals = int(self.seconds * PROPOSALS_PER_SECOND * speed / 2)
        half_deadline = (time.monotonic() + self.deadline) / 2
        runs = ((first, half_deadline), (second, self.deadline))
        for number, (start, deadline) in enumerate(runs):
            assignment, is_late = anneal(
                problem, start, proposals=proposals, seed=2 * self.seed + number, deadline=deadline
            )
            self.cut_short |= is_late
            self.add("annealing", assignment)

    def remove_fragments(self) -> None:
        """Add the best plans without their fragments."""
        problem = with_dispatch_margin(self.problem)
        for assignment in self.ranked_plans()[:MAX_TIDIED_PLANS]:
            name = self.plans[assignment][0]
            self.add(name + TIDIED_SUFFIX, remove_fragments(problem, assignment))

    def replicas(self) -> Iterator[Replicas]:
        """Yield replicas of the whole model, and of the best plans that leave devices free."""
        yield from whole_model_replicas(self.problem)
        yield from replicate_cuts(self.problem, self.ranked_plans()[:MAX_REPLICATED_PLANS])
