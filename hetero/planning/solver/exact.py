"""Mixed-integer programmes by HiGHS, where the ``solver`` extra is installed.

`solve` is the whole problem: the best assignment and a proven bound. `bottleneck_block` is a much
smaller programme over one device's share, whose optimum bounds the whole problem's (the idea of
Archer et al., "Practical Performance Guarantees for Pipelined DNN Inference", 2024): some device
must hold a set of nodes with at least its share of the work, so that the cheapest such set, its
transfers included, is a bound. It wins where identical devices make the whole problem symmetric.

HiGHS itself, not scipy's way to it: that one can neither start from a known plan nor stop by steps.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from devices.errors import PlanError
from hetero.planning.solver.bounds import Bound
from hetero.planning.solver.problem import (
    Assignment,
    Floats,
    Problem,
    allowed,
    combine,
    is_feasible,
    loads,
)

#: Steps that an idle core takes in a second: 120 to 760 were seen, fewer the larger the programme.
STEPS_PER_SECOND = 250
#: As many as any search may need.
MOST_STEPS = 2**60
#: Relative gap at which a search counts as finished.
GAP = 1e-6
#: The solver's points may break a row by its tolerance: a proven value is cut by this share.
ROUNDING = 2e-6


def is_available() -> bool:
    """Whether the solver is installed."""
    return importlib.util.find_spec("highspy") is not None


@dataclass(frozen=True, slots=True)
class Solved:
    """Outcome of a search: the incumbent (None without one), the bound, whether it is optimal.

    ``cut_short``: the clock ended it, not its steps.
    """

    assignment: Assignment | None
    bound: Bound
    optimal: bool
    cut_short: bool


class Rows:
    """A linear programme under construction: columns with a cost, rows with bounds, in lists."""

    __slots__ = ("cost", "high", "indices", "integer", "low", "row_high", "row_low", "starts")

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.integer: list[bool] = []
        self.row_low: list[float] = []
        self.row_high: list[float] = []
        self.starts: list[int] = [0]
        self.indices: list[tuple[int, float]] = []

    def column(self, cost: float, high: float, *, integer: bool = False) -> int:
        """Add a variable between 0 and ``high``; its index."""
        self.cost.append(cost)
        self.low.append(0.0)
        self.high.append(high)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(self, low: float, high: float, terms: list[tuple[int, float]]) -> None:
        """Add ``low <= sum of coefficient * variable <= high``."""
        self.row_low.append(low)
        self.row_high.append(high)
        self.indices.extend((i, c) for i, c in terms if c)
        self.starts.append(len(self.indices))

    def solve(
        self, steps: int, seconds: float, start: Floats | None, gap: float
    ) -> tuple[Floats | None, float, bool, bool]:
        """Minimise within `steps`, and `seconds` at most.

        Returns: the best point (or None), the proven bound, whether the gap was closed, and whether
            the clock ended the search.
        """
        if not is_available():
            raise PlanError(
                "exact planning: highspy is not installed; wanted HiGHS; "
                "pip install 'hetero[solver]'"
            )
        import highspy  # here, because the extra is optional

        model: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # it ships no signature
        for option, value in {
            "output_flag": False,
            "threads": 1,
            "random_seed": 1,
            "time_limit": max(seconds, 0.01),
            "mip_rel_gap": gap,
        }.items():
            model.setOptionValue(option, value)
        lp = highspy.HighsLp()
        lp.num_col_ = len(self.cost)
        lp.num_row_ = len(self.row_low)
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_ = np.array(self.low)
        lp.col_upper_ = np.array(self.high)
        lp.row_lower_ = np.array(self.row_low)
        lp.row_upper_ = np.array(self.row_high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts)
        lp.a_matrix_.index_ = np.array([i for i, _ in self.indices], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([c for _, c in self.indices])
        lp.integrality_ = [
            highspy.HighsVarType.kInteger if i else highspy.HighsVarType.kContinuous
            for i in self.integer
        ]
        model.passModel(lp)
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = start.tolist()
            model.setSolution(solution)
        left = itertools.count(steps, -1)

        def look(event: Any) -> None:
            # HiGHS looks for an interrupt at points of its own work, the same in every run.
            if next(left) <= 0:
                event.interrupt()

        model.cbMipInterrupt.subscribe(look)
        model.run()
        info: Any = model.getInfo()
        status = model.getModelStatus()
        optimal = status == highspy.HighsModelStatus.kOptimal
        if status == highspy.HighsModelStatus.kInfeasible:
            return None, float("inf"), True, False
        values = None
        if info.primal_solution_status == highspy.kSolutionStatusFeasible:
            values = np.asarray(model.getSolution().col_value)
        bound = float(info.mip_dual_bound)
        if not any(self.integer) and optimal:
            bound = float(info.objective_function_value)
        return values, bound, optimal, status == highspy.HighsModelStatus.kTimeLimit


def solve(
    problem: Problem,
    *,
    steps: int = MOST_STEPS,
    seconds: float = math.inf,
    start: Assignment | None = None,
) -> Solved:
    """Find the assignment with the least bottleneck, or prove how good it could be.

    `problem`: without colocation groups; dispatch cost and the subgraph cap are not in the
        programme.
    `steps`: effort, as the number of times that the solver checks whether to stop.
    `start`: a feasible assignment to begin with.
    Raises PlanError: the solver is not installed.
    """
    n, k = problem.times.shape
    mask = allowed(problem)
    rows = Rows()
    top = rows.column(1.0, np.inf)
    at = [
        {d: rows.column(0.0, 1.0, integer=True) for d in range(k) if mask[v, d]} for v in range(n)
    ]
    for v in range(n):
        rows.row(1.0, 1.0, [(c, 1.0) for c in at[v].values()])
    compute: list[list[tuple[int, float]]] = [[] for _ in range(k)]
    sent: list[list[tuple[int, float]]] = [[] for _ in range(k)]
    received: list[list[tuple[int, float]]] = [[] for _ in range(k)]
    flags: list[tuple[int, int, int, bool]] = []
    for v in range(n):
        for d, c in at[v].items():
            compute[d].append((c, float(problem.times[v, d])))
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        for d in range(k):
            own = at[tail].get(d)
            if own is not None and problem.send[h, d]:
                flag = rows.column(0.0, 1.0)
                flags.append((flag, h, d, True))
                sent[d].append((flag, float(problem.send[h, d])))
                for v in heads:
                    rows.row(0.0, np.inf, _implies(flag, own, at[v].get(d)))
            if problem.receive[h, d]:
                users = [at[v][d] for v in heads if d in at[v]]
                if users:
                    flag = rows.column(0.0, 1.0)
                    flags.append((flag, h, d, False))
                    received[d].append((flag, float(problem.receive[h, d])))
                    for user in users:
                        rows.row(0.0, np.inf, _implies(flag, user, own))
    for d in range(k):
        parts = (compute[d], sent[d], received[d])
        for terms in parts if problem.overlap else [[*parts[0], *parts[1], *parts[2]]]:
            if terms:
                rows.row(0.0, np.inf, [(top, 1.0), *((c, -cost) for c, cost in terms)])
        if np.isfinite(problem.memory[d]):
            held = [(at[v][d], float(problem.weights[v])) for v in range(n) if d in at[v]]
            rows.row(-np.inf, float(problem.memory[d]), held)
    first = None
    if start is not None and is_feasible(problem, start):
        first = _point(problem, start, at, flags, len(rows.cost))
    values, bound, optimal, late = rows.solve(steps, seconds, first, GAP)
    found = None
    if values is not None:
        found = tuple(max(at[v], key=lambda d: (values[at[v][d]], -d)) for v in range(n))
        if not is_feasible(problem, found):
            found = None
    return Solved(
        found,
        Bound("exact search", max(bound, 0.0) * (1 - ROUNDING), mixing=False),
        optimal,
        late,
    )


def _implies(flag: int, here: int, also: int | None) -> list[tuple[int, float]]:
    """Terms of ``flag >= here - also``: the flag is up where one is here and the other is not."""
    terms = [(flag, 1.0), (here, -1.0)]
    return terms if also is None else [*terms, (also, 1.0)]


def _point(
    problem: Problem,
    start: Assignment,
    at: list[dict[int, int]],
    flags: list[tuple[int, int, int, bool]],
    columns: int,
) -> Floats:
    """An assignment as a point of the programme; the solver finds the first column's value."""
    point = np.zeros(columns)
    for v, d in enumerate(start):
        point[at[v][d]] = 1.0
    for flag, h, d, sends in flags:
        tail = start[int(problem.tails[h])]
        heads = [start[v] for v in problem.heads[h]]
        if sends:
            point[flag] = float(tail == d and any(on != d for on in heads))
        else:
            point[flag] = float(tail != d and d in heads)
    point[0] = float(combine(problem, *loads(problem, start)).max())
    return point


def bottleneck_block(
    problem: Problem, *, known: float, steps: int = MOST_STEPS, seconds: float = math.inf
) -> tuple[Bound | None, bool]:
    """Bound by the cheapest share that the busiest device can have.

    Holds for one class of devices, or for two of which one pays for transfers: the other can take
    at most what it can compute within ``known``, the rest is shared by the payers.

    `problem`: without colocation groups.
    `known`: bottleneck of a known assignment, seconds.
    `steps`, `seconds`: as for `solve`; what is proven by then holds.
    Returns: None where the classes are others, or the solver proves nothing in time; and whether
        the clock ended it.
    """
    kinds = sorted(set(problem.classes))
    if len(kinds) > 2:
        return None, False
    pays = [
        c for c in kinds if problem.send[:, problem.classes.index(c)].any()
        or problem.receive[:, problem.classes.index(c)].any()
    ]  # fmt: skip
    if len(pays) != 1:
        return None, False
    device = problem.classes.index(pays[0])
    count = problem.classes.count(pays[0])
    others = [d for d, c in enumerate(problem.classes) if c != pays[0]]
    times = problem.times[:, device]
    mask = allowed(problem)
    usable = mask[:, device]
    taken = 0.0
    if others:
        other = problem.times[:, others[0]]
        budget = known * len(others)
        # Nodes that the payers cannot run use up the others' time first.
        budget -= float(other[~usable].sum())
        if budget < 0:
            return None, False
        both = usable & mask[:, others[0]]
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = np.where(other > 0, times / other, np.inf)
        for v in sorted(np.flatnonzero(both).tolist(), key=lambda v: -gain[v]):
            if other[v] > budget:
                taken += float(times[v]) * budget / float(other[v])
                break
            taken += float(times[v])
            budget -= float(other[v])
    share = (float(times[usable].sum()) - taken) / count
    if share <= 0:
        return None, False
    rows = Rows()
    chosen = {
        v: rows.column(0.0 if problem.overlap else float(times[v]), 1.0, integer=True)
        for v in np.flatnonzero(usable).tolist()
    }
    top = rows.column(1.0, np.inf) if problem.overlap else -1
    totals: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        own = chosen.get(tail)
        for side, cost in enumerate((problem.send[h, device], problem.receive[h, device])):
            pairs = [
                (own, chosen.get(v)) if side == 0 else (chosen.get(v), own) for v in heads
            ]  # fmt: skip
            live = [(here, also) for here, also in pairs if here is not None]
            if cost and live:
                flag = rows.column(0.0 if problem.overlap else float(cost), 1.0)
                totals[side].append((flag, -float(cost)))
                for here, also in live:
                    rows.row(0.0, np.inf, _implies(flag, here, also))
    work = [(c, float(times[v])) for v, c in chosen.items()]
    rows.row(share * (1 - 1e-9), np.inf, work)
    if problem.overlap:
        for terms in ([(c, -t) for c, t in work], *totals):
            rows.row(0.0, np.inf, [(top, 1.0), *terms])
    if np.isfinite(problem.memory[device]):
        held = [(c, float(problem.weights[v])) for v, c in chosen.items()]
        rows.row(-np.inf, float(problem.memory[device]), held)
    _, bound, _, late = rows.solve(steps, seconds, None, 1e-4)
    bound = min(bound, known)
    if not np.isfinite(bound) or bound <= 0:
        return None, late
    return Bound("bottleneck block", bound * (1 - ROUNDING), mixing=False), late
