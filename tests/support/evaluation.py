"""What plans of a planner's problem cost by its own figures, where no model is cut for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.partition.clustering import cluster
from hetero.planning.solver import search
from hetero.planning.solver.candidates import Candidate, Judge, Solution
from hetero.planning.solver.graph import successors
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Assignment, Floats, Problem, sums


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The figures of one assignment."""

    #: Shape (devices,), float64: seconds that each is busy for a request.
    loads: Floats
    #: The subgraph of each node; every edge stays inside or leads to a higher one.
    cluster: tuple[int, ...]
    subgraphs: int
    levels: int
    #: Seconds of one request alone.
    latency: float

    @property
    def bottleneck(self) -> float:
        """The largest load."""
        return float(self.loads.max())


def evaluate(problem: Problem, assignment: Assignment) -> Evaluation:
    """What an assignment costs, cut into acyclic subgraphs, as few as the clustering finds.

    A device receives before it computes and sends after. Support and memory are `is_feasible`'s.
    """
    edges = problem.edges()
    label = cluster(successors(problem.node_count, edges), assignment)
    count = max(label, default=-1) + 1
    device = [0] * count
    for v, c in enumerate(label):
        device[c] = assignment[v]
    level = [0] * count
    before: list[set[int]] = [set() for _ in range(count)]
    for u, v in sorted({(label[u], label[v]) for u, v in edges if label[u] != label[v]}):
        level[v] = max(level[v], level[u] + 1)
        before[v].add(u)
    where = np.asarray(assignment, dtype=np.int64)
    seconds = problem.times[np.arange(problem.node_count), where]
    busy = sums(np.asarray(label, dtype=np.int64), seconds, count)
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        source = label[tail]
        arrived = {device[source]}
        for c in sorted({label[v] for v in heads} - {source}):
            if device[c] not in arrived:
                arrived.add(device[c])
                busy[c] += problem.receive[h, device[c]]
        if len(arrived) > 1:
            busy[source] += problem.send[h, device[source]]
    busy = busy + problem.dispatch[device]
    # A device runs its subgraphs one by one in their order; those of several run side by side.
    done: list[float] = []
    free = [0.0] * problem.device_count
    for c, d in enumerate(device):
        free[d] = max([free[d], *(done[b] for b in before[c])]) + float(busy[c])
        done.append(free[d])
    return Evaluation(
        loads=sums(np.asarray(device, dtype=np.int64), busy, problem.device_count),
        cluster=tuple(label),
        subgraphs=count,
        levels=max(level, default=-1) + 1,
        latency=max(done, default=0.0),
    )


def judge_of(problem: Problem) -> Judge:
    """Return what gives plans of a problem their figures by `evaluate`."""

    def judge(names: tuple[str, ...], parts: tuple[Part, ...]) -> Candidate:
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

    return judge


def plan(problem: Problem, *how: Any, **options: Any) -> Solution:
    """Plan a problem that is of no model."""
    return search.plan(problem, judge_of(problem), *how, **options)
