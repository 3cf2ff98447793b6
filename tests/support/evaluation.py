"""Costs of plans for solver problems without a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.partition.clustering import cluster
from hetero.planning.solver import search
from hetero.planning.solver.candidates import Candidate, Predictor, Solution
from hetero.planning.solver.graph import successors
from hetero.planning.solver.problem import Assignment, Floats, Problem, sum_by_index
from hetero.planning.solver.replicas import Replicas


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The costs of one assignment."""

    #: Shape (devices,), float64: seconds that each device is busy per request.
    loads: Floats
    #: The subgraph of each node; every edge stays in its subgraph or leads to a higher one.
    cluster: tuple[int, ...]
    subgraphs: int
    levels: int
    #: Seconds of a single request.
    latency: float

    @property
    def bottleneck(self) -> float:
        """The largest load."""
        return float(self.loads.max())


def evaluate(problem: Problem, assignment: Assignment) -> Evaluation:
    """Evaluate an assignment, partitioned into acyclic subgraphs by the clustering.

    A device receives before it computes and sends afterwards. Support and memory are not checked.
    """
    edges = problem.edges()
    label = cluster(successors(problem.node_count, edges), assignment)
    count = max(label, default=-1) + 1
    device = [0] * count
    for v, c in enumerate(label):
        device[c] = assignment[v]
    level = [0] * count
    predecessors: list[set[int]] = [set() for _ in range(count)]
    for u, v in sorted({(label[u], label[v]) for u, v in edges if label[u] != label[v]}):
        level[v] = max(level[v], level[u] + 1)
        predecessors[v].add(u)
    devices = np.asarray(assignment, dtype=np.int64)
    seconds = problem.times[np.arange(problem.node_count), devices]
    busy_s = sum_by_index(np.asarray(label, dtype=np.int64), seconds, count)
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        source = label[tail]
        receivers = {device[source]}
        for c in sorted({label[v] for v in heads} - {source}):
            if device[c] not in receivers:
                receivers.add(device[c])
                busy_s[c] += problem.receive[h, device[c]]
        if len(receivers) > 1:
            busy_s[source] += problem.send[h, device[source]]
    busy_s = busy_s + problem.dispatch[device]
    # A device runs its subgraphs in order; different devices run in parallel.
    end_s: list[float] = []
    device_free_s = [0.0] * problem.device_count
    for c, d in enumerate(device):
        device_free_s[d] = max([device_free_s[d], *(end_s[b] for b in predecessors[c])]) + float(
            busy_s[c]
        )
        end_s.append(device_free_s[d])
    return Evaluation(
        loads=sum_by_index(np.asarray(device, dtype=np.int64), busy_s, problem.device_count),
        cluster=tuple(label),
        subgraphs=count,
        levels=max(level, default=-1) + 1,
        latency=max(end_s, default=0.0),
    )


def predictor_of(problem: Problem) -> Predictor:
    """Return a function that predicts the costs of plans by `evaluate`."""

    def predict(names: tuple[str, ...], replicas: Replicas) -> Candidate:
        evaluations = [evaluate(problem, replica.assignment) for replica in replicas]
        loads = [
            math.fsum(
                float(e.loads[d]) * r.share for e, r in zip(evaluations, replicas, strict=True)
            )
            for d in range(problem.device_count)
        ]
        return Candidate(
            names=names,
            replicas=replicas,
            loads=tuple(loads),
            bottleneck=max(loads),
            latency=max(e.latency for e in evaluations),
            subgraphs=evaluations[0].subgraphs,
            levels=evaluations[0].levels,
        )

    return predict


def plan(problem: Problem, *arguments: Any, **options: Any) -> Solution:
    """Search a plan for a problem without a model."""
    return search.search_plan(problem, predictor_of(problem), *arguments, **options)
