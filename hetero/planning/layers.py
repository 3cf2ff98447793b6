"""Layers of a stateful model: repeated blocks of nodes, each with its own states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from hetero.devices.model.model import Model
from hetero.devices.model.variables import Variable, variables_of


def find_layers(model: Model) -> list[tuple[str, ...]]:
    """Return the node names of each layer, in order, and of the nodes after the last layer.

    A layer ends with the only node that later layers read: between two layers a single value
    crosses, apart from values that depend on no layer, such as masks. A model without such nodes
    has one layer; a model without states has none.
    """
    groups = _states_by_layer(model)
    if not groups:
        return []
    layer_of: dict[int, int] = {}
    layer, size = 0, 0
    after_next = _descendants(model, _readers(model, groups[0]))
    for states, next_states in pairwise(groups):
        after_layer, after_next = after_next, _descendants(model, _readers(model, next_states))
        end = _layer_end(model, after_layer - after_next, next_states)
        if end is not None and states:
            members = [p for p in _ancestors(model, [end]) if p not in layer_of]
            size = sum(p in after_layer for p in members)
            layer_of |= dict.fromkeys(members, layer)
            layer += 1
    rest = [p for p in range(len(model.nodes)) if p not in layer_of]
    # The last layer has the size of the one before; the norm, the logits and sampling follow it.
    epilogue = [p for p in rest if p in after_next][size:] if size else []
    layer_of |= dict.fromkeys(rest, layer) | dict.fromkeys(epilogue, layer + 1)
    names: list[list[str]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for p, node in enumerate(model.nodes):
        names[layer_of[p]].append(node.name)
    return [tuple(group) for group in names]


def _states_by_layer(model: Model) -> list[list[Variable]]:
    """Group states by the first number in their names, in topological order."""
    groups_by_number: dict[str, list[Variable]] = {}
    for variable in variables_of(model):
        number = re.search(r"\d+", variable.name)
        groups_by_number.setdefault(number[0] if number else variable.name, []).append(variable)
    producers: Mapping[str, int] = model.producers
    groups = [g for g in groups_by_number.values() if all(v.output.name in producers for v in g)]
    return sorted(groups, key=lambda g: min(producers[v.output.name] for v in g))


def _layer_end(model: Model, layer_members: set[int], next_states: list[Variable]) -> int | None:
    """Return the only node of a layer that the next layer reads, if there is one."""
    needed = _ancestors(model, [model.producers[v.output.name] for v in next_states])
    for p in sorted(needed & layer_members):
        prefix = _ancestors(model, [p])
        # Values that do not depend on the layer, such as masks, may have other readers.
        other_exits = {
            q
            for q in prefix & layer_members
            if q != p and any(r not in prefix for r in _consumers(model, q))
        }
        if not other_exits and any(r not in needed for r in _consumers(model, p)):
            return p
    return None


def _readers(model: Model, variables: Iterable[Variable]) -> list[int]:
    return [p for v in variables for p in model.consumers.get(v.input.name, ())]


def _consumers(model: Model, position: int) -> list[int]:
    return [r for v in model.nodes[position].writes for r in model.consumers.get(v, ())]


def _ancestors(model: Model, positions: Iterable[int]) -> set[int]:
    """Return the positions of nodes and of all nodes that they depend on."""
    ancestors, pending = set(positions), list(positions)
    while pending:
        for value in model.nodes[pending.pop()].reads:
            position = model.producers.get(value)
            if position is not None and position not in ancestors:
                ancestors.add(position)
                pending.append(position)
    return ancestors


def _descendants(model: Model, positions: Iterable[int]) -> set[int]:
    """Return the positions of nodes and of all nodes that depend on their data.

    Nodes that depend on their shapes only are not included.
    """
    descendants = {p for p in positions if model.nodes[p].op_type != "Shape"}
    pending = list(descendants)
    while pending:
        for position in _consumers(model, pending.pop()):
            if position not in descendants and model.nodes[position].op_type != "Shape":
                descendants.add(position)
                pending.append(position)
    return descendants
