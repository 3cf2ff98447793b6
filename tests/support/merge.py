"""Merging the subgraphs of a partition into one model."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.devices.errors import ModelError
from hetero.devices.model.model import Model, Node
from hetero.partition.partition import Partition


def merge(partition: Partition, models: Sequence[Model] | None = None) -> Model:
    """Merge the nodes and constants of subgraphs into a model equal to the partitioned one.

    Nodes and constants with copies in several subgraphs occur once. Constants that no node reads
    come from the partitioned model.

    `models`: the models of the subgraphs, for example read from files; by default the partition's.
    Raises ModelError: a model lacks a port of its subgraph, or copies of a node differ.
    """
    source = partition.source
    parts = [s.model for s in partition.subgraphs] if models is None else list(models)
    if len(parts) != len(partition.subgraphs):
        raise ModelError(f"{len(parts)} models for {len(partition.subgraphs)} subgraphs")
    nodes: dict[str, Node] = {}
    constants = {n: c for n, c in source.constants.items() if n not in source.consumers}
    for subgraph, part in zip(partition.subgraphs, parts, strict=True):
        part_ports = {port.name for port in part.inputs}, {port.name for port in part.outputs}
        if part_ports != (set(subgraph.inputs), set(subgraph.outputs)):
            raise ModelError(
                f"subgraph {subgraph.index} ({subgraph.device}) of model {source.name!r}: its "
                f"ports are {sorted(part_ports[0])} -> {sorted(part_ports[1])}; the partition has "
                f"{list(subgraph.inputs)} -> {list(subgraph.outputs)}. Use the subgraphs' own "
                "models, unchanged."
            )
        constants |= part.constants
        for node in part.nodes:
            if node.name not in source.index_of:
                raise ModelError(
                    f"subgraph {subgraph.index} ({subgraph.device}) of model {source.name!r}: "
                    f"node {node.name!r} is not in the whole model."
                )
            if nodes.setdefault(node.name, node).proto != node.proto:
                raise ModelError(
                    f"subgraph {subgraph.index} ({subgraph.device}) of model {source.name!r}: "
                    f"node {node.name!r} differs from the node of that name in an earlier one."
                )
    return source.replace(
        nodes=sorted(nodes.values(), key=lambda node: source.index_of[node.name]),
        constants={name: constants[name] for name in source.constants if name in constants},
    )
