"""Mapping of the nodes that OpenVINO executes to the nodes of the original model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import openvino

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode

#: Types of nodes in a runtime model that do not execute.
_NOT_EXECUTED: Final = frozenset({"Input", "Const"})
#: Entries of a runtime node's information.
_KEYS: Final = ("execOrder", "layerType", "originalLayersNames", "primitiveType")


def executed_nodes(
    model: Model, owners: Mapping[str, Collection[str]], compiled: openvino.CompiledModel
) -> tuple[ExecutedNode, ...]:
    """Return the nodes that OpenVINO executes for `model`, with the nodes that each covers.

    `owners` comes from `operator_owners`. The executed reader of a folded node covers it.
    """
    runtime_nodes = {
        node.get_friendly_name(): {key: str(node.rt_info[key].value) for key in _KEYS}
        for node in compiled.get_runtime_model().get_ops()
    }
    infos = {
        name: info for name, info in runtime_nodes.items() if info["layerType"] not in _NOT_EXECUTED
    }
    names = sorted(infos, key=lambda name: int(infos[name]["execOrder"]))
    parts = [infos[name]["originalLayersNames"].split(",") for name in names]
    rows = [{owner for part in each for owner in owners.get(part, ())} for each in parts]
    _cover_folded_nodes(model, rows)
    executed = []
    for i, (name, row) in enumerate(zip(names, rows, strict=True)):
        kind, implementation = infos[name]["layerType"], infos[name]["primitiveType"]
        sources = tuple(sorted(row, key=model.index_of.__getitem__))
        executed.append(ExecutedNode(name, kind, i, implementation, sources))
    return tuple(executed)


def operator_owners(model: Model, source: openvino.Model) -> dict[str, set[str]]:
    """Return the nodes of `model` that each operator of its converted model belongs to.

    Operators keep the names of the values that they compute. An operator without such a name is
    part of a decomposed node: it belongs to the nodes of its readers.
    """
    owners: dict[str, set[str]] = {}
    for operator in reversed(source.get_ordered_ops()):
        names = {name for port in operator.outputs() for name in port.get_names()}
        nodes = {model.nodes[model.producers[n]].name for n in names if n in model.producers}
        if operator.get_type_name() == "Constant":
            continue
        if not nodes:
            for port in operator.outputs():
                for reader in port.get_target_inputs():
                    nodes |= owners.get(reader.get_node().get_friendly_name(), set())
        owners[operator.get_friendly_name()] = nodes
    return owners


def _cover_folded_nodes(model: Model, rows: list[set[str]]) -> None:
    """Add each node that no row covers to the rows of its first covered reader."""
    rows_of: dict[str, list[set[str]]] = {}
    for row in rows:
        for name in row:
            rows_of.setdefault(name, []).append(row)
    for node in reversed(model.nodes):
        if node.name not in rows_of:
            reader_rows = (rows_of.get(reader.name) for reader in model.readers(node))
            nearest = next((rows for rows in reader_rows if rows is not None), [])
            for row in nearest:
                row.add(node.name)
            rows_of[node.name] = nearest
