"""Planning of a task: the solver's search over measured costs, and the report of the result.

All plans are compared by the prediction of their actual partitions: the chosen plan, the
alternatives, the advice and the ratio to the lower bound use the same numbers.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from hetero.affinity.affinity import Affinity
from hetero.devices.errors import PlanError
from hetero.partition.partition import PlacedPartition, partition
from hetero.partition.replicas import replicate
from hetero.planning.cost.estimation import value_nbytes
from hetero.planning.memory.device_memory import MemoryModel
from hetero.planning.memory.fit import FitSearch
from hetero.planning.plan_report import (
    Alternative,
    PlanReport,
    StagePrediction,
    WirePrediction,
    milliseconds,
)
from hetero.planning.predict import predict_latency, predict_stages, predict_wires
from hetero.planning.solver.candidates import (
    TIDIED_SUFFIX,
    Candidate,
    Hint,
    Solution,
    is_always_reported,
)
from hetero.planning.solver.problem import Assignment
from hetero.planning.solver.replicas import Replicas
from hetero.planning.solver.search import search_plan
from hetero.planning.task import Task, TaskProblem, build_problem, node_time
from hetero.properties.compile_request import Policy

#: Maximum number of plans in a report.
MAX_ALTERNATIVES: Final = 16
#: Fraction of the time limit for the search if the policy is ``PRIORITY``, for comparison only.
PRIORITY_SEARCH_FRACTION: Final = 0.1
#: Minimum seconds that a device is busy with a request, for the shares of replicas.
MIN_BUSY_S: Final = 1e-9
#: Advice with a smaller relative improvement is omitted.
MIN_IMPROVEMENT: Final = 0.01
#: The same for advice that needs another device.
MIN_DEVICE_IMPROVEMENT: Final = 0.1


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of a planning run."""

    #: With ``PRIORITY`` the plan is that of the priority list; others are for comparison.
    policy: Policy = "AUTO"
    #: The objective: time between two results, or latency of one request.
    hint: Hint = "THROUGHPUT"
    #: Time limit of the search.
    seconds: float = 5.0
    #: Seed of the search's random numbers.
    seed: int = 0
    #: Whether to choose replicas if they are best; otherwise they are listed for comparison.
    replicates: bool = True


def plan_task(
    task: Task,
    options: PlanOptions,
    priority: Affinity | None = None,
    memory: MemoryModel | None = None,
) -> PlanReport:
    """Search a plan for a task and report it.

    `priority`: the affinity of the priority list, a candidate like any other; with the policy
        ``PRIORITY`` it is the plan.
    `memory`: traits and budgets of the devices; the plan then keeps every device within its budget.
        With the policy ``PRIORITY`` each device gets as much as fits, in the order of the list.
    Raises PlanError: no plan meets the constraints, or with the policy ``PRIORITY``, that plan does
        not; with the nodes and the constraint in conflict.
    """
    start_s = time.monotonic()
    task_problem = build_problem(task, options.hint)
    if memory is not None:
        return _plan_within_memory(task, options, task_problem, memory, start_s)
    fixed_plans = _priority_assignment(task, task_problem, options, priority)
    affinities = {a: priority for a in fixed_plans.values() if priority is not None}
    predictor = _PlanPredictor(task, task_problem, affinities)
    is_priority = options.policy == "PRIORITY"
    solution = search_plan(
        task_problem.problem,
        predictor,
        options.hint,
        options.seconds * (PRIORITY_SEARCH_FRACTION if is_priority else 1.0),
        options.seed,
        contiguous=options.policy == "PIPELINE_PARALLEL",
        replicates=options.replicates,
        fixed_plans=fixed_plans,
        required_name="priority" if is_priority and fixed_plans else None,
        floor=task_problem.floor,
    )
    return _report(task, options, task_problem, solution, predictor, start_s)


def _plan_within_memory(
    task: Task,
    options: PlanOptions,
    task_problem: TaskProblem,
    memory: MemoryModel,
    start_s: float,
) -> PlanReport:
    """Plan within memory budgets; the report marks the alternatives that exceed them."""
    predictor = _PlanPredictor(task, task_problem, {})
    is_priority = options.policy == "PRIORITY"
    fit_search = FitSearch(task_problem, memory, lambda a: predictor.placement(a, "fit").partition)
    preferred: list[Assignment] = []
    search = partial(
        search_plan,
        predict=predictor,
        hint=options.hint,
        seed=options.seed,
        contiguous=options.policy == "PIPELINE_PARALLEL",
        replicates=False,
        floor=task_problem.floor,
    )
    if not is_priority:
        with suppress(PlanError):
            solution = search(fit_search.constrained_problem(), seconds=options.seconds)
            preferred = [c.assignment for c in (solution.choice, *solution.runners_up)]
    fit = fit_search.search(preferred)
    solution = search(
        task_problem.problem,
        seconds=options.seconds * PRIORITY_SEARCH_FRACTION,
        fixed_plans={"fit": fit.assignment},
        required_name="fit",
    )

    def fits(candidate: Candidate) -> bool:
        """Return whether a plan has one copy of the model, within the devices' budgets."""
        copies = predictor.placements(candidate.name, candidate.replicas)
        assignment = candidate.replicas[0].assignment
        return len(copies) == 1 and fit_search.verify(assignment).is_within_budgets

    report = _report(task, options, task_problem, solution, predictor, start_s, fits)
    return replace(report, memory=tuple(fit.predictions.values()))


def _priority_assignment(
    task: Task, task_problem: TaskProblem, options: PlanOptions, priority: Affinity | None
) -> dict[str, Assignment]:
    """Return the priority list's plan as an assignment for the solver, if its costs are known."""
    if priority is None:
        return {}
    unmeasured = sorted(set(priority.values()) - set(task.devices))
    if not unmeasured:
        problem = task_problem.problem
        device_numbers = {d: i for i, d in enumerate(problem.devices)}
        return {"priority": tuple(device_numbers[priority[name]] for name in problem.names)}
    if options.policy != "PRIORITY":
        return {}
    reasons = "; ".join(f"{d}: {task.costs.missing.get(d, 'no costs')}" for d in unmeasured)
    raise PlanError(
        f"model {task.model.name!r}: the priority list uses devices that were not measured "
        f"({reasons}); remove them from the list, or measure them with `hetero profile`.",
        constraint="costs",
    )


class _PlanPredictor:
    """Predicts plans from their actual partitions; each assignment is partitioned once."""

    def __init__(
        self, task: Task, task_problem: TaskProblem, known_affinities: Mapping[Assignment, Affinity]
    ) -> None:
        self._task = task
        self._task_problem = task_problem
        self._known_affinities = known_affinities
        #: Assignment -> the name in the reasons of its placement, and the placement.
        self._placements: dict[Assignment, tuple[str, PlacedPartition]] = {}

    def __call__(self, names: tuple[str, ...], replicas: Replicas) -> Candidate:
        placements = self.placements(names[0], replicas)
        loads = dict.fromkeys(self._task.all_devices, 0.0)
        for s in self.stages(placements):
            share = placements[s.replica].share
            loads[s.device] += share * (s.run_s + s.transfer_s + s.overhead_s)
        return Candidate(
            names=names,
            replicas=replicas,
            loads=tuple(loads.values()),
            bottleneck=max(loads.values()),
            latency=self.latency_s(placements),
            subgraphs=len(placements[0].partition.subgraphs),
            levels=1 + max(placements[0].plan.levels, default=-1),
        )

    def placements(self, name: str, replicas: Replicas) -> list[PlacedPartition]:
        """Return the placement of each replica; the reasons of the first contain the `name`.

        If the task has devices with further ones, each replica of the plan becomes several.
        """
        originals = [replace(self.placement(r.assignment, name), share=r.share) for r in replicas]
        placements = [p for o in originals for p in replicate(o, self._task.replicas)]
        return placements if len(placements) == len(originals) else self._balance(placements)

    def placement(self, assignment: Assignment, name: str) -> PlacedPartition:
        """Return the placement of an assignment; the reasons of a new affinity contain `name`."""
        known_name, placed = self._placements.get(assignment, ("", None))
        if placed is None or known_name != name:
            affinity = self._known_affinities.get(assignment)
            if affinity is None:
                affinity = self._task_problem.affinity(assignment, f"plan: {name}")
            split = placed.partition if placed else partition(self._task.model, affinity)
            placed = PlacedPartition(split, affinity)
            self._placements[assignment] = name, placed
        return placed

    def _balance(self, placements: Sequence[PlacedPartition]) -> list[PlacedPartition]:
        """Return placements with shares in proportion to their speed; the largest share first."""
        busy_s = [dict.fromkeys(self._task.all_devices, 0.0) for _ in placements]
        for s in self.stages(placements):
            busy_s[s.replica][s.device] += s.run_s + s.transfer_s + s.overhead_s
        rates = [1 / max(MIN_BUSY_S, *seconds.values()) for seconds in busy_s]
        balanced = [
            replace(placement, share=rate / sum(rates))
            for placement, rate in zip(placements, rates, strict=True)
        ]
        return sorted(balanced, key=lambda placement: -placement.share)

    def stages(self, placements: Sequence[PlacedPartition]) -> list[StagePrediction]:
        """Predict the stages of all replicas of a plan."""
        task, concurrent = self._task_problem.task, _uses_several_devices(placements)
        return [
            stage
            for replica, placement in enumerate(placements)
            for stage in predict_stages(task, placement.partition, replica, concurrent=concurrent)
        ]

    def wires(self, placements: Sequence[PlacedPartition]) -> list[WirePrediction]:
        """Predict the wires of all replicas of a plan."""
        return [
            wire
            for replica, placement in enumerate(placements)
            for wire in predict_wires(self._task_problem.task, placement.partition, replica)
        ]

    def latency_s(self, placements: Sequence[PlacedPartition]) -> float:
        """Predict the latency of a plan's slowest replica."""
        task, concurrent = self._task_problem.task, _uses_several_devices(placements)
        return max(predict_latency(task, p.partition, concurrent=concurrent) for p in placements)

    def crossing_nbytes(self, candidate: Candidate) -> list[int]:
        """Return the bytes of each tensor that crosses between subgraphs of a plan."""
        spec = self._task_problem.task.model.spec
        placement, *_ = self.placements(candidate.name, candidate.replicas)
        return [value_nbytes(spec(wire.tensor)) for wire in placement.partition.wires]


def _uses_several_devices(placements: Sequence[PlacedPartition]) -> bool:
    return len({s.device for p in placements for s in p.partition.subgraphs}) > 1


def _report(
    task: Task,
    options: PlanOptions,
    task_problem: TaskProblem,
    solution: Solution,
    predictor: _PlanPredictor,
    start_s: float,
    fits: Callable[[Candidate], bool] | None = None,
) -> PlanReport:
    choice = solution.choice
    by_share = tuple(sorted(choice.replicas, key=lambda r: -r.share))
    replicas = predictor.placements(choice.name, by_share)
    loads = dict(zip(task.all_devices, choice.loads, strict=True))
    objective_s = choice.objective_s(options.hint)
    bound_s, bound_name, scope = _bound(options, solution)
    times = {
        name: {
            d: seconds
            for d in task.all_devices
            if (seconds := node_time(task.costs.devices[d], name, options.hint)) is not None
        }
        for name in task_problem.problem.names
    }
    return PlanReport(
        model=task.model.name,
        model_hash=task.model.content_hash,
        devices=task.all_devices,
        policy=options.policy,
        hint=options.hint,
        replicas=tuple(replicas),
        bottleneck_s=choice.bottleneck,
        latency_s=predictor.latency_s(replicas),
        loads_s=loads,
        bottleneck=max(loads, key=lambda d: loads[d]),
        bound_s=bound_s,
        bound_name=bound_name,
        bound_scope=scope,
        ratio=objective_s / bound_s if bound_s > 0 else math.inf,
        advice=_advice(options, solution, loads, fits),
        alternatives=_alternatives(task.all_devices, options, predictor, solution, fits),
        stages=tuple(predictor.stages(replicas)),
        wires=tuple(predictor.wires(replicas)),
        node_times=times,
        sources=Counter(t.source for row in times.values() for t in row.values()),
        planning_s=time.monotonic() - start_s,
        cut_short=solution.cut_short,
        basis=task.costs.basis(),
        shapes={
            port.name: task.costs.shapes[port.name]
            for port in task.model.inputs
            if not port.is_static and port.name in task.costs.shapes
        },
        unmeasured=dict(task.costs.missing),
    )


def _bound(options: PlanOptions, solution: Solution) -> tuple[float, str, str]:
    """Return the proven lower bound, its name and its scope.

    The solver's bounds are valid for devices that work at the same time. A device that works alone
    is faster: there are few such plans, all of them predicted, and they may lower the bound.
    """
    bound = solution.bound
    seconds, name = bound.seconds, bound.name
    for c in (solution.choice, *solution.runners_up):
        name_alone = c.name if c.name.startswith("single ") else ""
        if sum(load > 0 for load in c.loads) == 1 and c.objective_s(options.hint) < seconds:
            seconds, name = c.objective_s(options.hint), name_alone or c.name
    return seconds, name, bound.scope


def _advice(
    options: PlanOptions,
    solution: Solution,
    loads: dict[str, float],
    fits: Callable[[Candidate], bool] | None = None,
) -> tuple[str, ...]:
    """Return suggestions that would improve the objective, one sentence each.

    `fits`: whether a plan keeps within the memory budgets; None without budgets. A plan that fits
        has one copy of the model, so further devices do not share its requests.
    """
    choice, hint = solution.choice, options.hint
    objective_s = choice.objective_s(hint)
    lines: list[str] = []
    best = next((c for c in solution.runners_up if fits is None or fits(c)), choice)
    if best.objective_s(hint) < objective_s * (1 - MIN_IMPROVEMENT):
        metric = "latency" if hint == "LATENCY" else "bottleneck"
        hint_text = ""
        if len(best.replicas) > 1 and not options.replicates:
            hint_text = f", with {len(best.replicas)} replicas (REPLICAS=plan)"
        lines.append(
            f"{best.name}: {metric} {milliseconds(best.objective_s(hint))} instead of "
            f"{milliseconds(objective_s)}{hint_text}"
        )
    if hint == "THROUGHPUT" and options.policy != "PRIORITY" and fits is None:
        busiest = max(loads, key=lambda d: loads[d])
        others = (load for d, load in loads.items() if d != busiest)
        halved_s = max([loads[busiest] / 2, *others])
        if halved_s < objective_s * (1 - MIN_DEVICE_IMPROVEMENT):
            lines.append(
                f"a second device like {busiest}, taking every other request of its subgraphs: "
                f"bottleneck {milliseconds(halved_s)} instead of {milliseconds(objective_s)}"
            )
    return tuple(lines)


def _alternatives(
    devices: Sequence[str],
    options: PlanOptions,
    predictor: _PlanPredictor,
    solution: Solution,
    fits: Callable[[Candidate], bool] | None = None,
) -> tuple[Alternative, ...]:
    """List the chosen plan, single devices, priority, replicas and the best others, best first."""
    choice = solution.choice
    candidates = (choice, *solution.runners_up)
    # Reference plans keep their own row, even if several methods found the same plan.
    rows: dict[str, Candidate] = {}
    for c in candidates:
        for name in filter(is_always_reported, c.names):
            rows.setdefault(name, c)
    if all(c is not choice for c in rows.values()):
        rows[choice.name + TIDIED_SUFFIX * (choice.name in rows)] = choice
    listed_figures = {(c.bottleneck, c.latency, c.subgraphs) for c in rows.values()}
    for c in candidates:
        figures = (c.bottleneck, c.latency, c.subgraphs)
        if len(rows) < MAX_ALTERNATIVES and figures not in listed_figures:
            rows.setdefault(c.name, c)
            listed_figures.add(figures)
    chosen_name = next(name for name, c in rows.items() if c is choice)
    alternatives = []
    for name, c in sorted(rows.items(), key=lambda row: (row[1].objective_s(options.hint), row[0])):
        nbytes = predictor.crossing_nbytes(c)
        alternatives.append(
            Alternative(
                name=name,
                bottleneck_s=c.bottleneck,
                latency_s=c.latency,
                devices=tuple(d for d, load in zip(devices, c.loads, strict=True) if load > 0),
                subgraphs=c.subgraphs,
                cuts=len(nbytes),
                nbytes=sum(nbytes),
                replicas=len(predictor.placements(c.name, c.replicas)),
                chosen=name == chosen_name,
                fits=fits is None or fits(c),
            )
        )
    return tuple(alternatives)
