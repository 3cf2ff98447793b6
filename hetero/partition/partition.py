"""Cutting a model into subgraphs, one device each, whose graph has no cycle.

Every node but a literal lies in one subgraph. Constants (initializers, and `Constant` nodes that
something reads) are copied to each subgraph that reads them and never cross; any other value that
a subgraph needs from another crosses once, as a wire. Values keep their names everywhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hetero.affinity.affinity import Affinity, follows, some
from hetero.affinity.request_dependence import weight_positions
from hetero.devices.errors import AffinityError
from hetero.devices.model.attributes import draws
from hetero.devices.model.model import Model
from hetero.partition.clustering import cluster
from hetero.partition.loop_shapes import with_loop_shapes
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.vocabulary.plan import Plan, Stage, Wire


@dataclass(frozen=True)
class Subgraph(Stage):
    """A part of the model on one device: a stage, and the nodes to make its model from.

    A `Constant` node that several subgraphs read is in the model of each, and among the
    `node_names` of the first. A subgraph whose values nothing needs gives out what it makes last,
    since runtimes want an output.
    """

    source: Model = field(repr=False, compare=False)
    #: The nodes of `model`, copied `Constant` nodes included, as positions in `source.nodes`.
    positions: tuple[int, ...] = field(repr=False)

    @cached_property
    def model(self) -> Model:
        """The subgraph as a model of its own; weights are shared with the whole one."""
        return self.source.extract(self.positions, self.outputs)


@dataclass(frozen=True)
class Partition:
    """A model cut into subgraphs."""

    #: The whole model, with the shapes of loops' results added.
    source: Model = field(repr=False, compare=False)
    #: In an order in which they can run.
    subgraphs: tuple[Subgraph, ...]
    #: Whether a node draws random numbers.
    draws: bool = False

    @cached_property
    def plan(self) -> Plan:
        """What is deployed: a stage for each subgraph, in running order."""
        model = self.source
        given = {port.name for port in model.inputs}
        made = {value for s in self.subgraphs for value in s.outputs}
        unmade = dict.fromkeys(port.name for port in model.outputs if port.name not in made)
        return Plan(
            model.name,
            model.inputs,
            model.outputs,
            tuple(
                Stage(s.index, s.device, s.inputs, s.outputs, s.node_names) for s in self.subgraphs
            ),
            passthrough=tuple(name for name in unmade if name in given),
            constant_outputs=tuple(name for name in unmade if name not in given),
            draws=self.draws,
        )

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """What crosses, once per tensor and consumer, ordered by consumer."""
        producers = {value: s.index for s in self.subgraphs for value in s.outputs}
        return tuple(
            Wire(value, producers[value], s.index)
            for s in self.subgraphs
            for value in s.inputs
            if value in producers
        )

    @property
    def constant_outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the model that are weights."""
        # An imported model is not read unless it has to be.
        return {n: self.source.constants[n].array for n in self.plan.constant_outputs}

    @cached_property
    def subgraph_of(self) -> Mapping[str, int]:
        """Node name -> index of the subgraph that lists it."""
        return {name: s.index for s in self.subgraphs for name in s.node_names}


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """One way to run a model; several may share its requests."""

    partition: Partition
    #: Which device each node has, and why.
    affinity: Affinity
    #: The part of the requests that goes this way.
    share: float = 1.0
    #: The `PlanReport` of the costs that chose it, if costs did.
    report: Any = field(default=None, repr=False, compare=False)

    @property
    def plan(self) -> Plan:
        """The plan that is deployed."""
        return self.partition.plan

    def on(self, placed: Mapping[str, str], why: str) -> PlacedPartition:
        """Return the same cut on other devices: device -> the one in its place.

        `why` goes before the old device in the reasons.
        """
        if all(old == new for old, new in placed.items()):
            return self
        here = {**{d: d for d in self.affinity.values()}, **placed}
        reasons = {
            name: f"{self.affinity.reasons.get(name, '')} ({why} {old})".lstrip()
            for name, old in self.affinity.items()
            if here[old] != old
        }
        affinity = Affinity(
            {name: here[old] for name, old in self.affinity.items()},
            {**self.affinity.reasons, **reasons},
        )
        subgraphs = tuple(replace(s, device=here[s.device]) for s in self.partition.subgraphs)
        partition = replace(self.partition, subgraphs=subgraphs)
        return replace(self, partition=partition, affinity=affinity)


def partition(model: Model, affinity: Mapping[str, str]) -> Partition:
    """Cut a model where the affinity changes, into few subgraphs without cyclic dependencies.

    A crossing tensor has the shape that inference finds. Where that leaves even the rank open (an
    `If` whose branches differ, say) the subgraphs still run, though `onnx.checker` wants a rank.

    `affinity`: node name -> device name, for every node; that of a `Constant` node which other
        nodes read is ignored, as it follows them.
    Raises AffinityError: a node has no affinity; an unknown node name; a tensor that would cross is
        of unknown type.
    """
    literal = frozenset(p for p, node in enumerate(model.nodes) if follows(model, node))
    _check_cover(model, affinity, literal)
    numbers = assign_clusters(model, affinity, literal)
    members: list[list[int]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for position, number in enumerate(numbers):
        if number >= 0:
            members[number].append(position)
    homes = _adopt_literals(model, members, literal, numbers)
    inputs = [_inputs(model, positions) for positions in members]
    given = {port.name for port in model.inputs}
    crossing = dict.fromkeys(v for values in inputs for v in values if v not in given)
    model = with_loop_shapes(model)
    _check_types(model, crossing)
    leaving = {*crossing, *(port.name for port in model.outputs)}
    listed = [[p for p in ps if p not in literal or homes[p] == i] for i, ps in enumerate(members)]
    subgraphs = tuple(
        Subgraph(
            index,
            affinity[model.nodes[next(p for p in positions if p not in literal)].name],
            tuple(inputs[index]),
            _outputs(model, listed[index], leaving),
            tuple(model.nodes[p].name for p in listed[index]),
            model,
            tuple(positions),
        )
        for index, positions in enumerate(members)
    )
    return Partition(model, subgraphs, any(draws(node.proto) for node in model.nodes))


def stage_sources(
    partitions: Iterable[Partition], configs: Mapping[str, Mapping[str, Any]]
) -> list[StageSource]:
    """Return what each stage's device compiles, numbered through the partitions."""
    return [
        StageSource(s.model, None, dict(configs.get(s.device, {})))
        for partition in partitions
        for s in partition.subgraphs
    ]


def assign_clusters(
    model: Model, affinity: Mapping[str, str], literal: Iterable[int] = ()
) -> list[int]:
    """Return each node's cluster number, in running order; -1 for the positions in `literal`."""
    left_out = frozenset(literal)
    positions = [p for p in range(len(model.nodes)) if p not in left_out]
    place = {p: i for i, p in enumerate(positions)} if left_out else range(len(model.nodes))
    consumers = model.consumers
    nothing: tuple[int, ...] = ()
    successors: list[list[int]] = []
    kinds: dict[str, int] = {}
    kind = []
    for p in positions:
        node = model.nodes[p]
        after = [place[r] for value in node.outputs for r in consumers.get(value, nothing)]
        successors.append(after)
        kind.append(kinds.setdefault(affinity[node.name], len(kinds)))
    found = cluster(successors, kind)
    _sink_weights(model, positions, successors, kind, found)
    used = {number: i for i, number in enumerate(sorted(set(found)))}
    numbers = [-1] * len(model.nodes)
    for p, number in zip(positions, found, strict=True):
        numbers[p] = used[number]
    return numbers


def _sink_weights(
    model: Model,
    positions: Sequence[int],
    successors: Sequence[Sequence[int]],
    kind: Sequence[int],
    numbers: list[int],
) -> None:
    """Move what is computed from constants alone to its first reader, where that is on its device.

    Such nodes are ready at once and so come to lie in an early cluster: weights would cross there,
    and the device could not fold them into their reader.
    """
    kinds = {number: kind[i] for i, number in enumerate(numbers)}
    weights = weight_positions(model)
    for i in reversed(range(len(positions))):
        if positions[i] in weights:
            first = min(numbers[w] for w in successors[i])
            if kinds[first] == kind[i]:
                numbers[i] = first


def _check_cover(model: Model, affinity: Mapping[str, str], literal: frozenset[int]) -> None:
    missing = [
        node.name
        for p, node in enumerate(model.nodes)
        if p not in literal and node.name not in affinity
    ]
    if missing:
        raise AffinityError(
            f"model {model.name!r}: {len(missing)} of {len(model.nodes)} nodes have no affinity: "
            f"{some(missing)}. Every node needs a device; let the query assign what is not "
            "pinned.",
            nodes=tuple(missing),
        )
    unknown = [name for name in affinity if name not in model.index_of]
    if unknown:
        close = difflib.get_close_matches(unknown[0], model.node_names, 3)
        hint = f" Close to {unknown[0]!r}: {', '.join(map(repr, close))}." if close else ""
        raise AffinityError(
            f"model {model.name!r}: an affinity names {len(unknown)} nodes that it does not have: "
            f"{some(unknown)}.{hint} `model.node_names` lists them all.",
            nodes=tuple(unknown),
        )


def _check_types(model: Model, crossing: Collection[str]) -> None:
    specs = model.specs if crossing else {}
    if names := [name for name in crossing if name not in specs]:
        maker = model.nodes[model.producers[names[0]]]
        raise AffinityError(
            f"model {model.name!r}: tensors that would cross between subgraphs have no known "
            f"type: {some(names)}; the first is made by node {maker.name!r} ({maker.op_type}). "
            "Give their types in the model's value_info, or put their producers and consumers on "
            "one device.",
            tensors=tuple(names),
        )


def _adopt_literals(
    model: Model, members: list[list[int]], literal: frozenset[int], numbers: list[int]
) -> dict[int, int]:
    """Put `Constant` nodes into each subgraph that reads them; return the first one of each."""
    homes: dict[int, int] = {}
    copies: list[list[int]] = [[] for _ in members]
    for p in sorted(literal):
        readers = {numbers[r] for value in model.nodes[p].writes for r in model.consumers[value]}
        homes[p] = min(readers)
        for number in readers:
            copies[number].append(p)
    for positions, extra in zip(members, copies, strict=True):
        if extra:
            positions[:] = sorted(positions + extra)
    return homes


def _inputs(model: Model, positions: Sequence[int]) -> list[str]:
    nodes = [model.nodes[p] for p in positions]
    made = {value for node in nodes for value in node.writes}
    wanted = dict.fromkeys(value for node in nodes for value in node.reads)
    return [v for v in wanted if v not in made and v not in model.constants]


def _outputs(model: Model, listed: Sequence[int], leaving: set[str]) -> tuple[str, ...]:
    made = [value for p in listed for value in model.nodes[p].writes]
    if found := tuple(value for value in made if value in leaving):
        return found
    unread = [model.spec(value) for value in made if value not in model.consumers]
    return tuple(s.name for s in unread if s.type and (s.shape is not None or not s.is_tensor))
