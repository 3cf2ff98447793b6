"""Constraints that no plan can meet, found before the search, with the nodes that clash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hetero.devices.errors import PlanError
from hetero.planning.solver.problem import Problem, allowed

#: Names that a message lists before it only counts.
LISTED = 6


def check(problem: Problem) -> None:
    """Raise where support, pins, memory or the subgraph cap leave no plan.

    These are necessary conditions; memory can still turn out too tight to pack.
    """
    supported = np.isfinite(problem.times)
    orphans = np.flatnonzero(~supported.any(axis=1)).tolist()
    if orphans:
        raise PlanError(
            f"support: {listed(problem, orphans)} run on none of {', '.join(problem.devices)}; "
            "add a device that supports them",
            nodes=_names(problem, orphans),
            constraint="support",
        )
    first_pin: dict[int, int] = {}
    for v, d in problem.pins:
        if not supported[v, d]:
            can = [name for name, ok in zip(problem.devices, supported[v], strict=True) if ok]
            raise PlanError(
                f"pins: node {problem.names[v]!r} is pinned to {problem.devices[d]}, which does "
                f"not support it; supported by {', '.join(can)}; move or drop the pin",
                nodes=(problem.names[v],),
                constraint="pins",
            )
        if first_pin.setdefault(v, d) != d:
            raise PlanError(
                f"pins: node {problem.names[v]!r} is pinned to both "
                f"{problem.devices[first_pin[v]]} and {problem.devices[d]}; keep one pin",
                nodes=(problem.names[v],),
                constraint="pins",
            )
    _check_memory(problem)
    cap = problem.max_subgraphs
    mask = allowed(problem)
    forced = {int(mask[v].argmax()) for v in np.flatnonzero(mask.sum(axis=1) == 1)}
    if cap is not None and cap < max(1, len(forced)):
        nodes = [int(v) for v in np.flatnonzero(mask.sum(axis=1) == 1)]
        raise PlanError(
            f"subgraphs: at most {cap} wanted, and {listed(problem, nodes)} can only run on "
            f"{len(forced)} different devices; raise the cap to {max(1, len(forced))} or more, or "
            "drop pins",
            nodes=_names(problem, nodes),
            constraint="subgraphs",
        )


def _check_memory(problem: Problem) -> None:
    mask = allowed(problem)
    room = np.where(mask, problem.memory, -np.inf).max(axis=1)
    heavy = np.flatnonzero(problem.weights > room * (1 + 1e-12)).tolist()
    if heavy:
        v = max(heavy, key=lambda v: (problem.weights[v], -v))
        raise PlanError(
            f"memory: node {problem.names[v]!r} has {problem.weights[v]:.0f} bytes of constants, "
            f"the largest device that may take it has {room[v]:.0f}; wanted room for it; give a "
            "device more memory, or move its pin",
            nodes=_names(problem, heavy),
            constraint="memory",
        )
    patterns = {tuple(np.flatnonzero(row).tolist()) for row in np.unique(mask, axis=0)}
    patterns.add(tuple(range(problem.device_count)))
    for devices in sorted(patterns, key=lambda s: (len(s), s)):
        outside = np.ones(problem.device_count, dtype=bool)
        outside[list(devices)] = False
        confined = np.flatnonzero(~(mask & outside).any(axis=1)).tolist()
        need = float(problem.weights[confined].sum())
        have = float(problem.memory[list(devices)].sum())
        if need > have * (1 + 1e-12):
            names = ", ".join(problem.devices[d] for d in devices)
            confined.sort(key=lambda v: (-problem.weights[v], v))
            raise PlanError(
                f"memory: {listed(problem, confined)} may only go to {names} and need "
                f"{need:.0f} bytes, which have {have:.0f} together; add memory or a device, or "
                "drop pins",
                nodes=_names(problem, confined),
                constraint="memory",
            )


def _names(problem: Problem, nodes: Iterable[int]) -> tuple[str, ...]:
    return tuple(problem.names[v] for v in nodes)


def listed(problem: Problem, nodes: Sequence[int]) -> str:
    """Return the names of some nodes for a message, and how many more there are."""
    names = ", ".join(repr(problem.names[v]) for v in nodes[:LISTED])
    more = f" and {len(nodes) - LISTED} more" if len(nodes) > LISTED else ""
    return f"{'nodes' if len(nodes) > 1 else 'node'} {names}{more}"
