"""Planning problem: a graph with node times and tensor costs, devices, and constraints.

The problem consists of numbers only. Nodes, tensors and devices are indices; names are for
messages. A tensor is a hyper-edge with one tail (its producer) and any number of heads (its
readers). The device of the tail sends it at most once, and every other device with one of its
heads receives it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetero.devices.errors import PlanError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: The device index of each node, in node order.
Assignment = tuple[int, ...]
#: Maximum number of names in a message.
MAX_LISTED_NODES = 6


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A planning problem; `make_problem` fills in defaults."""

    #: Shape (nodes, devices), float64: seconds that a device is busy with a node per request;
    #: ``inf`` if the device does not support it.
    times: Floats
    #: Shape (tensors,), int64: the node that produces each tensor.
    tails: Ints
    #: The nodes that read each tensor, without duplicates and without the tail.
    heads: tuple[tuple[int, ...], ...]
    #: Shape (tensors, devices), float64: seconds that a device is busy sending, or receiving, the
    #: tensor.
    send: Floats
    receive: Floats
    #: Shape (nodes,), float64: bytes of a node's constants.
    weights: Floats
    #: Shape (devices,), float64: bytes available for constants; ``inf`` if unlimited.
    memory: Floats
    #: Shape (devices,), float64: overhead of a subgraph in seconds, in addition to its nodes.
    dispatch: Floats
    devices: tuple[str, ...]
    names: tuple[str, ...]
    #: Class of each device. Devices of one class have equal times, costs and memory; a device with
    #: a pin forms a separate class.
    classes: tuple[int, ...]
    #: Fixed pairs (node, device).
    pins: tuple[tuple[int, int], ...] = ()
    #: Groups of nodes that must share a device.
    groups: tuple[tuple[int, ...], ...] = ()
    #: Maximum number of subgraphs of a plan.
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
        """Return the edges (producer, reader) of the graph, sorted, without duplicates."""
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
    """Build a `Problem` with default names and limits, and with the classes of devices.

    `tensors`: (tail, heads, send, receive) of each; the last two are seconds by device. Duplicate
        heads, a head equal to the tail, and tensors without heads are dropped.
    """
    times = np.asarray(times, dtype=np.float64)
    n, k = times.shape
    tails: list[int] = []
    heads: list[tuple[int, ...]] = []
    send: list[Floats] = []
    receive: list[Floats] = []
    for tail, node_numbers, out_cost, in_cost in tensors:
        readers = tuple(sorted({int(u) for u in node_numbers} - {int(tail)}))
        if readers:
            tails.append(int(tail))
            heads.append(readers)
            send.append(out_cost)
            receive.append(in_cost)
    m = len(tails)
    send_rows = np.asarray(send, dtype=np.float64).reshape(m, k)
    receive_rows = np.asarray(receive, dtype=np.float64).reshape(m, k)
    weight_row = np.zeros(n) if weights is None else np.asarray(weights, dtype=np.float64)
    memory_row = np.full(k, np.inf) if memory is None else np.asarray(memory, dtype=np.float64)
    dispatch_row = np.zeros(k) if dispatch is None else np.asarray(dispatch, dtype=np.float64)
    columns = [times, send_rows, receive_rows, memory_row[None, :], dispatch_row[None, :]]
    class_numbers: dict[bytes, int] = {}
    signatures = [np.concatenate([c[:, d] for c in columns]).tobytes() for d in range(k)]
    classes = [class_numbers.setdefault(s, len(class_numbers)) for s in signatures]
    # A pinned device is not interchangeable with others of its class.
    pinned_devices = {d for _, d in pins}
    classes = [max(classes) + 1 + d if d in pinned_devices else c for d, c in enumerate(classes)]
    return Problem(
        times=times,
        tails=np.asarray(tails, dtype=np.int64),
        heads=tuple(heads),
        send=send_rows,
        receive=receive_rows,
        weights=weight_row,
        memory=memory_row,
        devices=tuple(devices) or tuple(f"device {d}" for d in range(k)),
        names=tuple(names) or tuple(f"node {v}" for v in range(n)),
        classes=tuple(classes),
        pins=tuple((int(v), int(d)) for v, d in pins),
        groups=tuple(tuple(sorted(set(g))) for g in groups if len(set(g)) > 1),
        dispatch=dispatch_row,
        max_subgraphs=max_subgraphs,
    )


def sum_by_index(index: Ints, values: Floats, count: int) -> Floats:
    """Return the sum of the values of each index from 0 to ``count - 1``, shape (count,)."""
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)


def device_seconds(problem: Problem, assignment: Assignment) -> Floats:
    """Return the seconds that each device computes, sends and receives, shape (devices,).

    Dispatch overheads are not included.
    """
    n, k = problem.times.shape
    device_of = np.asarray(assignment, dtype=np.int64)
    compute = sum_by_index(device_of, problem.times[np.arange(n), device_of], k)
    m = len(problem.heads)
    if not m:
        return compute
    tensor_numbers = np.repeat(np.arange(m), [len(hs) for hs in problem.heads])
    all_heads = (head for heads in problem.heads for head in heads)
    readers = np.fromiter(all_heads, dtype=np.int64, count=tensor_numbers.size)
    has_reader = np.zeros((m, k), dtype=bool)
    has_reader[tensor_numbers, device_of[readers]] = True
    tail_on = device_of[problem.tails]
    has_reader[np.arange(m), tail_on] = False
    receive_s: Floats = (problem.receive * has_reader).sum(axis=0)
    crossing = has_reader.any(axis=1)
    send_s = sum_by_index(tail_on[crossing], problem.send[np.arange(m), tail_on][crossing], k)
    return compute + send_s + receive_s


def with_dispatch_margin(problem: Problem) -> Problem:
    """Return the problem with the dispatch overhead added to the cost of each received tensor.

    Searches only see loads. Every subgraph except a device's first receives tensors, so this
    margin counts its dispatch at least once and discourages fragmented plans.
    """
    return replace(problem, receive=problem.receive + problem.dispatch)


def is_feasible(problem: Problem, assignment: Assignment) -> bool:
    """Return whether an assignment meets support, memory, pins and colocation.

    The number of subgraphs is checked later, by their prediction.
    """
    device_of = np.asarray(assignment, dtype=np.int64)
    if not np.isfinite(problem.times[np.arange(problem.node_count), device_of]).all():
        return False
    used_nbytes = sum_by_index(device_of, problem.weights, problem.device_count)
    if (used_nbytes > problem.memory * (1 + 1e-12)).any():
        return False
    if any(assignment[v] != d for v, d in problem.pins):
        return False
    return all(len({assignment[v] for v in group}) == 1 for group in problem.groups)


def allowed_devices(problem: Problem) -> NDArray[np.bool_]:
    """Return the mask of devices that support and pins allow for each node (nodes, devices)."""
    mask = np.isfinite(problem.times)
    for node, device in problem.pins:
        pin_mask = np.zeros(problem.device_count, dtype=bool)
        pin_mask[device] = True
        mask[node] &= pin_mask
    return mask


def check_constraints(problem: Problem) -> None:
    """Raise PlanError if support, pins, memory or the subgraph limit exclude every plan.

    These are necessary conditions only; packing the weights may still fail.
    """
    supported = np.isfinite(problem.times)
    unsupported = np.flatnonzero(~supported.any(axis=1)).tolist()
    if unsupported:
        raise PlanError(
            f"support: {list_nodes(problem, unsupported)} cannot run on any of "
            f"{', '.join(problem.devices)}; add a device that supports them",
            nodes=_names(problem, unsupported),
            constraint="support",
        )
    first_pin: dict[int, int] = {}
    for v, d in problem.pins:
        if not supported[v, d]:
            supporting = [
                name for name, ok in zip(problem.devices, supported[v], strict=True) if ok
            ]
            raise PlanError(
                f"pins: node {problem.names[v]!r} is pinned to {problem.devices[d]}, which does "
                f"not support it; supported by {', '.join(supporting)}; move or remove the pin",
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
    max_subgraphs = problem.max_subgraphs
    allowed = allowed_devices(problem)
    forced_devices = {int(allowed[v].argmax()) for v in np.flatnonzero(allowed.sum(axis=1) == 1)}
    if max_subgraphs is not None and max_subgraphs < max(1, len(forced_devices)):
        nodes = [int(v) for v in np.flatnonzero(allowed.sum(axis=1) == 1)]
        raise PlanError(
            f"subgraphs: expected at most {max_subgraphs}, but {list_nodes(problem, nodes)} can "
            f"only run on {len(forced_devices)} different devices; raise the limit to "
            f"{max(1, len(forced_devices))} or more, or remove pins",
            nodes=_names(problem, nodes),
            constraint="subgraphs",
        )


def _check_memory(problem: Problem) -> None:
    allowed = allowed_devices(problem)
    max_room = np.where(allowed, problem.memory, -np.inf).max(axis=1)
    too_large = np.flatnonzero(problem.weights > max_room * (1 + 1e-12)).tolist()
    if too_large:
        v = max(too_large, key=lambda v: (problem.weights[v], -v))
        raise PlanError(
            f"memory: node {problem.names[v]!r} has {problem.weights[v]:.0f} bytes of constants, "
            f"but the largest allowed device has {max_room[v]:.0f} bytes; give a device more "
            "memory, or move the node's pin",
            nodes=_names(problem, too_large),
            constraint="memory",
        )
    patterns = {tuple(np.flatnonzero(row).tolist()) for row in np.unique(allowed, axis=0)}
    patterns.add(tuple(range(problem.device_count)))
    for devices in sorted(patterns, key=lambda s: (len(s), s)):
        outside = np.ones(problem.device_count, dtype=bool)
        outside[list(devices)] = False
        confined = np.flatnonzero(~(allowed & outside).any(axis=1)).tolist()
        required = float(problem.weights[confined].sum())
        available = float(problem.memory[list(devices)].sum())
        if required > available * (1 + 1e-12):
            names = ", ".join(problem.devices[d] for d in devices)
            confined.sort(key=lambda v: (-problem.weights[v], v))
            raise PlanError(
                f"memory: {list_nodes(problem, confined)} can only run on {names} and need "
                f"{required:.0f} bytes, but these have {available:.0f}; add memory or a device, or "
                "remove pins",
                nodes=_names(problem, confined),
                constraint="memory",
            )


def _names(problem: Problem, nodes: Iterable[int]) -> tuple[str, ...]:
    return tuple(problem.names[v] for v in nodes)


def list_nodes(problem: Problem, nodes: Sequence[int]) -> str:
    """Return the first names of some nodes for a message, and the number of the others."""
    names = ", ".join(repr(problem.names[v]) for v in nodes[:MAX_LISTED_NODES])
    rest = f" and {len(nodes) - MAX_LISTED_NODES} more" if len(nodes) > MAX_LISTED_NODES else ""
    return f"{'nodes' if len(nodes) > 1 else 'node'} {names}{rest}"
