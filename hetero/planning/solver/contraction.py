"""Contraction of a problem: nodes are fused into supernodes; tensors between them keep their costs.

`fuse` fuses labelled sets of nodes, `collapse_groups` the colocation groups, `fuse_cycles` cycles
caused by contraction, and `coarsen` neighbours along a topological order until few nodes remain.
An assignment of the contracted problem has the same loads and bottleneck in the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero.devices.errors import PlanError
from hetero.planning.solver.graph import strong_components, topological_order
from hetero.planning.solver.problem import (
    Assignment,
    Problem,
    allowed_devices,
    list_nodes,
    make_problem,
    sum_by_index,
)


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """A contracted problem, and the supernode of each original node."""

    problem: Problem
    supernode: tuple[int, ...]

    def expand(self, assignment: Assignment) -> Assignment:
        """Return the assignment of the original nodes for an assignment of the supernodes."""
        return tuple(assignment[s] for s in self.supernode)

    def compose(self, further: Contraction) -> Contraction:
        """Return this contraction followed by a contraction of its problem."""
        return Contraction(further.problem, tuple(further.supernode[s] for s in self.supernode))


def fuse(problem: Problem, label: Sequence[int]) -> Contraction:
    """Fuse the nodes with equal labels; labels are numbered from 0 without gaps.

    Times and bytes are added, supports intersected. A tensor keeps its cost; several heads in one
    supernode count once, and tensors within a supernode disappear. Tensors with the same tail
    remain separate.
    """
    count = max(label, default=-1) + 1
    if count == problem.node_count and all(v == s for v, s in enumerate(label)):
        return Contraction(problem, tuple(label))
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
        weights=sum_by_index(labels, problem.weights, count),
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
    """Fuse each colocation group, and groups that share a node with each other."""
    edges = [(v, group[0]) for group in problem.groups for v in group[1:]]
    both_directions = [*edges, *((b, a) for a, b in edges)]
    contraction = fuse(problem, _renumber(strong_components(problem.node_count, both_directions)))
    _check_supported(problem, contraction)
    return contraction


def fuse_cycles(problem: Problem) -> Contraction:
    """Fuse each strongly connected component of the graph."""
    label = _renumber(strong_components(problem.node_count, problem.edges()))
    contraction = fuse(problem, label)
    _check_supported(problem, contraction)
    return contraction


def coarsen(problem: Problem, max_nodes: int) -> Contraction:
    """Fuse sequences of nodes along a topological order into fewer supernodes.

    Only nodes with the same set of allowed devices are fused, so every assignment of supernodes is
    supported. Sequences of a topological order keep the graph acyclic.

    `max_nodes`: approximate number of supernodes; there are more if the sets alternate often.
    """
    n = problem.node_count
    if n <= max_nodes:
        return Contraction(problem, tuple(range(n)))
    edges = problem.edges()
    mask = allowed_devices(problem)
    _, class_of = np.unique(mask, axis=0, return_inverse=True)
    classes = class_of.reshape(-1).tolist()
    min_times = np.where(mask, problem.times, np.inf).min(axis=1)
    max_work = float(min_times.sum()) / max_nodes
    max_weight = float(problem.memory[np.isfinite(problem.memory)].sum()) / max_nodes
    times, weights = min_times.tolist(), problem.weights.tolist()
    pinned = {v for v, _ in problem.pins}
    label = [-1] * n
    supernode = -1
    work = weight = 0.0
    previous = -1
    for v in topological_order(n, edges):
        fits = work + times[v] <= max_work and (not max_weight or weight + weights[v] <= max_weight)
        same_class = previous >= 0 and classes[v] == classes[previous]
        if same_class and fits and not {v, previous} & pinned:
            work += times[v]
            weight += weights[v]
        else:
            supernode += 1
            work, weight = times[v], weights[v]
        label[v] = supernode
        previous = v
    return fuse(problem, label)


def _renumber(roots: Sequence[int]) -> list[int]:
    """Number labels from 0 without gaps, in order of first appearance."""
    seen: dict[int, int] = {}
    return [seen.setdefault(r, len(seen)) for r in roots]


def _check_supported(problem: Problem, contraction: Contraction) -> None:
    mask = allowed_devices(contraction.problem)
    for s in np.flatnonzero(~mask.any(axis=1)).tolist():
        nodes = [v for v, supernode in enumerate(contraction.supernode) if supernode == s]
        pins = sorted({problem.devices[d] for v, d in problem.pins if v in nodes})
        pin_text = f", pinned to {', '.join(pins)}" if pins else ""
        raise PlanError(
            f"colocation: {list_nodes(problem, nodes)} must share a device{pin_text}, but no "
            "device is allowed for all of them; remove the group, or the pin of one of them",
            nodes=tuple(problem.names[v] for v in nodes),
            constraint="colocation",
        )
