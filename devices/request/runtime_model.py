"""The runtime model: a graph of the nodes that devices execute, with metadata on each node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx

from hetero.devices.model.model import Model, Node, set_metadata
from hetero.devices.plugin.program import ExecutedNode

#: Domain of executed nodes, which are information for users and not executable operators.
RUNTIME_DOMAIN: Final = "hetero.runtime"


def runtime_model(
    model: Model, plans: Sequence[Sequence[ExecutedNode]], times_s: Mapping[str, float]
) -> Model:
    """Return the graph of the executed nodes of `model`.

    An original node that was folded is listed with the executed node that reads its value. Each of
    `plans` has the executed nodes of one replica of the model, in order. Replicas are parallel
    branches between the same inputs and outputs; a shared node occurs once.
    """
    nodes: list[Node] = []
    for executed in plans:
        names = {node.name for node in nodes}
        nodes += [node for node in _nodes(model, executed, times_s) if node.name not in names]
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
        node_rt_info={node.name: node.metadata for node in nodes},  # where OpenVINO has it
    )


def _nodes(
    model: Model, executed: Sequence[ExecutedNode], times_s: Mapping[str, float]
) -> Iterator[Node]:
    covers = _covered_names(model, executed)
    owner = {name: i for i, names in enumerate(covers) for name in names}
    inputs = {port.name for port in model.inputs}
    owners = {v: owner.get(n.name) for n in model.nodes if not n.is_constant for v in n.writes}
    outputs = {port.name for port in model.outputs}

    def leaves_node(value: str, i: int) -> bool:
        readers = (model.nodes[c].name for c in model.consumers.get(value, ()))
        return value in outputs or any(owner.get(reader, i) != i for reader in readers)

    for i, (node, names) in enumerate(zip(executed, covers, strict=True)):
        originals = [model.nodes[model.index_of[name]] for name in names]
        originals = [n for n in originals if not n.is_constant or len(names) == 1]
        writes = dict.fromkeys(value for n in originals for value in n.writes)
        reads = dict.fromkeys(value for n in originals for value in n.reads)
        outer_inputs = [v for v in reads if v in inputs or owners.get(v) not in (None, i)]
        outer_outputs = [value for value in writes if leaves_node(value, i)]
        proto = onnx.NodeProto(name=node.name, op_type=node.layer_type, domain=RUNTIME_DOMAIN)
        proto.input.extend(outer_inputs)
        proto.output.extend(outer_outputs or list(writes)[:1])
        seconds = times_s.get(node.name)
        metadata = {
            "layerType": node.layer_type,
            "execOrder": str(node.execution_order),
            "implType": node.implementation,
            "originalLayersNames": ",".join(names),
            "execTimeMcs": "not_executed" if seconds is None else f"{seconds * 1e6:.3f}",
        }
        set_metadata(proto, metadata)
        yield Node.from_proto(proto, covers=names)


def _covered_names(model: Model, executed: Sequence[ExecutedNode]) -> list[tuple[str, ...]]:
    """Return the original names of each executed node, with the folded nodes that it reads."""
    owner: dict[str, int] = {}
    for i, row in enumerate(executed):
        for name in row.original_names:
            if name in model.index_of:
                owner.setdefault(name, i)
    for node in reversed(model.nodes):
        if node.name not in owner:
            reader_owners = (owner.get(reader.name) for reader in model.readers(node))
            reader_owner = next((i for i in reader_owners if i is not None), None)
            if reader_owner is not None:
                owner[node.name] = reader_owner
    names: list[list[str]] = [[] for _ in executed]
    for name in model.node_names:
        if name in owner:
            names[owner[name]].append(name)
    return [tuple(n) for n in names]
