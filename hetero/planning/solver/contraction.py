"""Contract a problem to supernodes; every tensor between them is kept exactly.

`fuse` puts given sets of nodes together, `collapse_groups` the colocation groups, `fuse_cycles`
what contraction made cyclic, `coarsen` neighbours along an order until few enough nodes are left.
An answer for the contracted problem is one for the original: same loads, same bottleneck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero.devices.errors import PlanError
from hetero.planning.solver.graph import components, depth_first
from hetero.planning.solver.problem import Assignment, Problem, allowed, listed, make_problem, sums


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """A smaller problem, and for each original node the supernode that it is in."""

    problem: Problem
    supernode: tuple[int, ...]

    def expand(self, assignment: Assignment) -> Assignment:
        """The original nodes' devices, from the supernodes'."""
        return tuple(assignment[s] for s in self.supernode)

    def then(self, further: Contraction) -> Contraction:
        """Both as one: first `self`, then a contraction of its problem."""
        return Contraction(further.problem, tuple(further.supernode[s] for s in self.supernode))


def fuse(problem: Problem, label: Sequence[int]) -> Contraction:
    """Fuse the nodes with equal labels; labels count from 0 without gaps.

    Times and bytes add up, supports intersect. A tensor keeps its cost: heads in one supernode
    count once, and a tensor within one supernode is gone. Tensors with the same tail stay apart.
    """
    count = max(label, default=-1) + 1
    labels = np.asarray(label, dtype=np.int64)
    times = np.zeros((count, problem.device_count))
    np.add.at(times, labels, problem.times)
    members: list[list[int]] = [[] for _ in range(count)]
    for v, s in enumerate(label):
        members[s].append(v)
    tensors = zip(problem.tails.tolist(), problem.heads, problem.send, problem.receive, strict=True)
    smaller = make_problem(
        times,
        [(label[tail], [label[v] for v in heads], *costs) for tail, heads, *costs in tensors],
        weights=sums(labels, problem.weights, count),
        memory=problem.memory,
        devices=problem.devices,
        names=[problem.names[m[0]] + f" (+{len(m) - 1})" * (len(m) > 1) for m in members],
        pins=sorted({(label[v], d) for v, d in problem.pins}),
        groups=[[label[v] for v in group] for group in problem.groups],
        dispatch=problem.dispatch,
        max_subgraphs=problem.max_subgraphs,
    )
    return Contraction(smaller, tuple(label))


def collapse_groups(problem: Problem) -> Contraction:
    """Fuse each colocation group; groups that share a node become one."""
    joined = [(v, group[0]) for group in problem.groups for v in group[1:]]
    both_ways = [*joined, *((b, a) for a, b in joined)]
    contraction = fuse(problem, _number(components(problem.node_count, both_ways)))
    _check_supported(problem, contraction)
    return contraction


def fuse_cycles(problem: Problem) -> Contraction:
    """Fuse each strongly connected component of the graph."""
    label = _number(components(problem.node_count, problem.edges()))
    contraction = fuse(problem, label)
    _check_supported(problem, contraction)
    return contraction


def coarsen(problem: Problem, most: int) -> Contraction:
    """Fuse runs of connected nodes along a depth-first order down to about ``most`` supernodes.

    Only nodes with the same set of allowed devices fuse, so every assignment of supernodes is
    supported. Runs of one order have an acyclic quotient. Where the support sets alternate too
    often for ``most``, more supernodes are left.
    """
    n = problem.node_count
    if n <= most:
        return Contraction(problem, tuple(range(n)))
    edges = problem.edges()
    mask = allowed(problem)
    _, kind_of = np.unique(mask, axis=0, return_inverse=True)
    kinds = kind_of.reshape(-1).tolist()
    cheapest = np.where(mask, problem.times, np.inf).min(axis=1)
    limit = float(cheapest.sum()) / most
    room = float(problem.memory[np.isfinite(problem.memory)].sum()) / most
    times, weights = cheapest.tolist(), problem.weights.tolist()
    pinned = {v for v, _ in problem.pins}
    label = [-1] * n
    count = -1
    work = held = 0.0
    last = -1
    for v in depth_first(n, edges):
        fits = work + times[v] <= limit and (not room or held + weights[v] <= room)
        if last >= 0 and fits and kinds[v] == kinds[last] and not {v, last} & pinned:
            work += times[v]
            held += weights[v]
        else:
            count += 1
            work, held = times[v], weights[v]
        label[v] = count
        last = v
    return fuse(problem, label)


def _number(roots: Sequence[int]) -> list[int]:
    """Labels from 0 without gaps, in order of first appearance."""
    seen: dict[int, int] = {}
    return [seen.setdefault(r, len(seen)) for r in roots]


def _check_supported(problem: Problem, contraction: Contraction) -> None:
    mask = allowed(contraction.problem)
    for s in np.flatnonzero(~mask.any(axis=1)).tolist():
        nodes = [v for v, at in enumerate(contraction.supernode) if at == s]
        pins = sorted({problem.devices[d] for v, d in problem.pins if v in nodes})
        pinned = f", pinned to {', '.join(pins)}" if pins else ""
        raise PlanError(
            f"colocation: {listed(problem, nodes)} must share a device{pinned}, and no device both "
            "supports and may take all of them; drop the group, or a pin of one of them",
            nodes=tuple(problem.names[v] for v in nodes),
            constraint="colocation",
        )
