"""Partition of a model into subgraphs, each on one device, with acyclic dependencies.

Every node except literals belongs to exactly one subgraph. Constants (initializers, and
`Constant` nodes with readers, called literals) are copied to each subgraph that reads them and
never cross. Any other value that a subgraph needs from another crosses once, as a wire. Values
keep their names.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hetero.affinity.affinity import Affinity, abbreviate, is_literal
from hetero.affinity.request_dependence import computed_weight_positions
from hetero.devices.errors import AffinityError
from hetero.devices.model.attributes import is_random
from hetero.devices.model.model import Model
from hetero.partition.clustering import cluster
from hetero.partition.loop_shapes import with_loop_shapes
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.types.plan import Plan, Stage, Wire


@dataclass(frozen=True)
class Subgraph(Stage):
    """A part of a model on one device: a stage, plus the nodes of its ONNX model.

    The model of each subgraph contains the literals that it reads; `node_names` lists a literal in
    the first of these subgraphs only. If nothing reads a subgraph's results, its last results are
    its outputs, because runtimes require an output.
    """

    source: Model = field(repr=False, compare=False)
    #: Positions in `source.nodes` of the nodes of `model`, including copied literals.
    positions: tuple[int, ...] = field(repr=False)

    @cached_property
    def model(self) -> Model:
        """The subgraph as a separate model; it shares the weights of the whole model."""
        return self.source.extract(self.positions, self.outputs)


@dataclass(frozen=True)
class Partition:
    """The subgraphs of a model."""

    #: The whole model, with inferred shapes of its loops' outputs.
    source: Model = field(repr=False, compare=False)
    #: The subgraphs in topological order.
    subgraphs: tuple[Subgraph, ...]
    #: Whether a node draws random numbers.
    draws: bool = False

    @cached_property
    def plan(self) -> Plan:
        """The plan to deploy: one stage per subgraph, in topological order."""
        model = self.source
        input_names = {port.name for port in model.inputs}
        produced = {value for s in self.subgraphs for value in s.outputs}
        unproduced = dict.fromkeys(port.name for port in model.outputs if port.name not in produced)
        return Plan(
            model.name,
            model.inputs,
            model.outputs,
            tuple(
                Stage(s.index, s.device, s.inputs, s.outputs, s.node_names, work=s.work)
                for s in self.subgraphs
            ),
            passthrough=tuple(name for name in unproduced if name in input_names),
            constant_outputs=tuple(name for name in unproduced if name not in input_names),
            draws=self.draws,
        )

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """Tensors that cross between subgraphs, once per consumer, ordered by consumer."""
        producers = {value: s.index for s in self.subgraphs for value in s.outputs}
        return tuple(
            Wire(value, producers[value], s.index)
            for s in self.subgraphs
            for value in s.inputs
            if value in producers
        )

    @property
    def constant_outputs(self) -> dict[str, np.ndarray]:
        """Values of the model's outputs that are constants."""
        # Reads the constants' data, which an imported model loads on first use.
        return {n: self.source.constants[n].array for n in self.plan.constant_outputs}

    @cached_property
    def subgraph_of(self) -> Mapping[str, int]:
        """Node name -> index of the subgraph whose `node_names` contain it."""
        return {name: s.index for s in self.subgraphs for name in s.node_names}


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """A partition with the affinity that it follows; several may share a model's requests."""

    partition: Partition
    #: The device of each node, with the reason.
    affinity: Affinity
    #: The fraction of the model's requests that use this partition.
    share: float = 1.0
    #: The `PlanReport` of the cost planner, if it chose this partition.
    report: Any = field(default=None, repr=False, compare=False)

    @property
    def plan(self) -> Plan:
        """The plan to deploy."""
        return self.partition.plan

    def on_devices(self, replacements: Mapping[str, str], reason: str) -> PlacedPartition:
        """Return the same partition on other devices.

        `replacements`: device -> its replacement.
        `reason`: text that precedes the old device in the reasons, such as ``compiled for``.
        """
        if all(old == new for old, new in replacements.items()):
            return self
        device_of = {**{d: d for d in self.affinity.values()}, **replacements}
        reasons = {
            name: f"{self.affinity.reasons.get(name, '')} ({reason} {old})".lstrip()
            for name, old in self.affinity.items()
            if device_of[old] != old
        }
        affinity = Affinity(
            {name: device_of[old] for name, old in self.affinity.items()},
            {**self.affinity.reasons, **reasons},
        )
        subgraphs = tuple(replace(s, device=device_of[s.device]) for s in self.partition.subgraphs)
        partition = replace(self.partition, subgraphs=subgraphs)
        return replace(self, partition=partition, affinity=affinity)


def partition(model: Model, affinity: Mapping[str, str]) -> Partition:
    """Partition a model by an affinity, into few subgraphs without cyclic dependencies.

    A crossing tensor has its inferred shape. If inference leaves even the rank open (an `If` whose
    branches differ, for example), the subgraphs still run, but `onnx.checker` rejects them.

    `affinity`: node name -> device name, for every node; ignored for literals, which follow their
        readers.
    Raises AffinityError: a node has no affinity; an unknown node name; a crossing tensor has no
        known type.
    """
    literals = frozenset(p for p, node in enumerate(model.nodes) if is_literal(model, node))
    _check_affinity(model, affinity, literals)
    clusters = assign_clusters(model, affinity, literals)
    members: list[list[int]] = [[] for _ in range(max(clusters, default=-1) + 1)]
    for position, cluster_id in enumerate(clusters):
        if cluster_id >= 0:
            members[cluster_id].append(position)
    owners = _copy_literals(model, members, literals, clusters)
    inputs = [_subgraph_inputs(model, positions) for positions in members]
    input_names = {port.name for port in model.inputs}
    crossing = dict.fromkeys(v for values in inputs for v in values if v not in input_names)
    model = with_loop_shapes(model)
    _check_types(model, crossing)
    exported = {*crossing, *(port.name for port in model.outputs)}
    own_positions = [
        [p for p in ps if p not in literals or owners[p] == i] for i, ps in enumerate(members)
    ]
    subgraphs = tuple(
        Subgraph(
            index,
            affinity[model.nodes[next(p for p in positions if p not in literals)].name],
            tuple(inputs[index]),
            _subgraph_outputs(model, own_positions[index], exported),
            tuple(model.nodes[p].name for p in own_positions[index]),
            model,
            tuple(positions),
        )
        for index, positions in enumerate(members)
    )
    return Partition(model, subgraphs, any(is_random(node.proto) for node in model.nodes))


def stage_sources(
    partitions: Iterable[Partition], configs: Mapping[str, Mapping[str, Any]]
) -> list[StageSource]:
    """Return the source that each stage's device compiles, in the order of all subgraphs."""
    return [
        StageSource(s.model, None, dict(configs.get(s.device, {})))
        for partition in partitions
        for s in partition.subgraphs
    ]


def assign_clusters(
    model: Model, affinity: Mapping[str, str], literals: Iterable[int] = ()
) -> list[int]:
    """Return the cluster of each node, numbered in topological order; -1 for `literals`."""
    skip = frozenset(literals)
    positions = [p for p in range(len(model.nodes)) if p not in skip]
    index_of = {p: i for i, p in enumerate(positions)} if skip else range(len(model.nodes))
    consumers = model.consumers
    no_readers: tuple[int, ...] = ()
    successors: list[list[int]] = []
    kinds: dict[str, int] = {}
    kind = []
    for p in positions:
        node = model.nodes[p]
        readers = [index_of[r] for value in node.outputs for r in consumers.get(value, no_readers)]
        successors.append(readers)
        kind.append(kinds.setdefault(affinity[node.name], len(kinds)))
    clusters = cluster(successors, kind)
    _move_weights_to_readers(model, positions, successors, kind, clusters)
    _separate_crossing_weights(model, positions, successors, kind, clusters)
    renumbered = {cluster_id: i for i, cluster_id in enumerate(sorted(set(clusters)))}
    numbers = [-1] * len(model.nodes)
    for p, cluster_id in zip(positions, clusters, strict=True):
        numbers[p] = renumbered[cluster_id]
    return numbers


def _move_weights_to_readers(
    model: Model,
    positions: Sequence[int],
    successors: Sequence[Sequence[int]],
    kind: Sequence[int],
    clusters: list[int],
) -> None:
    """Move nodes that compute weights to the cluster of their first reader on the same device.

    These nodes are ready immediately, so clustering puts them into an early cluster. For example,
    the dequantisation of a late layer's weights would join the first subgraph: its result would
    cross with every request, and the device could not fold it into its reader.
    """
    kinds = {cluster_id: kind[i] for i, cluster_id in enumerate(clusters)}
    weights = computed_weight_positions(model)
    for i in reversed(range(len(positions))):
        if positions[i] in weights:
            first = min(clusters[w] for w in successors[i])
            if kinds[first] == kind[i]:
                clusters[i] = first


def _separate_crossing_weights(
    model: Model,
    positions: Sequence[int],
    successors: Sequence[Sequence[int]],
    kind: Sequence[int],
    clusters: list[int],
) -> None:
    """Put computed weights into clusters of their own, if they would cross with every request.

    That happens if their cluster depends on the request and another cluster reads them.
    """
    weights = computed_weight_positions(model)
    per_request = {clusters[i] for i, p in enumerate(positions) if p not in weights}
    crossing: set[int] = set()
    for i in reversed(range(len(positions))):
        if positions[i] not in weights:
            continue
        crosses = any(clusters[w] != clusters[i] for w in successors[i])
        if (crosses and clusters[i] in per_request) or not crossing.isdisjoint(successors[i]):
            crossing.add(i)
    numbers = sorted(crossing)
    index_of = {i: number for number, i in enumerate(numbers)}
    inner = [[index_of[w] for w in successors[i] if w in crossing] for i in numbers]
    separate = cluster(inner, [kind[i] for i in numbers])
    for i, cluster_id in zip(numbers, separate, strict=True):
        clusters[i] = cluster_id - len(numbers)  # before every other cluster


def _check_affinity(model: Model, affinity: Mapping[str, str], literals: frozenset[int]) -> None:
    missing = [
        node.name
        for p, node in enumerate(model.nodes)
        if p not in literals and node.name not in affinity
    ]
    if missing:
        raise AffinityError(
            f"model {model.name!r}: {len(missing)} of {len(model.nodes)} nodes have no affinity: "
            f"{abbreviate(missing)}. Every node needs a device; query the model to assign the "
            "nodes that are not pinned.",
            nodes=tuple(missing),
        )
    unknown = [name for name in affinity if name not in model.index_of]
    if unknown:
        close = difflib.get_close_matches(unknown[0], model.node_names, 3)
        names = ", ".join(map(repr, close))
        hint = f" Close matches for {unknown[0]!r}: {names}." if close else ""
        raise AffinityError(
            f"model {model.name!r}: the affinity names {len(unknown)} unknown nodes: "
            f"{abbreviate(unknown)}.{hint} `model.node_names` lists them all.",
            nodes=tuple(unknown),
        )


def _check_types(model: Model, crossing: Collection[str]) -> None:
    specs = model.specs if crossing else {}
    if names := [name for name in crossing if name not in specs]:
        producer = model.nodes[model.producers[names[0]]]
        raise AffinityError(
            f"model {model.name!r}: tensors that would cross between subgraphs have no known "
            f"type: {abbreviate(names)}; node {producer.name!r} ({producer.op_type}) produces the "
            "first. Declare their types in the model's value_info, or put their producers and "
            "consumers on one device.",
            tensors=tuple(names),
        )


def _copy_literals(
    model: Model, members: list[list[int]], literals: frozenset[int], clusters: list[int]
) -> dict[int, int]:
    """Copy each literal into the subgraphs that read it; return the first subgraph of each."""
    owners: dict[int, int] = {}
    copies: list[list[int]] = [[] for _ in members]
    for p in sorted(literals):
        readers = {clusters[r] for value in model.nodes[p].writes for r in model.consumers[value]}
        owners[p] = min(readers)
        for cluster_id in readers:
            copies[cluster_id].append(p)
    for positions, copied in zip(members, copies, strict=True):
        if copied:
            positions[:] = sorted(positions + copied)
    return owners


def _subgraph_inputs(model: Model, positions: Sequence[int]) -> list[str]:
    nodes = [model.nodes[p] for p in positions]
    produced = {value for node in nodes for value in node.writes}
    consumed = dict.fromkeys(value for node in nodes for value in node.reads)
    return [v for v in consumed if v not in produced and v not in model.constants]


def _subgraph_outputs(
    model: Model, own_positions: Sequence[int], exported: set[str]
) -> tuple[str, ...]:
    produced = [value for p in own_positions for value in model.nodes[p].writes]
    if outputs := tuple(value for value in produced if value in exported):
        return outputs
    candidates = [model.spec(value) for value in produced if value not in model.consumers]
    return tuple(s.name for s in candidates if s.type and (s.shape is not None or not s.is_tensor))
