"""One judge for every candidate: loads, subgraphs, levels and latency of an assignment."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from hetero.partition.clustering import cluster
from hetero.planning.solver.order import successors
from hetero.planning.solver.problem import Assignment, Evaluation, Problem, sums

#: An earlier subgraph, or None for the request's start, and seconds on the way from there.
Wait = tuple[int | None, float]


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
    if problem.dispatch is not None and count:
        busy = busy + problem.dispatch[device]
    waits = [[(b, 0.0) for b in earlier] for earlier in before]
    return Evaluation(
        loads=sums(np.asarray(device, dtype=np.int64), busy, problem.device_count),
        cluster=tuple(label),
        subgraphs=count,
        levels=max(level, default=-1) + 1,
        latency=max(finish_times(device, busy.tolist(), waits), default=0.0),
    )


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
