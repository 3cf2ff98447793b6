"""One judge for every candidate: loads, subgraphs, levels and latency of an assignment."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from hetero.partition.clustering import cluster
from hetero.planning.solver.order import neighbours
from hetero.planning.solver.problem import Assignment, Evaluation, Problem, loads

#: An earlier subgraph, or None for the request's start, and seconds on the way from there.
Wait = tuple[int | None, float]


@dataclass(frozen=True, slots=True)
class Cut:
    """The subgraphs of an assignment."""

    #: The subgraph of each node; every edge stays inside or leads to a higher one.
    cluster: tuple[int, ...]
    device: tuple[int, ...]
    #: Number of subgraph-to-subgraph edges on the longest path to each.
    level: tuple[int, ...]


def cut(problem: Problem, assignment: Assignment) -> Cut:
    """Cut an assignment into acyclic subgraphs, as few as the clustering finds."""
    edges = problem.edges()
    after, _ = neighbours(problem.node_count, edges)
    label = cluster(after, assignment)
    count = max(label, default=-1) + 1
    device = [0] * count
    for v, c in enumerate(label):
        device[c] = assignment[v]
    level = [0] * count
    for u, v in sorted({(label[u], label[v]) for u, v in edges if label[u] != label[v]}):
        level[v] = max(level[v], level[u] + 1)
    return Cut(tuple(label), tuple(device), tuple(level))


def evaluate(problem: Problem, assignment: Assignment) -> Evaluation:
    """What an assignment costs.

    `problem`: with acyclic edges.
    `assignment`: device of every node; support and memory are `is_feasible`'s to check.
    """
    busy = loads(problem, assignment)
    parts = cut(problem, assignment)
    if problem.dispatch is not None:
        busy = busy + np.bincount(parts.device, minlength=problem.device_count) * problem.dispatch
    return Evaluation(
        loads=busy,
        subgraphs=len(parts.device),
        levels=max(parts.level, default=-1) + 1,
        latency=latency_of(problem, assignment, parts),
    )


def latency_of(problem: Problem, assignment: Assignment, parts: Cut) -> float:
    """Seconds that one request takes alone: each subgraph runs once its inputs are there.

    A device receives before it computes and sends after.
    """
    count = len(parts.device)
    where = np.asarray(assignment, dtype=np.int64)
    label = np.asarray(parts.cluster, dtype=np.int64)
    busy = np.bincount(
        label, weights=problem.times[np.arange(problem.node_count), where], minlength=count
    ).tolist()
    before: list[set[int]] = [set() for _ in range(count)]
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        source = parts.cluster[tail]
        users = {parts.cluster[v] for v in heads} - {source}
        arrived: set[int] = set()
        for c in sorted(users):
            before[max(c, source)].add(min(c, source))
            d = parts.device[c]
            if d != parts.device[source] and d not in arrived:
                arrived.add(d)
                busy[c] += float(problem.receive[h, d])
        if arrived:
            busy[source] += float(problem.send[h, parts.device[source]])
    if problem.dispatch is not None:
        calls = problem.dispatch[list(parts.device)].tolist()
        busy = [seconds + call for seconds, call in zip(busy, calls, strict=True)]
    waits = [[(b, 0.0) for b in earlier] for earlier in before]
    return max(finish_times(parts.device, busy, waits), default=0.0)


def finish_times(
    devices: Sequence[Hashable], seconds: Sequence[float], waits: Sequence[Sequence[Wait]]
) -> list[float]:
    """Return when each subgraph of a request that goes alone is done, in seconds from its start.

    A device runs its subgraphs one by one in their order, each once all that it waits for is there;
    branches on different devices run side by side.

    `seconds`: what each takes on its device.
    `waits`: for each, earlier subgraphs and the seconds that their tensors are on their way; the
        request's start stands for None.
    """
    finish: list[float] = []
    free: dict[Hashable, float] = {}
    for device, busy, ways in zip(devices, seconds, waits, strict=True):
        start = free.get(device, 0.0)
        for source, way in ways:
            start = max(start, way if source is None else finish[source] + way)
        free[device] = start + busy
        finish.append(free[device])
    return finish
