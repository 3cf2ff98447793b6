"""The runtime model: what a device really executes, as a graph with notes on its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx

from hetero.devices.model.model import Model, Node, set_metadata
from hetero.devices.plugin.program import ExecutedNode

#: The domain of executed nodes: they are notes, not operators that something else could run.
RUNTIME_DOMAIN: Final = "hetero.runtime"


def runtime_model(
    model: Model, plans: Sequence[Sequence[ExecutedNode]], times_s: Mapping[str, float]
) -> Model:
    """Return what is executed of `model` as a graph: a node for each executed one.

    Nodes of `model` that were folded away are named with the executed node that uses what they
    made. Each of `plans` is what one that runs the whole model executes, in order; they stand side
    by side, from the same inputs to the same outputs; a node of several is there once.
    """
    nodes: list[Node] = []
    for executed in plans:
        there = {node.name for node in nodes}
        nodes += [node for node in _nodes(model, executed, times_s) if node.name not in there]
    header = onnx.ModelProto(ir_version=onnx.IR_VERSION, producer_name="hetero")
    header.opset_import.add(domain=RUNTIME_DOMAIN, version=1)
    return Model(
        header,
        name=model.name,
        nodes=nodes,
        inputs=model.inputs,
        outputs=model.outputs,
        constants={},
        specs=model.specs,
    )


def _nodes(
    model: Model, executed: Sequence[ExecutedNode], times_s: Mapping[str, float]
) -> Iterator[Node]:
    covers = _covers(model, executed)
    owner = {name: i for i, names in enumerate(covers) for name in names}
    given = {port.name for port in model.inputs}
    owners = {v: owner.get(n.name) for n in model.nodes if not n.is_constant for v in n.writes}
    outputs = {port.name for port in model.outputs}

    def is_for_others(value: str, i: int) -> bool:
        readers = (model.nodes[c].name for c in model.consumers.get(value, ()))
        return value in outputs or any(owner.get(reader, i) != i for reader in readers)

    for i, (node, names) in enumerate(zip(executed, covers, strict=True)):
        mine = [model.nodes[model.index_of[name]] for name in names]
        mine = [n for n in mine if not n.is_constant or len(names) == 1]
        made = dict.fromkeys(value for n in mine for value in n.writes)
        reads = dict.fromkeys(value for n in mine for value in n.reads)
        read = [v for v in reads if v in given or owners.get(v) not in (None, i)]
        written = [value for value in made if is_for_others(value, i)]
        proto = onnx.NodeProto(name=node.name, op_type=node.layer_type, domain=RUNTIME_DOMAIN)
        proto.input.extend(read)
        proto.output.extend(written or list(made)[:1])
        seconds = times_s.get(node.name)
        notes = {
            "layerType": node.layer_type,
            "execOrder": str(node.execution_order),
            "implType": node.implementation,
            "originalLayersNames": ",".join(names),
            "execTimeMcs": "not_executed" if seconds is None else f"{seconds * 1e6:.3f}",
        }
        set_metadata(proto, notes)
        yield Node.from_proto(proto, covers=names)


def _covers(model: Model, executed: Sequence[ExecutedNode]) -> list[tuple[str, ...]]:
    """Return the original names of each executed node, folded-away ones with their user."""
    owner: dict[str, int] = {}
    for i, row in enumerate(executed):
        for name in row.original_names:
            if name in model.index_of:
                owner.setdefault(name, i)
    for node in reversed(model.nodes):
        if node.name not in owner:
            found = (owner.get(reader.name) for reader in model.readers(node))
            user = next((i for i in found if i is not None), None)
            if user is not None:
                owner[node.name] = user
    names: list[list[str]] = [[] for _ in executed]
    for name in model.node_names:
        if name in owner:
            names[owner[name]].append(name)
    return [tuple(n) for n in names]
