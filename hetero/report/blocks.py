"""What is drawn of a subgraph: its nodes, or blocks of them with repeated ones folded into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

#: A value alive over more than this share of a subgraph (a mask, say) does not hold blocks open.
GLOBAL_SHARE: Final = 0.25
#: Nor does one that is alive over at least this many nodes.
GLOBAL_NODES: Final = 40
#: Most blocks that a repeated pattern has.
PERIOD: Final = 32


@dataclass(frozen=True, slots=True)
class Item:
    """A box of the drawing."""

    #: Positions in the document's `nodes`, drawn ones only.
    nodes: tuple[int, ...]
    #: How many equal parts in a row it stands for.
    repeats: int = 1


def visible_nodes(document: Mapping[str, Any]) -> tuple[list[int], dict[int, int]]:
    """Return the nodes to draw, and for each other one the drawn node that it belongs to.

    What depends on no input (literals, folded weights) is drawn with its first reader.
    """
    nodes = document["nodes"]
    kept = {port["name"] for port in document["model"]["outputs"]}
    first_reader: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for value in node["inputs"]:
            first_reader.setdefault(value, position)
    owner: dict[int, int] = {}
    for position in range(len(nodes) - 1, -1, -1):
        node = nodes[position]
        readers = [first_reader[o["name"]] for o in node["outputs"] if o["name"] in first_reader]
        gives_output = any(o["name"] in kept for o in node["outputs"])
        if node["constant"] and readers and not gives_output and node["device"] is not None:
            reader = min(readers)
            owner[position] = owner.get(reader, reader)
    return [p for p in range(len(nodes)) if p not in owner], owner


def block_items(members: Sequence[int], nodes: Sequence[Mapping[str, Any]]) -> list[Item]:
    """Return a subgraph's drawn nodes in parts, cut where at most one value is alive."""
    blocks = _cut(members, nodes)
    signatures = [
        tuple((nodes[p]["op_type"], nodes[p]["device"]) for p in block) for block in blocks
    ]
    parts: list[Item] = []
    position = 0
    while position < len(blocks):
        period, repeats = _repetition(signatures, position)
        run = blocks[position : position + period * repeats]
        parts.append(Item(tuple(p for block in run for p in block), repeats))
        position += period * repeats

    def joined(item: Item) -> tuple[object, ...]:
        """Return what single nodes of a device in a row have in common."""
        single = len(item.nodes) == 1
        return (nodes[item.nodes[0]]["device"],) if single else item.nodes

    runs = [list(run) for _, run in groupby(parts, joined)]
    return [Item(tuple(p for item in run for p in item.nodes), run[0].repeats) for run in runs]


def _cut(members: Sequence[int], nodes: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    place = {p: i for i, p in enumerate(members)}
    made: dict[str, int] = {}
    until: dict[str, int] = {}
    for p in members:
        for value in nodes[p]["inputs"]:
            if value in made:
                until[value] = place[p]
        for port in nodes[p]["outputs"]:
            made[port["name"]] = place[p]
    opened: Counter[int] = Counter()
    closed: Counter[int] = Counter()
    longest = max(GLOBAL_NODES, GLOBAL_SHARE * len(members))
    for value, end in until.items():
        if end - made[value] < longest:
            opened[made[value]] += 1
            closed[end] += 1
    blocks: list[tuple[int, ...]] = []
    current: list[int] = []
    alive = 0
    for i, p in enumerate(members):
        current.append(p)
        alive += opened[i] - closed[i]
        if alive <= 1:
            blocks.append(tuple(current))
            current = []
    return [*blocks, tuple(current)] if current else blocks


def _repetition(signatures: Sequence[Any], start: int) -> tuple[int, int]:
    """Return the period and number of the repetition from `start`; (1, 1) for none.

    The shortest unit that comes three times, else the pair that covers the most, unless that
    would hide a repetition in its unit.
    """
    best = (1, 1)
    for period in range(1, min(PERIOD, (len(signatures) - start) // 2) + 1):
        unit = signatures[start : start + period]
        repeats = 1
        while signatures[start + repeats * period : start + (repeats + 1) * period] == unit:
            repeats += 1
        if repeats > 2:
            return period, repeats
        told_better = any(len(set(unit[i : i + 3])) == 1 for i in range(period - 2))
        if repeats > 1 and not told_better and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best
