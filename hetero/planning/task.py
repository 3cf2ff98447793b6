"""Planning tasks: model, supports, costs and constraints, and their translation for the solver.

Only request-dependent nodes are planned. Nodes that depend on constants alone (computed weights,
shape arithmetic) cost nothing after compilation; they follow their readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hetero.affinity.affinity import NO_PINS, Affinity, is_literal
from hetero.affinity.layers import find_layers
from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.support import Support
from hetero.partition.replicas import ReplicaDevices
from hetero.planning.cost.costs import Costs, DeviceCosts, LinearCost, Time
from hetero.planning.cost.estimation import value_nbytes, with_input_shapes
from hetero.planning.solver.candidates import Hint
from hetero.planning.solver.problem import Problem, make_problem

_FREE = LinearCost(0.0, 0.0, "estimated")


@dataclass(frozen=True, slots=True)
class Constraints:
    """Constraints on a plan, in addition to the devices' support."""

    #: Nodes with a fixed device.
    pins: Affinity = NO_PINS
    #: Group name -> nodes that must share a device.
    colocation: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Device -> bytes available for weights; unlimited if absent.
    memory_nbytes: Mapping[str, int] = field(default_factory=dict)
    #: Maximum number of subgraphs.
    max_subgraphs: int | None = None
    #: Number of requests that keep states at the same time.
    sessions: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """A model to plan, with its devices, costs and constraints."""

    model: Model
    #: In order of priority.
    devices: tuple[str, ...]
    #: Device -> its support of the whole model.
    supports: Mapping[str, Support]
    costs: Costs
    constraints: Constraints = Constraints()
    #: Device -> the further devices that run its subgraphs.
    replicas: ReplicaDevices = field(default_factory=dict)

    @property
    def all_devices(self) -> tuple[str, ...]:
        """The devices, followed by their replicas."""
        return (*self.devices, *(d for device in self.devices for d in self.members(device)[1:]))

    def members(self, device: str) -> tuple[str, ...]:
        """Return a device and the devices that run the same subgraphs."""
        return (device, *self.replicas.get(device, ()))


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """The solver's problem for a task."""

    problem: Problem
    #: The same problem with minimum transfer costs, for lower bounds.
    floor: Problem
    #: The task; the open shapes of its model are those of the costs.
    task: Task
    #: Position in the model of each node of the problem.
    positions: tuple[int, ...]

    def affinity(self, assignment: Sequence[int], reason: str) -> Affinity:
        """Return the affinity of all nodes for an assignment of the problem's nodes.

        Pinned nodes keep their device; all other nodes follow their readers.
        """
        model, devices, pins = self.task.model, self.task.devices, self.task.constraints.pins
        names = [model.nodes[position].name for position in self.positions]
        device_of = {n: devices[d] for n, d in zip(names, assignment, strict=True)}
        reasons = dict.fromkeys(model.node_names, reason)
        # In reverse topological order, so that readers are placed before the nodes they read.
        for node in reversed(model.nodes):
            name = node.name
            if name in pins:
                device_of.setdefault(name, pins[name])
                reasons[name] = pins.reasons.get(name, "pin")
            elif name not in device_of:
                anywhere = is_literal(model, node)
                options = [d for d in devices if anywhere or name in self.task.supports[d]]
                readers = (r.name for r in model.readers(node) if device_of[r.name] in options)
                reader = next(readers, None)
                device_of[name] = device_of[reader] if reader else (options or devices)[0]
                reasons[name] = f"follows {reader}" if reader else reason
        return Affinity({n: device_of[n] for n in model.node_names}, reasons)


def node_time(costs: DeviceCosts, name: str, hint: Hint) -> Time | None:
    """Return the time of a node within a subgraph, or None if the device does not support it."""
    unloaded = costs.nodes.get(name)
    if unloaded is None:
        return None
    factor = costs.concurrent_load.time_factor if hint == "THROUGHPUT" else 1.0
    return Time(unloaded.seconds * factor, unloaded.source)


def build_problem(task: Task, hint: Hint) -> TaskProblem:
    """Translate a task into a problem for the solver.

    `hint`: for ``THROUGHPUT`` a transfer costs the seconds that it keeps devices busy, for
        ``LATENCY`` its duration.
    """
    model = with_input_shapes(task.model, task.costs.shapes)
    positions = request_dependent_positions(model)
    index_of = {p: i for i, p in enumerate(positions)}
    names = [model.nodes[p].name for p in positions]
    costs = [task.costs.devices[device] for device in task.devices]
    counts = np.array([len(task.members(d)) if hint == "THROUGHPUT" else 1 for d in task.devices])
    pins = task.constraints.pins
    times = np.full((len(positions), len(costs)), math.inf)
    for i, name in enumerate(names):
        for device_number, device in enumerate(task.devices):
            if name in task.supports[device]:
                times[i, device_number] = _replicated_time(task, device, name, hint)
    index_by_name = {name: i for i, name in enumerate(names)}
    device_numbers = {device: d for d, device in enumerate(task.devices)}
    memory_nbytes = task.constraints.memory_nbytes
    overheads_s = [c.concurrent_load.overhead_s if hint == "THROUGHPUT" else 0.0 for c in costs]

    def make(transfer_costs: tuple[Sequence[LinearCost], Sequence[LinearCost]]) -> Problem:
        return make_problem(
            times,
            _tensors(model, index_of, counts, *transfer_costs),
            weights=np.array(_weight_nbytes(model, positions, task.constraints.sessions)),
            memory=np.array(
                [
                    min(float(memory_nbytes.get(m, math.inf)) for m in task.members(d))
                    for d in task.devices
                ]
            ),
            devices=task.devices,
            names=names,
            pins=[
                (index_by_name[name], device_numbers[device])
                for name, device in pins.items()
                if name in index_by_name and device in device_numbers
            ],
            groups=_colocation_groups(task, index_by_name, times, pins),
            dispatch=np.array(overheads_s) / counts,
            max_subgraphs=task.constraints.max_subgraphs,
        )

    highest = _device_transfer_costs(task, hint, max)
    lowest = _device_transfer_costs(task, hint, min)
    problem = make(highest)
    floor = problem if lowest == highest else make(lowest)
    return TaskProblem(problem, floor, replace(task, model=model), positions)


def transfer_cost(costs: Costs, sender: str, receiver: str, hint: Hint) -> LinearCost:
    """Return the cost of a transfer between two devices, or between `CLIENT` and a device."""
    transfer = costs.transfers.get((sender, receiver))
    if transfer is None:
        return _FREE
    return transfer.busy if hint == "THROUGHPUT" else transfer.latency


def _device_transfer_costs(
    task: Task, hint: Hint, pick: Callable[[Iterable[float]], float]
) -> tuple[list[LinearCost], list[LinearCost]]:
    """Return the costs of each device for a tensor that it sends, and for one that it receives.

    For latency the receiver pays for the whole transfer.

    `pick`: combines the costs of a device's transfers, such as `max`.
    """
    devices = set(task.devices)
    costs_by_ends = {
        ends: t.busy if hint == "THROUGHPUT" else t.latency
        for ends, t in task.costs.transfers.items()
        if devices.issuperset(ends)
    }

    def combine(side: int, device: str) -> LinearCost:
        costs = [cost for ends, cost in costs_by_ends.items() if ends[side] == device]
        if not costs:
            return _FREE
        return LinearCost(pick(c.a for c in costs), pick(c.b for c in costs), costs[0].source)

    send = [_FREE if hint == "LATENCY" else combine(0, d) for d in task.devices]
    return send, [combine(1, d) for d in task.devices]


def _replicated_time(task: Task, device: str, name: str, hint: Hint) -> float:
    """Return the time of a node on a device and its replicas together; ``inf`` if unsupported.

    For ``THROUGHPUT`` they share the requests in proportion to their speed, so the time is that of
    one fast device. For ``LATENCY`` the slowest counts.
    """
    times = [node_time(task.costs.devices[d], name, hint) for d in task.members(device)]
    seconds = [math.inf if time is None else time.seconds for time in times]
    if hint == "LATENCY" or len(seconds) == 1 or min(seconds) <= 0:
        return max(seconds)
    return 1 / sum(1 / s for s in seconds) if max(seconds) < math.inf else math.inf


def _tensors(
    model: Model,
    index_of: Mapping[int, int],
    counts: np.ndarray,
    send: Sequence[LinearCost],
    receive: Sequence[LinearCost],
) -> list[tuple[int, list[int], np.ndarray, np.ndarray]]:
    """Return the tensors between nodes: producer, readers, send and receive times by device.

    `counts`: number of devices that share the work of each device.
    """
    tensors = []
    for position, producer in index_of.items():
        for value in model.nodes[position].writes:
            readers = [index_of[r] for r in model.consumers.get(value, ()) if r in index_of]
            if readers:
                nbytes = value_nbytes(model.spec(value))
                send_s = np.array([line(nbytes) for line in send]) / counts
                receive_s = np.array([line(nbytes) for line in receive]) / counts
                tensors.append((producer, readers, send_s, receive_s))
    return tensors


def _weight_nbytes(model: Model, positions: Sequence[int], sessions: int) -> list[float]:
    """Return the bytes of constants, computed weights and states, by their first reader."""
    request_positions = set(positions)
    counted_values: set[str] = set()
    states = {v.name: value_nbytes(v.input) * sessions for v in variables_of(model)}
    weights = []
    for p in positions:
        nbytes = 0
        for value in model.nodes[p].reads:
            nbytes += states.pop(value, 0)
            is_weight = (
                value in model.constants or model.producers.get(value, p) not in request_positions
            )
            if is_weight and value not in counted_values:
                counted_values.add(value)
                nbytes += value_nbytes(model.spec(value))
        weights.append(float(nbytes))
    return weights


def _colocation_groups(
    task: Task, index: Mapping[str, int], times: np.ndarray, pins: Mapping[str, str]
) -> list[list[int]]:
    """Return the groups of nodes that must share a device.

    These are the user's groups, and others that exclude no device and contradict no pin: nodes
    that a device fuses, because their measured times hold for the fused node only; the readers and
    the producer of a state, because the state would cross otherwise; and the nodes of a layer that
    the same devices support.
    """
    groups = [
        [index[n] for n in nodes if n in index] for nodes in task.constraints.colocation.values()
    ]
    user_nodes = {i for group in groups for i in group}
    device_costs = [task.costs.devices[device] for device in task.devices]
    candidates = [names for costs in device_costs for names in costs.fused_groups]
    layers = find_layers(task.model)
    for layer in layers if len(layers) > 1 else ():
        by_support: dict[bytes, list[str]] = {}
        for name in layer:
            if name in index:
                by_support.setdefault(np.isfinite(times[index[name]]).tobytes(), []).append(name)
        candidates += map(tuple, by_support.values())
    for names in (*candidates, *_state_groups(task.model)):
        group = [index[n] for n in names if n in index]
        support = {np.isfinite(times[i]).tobytes() for i in group}
        can_share = len(support) == 1 and len({pins.get(n) for n in names}) == 1
        if can_share and not user_nodes.intersection(group):
            groups.append(group)
    return [g for g in groups if len(g) > 1]


def _state_groups(model: Model) -> list[list[str]]:
    """Return, for each state, the nodes that read it and the node that produces its next value."""
    groups = []
    for state_input, state_output in variables_of(model):
        producer = model.producers.get(state_output.name)
        positions = (
            *model.consumers.get(state_input.name, ()),
            *(() if producer is None else (producer,)),
        )
        groups.append([model.nodes[p].name for p in dict.fromkeys(positions)])
    return groups
