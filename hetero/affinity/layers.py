"""Layers of a model: repeated blocks of nodes, found by their states or by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from hetero.devices.model.model import Model
from hetero.devices.model.variables import Variable, variables_of

#: The number of a layer in a node's name, as PyTorch's modules have it: ``/model/layers.3/``.
_NUMBER_IN_NAME: Final = re.compile(r"(?:^|[/._])(?:layers?|blocks?|h)[./_](\d+)(?=[/._]|$)")


def numbered_layers(model: Model) -> list[tuple[str, ...]]:
    """Return the node names of each layer, and of the nodes after the last layer.

    The layers of a decoder follow from its states, those of other models from their nodes' names.
    Nodes before the first layer, such as embeddings, belong to it. A model has no layers if neither
    gives at least two.
    """
    layers = find_layers(model)
    return layers if len(layers) > 2 else _layers_by_name(model)


def _layers_by_name(model: Model) -> list[tuple[str, ...]]:
    """Group nodes by the layer number in their names; other nodes follow their producers."""
    numbers = [
        int(match[1]) if (match := _NUMBER_IN_NAME.search(node.name)) else None
        for node in model.nodes
    ]
    count = max((number for number in numbers if number is not None), default=-1) + 1
    if count < 2:
        return []
    layer_of: list[int] = []
    for node, number in zip(model.nodes, numbers, strict=True):
        # A layer never precedes the layers that it depends on, so that no subgraphs form a cycle.
        positions = (model.producers.get(value) for value in node.reads)
        previous = max((layer_of[p] for p in positions if p is not None), default=0)
        layer_of.append(previous if number is None else max(previous, number))
    in_last = [p for p, number in enumerate(numbers) if number == count - 1]
    needed = _ancestors(model, in_last)
    for p in range(len(numbers)):
        if layer_of[p] == count - 1 and p not in needed:
            layer_of[p] = count
    names: list[list[str]] = [[] for _ in range(count + 1)]
    for node, layer in zip(model.nodes, layer_of, strict=True):
        names[layer].append(node.name)
    return [tuple(group) for group in names]


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
