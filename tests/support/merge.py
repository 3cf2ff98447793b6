"""Putting the subgraphs of a partition together again."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.devices.errors import ModelError
from hetero.devices.model.model import Model, Node
from hetero.partition.partition import Partition


def merge(partition: Partition, models: Sequence[Model] | None = None) -> Model:
    """Return one model made of the subgraphs' nodes and constants.

    It has the nodes, edges, constants and ports of the model that was cut. What several subgraphs
    hold copies of is there once; constants that no node reads come from the model that was cut.

    `partition`: how the model was cut.
    `models`: the subgraphs' models, read back from files for instance; the partition's own by
        default.
    Raises ModelError: a model lacks a port that the partition has, or two of them disagree about a
        node.
    """
    source = partition.source
    parts = [s.model for s in partition.subgraphs] if models is None else list(models)
    if len(parts) != len(partition.subgraphs):
        raise ModelError(f"{len(parts)} models for {len(partition.subgraphs)} subgraphs")
    nodes: dict[str, Node] = {}
    constants = {n: c for n, c in source.constants.items() if n not in source.consumers}
    for subgraph, part in zip(partition.subgraphs, parts, strict=True):
        got = {port.name for port in part.inputs}, {port.name for port in part.outputs}
        if got != (set(subgraph.inputs), set(subgraph.outputs)):
            raise ModelError(
                f"subgraph {subgraph.index} ({subgraph.device}) of model {source.name!r}: its "
                f"ports are {sorted(got[0])} -> {sorted(got[1])}; the partition has "
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
