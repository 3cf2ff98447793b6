"""Planner problems for tests and benchmarks: published files and generated graphs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from hetero.planning.solver.problem import Problem, make_problem

DATA = Path(__file__).parents[1] / "data" / "partition"


def load(path: Path | str, *, mask: float = 0.0, seed: int = 0, slow: float = 0.0) -> Problem:
    """Read the problem of one file of the device-placement data set.

    Its accelerators precede its CPUs. The memory limit and the ``cost`` of each tensor that is sent
    or received apply to accelerators alone.

    Parameters
    ----------
    mask, seed : float, int
        Share of nodes, drawn with ``seed``, that accelerators do not support.
    slow : float
        If not 0: one accelerator and one CPU that is ``slow`` times slower; both pay transfers,
        without a memory limit.
    """
    raw: dict[str, Any] = json.loads(Path(path).read_text())
    k, cpus = (1, 1) if slow else (int(raw["maxFPGAs"]), int(raw.get("maxCPUs", 0)))
    nodes = raw["nodes"]
    index = {node["id"]: v for v, node in enumerate(nodes)}
    n = len(nodes)
    times = np.empty((n, k + cpus))
    for v, node in enumerate(nodes):
        fast = float(node.get("fpgaLatency", 0.0))
        times[v, :k] = fast if node.get("supportedOnFpga", True) else np.inf
        times[v, k:] = fast * slow if slow else float(node["cpuLatency"])
    colours: dict[Any, list[int]] = {}
    for v, node in enumerate(nodes):
        if node.get("colorClass") is not None:
            colours.setdefault(node["colorClass"], []).append(v)
    groups = [g for g in colours.values() if len(g) > 1]
    if mask:
        grouped = {v for g in groups for v in g}
        whole = [*groups, *([v] for v in range(n) if v not in grouped)]
        rng = random.Random(seed)
        for group in whole:
            if rng.random() < mask:
                times[group, :k] = np.inf
    pays = np.array([1.0] * k + [1.0 if slow else 0.0] * cpus)
    uses: dict[int, list[int]] = {}
    cost: dict[int, float] = {}
    for edge in raw["edges"]:
        tail = index[edge["sourceId"]]
        uses.setdefault(tail, []).append(index[edge["destId"]])
        cost[tail] = max(cost.get(tail, 0.0), float(edge.get("cost", 0.0)))
    room = np.inf if slow else float(raw["maxSizePerFPGA"])
    return make_problem(
        times,
        [(t, heads, cost[t] * pays, cost[t] * pays) for t, heads in uses.items()],
        weights=np.array([float(node.get("size", 0.0)) for node in nodes]),
        memory=np.array([room] * k + [np.inf] * cpus),
        devices=[f"ACC.{d}" for d in range(k)] + [f"CPU.{d}" for d in range(cpus)],
        names=[str(node["id"]) for node in nodes],
        groups=groups,
    )


def random_problem(seed: int, *, nodes: int, devices: int, **limits: Any) -> Problem:
    """Return a random graph with unlike devices, unsupported nodes, and costly transfers."""
    rng = random.Random(seed)
    times = np.array([[rng.uniform(1, 10) for _ in range(devices)] for _ in range(nodes)])
    if rng.random() < 0.3:
        times[:, 1:2] = times[:, :1]
    for v in range(nodes):
        for d in range(devices):
            if rng.random() < 0.15 and np.isfinite(times[v]).sum() > 1:
                times[v, d] = np.inf
    tensors = []
    for tail in range(nodes - 1):
        heads = [v for v in range(tail + 1, nodes) if rng.random() < 2.0 / nodes]
        for _ in range(rng.choice((1, 1, 2))):
            cost = rng.choice((0.0, rng.uniform(0, 4)))
            tensors.append((tail, heads, np.full(devices, cost), np.full(devices, cost * 0.7)))
    return make_problem(
        times, tensors, weights=np.array([rng.uniform(0, 1) for _ in range(nodes)]), **limits
    )


def residual_network(nodes: int, seed: int) -> Problem:
    """Return residual blocks of parallel branches, for 2 accelerators and 2 CPUs.

    The accelerators do not support about one node in ten; all nodes of a block are of one size.
    """
    rng = random.Random(seed)
    times: list[list[float]] = []
    tensors: list[tuple[int, list[int], float]] = []

    def node(inputs: list[int], size: float) -> int:
        fast = size * rng.uniform(0.2, 1.0)
        times.append([fast, fast, 4 * fast, 4 * fast])
        for tail in inputs:
            tensors.append((tail, [len(times) - 1], size * 0.3))
        return len(times) - 1

    last = node([], 1.0)
    while len(times) < nodes:
        size, start, ends = rng.uniform(0.5, 2.0), last, []
        for _ in range(rng.choice((1, 2, 3))):
            end = start
            for _ in range(rng.randint(2, 6)):
                end = node([end], size)
            ends.append(end)
        last = node([start, *ends], size)
    table = np.array(times)
    table[np.array([rng.random() < 0.1 for _ in times]), :2] = np.inf
    uses: dict[int, tuple[list[int], float]] = {}
    for tail, heads, cost in tensors:
        entry = uses.setdefault(tail, ([], cost))
        entry[0].extend(heads)
    return make_problem(
        table,
        [(t, heads, np.full(4, cost), np.full(4, cost)) for t, (heads, cost) in uses.items()],
        devices=["ACC.0", "ACC.1", "CPU.0", "CPU.1"],
    )
