"""The layers of a model with states: blocks that repeat, each with states of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from hetero.devices.model.model import Model
from hetero.devices.model.variables import Variable, variables_of


def find_layers(model: Model) -> list[tuple[str, ...]]:
    """Return the names of each layer's nodes, in order, then of those after the last layer.

    A layer ends with the node by way of which alone it is read by what comes after it: between
    layers one value crosses, besides what depends on no layer, as masks. A model without such nodes
    has one layer; one without states none.
    """
    groups = _by_layer(model)
    if not groups:
        return []
    before: dict[int, int] = {}
    layer, size = 0, 0
    behind_next = _descendants(model, _readers(model, groups[0]))
    for mine, following in pairwise(groups):
        behind, behind_next = behind_next, _descendants(model, _readers(model, following))
        end = _end(model, behind - behind_next, following)
        if end is not None and mine:
            inside = [p for p in _ancestors(model, [end]) if p not in before]
            size = sum(p in behind for p in inside)
            before |= dict.fromkeys(inside, layer)
            layer += 1
    rest = [p for p in range(len(model.nodes)) if p not in before]
    # The last layer is as long as the one before it; then come norm, product and choice.
    after = [p for p in rest if p in behind_next][size:] if size else []
    before |= dict.fromkeys(rest, layer) | dict.fromkeys(after, layer + 1)
    names: list[list[str]] = [[] for _ in range(max(before.values(), default=-1) + 1)]
    for p, node in enumerate(model.nodes):
        names[before[p]].append(node.name)
    return [tuple(group) for group in names]


def _by_layer(model: Model) -> list[list[Variable]]:
    """Return the states of each layer, by the first number in their names, in order of making."""
    found: dict[str, list[Variable]] = {}
    for variable in variables_of(model):
        number = re.search(r"\d+", variable.name)
        found.setdefault(number[0] if number else variable.name, []).append(variable)
    made: Mapping[str, int] = model.producers
    groups = [g for g in found.values() if all(v.output.name in made for v in g)]
    return sorted(groups, key=lambda g: min(made[v.output.name] for v in g))


def _end(model: Model, inside: set[int], following: list[Variable]) -> int | None:
    """Return the node by way of which alone the next layer reads the one before."""
    needed = _ancestors(model, [model.producers[v.output.name] for v in following])
    for p in sorted(needed & inside):
        head = _ancestors(model, [p])
        # What does not come of the layer, as a mask, may be read by any.
        leaving = {
            q for q in head & inside if q != p and any(r not in head for r in _next(model, q))
        }
        if not leaving and any(r not in needed for r in _next(model, p)):
            return p
    return None


def _readers(model: Model, variables: Iterable[Variable]) -> list[int]:
    return [p for v in variables for p in model.consumers.get(v.input.name, ())]


def _next(model: Model, position: int) -> list[int]:
    return [r for v in model.nodes[position].writes for r in model.consumers.get(v, ())]


def _ancestors(model: Model, positions: Iterable[int]) -> set[int]:
    """Return what nodes depend on, themselves included."""
    found, waiting = set(positions), list(positions)
    while waiting:
        for value in model.nodes[waiting.pop()].reads:
            position = model.producers.get(value)
            if position is not None and position not in found:
                found.add(position)
                waiting.append(position)
    return found


def _descendants(model: Model, positions: Iterable[int]) -> set[int]:
    """Return what depends on the contents of what nodes make, not on shapes alone; themselves."""
    found = {p for p in positions if model.nodes[p].op_type != "Shape"}
    waiting = list(found)
    while waiting:
        for position in _next(model, waiting.pop()):
            if position not in found and model.nodes[position].op_type != "Shape":
                found.add(position)
                waiting.append(position)
    return found
