"""Choosing a plan: the planner's search over measured costs, told as a report."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from devices.model import Model
from hetero.affinity import Affinity
from hetero.partition import Partition, partition
from hetero.planning.cost.work import value_nbytes
from hetero.planning.problem import (
    Hint,
    Planned,
    Task,
    build,
    node_seconds,
    wire_latency,
)
from hetero.planning.report import Alternative, PlanReport, StagePrediction, Variant, WirePrediction
from hetero.planning.solver import (
    Candidate,
    Part,
    Problem,
    Solution,
    cut,
    evaluate,
    is_feasible,
    plan,
)

Policy = Literal["PRIORITY", "PIPELINE_PARALLEL", "AUTO"]
#: Plans that a report tells of beside the chosen one.
MOST_ALTERNATIVES: Final = 16
#: Subgraphs up to which fragments are looked for: each trial judges the whole plan anew.
MOST_FRAGMENTS: Final = 48
#: Simpler plans within this share of the best are preferred.
TOLERANCE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Choice:
    """How to choose.

    Attributes
    ----------
    policy : {"PRIORITY", "PIPELINE_PARALLEL", "AUTO"}
        ``PRIORITY`` only judges the priority list's plan.
    hint : {"THROUGHPUT", "LATENCY"}
        What to make small: time between answers, or time of one.
    seconds : float
        Time for the search.
    seed : int
        Of all that is random in it.
    max_variants : int
        How many plans may share the requests.
    """

    policy: Policy = "AUTO"
    hint: Hint = "THROUGHPUT"
    seconds: float = 5.0
    seed: int = 0
    max_variants: int = 1


def choose(task: Task, choice: Choice, priority: Affinity | None = None) -> PlanReport:
    """Plan a model.

    Parameters
    ----------
    task : Task
        The model, its devices, what they support and cost, the constraints.
    choice : Choice
        How to choose.
    priority : Affinity, optional
        The priority list's affinity, to be judged beside the others; the plan itself where the
        policy is ``PRIORITY``.

    Returns
    -------
    PlanReport

    Raises
    ------
    PlanError
        Constraints that no plan meets, with the nodes and the constraint that clash.
    """
    begin = time.monotonic()
    planned = build(task, choice.hint)
    listed = priority and _assignment(planned, priority)
    solution = _solve(planned.problem, choice)
    candidates = [_named("priority", planned.problem, listed)] if listed else []
    candidates += [solution.chosen, *solution.runners_up]
    if choice.policy == "PRIORITY" and listed:
        chosen = candidates[0]
    else:
        chosen = _pick(candidates[bool(listed) :], choice)
    variants = []
    for part in sorted(chosen.parts, key=lambda p: -p.share):
        if chosen is candidates[0] and priority is not None and listed:
            variants.append(Variant(priority, part.share))
            continue
        settled = settle(planned.problem, part.assignment, choice.hint)
        variants.append(Variant(planned.affinity(settled, f"plan: {chosen.name}"), part.share))
    return _report(task, choice, planned, solution, tuple(variants), chosen, candidates, begin)


def _pick(candidates: Sequence[Candidate], choice: Choice) -> Candidate:
    """Of the plans within the tolerance of the best, the one with fewest parts and subgraphs.

    Costs are not known better than that, and what is simple keeps to its prediction.
    """

    def score(c: Candidate) -> float:
        return c.latency if choice.hint == "LATENCY" else c.bottleneck

    allowed = [c for c in candidates if len(c.parts) <= choice.max_variants]
    limit = min(score(c) for c in allowed) * (1 + TOLERANCE)
    near = [c for c in allowed if score(c) <= limit]
    return min(near, key=lambda c: (len(c.parts), c.subgraphs, score(c), c.parts))


def settle(problem: Problem, assignment: Sequence[int], hint: Hint) -> tuple[int, ...]:
    """Give subgraphs away where their calls and transfers cost more than moving them would.

    A subgraph goes to the device of a neighbour when neither the bottleneck (for ``LATENCY``: the
    latency) nor the sum of all loads grows and one of them falls.
    """
    best = tuple(assignment)
    score = _score(problem, best, hint)
    moved = True
    while moved:
        moved = False
        parts = cut(problem, best)
        if not 1 < len(parts.device) <= MOST_FRAGMENTS:
            return best
        sizes = Counter(parts.cluster)
        for piece in sorted(sizes, key=lambda c: (sizes[c], c)):
            for device in sorted(set(parts.device) - {parts.device[piece]}):
                trial = tuple(
                    device if c == piece else d for c, d in zip(parts.cluster, best, strict=True)
                )
                if not is_feasible(problem, trial):
                    continue
                found = _score(problem, trial, hint)
                if found[0] <= score[0] and found[1] < score[1] * (1 - 1e-9):
                    best, score, moved = trial, found, True
                    break
            if moved:
                break
    return best


def _score(problem: Problem, assignment: tuple[int, ...], hint: Hint) -> tuple[float, float]:
    judged = evaluate(problem, assignment)
    first = judged.latency if hint == "LATENCY" else judged.bottleneck
    return first, float(judged.loads.sum())


def _solve(problem: Problem, choice: Choice) -> Solution:
    seconds = 0.5 if choice.policy == "PRIORITY" else choice.seconds
    return plan(
        problem,
        "latency" if choice.hint == "LATENCY" else "throughput",
        seconds,
        choice.seed,
        contiguous=choice.policy == "PIPELINE_PARALLEL",
    )


def _assignment(planned: Planned, affinity: Affinity) -> tuple[int, ...] | None:
    """Return an affinity as the planner has it; None where it breaks a constraint."""
    number = {d: i for i, d in enumerate(planned.problem.devices)}
    names = (planned.model.nodes[p].name for p in planned.positions)
    found = tuple(number[affinity[name]] for name in names)
    return found if is_feasible(planned.problem, found) else None


def _named(name: str, problem: Problem, assignment: tuple[int, ...]) -> Candidate:
    judged = evaluate(problem, assignment)
    return Candidate(
        names=(name,),
        parts=(Part(assignment, 1.0),),
        loads=tuple(judged.loads.tolist()),
        bottleneck=judged.bottleneck,
        latency=judged.latency,
        subgraphs=judged.subgraphs,
        levels=judged.levels,
    )


def _report(
    task: Task,
    choice: Choice,
    planned: Planned,
    solution: Solution,
    variants: tuple[Variant, ...],
    chosen: Candidate,
    candidates: Sequence[Candidate],
    begin: float,
) -> PlanReport:
    model = planned.model
    stages: list[StagePrediction] = []
    wires: list[WirePrediction] = []
    loads = dict.fromkeys(task.devices, 0.0)
    latency = 0.0
    cuts = [partition(model, variant.affinity) for variant in variants]
    company = len({s.device for parts in cuts for s in parts.subgraphs}) > 1
    for number, (variant, parts) in enumerate(zip(variants, cuts, strict=True)):
        mine, crossing, alone = predict(task, model, parts, number, company=company)
        stages += mine
        wires += crossing
        latency = max(latency, alone)
        for stage in mine:
            loads[stage.device] += variant.share * (
                stage.run_s + stage.transfer_s + stage.overhead_s
            )
    bottleneck = max(loads, key=lambda d: loads[d])
    bound_s, bound_name, scope, figure = _bound(choice, planned, solution, loads, latency)
    times = {
        name: {
            d: seconds
            for d in task.devices
            if (seconds := node_seconds(task.costs.devices[d], name, choice.hint)) is not None
        }
        for name in planned.problem.names
    }
    return PlanReport(
        model=model.name,
        model_hash=task.model.content_hash,
        devices=task.devices,
        policy=choice.policy,
        hint=choice.hint,
        variants=variants,
        bottleneck_s=loads[bottleneck],
        latency_s=latency,
        loads_s=loads,
        bottleneck=bottleneck,
        bound_s=bound_s,
        bound_name=bound_name,
        bound_scope=scope,
        ratio=figure / bound_s if bound_s > 0 else math.inf,
        advice=_advice(choice, planned, solution, chosen, loads),
        alternatives=_alternatives(planned, chosen, candidates),
        stages=tuple(stages),
        wires=tuple(wires),
        node_times=times,
        sources=Counter(t.source for row in times.values() for t in row.values()),
        planning_s=time.monotonic() - begin,
    )


def predict(
    task: Task, model: Model, parts: Partition, variant: int = 0, *, company: bool = True
) -> tuple[list[StagePrediction], list[WirePrediction], float]:
    """Return what each stage and wire of a partition is expected to take, and one request alone.

    Parameters
    ----------
    task : Task
        Its costs and devices.
    model : Model
        The model with its shapes.
    parts : Partition
        How it is cut.
    variant : int
        The variant that it belongs to.
    company : bool
        Whether other devices work at the same time.
    """
    costs = task.costs.devices
    device_of = [s.device for s in parts.subgraphs]
    made_by = {v: s.index for s in parts.subgraphs for v in s.outputs}
    goes_to: dict[str, set[str]] = {}
    for wire in parts.wires:
        if device_of[wire.consumer] != device_of[wire.producer]:
            goes_to.setdefault(wire.tensor, set()).add(device_of[wire.consumer])
    ends = {port.name for port in model.outputs}
    received: set[tuple[str, str]] = set()
    stages: list[StagePrediction] = []
    finish: list[float] = []
    free = dict.fromkeys(task.devices, 0.0)
    for s in parts.subgraphs:
        cost = costs[s.device]
        alone = [t for n in s.node_names if (t := node_seconds(cost, n, "LATENCY")) is not None]
        run_alone = cost.dispatch.seconds + sum(t.seconds for t in alone)
        transfer = 0.0
        ready = free[s.device]
        for value in s.inputs:
            nbytes = value_nbytes(model.spec(value))
            source = made_by.get(value)
            sender = None if source is None else device_of[source]
            if sender != s.device and (value, s.device) not in received:
                received.add((value, s.device))
                transfer += _busy(task, sender, s.device, nbytes)
            if source is not None:
                on_way = wire_latency(task.costs, device_of[source], s.device, nbytes)
                ready = max(ready, finish[source] + on_way)
        for value in s.outputs:
            receivers = goes_to.get(value, set())
            if value in ends or receivers:
                nbytes = value_nbytes(model.spec(value))
                to: list[str | None] = [*sorted(receivers)] or [None]
                transfer += max(_busy(task, s.device, d, nbytes) for d in to)
        stages.append(
            StagePrediction(
                index=s.index,
                device=s.device,
                nodes=len(s.node_names),
                run_s=run_alone * (cost.load.seconds if company else 1.0),
                transfer_s=transfer,
                overhead_s=cost.overhead.seconds,
                variant=variant,
            )
        )
        finish.append(ready + run_alone)
        free[s.device] = finish[-1]
    wires = [
        WirePrediction(
            w.tensor,
            w.producer,
            w.consumer,
            model.spec(w.tensor).nbytes,
            wire_latency(
                task.costs,
                device_of[w.producer],
                device_of[w.consumer],
                value_nbytes(model.spec(w.tensor)),
            ),
            variant,
        )
        for w in parts.wires
    ]
    return stages, wires, max(finish, default=0.0)


def _busy(task: Task, sender: str | None, receiver: str | None, nbytes: int) -> float:
    """Seconds that a device is busy with a tensor; of unknown partners, the dearest."""
    found = [
        t.busy(nbytes)
        for (a, b), t in task.costs.transfers.items()
        if a == (sender or a) and b == (receiver or b)
    ]
    return max(found, default=0.0)


def _bound(
    choice: Choice,
    planned: Planned,
    solution: Solution,
    loads: dict[str, float],
    latency: float,
) -> tuple[float, str, str, float]:
    """Return the proven bound, its name, what it covers, and the figure that it bounds."""
    if choice.hint == "LATENCY":
        proven = critical_path(planned.problem)
        return proven, "critical path", "any assignment of this model", latency
    bound = solution.bound
    scope = (
        "any routing of requests over these devices"
        if bound.mixing
        else "any assignment of this model without replication"
    )
    return bound.seconds, bound.name, scope, max(loads.values())


def critical_path(problem: Problem) -> float:
    """Seconds of the longest path, each node on its fastest device, transfers free.

    No plan answers one request in less; colocation and memory only make it longer.
    """
    fastest = problem.times.min(axis=1)
    after: list[list[int]] = [[] for _ in range(problem.node_count)]
    for u, v in problem.edges():
        after[u].append(v)
    finish = fastest.copy()
    # Nodes are in topological order, as the model's are.
    for u, heads in enumerate(after):
        for v in heads:
            finish[v] = max(finish[v], finish[u] + fastest[v])
    return float(np.max(finish, initial=0.0))


def _advice(
    choice: Choice,
    planned: Planned,
    solution: Solution,
    chosen: Candidate,
    loads: dict[str, float],
) -> tuple[str, ...]:
    lines: list[str] = []
    if chosen is solution.chosen:
        lines += solution.advice
    else:
        best = solution.chosen
        if best.bottleneck < chosen.bottleneck * 0.99 and choice.hint == "THROUGHPUT":
            lines.append(
                f"{best.name}: bottleneck {best.bottleneck * 1e3:.4g} ms instead of "
                f"{chosen.bottleneck * 1e3:.4g} ms"
                + (f", with {len(best.parts)} plans sharing requests" * (len(best.parts) > 1))
            )
        idle = [d for d, load in loads.items() if load == 0]
        if idle:
            lines.append(f"{', '.join(idle)}: no work")
    return tuple(lines)


def _alternatives(
    planned: Planned, chosen: Candidate, candidates: Sequence[Candidate]
) -> tuple[Alternative, ...]:
    """The chosen plan, single devices, priority, mixes, and the best of the rest."""
    devices = planned.problem.devices
    rows: dict[str, Candidate] = {}
    # A landmark has a row by its own name, also where several methods found the same plan.
    for c in candidates:
        for name in c.names:
            if _is_landmark(name):
                rows.setdefault(name, c)
    if all(c is not chosen for c in rows.values()):
        rows[chosen.name] = chosen
    told = {(c.bottleneck, c.latency, c.subgraphs) for c in rows.values()}
    for c in candidates:
        figures = (c.bottleneck, c.latency, c.subgraphs)
        if len(rows) < MOST_ALTERNATIVES and figures not in told:
            rows.setdefault(c.name, c)
            told.add(figures)
    first = next(name for name, c in rows.items() if c is chosen)
    ranked = sorted(rows.items(), key=lambda row: (row[1].bottleneck, row[1].latency, row[0]))
    return tuple(
        Alternative(
            name=name,
            bottleneck_s=c.bottleneck,
            latency_s=c.latency,
            devices=tuple(d for d, load in zip(devices, c.loads, strict=True) if load > 0),
            subgraphs=c.subgraphs,
            variants=len(c.parts),
            chosen=name == first,
        )
        for name, c in ranked
    )


def _is_landmark(name: str) -> bool:
    return name.startswith("single ") or name in ("priority", "mix", "replicas")
