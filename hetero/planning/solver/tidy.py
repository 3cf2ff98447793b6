"""Undo fragments: moves that spare transfers and do not raise the bottleneck.

Annealing looks at the busiest devices; elsewhere it leaves small pieces whose transfers cost more
than they gain. Here single nodes, then whole subgraphs, go to a neighbouring device wherever the
sum of all loads falls and the largest load does not rise.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero.planning.solver.local_search import State
from hetero.planning.solver.problem import Assignment, Problem

#: Passes over all nodes and pieces at most.
PASSES = 8
#: A sum of loads must fall by this share to count; less is rounding.
LEAST_GAIN = 1e-9


def tidy(problem: Problem, assignment: Assignment) -> Assignment:
    """An assignment with no larger bottleneck, no larger sum of loads, and fewer fragments.

    `problem`: without colocation groups.
    `assignment`: feasible.
    """
    state = State(problem, assignment)
    weights: list[float] = problem.weights.tolist()
    options = [frozenset(o) for o in state.options]
    for _ in range(PASSES):
        moved = False
        pieces = [[v] for v in range(problem.node_count)]
        for group in (pieces, _pieces(state)):
            for nodes in group:
                moved = _settle(state, nodes, options, weights) or moved
        if not moved:
            break
    return tuple(state.where)


def _settle(
    state: State, nodes: Sequence[int], options: Sequence[frozenset[int]], weights: list[float]
) -> bool:
    """Move one piece to the neighbouring device that lowers the sum of loads most."""
    a = state.where[nodes[0]]
    if any(state.where[v] != a for v in nodes):
        # An earlier move of this pass took part of the piece away.
        return False
    around = {state.where[w] for v in nodes for w in state.near[v]} - {a}
    weight = sum(weights[v] for v in nodes)
    top, total = max(state.loads), sum(state.loads)
    best, target = total * (1 - LEAST_GAIN), a
    for b in sorted(around):
        if state.free[b] < weight or any(b not in options[v] for v in nodes):
            continue
        for v in nodes:
            state.move(v, b)
        if max(state.loads) <= top * (1 + 1e-12) and sum(state.loads) < best:
            best, target = sum(state.loads), b
        for v in reversed(nodes):
            state.move(v, a)
    if target == a:
        return False
    for v in nodes:
        state.move(v, target)
    return True


def _pieces(state: State) -> list[list[int]]:
    """Connected sets of nodes on one device, largest first left out: moving it is another plan."""
    seen = [False] * len(state.where)
    pieces = []
    for v in range(len(seen)):
        if seen[v]:
            continue
        seen[v] = True
        piece = [v]
        for u in piece:
            for w in state.near[u]:
                if not seen[w] and state.where[w] == state.where[v]:
                    seen[w] = True
                    piece.append(w)
        pieces.append(piece)
    pieces.sort(key=lambda p: (len(p), p[0]))
    return pieces
