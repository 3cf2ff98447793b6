"""Plans for the shortest single request: two-way minimum cuts, then moves on the simulated time.

A minimum cut with equal prices is the best serial plan of two devices, exactly. Where branches run
side by side, whole subgraphs and chunks are moved as long as the simulated request gets faster.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import numpy as np

from hetero.planning.solver.local_search import State
from hetero.planning.solver.min_cut import two_way
from hetero.planning.solver.order import breadth_first, neighbours
from hetero.planning.solver.problem import Assignment, Problem, allowed, is_feasible

#: Share by which a move may lengthen the request at first.
SLACK = 0.1


def serial_cuts(problem: Problem) -> list[Assignment]:
    """The best serial plan of each pair of devices of different classes."""
    first = [problem.classes.index(c) for c in sorted(set(problem.classes))]
    plans = []
    for a, b in itertools.combinations(first, 2):
        found = two_way(problem, a, b, (1.0, 1.0))
        if found is not None and is_feasible(problem, found[1]):
            plans.append(found[1])
    return plans


def descend(
    problem: Problem,
    start: Assignment,
    judge: Callable[[Assignment], float],
    *,
    trials: int,
    seed: int,
    deadline: float,
) -> tuple[Assignment, bool]:
    """Move chunks between devices towards what ``judge`` (seconds) finds shorter.

    Threshold accepting: a move may lengthen the request by a share that shrinks to nothing.

    `problem`: without colocation groups.
    `start`: a feasible assignment.
    `judge`: latency of an assignment, seconds.
    `deadline`: ``time.monotonic()`` at which to stop.
    Returns: the best assignment, and whether the deadline came first.
    """
    rng = random.Random(seed)
    state = State(problem, start)
    best, value = start, judge(start)
    options = [frozenset(o) for o in state.options]
    weights: list[float] = problem.weights.tolist()
    movable = [v for v, o in enumerate(options) if len(o) > 1]
    at = value
    for trial in range(trials if movable else 0):
        if time.monotonic() > deadline:
            return best, True
        v = rng.choice(movable)
        a = state.where[v]
        near = [state.where[w] for w in state.near[v] if state.where[w] != a]
        b = rng.choice(near) if near and rng.random() < 0.7 else rng.choice(state.options[v])
        if a == b:
            continue
        size = int(2.0 ** (7.0 * rng.random()))
        nodes = [u for u in state.chunk(v, size, rng) if b in options[u]]
        if sum(weights[u] for u in nodes) > state.free[b]:
            continue
        for u in nodes:
            state.move(u, b)
        fresh = judge(tuple(state.where))
        if fresh < value * (1 - 1e-12):
            best, value = tuple(state.where), fresh
        if fresh <= at * (1 + SLACK * (1 - trial / trials)):
            at = fresh
        else:
            for u in reversed(nodes):
                state.move(u, a)
    return best, False


def critical_path(problem: Problem) -> float:
    """No plan answers one request sooner: the longest chain of nodes, each on its best device."""
    shortest = np.where(allowed(problem), problem.times, np.inf).min(axis=1, initial=np.inf)
    edges = problem.edges()
    after, _ = neighbours(problem.node_count, edges)
    ready = [0.0] * problem.node_count
    longest = 0.0
    for u in breadth_first(problem.node_count, edges):
        finish = ready[u] + float(shortest[u])
        longest = max(longest, finish)
        for v in after[u]:
            ready[v] = max(ready[v], finish)
    return longest
