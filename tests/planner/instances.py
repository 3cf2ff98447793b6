"""Read partition instances as planner problems: the published JSON files, PipeEdge, random graphs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from hetero.planner.problem import Problem, make_problem

DATA = Path(__file__).parents[1] / "data" / "partition"


def load(path: Path | str, *, mask: float = 0.0, seed: int = 0, slow: float = 0.0) -> Problem:
    """Problem of one file of the device-placement data set.

    Its accelerators come first, then its CPUs. Accelerators pay ``cost`` for each tensor that they
    send or receive and have the memory limit; CPUs have neither.

    Parameters
    ----------
    mask, seed : float, int
        Share of nodes, drawn with ``seed``, that accelerators are made not to support.
    slow : float
        When not 0: one accelerator and one CPU that is ``slow`` times slower, both pay transfers,
        no memory limit.
    """
    raw: dict[str, Any] = json.loads(Path(path).read_text())
    k, cpus = (1, 1) if slow else (int(raw["maxFPGAs"]), int(raw.get("maxCPUs", 0)))
    nodes = raw["nodes"]
    index = {node["id"]: v for v, node in enumerate(nodes)}
    n = len(nodes)
    times = np.empty((n, k + cpus))
    for v, node in enumerate(nodes):
        fast = float(node["fpgaLatency"])
        times[v, :k] = fast if node.get("supportedOnFpga", True) else np.inf
        times[v, k:] = fast * slow if slow else float(node["cpuLatency"])
    colours: dict[Any, list[int]] = {}
    for v, node in enumerate(nodes):
        if node.get("colorClass") is not None:
            colours.setdefault(node["colorClass"], []).append(v)
    groups = [g for g in colours.values() if len(g) > 1]
    if mask:
        whole = [*groups, *([v] for v in range(n) if not any(v in set(g) for g in groups))]
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
    backward = [bool(node.get("isBackwardNode", False)) for node in nodes]
    precedence = None
    if any(backward):
        # A backward pass mirrors the forward one: it runs on the same devices the other way round.
        precedence = []
        for tail, heads in uses.items():
            for head in heads:
                if backward[tail] and backward[head]:
                    precedence.append((head, tail))
                elif not backward[tail] and not backward[head]:
                    precedence.append((tail, head))
    room = np.inf if slow else float(raw["maxSizePerFPGA"])
    return make_problem(
        times,
        [(t, heads, cost[t] * pays, cost[t] * pays) for t, heads in uses.items()],
        weights=np.array([float(node.get("size", 0.0)) for node in nodes]),
        memory=np.array([room] * k + [np.inf] * cpus),
        devices=[f"ACC.{d}" for d in range(k)] + [f"CPU.{d}" for d in range(cpus)],
        names=[str(node["id"]) for node in nodes],
        groups=groups,
        precedence=precedence,
    )
