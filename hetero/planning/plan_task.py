"""Choosing a plan: the solver's search over measured costs, as a report.

Every reported plan is judged in the same way, by the prediction of its real cut: the choice, the
alternatives, the advice and the bound's ratio are figures of one kind.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hetero.affinity.affinity import Affinity
from hetero.devices.errors import PlanError
from hetero.partition.partition import PlacedPartition, partition
from hetero.planning.cost.estimation import value_nbytes
from hetero.planning.plan_report import (
    Alternative,
    PlanReport,
    StagePrediction,
    WirePrediction,
    milliseconds,
)
from hetero.planning.predict import predict
from hetero.planning.solver.candidates import TIDIED, Candidate, Hint, Solution, is_landmark
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Assignment
from hetero.planning.solver.search import plan
from hetero.planning.task import Planned, Task, build, node_seconds
from hetero.properties.request import Policy

#: Plans that a report lists besides the chosen one.
MOST_ALTERNATIVES: Final = 16
#: Effort of the search beside a plan that is only judged, as a share of what was granted.
JUDGING: Final = 0.1
#: Advice that would help by less than this share is left out.
LEAST_HELP: Final = 0.01


@dataclass(frozen=True, slots=True)
class Choice:
    """How to choose."""

    #: ``PRIORITY`` only judges the priority list's plan.
    policy: Policy = "AUTO"
    #: What to make small: time between answers, or time of one.
    hint: Hint = "THROUGHPUT"
    #: The most time for the search.
    seconds: float = 5.0
    #: Of all that is random in it.
    seed: int = 0
    #: How many plans may share the requests.
    max_variants: int = 1


def choose(task: Task, choice: Choice, priority: Affinity | None = None) -> PlanReport:
    """Plan a model.

    `priority`: the priority list's affinity, to be judged along with the others; the plan itself
        where the policy is ``PRIORITY``.
    Raises PlanError: constraints that no plan meets, with the nodes and the constraint that clash;
        or that the priority list breaks, where the policy is ``PRIORITY``.
    """
    begin = time.monotonic()
    planned = build(task, choice.hint)
    listed = _listed(task, planned, choice, priority)
    judge = _Judge(task, planned, {a: priority for a in listed.values() if priority is not None})
    judging = choice.policy == "PRIORITY"
    solution = plan(
        planned.problem,
        judge,
        choice.hint,
        choice.seconds * (JUDGING if judging else 1.0),
        choice.seed,
        contiguous=choice.policy == "PIPELINE_PARALLEL",
        max_parts=choice.max_variants,
        given=listed,
        keep="priority" if judging and listed else None,
        floor=planned.floor,
    )
    return _report(task, choice, planned, solution, judge, begin)


def _listed(
    task: Task, planned: Planned, choice: Choice, priority: Affinity | None
) -> dict[str, Assignment]:
    """Return the priority list's plan as the solver has it, where it can be planned for."""
    if priority is None:
        return {}
    unmeasured = sorted(set(priority.values()) - set(task.devices))
    if not unmeasured:
        number = {d: i for i, d in enumerate(planned.problem.devices)}
        return {"priority": tuple(number[priority[name]] for name in planned.problem.names)}
    if choice.policy != "PRIORITY":
        return {}
    reasons = "; ".join(f"{d}: {task.costs.missing.get(d, 'no costs')}" for d in unmeasured)
    raise PlanError(
        f"model {task.model.name!r}: the priority list gives nodes to devices that were not "
        f"measured ({reasons}); leave them out of the list, or measure them with `hetero profile`.",
        constraint="costs",
    )


class _Judge:
    """Predicts plans from their real cuts; each assignment is cut once."""

    def __init__(self, task: Task, planned: Planned, known: Mapping[Assignment, Affinity]) -> None:
        self._task = task
        self._planned = planned
        self._known = known
        self._cuts: dict[Assignment, PlacedPartition] = {}

    def __call__(self, names: tuple[str, ...], parts: tuple[Part, ...]) -> Candidate:
        cuts = self.cuts(names[0], parts)
        stages, _, latency = self.predicted(cuts)
        loads = dict.fromkeys(self._task.devices, 0.0)
        for s in stages:
            loads[s.device] += parts[s.variant].share * (s.run_s + s.transfer_s + s.overhead_s)
        return Candidate(
            names=names,
            parts=parts,
            loads=tuple(loads.values()),
            bottleneck=max(loads.values()),
            latency=latency,
            subgraphs=len(stages),
            levels=max(1 + max(cut.plan.levels, default=-1) for cut in cuts),
        )

    def cuts(self, name: str, parts: Sequence[Part]) -> list[PlacedPartition]:
        """Return a plan's parts, cut; `name` is what their reasons say."""
        for assignment in (part.assignment for part in parts):
            if assignment not in self._cuts:
                affinity = self._known.get(assignment)
                if affinity is None:
                    affinity = self._planned.affinity(assignment, f"plan: {name}")
                self._cuts[assignment] = PlacedPartition(
                    partition(self._task.model, affinity), affinity
                )
        return [replace(self._cuts[part.assignment], share=part.share) for part in parts]

    def predicted(
        self, cuts: Sequence[PlacedPartition]
    ) -> tuple[list[StagePrediction], list[WirePrediction], float]:
        """Return every stage and wire of a plan's cuts, and the slowest one's latency."""
        company = len({s.device for cut in cuts for s in cut.partition.subgraphs}) > 1
        found = [
            predict(self._planned.task, cut.partition, number, company=company)
            for number, cut in enumerate(cuts)
        ]
        stages = [stage for mine, _, _ in found for stage in mine]
        wires = [wire for _, mine, _ in found for wire in mine]
        return stages, wires, max(latency for _, _, latency in found)

    def crossing(self, candidate: Candidate) -> list[int]:
        """Return the bytes of each tensor that crosses in a plan."""
        spec = self._planned.task.model.spec
        cuts = self.cuts(candidate.name, candidate.parts)
        return [value_nbytes(spec(wire.tensor)) for cut in cuts for wire in cut.partition.wires]


def _report(
    task: Task, choice: Choice, planned: Planned, solution: Solution, judge: _Judge, begin: float
) -> PlanReport:
    chosen = solution.chosen
    variants = judge.cuts(chosen.name, sorted(chosen.parts, key=lambda p: -p.share))
    stages, wires, latency = judge.predicted(variants)
    loads = dict(zip(task.devices, chosen.loads, strict=True))
    figure = chosen.figure(choice.hint)
    bound_s, bound_name, scope = _bound(choice, solution)
    times = {
        name: {
            d: seconds
            for d in task.devices
            if (seconds := node_seconds(task.costs.devices[d], name, choice.hint)) is not None
        }
        for name in planned.problem.names
    }
    return PlanReport(
        model=task.model.name,
        model_hash=task.model.content_hash,
        devices=task.devices,
        policy=choice.policy,
        hint=choice.hint,
        variants=tuple(variants),
        bottleneck_s=chosen.bottleneck,
        latency_s=latency,
        loads_s=loads,
        bottleneck=max(loads, key=lambda d: loads[d]),
        bound_s=bound_s,
        bound_name=bound_name,
        bound_scope=scope,
        ratio=figure / bound_s if bound_s > 0 else math.inf,
        advice=_advice(choice, solution, loads),
        alternatives=_alternatives(task.devices, choice, judge, solution),
        stages=tuple(stages),
        wires=tuple(wires),
        node_times=times,
        sources=Counter(t.source for row in times.values() for t in row.values()),
        planning_s=time.monotonic() - begin,
        cut_short=solution.cut_short,
        basis=task.costs.basis(),
        shapes={
            port.name: task.costs.shapes[port.name]
            for port in task.model.inputs
            if not port.is_static and port.name in task.costs.shapes
        },
        unmeasured=dict(task.costs.missing),
    )


def _bound(choice: Choice, solution: Solution) -> tuple[float, str, str]:
    """Return the proven bound, its name and what it covers.

    What is proven holds for devices that work at the same time. One that works alone is not
    slowed by others: those plans are few, and all of them were judged.
    """
    bound = solution.bound
    seconds, name = bound.seconds, bound.name
    for c in (solution.chosen, *solution.runners_up):
        alone = c.name if c.name.startswith("single ") else ""
        if sum(load > 0 for load in c.loads) == 1 and c.figure(choice.hint) < seconds:
            seconds, name = c.figure(choice.hint), alone or c.name
    return seconds, name, bound.scope


def _advice(choice: Choice, solution: Solution, loads: dict[str, float]) -> tuple[str, ...]:
    """Return what would lower the figure that is to be small, a sentence each."""
    chosen, hint = solution.chosen, choice.hint
    figure = chosen.figure(hint)
    lines: list[str] = []
    best = solution.runners_up[0] if solution.runners_up else chosen
    if best.figure(hint) < figure * (1 - LEAST_HELP):
        what = "latency" if hint == "LATENCY" else "bottleneck"
        shared = f", with {len(best.parts)} plans sharing requests (MAX_VARIANTS={len(best.parts)})"
        lines.append(
            f"{best.name}: {what} {milliseconds(best.figure(hint))} instead of "
            f"{milliseconds(figure)}{shared * (len(best.parts) > choice.max_variants)}"
        )
    if hint == "THROUGHPUT" and choice.policy != "PRIORITY":
        busiest = max(loads, key=lambda d: loads[d])
        others = (load for d, load in loads.items() if d != busiest)
        halved = max([loads[busiest] / 2, *others])
        if halved < figure * (1 - LEAST_HELP):
            lines.append(
                f"a second device like {busiest}, taking every other request of its subgraphs: "
                f"bottleneck {milliseconds(halved)} instead of {milliseconds(figure)}"
            )
    return tuple(lines)


def _alternatives(
    devices: Sequence[str], choice: Choice, judge: _Judge, solution: Solution
) -> tuple[Alternative, ...]:
    """The chosen plan, single devices, priority, mixes, and the best of the rest, best first."""
    chosen = solution.chosen
    candidates = (chosen, *solution.runners_up)
    # A landmark has a row by its own name, also where several methods found the same plan.
    rows: dict[str, Candidate] = {}
    for c in candidates:
        for name in filter(is_landmark, c.names):
            rows.setdefault(name, c)
    if all(c is not chosen for c in rows.values()):
        rows[chosen.name + TIDIED * (chosen.name in rows)] = chosen
    told = {(c.bottleneck, c.latency, c.subgraphs) for c in rows.values()}
    for c in candidates:
        figures = (c.bottleneck, c.latency, c.subgraphs)
        if len(rows) < MOST_ALTERNATIVES and figures not in told:
            rows.setdefault(c.name, c)
            told.add(figures)
    first = next(name for name, c in rows.items() if c is chosen)
    found = []
    for name, c in sorted(rows.items(), key=lambda row: (row[1].figure(choice.hint), row[0])):
        crossing = judge.crossing(c)
        found.append(
            Alternative(
                name=name,
                bottleneck_s=c.bottleneck,
                latency_s=c.latency,
                devices=tuple(d for d, load in zip(devices, c.loads, strict=True) if load > 0),
                subgraphs=c.subgraphs,
                cuts=len(crossing),
                nbytes=sum(crossing),
                variants=len(c.parts),
                chosen=name == first,
            )
        )
    return tuple(found)
