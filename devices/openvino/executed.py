"""Which nodes of a model OpenVINO's own executed nodes stand for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import openvino

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode

#: What its runtime model lists and does not run.
_NOT_RUN: Final = frozenset({"Input", "Const"})
#: What is asked of its nodes.
_KEYS: Final = ("execOrder", "layerType", "originalLayersNames", "primitiveType")


def executed_nodes(
    model: Model, owners: Mapping[str, Collection[str]], compiled: openvino.CompiledModel
) -> tuple[ExecutedNode, ...]:
    """Return what OpenVINO runs of `model`; `owners` is what `operator_owners` gave.

    What was folded is said of the executed node that reads its result.
    """
    told = {
        node.get_friendly_name(): {key: str(node.rt_info[key].value) for key in _KEYS}
        for node in compiled.get_runtime_model().get_ops()
    }
    run = {name: facts for name, facts in told.items() if facts["layerType"] not in _NOT_RUN}
    names = sorted(run, key=lambda name: int(run[name]["execOrder"]))
    parts = [run[name]["originalLayersNames"].split(",") for name in names]
    rows = [{owner for part in each for owner in owners.get(part, ())} for each in parts]
    _spread(model, rows)
    executed = []
    for i, (name, covers) in enumerate(zip(names, rows, strict=True)):
        kind, by = run[name]["layerType"], run[name]["primitiveType"]
        sources = tuple(sorted(covers, key=model.index_of.__getitem__))
        executed.append(ExecutedNode(name, kind, i, by, sources))
    return tuple(executed)


def operator_owners(model: Model, source: openvino.Model) -> dict[str, set[str]]:
    """Return the nodes of `model` that each operator of `source` is of, by the operator's name.

    Operators keep the names of the values that they make; one without such a name is a part of what
    the nodes after it were decomposed into.
    """
    owners: dict[str, set[str]] = {}
    for operator in reversed(source.get_ordered_ops()):
        names = {name for port in operator.outputs() for name in port.get_names()}
        mine = {model.nodes[model.producers[n]].name for n in names if n in model.producers}
        if operator.get_type_name() == "Constant":
            continue
        if not mine:
            for port in operator.outputs():
                for reader in port.get_target_inputs():
                    mine |= owners.get(reader.get_node().get_friendly_name(), set())
        owners[operator.get_friendly_name()] = mine
    return owners


def _spread(model: Model, rows: list[set[str]]) -> None:
    """Add nodes that no row covers to those that cover their readers, or else their sources."""
    rows_of: dict[str, list[set[str]]] = {}
    for covers in rows:
        for name in covers:
            rows_of.setdefault(name, []).append(covers)
    for node in reversed(model.nodes):
        if node.name not in rows_of:
            read_by = (rows_of.get(reader.name) for reader in model.readers(node))
            near = next((rows for rows in read_by if rows is not None), [])
            for covers in near:
                covers.add(node.name)
            rows_of[node.name] = near
