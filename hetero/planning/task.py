"""From a model, what devices say of it, and costs: the planner's problem.

Only nodes that every request runs are planned. What depends on no input (weights made by nodes,
shape arithmetic) costs devices nothing once compiled: it follows the nodes that read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hetero.affinity.affinity import NO_PINS, Affinity, is_literal
from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.support import Support
from hetero.planning.cost.costs import Costs, DeviceCosts, Line, Time
from hetero.planning.cost.estimation import value_nbytes, with_shapes
from hetero.planning.layers import find_layers
from hetero.planning.solver.candidates import Hint
from hetero.planning.solver.problem import Problem, make_problem

_NOTHING = Line(0.0, 0.0, "estimated")


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a plan must obey besides the devices' support."""

    #: Nodes that are placed already.
    pins: Affinity = NO_PINS
    #: Name of a group -> nodes that share a device.
    colocation: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Device -> bytes that it has for weights; unlimited where absent.
    memory_nbytes: Mapping[str, int] = field(default_factory=dict)
    #: The most subgraphs that a plan may have.
    max_subgraphs: int | None = None
    #: How many requests keep states at once.
    sessions: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """A planning task."""

    model: Model
    #: In order of priority.
    devices: tuple[str, ...]
    #: Device -> its answer about the whole model.
    supports: Mapping[str, Support]
    costs: Costs
    #: What a plan must obey.
    constraints: Constraints = Constraints()


@dataclass(frozen=True, slots=True)
class Planned:
    """A problem, and what its nodes are in the model."""

    problem: Problem
    #: The same with costs that no plan falls below: what bounds are proven on.
    floor: Problem
    #: The task, the open shapes of its model filled from the costs.
    task: Task
    #: Positions in the model of the problem's nodes.
    positions: tuple[int, ...]

    def affinity(self, assignment: Sequence[int], why: str) -> Affinity:
        """Return every node's device: as assigned, by pin, or with its readers."""
        model, devices, pins = self.task.model, self.task.devices, self.task.constraints.pins
        names = [model.nodes[position].name for position in self.positions]
        placed = {n: devices[d] for n, d in zip(names, assignment, strict=True)}
        reasons = dict.fromkeys(model.node_names, why)
        # Readers come after what they read: backwards, each is placed before it is asked.
        for node in reversed(model.nodes):
            name = node.name
            if name in pins:
                placed.setdefault(name, pins[name])
                reasons[name] = pins.reasons.get(name, "pin")
            elif name not in placed:
                able = [
                    d for d in devices if name in self.task.supports[d] or is_literal(model, node)
                ]
                reader = next((r.name for r in model.readers(node) if placed[r.name] in able), None)
                placed[name] = placed[reader] if reader else (able or devices)[0]
                reasons[name] = f"follows {reader}" if reader else why
        return Affinity({n: placed[n] for n in model.node_names}, reasons)


def node_seconds(costs: DeviceCosts, name: str, hint: Hint) -> Time | None:
    """Seconds of a node inside a subgraph, or None where the device does not support it."""
    alone = costs.nodes.get(name)
    if alone is None:
        return None
    load = costs.company.load if hint == "THROUGHPUT" else 1.0
    return Time(alone.seconds * load, alone.source)


def build(task: Task, hint: Hint) -> Planned:
    """Return the planner's problem of a task.

    `hint`: whether transfers cost what they keep devices from computing, or how long they take.
    """
    model = with_shapes(task.model, task.costs.shapes)
    positions = request_dependent_positions(model)
    place = {p: i for i, p in enumerate(positions)}
    names = [model.nodes[p].name for p in positions]
    costs = [task.costs.devices[d] for d in task.devices]
    pins = task.constraints.pins
    times = np.full((len(positions), len(costs)), math.inf)
    for i, name in enumerate(names):
        for d, (device, cost) in enumerate(zip(task.devices, costs, strict=True)):
            seconds = node_seconds(cost, name, hint)
            if seconds is not None and name in task.supports[device]:
                times[i, d] = seconds.seconds
    index = {name: i for i, name in enumerate(names)}
    number = {device: d for d, device in enumerate(task.devices)}
    memory = task.constraints.memory_nbytes

    def problem(lines: tuple[Sequence[Line], Sequence[Line]]) -> Problem:
        return make_problem(
            times,
            _tensors(model, place, *lines),
            weights=np.array(_weights(model, positions, task.constraints.sessions)),
            memory=np.array([float(memory.get(d, math.inf)) for d in task.devices]),
            devices=task.devices,
            names=names,
            pins=[(index[n], number[d]) for n, d in pins.items() if n in index and d in number],
            groups=_groups(task, index, times, pins),
            dispatch=np.array(
                [c.company.overhead_s if hint == "THROUGHPUT" else 0.0 for c in costs]
            ),
            max_subgraphs=task.constraints.max_subgraphs,
        )

    costliest, cheapest = _lines(task, hint, max), _lines(task, hint, min)
    whole = problem(costliest)
    floor = whole if cheapest == costliest else problem(cheapest)
    return Planned(whole, floor, replace(task, model=model), positions)


def way(costs: Costs, sender: str, receiver: str, hint: Hint) -> Line:
    """Return what a tensor takes from one to the other; `CLIENT` is one of them at the ends."""
    transfer = costs.transfers.get((sender, receiver))
    if transfer is None:
        return _NOTHING
    return transfer.busy if hint == "THROUGHPUT" else transfer.latency


def _lines(
    task: Task, hint: Hint, pick: Callable[[Iterable[float]], float]
) -> tuple[list[Line], list[Line]]:
    """Return what each device pays for a tensor that it sends, and that it receives.

    For latency the receiver pays the whole way. `pick` picks one of the figures of a device's ways.
    """
    wanted = set(task.devices)
    ways = {
        ends: t.busy if hint == "THROUGHPUT" else t.latency
        for ends, t in task.costs.transfers.items()
        if wanted.issuperset(ends)
    }

    def line(side: int, device: str) -> Line:
        found = [way for ends, way in ways.items() if ends[side] == device]
        if not found:
            return _NOTHING
        return Line(pick(w.a for w in found), pick(w.b for w in found), found[0].source)

    send = [_NOTHING if hint == "LATENCY" else line(0, d) for d in task.devices]
    return send, [line(1, d) for d in task.devices]


def _tensors(
    model: Model, place: Mapping[int, int], send: Sequence[Line], receive: Sequence[Line]
) -> list[tuple[int, list[int], np.ndarray, np.ndarray]]:
    """Return what nodes of the problem hand to each other."""
    tensors = []
    for position, tail in place.items():
        for value in model.nodes[position].writes:
            heads = [place[r] for r in model.consumers.get(value, ()) if r in place]
            if heads:
                nbytes = value_nbytes(model.spec(value))
                gone = np.array([line(nbytes) for line in send])
                came = np.array([line(nbytes) for line in receive])
                tensors.append((tail, heads, gone, came))
    return tensors


def _weights(model: Model, positions: Sequence[int], sessions: int) -> list[float]:
    """Bytes of constants, made ones included, and of sessions' states, by node that reads first."""
    alive = set(positions)
    counted: set[str] = set()
    states = {v.name: value_nbytes(v.input) * sessions for v in variables_of(model)}
    found = []
    for p in positions:
        nbytes = 0
        for value in model.nodes[p].reads:
            nbytes += states.pop(value, 0)
            fixed = value in model.constants or model.producers.get(value, p) not in alive
            if fixed and value not in counted:
                counted.add(value)
                nbytes += value_nbytes(model.spec(value))
        found.append(float(nbytes))
    return found


def _groups(
    task: Task, index: Mapping[str, int], times: np.ndarray, pins: Mapping[str, str]
) -> list[list[int]]:
    """Colocation groups: what the user wants, what a device runs as one, and who shares a state.

    Nodes that a device fuses stay together where that forbids no device and breaks no pin: apart
    they do not take what was measured. So do those that read a state and the one that makes its
    next value, else it would cross once more, and those of a layer that the same devices run.
    """
    groups = [
        [index[n] for n in nodes if n in index] for nodes in task.constraints.colocation.values()
    ]
    given = {i for group in groups for i in group}
    wishes = [names for device in task.devices for names in task.costs.devices[device].fused]
    layers = find_layers(task.model)
    for layer in layers if len(layers) > 1 else ():
        alike: dict[bytes, list[str]] = {}
        for name in layer:
            if name in index:
                alike.setdefault(np.isfinite(times[index[name]]).tobytes(), []).append(name)
        wishes += map(tuple, alike.values())
    for names in (*wishes, *_sharing_state(task.model)):
        group = [index[n] for n in names if n in index]
        support = {np.isfinite(times[i]).tobytes() for i in group}
        together = len(support) == 1 and len({pins.get(n) for n in names}) == 1
        if together and not given.intersection(group):
            groups.append(group)
    return [g for g in groups if len(g) > 1]


def _sharing_state(model: Model) -> list[list[str]]:
    """Return for each state the nodes that read it, and the one that makes its next value."""
    found = []
    for read, made in variables_of(model):
        maker = model.producers.get(made.name)
        positions = (*model.consumers.get(read.name, ()), *(() if maker is None else (maker,)))
        found.append([model.nodes[p].name for p in dict.fromkeys(positions)])
    return found
