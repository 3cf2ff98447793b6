"""The planner's input: a graph of timed nodes and costed tensors, the devices, the constraints.

Plain numbers only: no ONNX, no plugin, no Ray. Nodes, tensors and devices are indices; names serve
messages. A tensor is a hyper-edge: one tail, any number of heads. It is sent at most once by the
device of its tail and received at most once by each other device that holds one of its heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetero.devices.errors import PlanError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: The device index of every node, in node order.
Assignment = tuple[int, ...]
#: Names that a message lists before it only counts.
LISTED = 6


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is to be planned."""

    #: Shape (nodes, devices), float64: seconds that a device is busy with a node, once per request;
    #: ``inf`` where the device does not support it.
    times: Floats
    #: Shape (tensors,), int64: the node that makes each tensor.
    tails: Ints
    #: The nodes that use each tensor, each once, the tail never among them.
    heads: tuple[tuple[int, ...], ...]
    #: Shape (tensors, devices), float64: seconds that a device is busy sending, or receiving, the
    #: tensor once.
    send: Floats
    receive: Floats
    #: Shape (nodes,), float64: bytes that a node's constants take on its device.
    weights: Floats
    #: Shape (devices,), float64: bytes that a device has for them; ``inf`` where it does not
    #: matter.
    memory: Floats
    #: Shape (devices,), float64: seconds that one subgraph costs a device on top of its nodes.
    dispatch: Floats
    devices: tuple[str, ...]
    names: tuple[str, ...]
    #: Class of each device. Devices of one class have equal times, costs and memory; a device with
    #: a pin is in a class of its own (`make_problem` sees to both).
    classes: tuple[int, ...]
    #: Pairs (node, device) that are given.
    pins: tuple[tuple[int, int], ...] = ()
    #: Nodes that must share a device, whichever it is.
    groups: tuple[tuple[int, ...], ...] = ()
    #: Cap on the number of subgraphs of a plan.
    max_subgraphs: int | None = None

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return int(self.times.shape[0])

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return int(self.times.shape[1])

    def edges(self) -> list[tuple[int, int]]:
        """Pairs (before, after) that a topological order keeps, sorted, each once."""
        return sorted(
            {(int(t), h) for t, hs in zip(self.tails, self.heads, strict=True) for h in hs}
        )


def make_problem(
    times: Floats,
    tensors: Sequence[tuple[int, Sequence[int], Floats, Floats]],
    *,
    weights: Floats | None = None,
    memory: Floats | None = None,
    devices: Sequence[str] = (),
    names: Sequence[str] = (),
    pins: Sequence[tuple[int, int]] = (),
    groups: Sequence[Sequence[int]] = (),
    dispatch: Floats | None = None,
    max_subgraphs: int | None = None,
) -> Problem:
    """Build a `Problem` from rows, with names, classes and limits filled in.

    `tensors` (tail, heads, send, receive) each, the last two in seconds by device. Repeated heads
        and the tail among its own heads are dropped; so is a tensor without heads left.
    """
    times = np.asarray(times, dtype=np.float64)
    n, k = times.shape
    tails: list[int] = []
    heads: list[tuple[int, ...]] = []
    send: list[Floats] = []
    receive: list[Floats] = []
    for tail, uses, out_cost, in_cost in tensors:
        kept = tuple(sorted({int(u) for u in uses} - {int(tail)}))
        if kept:
            tails.append(int(tail))
            heads.append(kept)
            send.append(out_cost)
            receive.append(in_cost)
    m = len(tails)
    send_rows = np.asarray(send, dtype=np.float64).reshape(m, k)
    receive_rows = np.asarray(receive, dtype=np.float64).reshape(m, k)
    bytes_of = np.zeros(n) if weights is None else np.asarray(weights, dtype=np.float64)
    room = np.full(k, np.inf) if memory is None else np.asarray(memory, dtype=np.float64)
    calls = np.zeros(k) if dispatch is None else np.asarray(dispatch, dtype=np.float64)
    columns = [times, send_rows, receive_rows, room[None, :], calls[None, :]]
    seen: dict[bytes, int] = {}
    classes = [
        seen.setdefault(np.concatenate([c[:, d] for c in columns]).tobytes(), len(seen))
        for d in range(k)
    ]
    # A pin tells a device from its class mates.
    pinned = {d for _, d in pins}
    classes = [max(classes) + 1 + d if d in pinned else c for d, c in enumerate(classes)]
    return Problem(
        times=times,
        tails=np.asarray(tails, dtype=np.int64),
        heads=tuple(heads),
        send=send_rows,
        receive=receive_rows,
        weights=bytes_of,
        memory=room,
        devices=tuple(devices) or tuple(f"device {d}" for d in range(k)),
        names=tuple(names) or tuple(f"node {v}" for v in range(n)),
        classes=tuple(classes),
        pins=tuple((int(v), int(d)) for v, d in pins),
        groups=tuple(tuple(sorted(set(g))) for g in groups if len(set(g)) > 1),
        dispatch=calls,
        max_subgraphs=max_subgraphs,
    )


def sums(index: Ints, values: Floats, count: int) -> Floats:
    """Sum of the values at each index from 0 to ``count - 1``, shape (count,)."""
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)


def loads(problem: Problem, assignment: Assignment) -> Floats:
    """Seconds that each device computes, sends and receives, without dispatch, shape (devices,)."""
    n, k = problem.times.shape
    where = np.asarray(assignment, dtype=np.int64)
    compute = sums(where, problem.times[np.arange(n), where], k)
    m = len(problem.heads)
    if not m:
        return compute
    owner = np.repeat(np.arange(m), [len(hs) for hs in problem.heads])
    flat = np.fromiter((h for hs in problem.heads for h in hs), dtype=np.int64, count=owner.size)
    present = np.zeros((m, k), dtype=bool)
    present[owner, where[flat]] = True
    tail_on = where[problem.tails]
    present[np.arange(m), tail_on] = False
    received: Floats = (problem.receive * present).sum(axis=0)
    crossing = present.any(axis=1)
    sent = sums(tail_on[crossing], problem.send[np.arange(m), tail_on][crossing], k)
    return compute + sent + received


def wary(problem: Problem) -> Problem:
    """The problem with the cost of a subgraph put on what it receives.

    A device's subgraphs other than its first receive something, so that this counts their dispatch,
    often more than once: searches see only loads, and this makes them shy of fragments.
    """
    return replace(problem, receive=problem.receive + problem.dispatch)


def is_feasible(problem: Problem, assignment: Assignment) -> bool:
    """Whether support, memory, pins and colocation hold; the subgraph cap is `evaluate`'s."""
    where = np.asarray(assignment, dtype=np.int64)
    if not np.isfinite(problem.times[np.arange(problem.node_count), where]).all():
        return False
    held = sums(where, problem.weights, problem.device_count)
    if (held > problem.memory * (1 + 1e-12)).any():
        return False
    if any(assignment[v] != d for v, d in problem.pins):
        return False
    return all(len({assignment[v] for v in group}) == 1 for group in problem.groups)


def allowed(problem: Problem) -> NDArray[np.bool_]:
    """Which device each node may take by support and pins, shape (nodes, devices)."""
    mask = np.isfinite(problem.times)
    for node, device in problem.pins:
        only = np.zeros(problem.device_count, dtype=bool)
        only[device] = True
        mask[node] &= only
    return mask


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
