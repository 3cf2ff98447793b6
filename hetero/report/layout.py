"""The drawings of a report: a column for each device, its subgraphs from top to bottom, and wires.

A subgraph stands below those that it gets data from, so that subgraphs side by side can run at the
same time. Inputs stand left of the devices, outputs right of them. Inside a subgraph its blocks or
nodes stand in their order, one below the other; an edge that passes some of them is an arc.

A layout library would replace some 90 of these lines and lose the columns. Measured side by side,
subgraphs as clusters, 580 and 5,200 nodes: this 0.15 s and 1.2 s; dagre 3.1 (49 kB minified) 9 s
and 380 s; for 580 elkjs 0.12 (1.6 MB) 10 s, and Graphviz (1.2 MB as WebAssembly) 1 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hetero.report.blocks import Item, block_items, visible_nodes
from hetero.report.units import counted, nbytes_text, seconds_text

#: Pixels: a node, a block, a subgraph drawn closed, an input or output.
NODE: Final = (172, 40)
BLOCK: Final = (236, 64)
CLOSED: Final = (190, 66)
PILL: Final = (124, 28)
#: Drawings of more boxes than this are left out: they could not be read.
LARGEST: Final = 6000
#: Pixels around a subgraph's items, for its title, and for the arcs right of its items.
PAD: Final = 20
TITLE: Final = 30
ARCS: Final = 36
#: Pixels between items, between subgraphs, and between columns.
GAP: Final = 16
ROW: Final = 46
GUTTER: Final = 104
#: Characters of a label, by box.
_TEXT: Final = {NODE: (22, 29), BLOCK: (29, 40)}
#: Operators that say most about a block.
_TELLING: Final = ("Attention", "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU")
#: Where a value comes from or goes to: a subgraph's index, or ``input``/``output`` and a name.
End = int | tuple[str, str]


class _Place(NamedTuple):
    """Upper left corner and size, in pixels."""

    x: int
    y: int
    w: int
    h: int


@dataclass(frozen=True, slots=True)
class _Graph:
    """The document as a graph of drawn nodes."""

    document: Mapping[str, Any]
    #: Subgraph -> its drawn nodes; -1 for a model that was not cut.
    groups: dict[int, list[int]]
    #: Value -> the drawn node that makes it.
    makers: dict[str, int]
    #: Value -> its type and size.
    ports: dict[str, Mapping[str, Any]]
    #: What goes between subgraphs, inputs and outputs: (from, to) -> values.
    links: dict[tuple[End, End], list[str]]

    def device(self, group: int) -> str | None:
        return self.document["subgraphs"][group]["device"] if group >= 0 else None


def drawings(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the drawings, the coarsest first: subgraphs, blocks, nodes.

    Returns: ``name``, ``width``, ``height``; ``boxes`` (subgraphs), ``items`` with their nodes'
        positions in the document, ``pills`` (inputs and outputs), ``edges`` as SVG paths, and
        ``wires``, edges between subgraphs with their tensors and bytes. All in pixels.
    """
    drawn, _ = visible_nodes(document)
    nodes = document["nodes"]
    groups: dict[int, list[int]] = {s["index"]: [] for s in document["subgraphs"]}
    for p in drawn:
        groups.setdefault(_group(nodes[p]), []).append(p)
    # A subgraph of nothing but constants is drawn as one box of them.
    bare = {group for group, members in groups.items() if not members}
    for position, node in enumerate(nodes):
        if node["subgraph"] in bare:
            groups[node["subgraph"]].append(position)
    everything = [p for members in groups.values() for p in members]
    makers = {port["name"]: p for p in everything for port in nodes[p]["outputs"]}
    ports = {port["name"]: port for node in nodes for port in node["outputs"]}
    ports |= {port["name"]: port for port in document["model"]["inputs"]}
    graph = _Graph(document, groups, makers, ports, _links(document, groups, makers))

    def split(items: Callable[[Sequence[int]], list[Item]]) -> dict[int, list[Item]]:
        return {
            group: [Item(tuple(members))] if group in bare else items(members)
            for group, members in groups.items()
        }

    views = []
    if 1 < len(groups) <= LARGEST:
        views.append({"name": "Subgraphs", **_view(graph, None, CLOSED)})
    blocks = split(lambda members: block_items(members, nodes))
    if sum(map(len, blocks.values())) < min(len(drawn), LARGEST):
        views.append({"name": "Blocks", **_view(graph, blocks, BLOCK)})
    if len(everything) <= LARGEST:
        singles = split(lambda members: [Item((p,)) for p in members])
        views.append({"name": "Nodes", **_view(graph, singles, NODE)})
    return views


def _group(node: Mapping[str, Any]) -> int:
    return -1 if node["subgraph"] is None else int(node["subgraph"])


def _links(
    document: Mapping[str, Any], groups: Mapping[int, Sequence[int]], makers: Mapping[str, int]
) -> dict[tuple[End, End], list[str]]:
    links: dict[tuple[End, End], dict[str, None]] = {}
    nodes = document["nodes"]
    inputs = {port["name"] for port in document["model"]["inputs"]}

    def add(source: End, target: End, value: str) -> None:
        links.setdefault((source, target), {})[value] = None

    for group, members in groups.items():
        for p in members:
            for value in nodes[p]["inputs"]:
                if (maker := makers.get(value)) is not None:
                    if _group(nodes[maker]) != group:
                        add(_group(nodes[maker]), group, value)
                elif value in inputs:
                    add(("input", value), group, value)
    # Constants are drawn with their readers, but where they cross, that shows.
    for wire in document["wires"]:
        if wire["tensor"] not in makers:
            add(wire["producer"], wire["consumer"], wire["tensor"])
    for port in document["model"]["outputs"]:
        if (maker := makers.get(port["name"])) is not None:
            add(_group(nodes[maker]), ("output", port["name"]), port["name"])
        elif port["name"] in inputs:
            add(("input", port["name"]), ("output", port["name"]), port["name"])
    return {ends: list(values) for ends, values in links.items()}


def _view(
    graph: _Graph, items: Mapping[int, Sequence[Item]] | None, size: tuple[int, int]
) -> dict[str, Any]:
    """Draw the subgraphs, closed or with their items in them."""
    boxes = _boxes(graph, items, size)
    at: dict[End, _Place] = dict(boxes.items())
    places = {
        p: _Place(box.x + PAD, box.y + TITLE + PAD + i * (size[1] + GAP), *size)
        for group, box in boxes.items()
        for i, item in enumerate(items[group] if items else ())
        for p in item.nodes
    }
    nodes = graph.document["nodes"]
    made_at = {value: places[p] for value, p in graph.makers.items() if p in places}
    read_at: dict[tuple[End, str], _Place] = {}
    for p, place in places.items():
        for value in nodes[p]["inputs"]:
            read_at.setdefault((_group(nodes[p]), value), place)
    ends: dict[tuple[End, End], list[_Place | None]] = {}
    for (a, b), values in graph.links.items():
        made = [made_at[v] for v in values if v in made_at]
        read = [read_at[b, v] for v in values if (b, v) in read_at]
        ends[a, b] = [
            max(made, key=lambda place: place.y, default=at.get(a)),
            min(read, key=lambda place: place.y, default=at.get(b)),
        ]
    right = max((box.x + box.w for box in boxes.values()), default=0) + GUTTER
    pills = _pills(graph, ends, "input", 0, 0) | _pills(graph, ends, "output", 1, right)
    at.update(pills.items())
    return {
        "width": max(place.x + place.w for place in at.values()),
        "height": max(place.y + place.h for place in at.values()),
        "boxes": [_box(graph, group, place) for group, place in boxes.items()],
        "pills": [
            {**place._asdict(), "kind": kind, "label": _clip(name, 15), "name": name}
            for (kind, name), place in pills.items()
        ],
        "items": [
            {**places[item.nodes[0]]._asdict(), **_item(graph, item, size)}
            for group in boxes
            for item in (items[group] if items else ())
        ],
        "edges": _edges(graph, places),
        "wires": [
            _wire(graph, a, b, values, ends[a, b][0] or at[a], ends[a, b][1] or at[b])
            for (a, b), values in graph.links.items()
        ],
    }


def _boxes(
    graph: _Graph, items: Mapping[int, Sequence[Item]] | None, size: tuple[int, int]
) -> dict[int, _Place]:
    """Return each subgraph's place: its device's column, below its column and its sources."""
    used = {graph.device(group) for group in graph.groups}
    columns = [d for d in (*graph.document["request"]["devices"], None) if d in used]
    width = size[0] + (2 * PAD + ARCS if items else 0)
    left = PILL[0] + GUTTER
    x = {device: left + i * (width + GUTTER) for i, device in enumerate(columns)}
    sources: dict[int, list[int]] = {group: [] for group in graph.groups}
    for a, b in graph.links:
        if isinstance(a, int) and isinstance(b, int):
            sources[b].append(a)
    boxes: dict[int, _Place] = {}
    bottom = dict.fromkeys(columns, 0)
    for group in sorted(graph.groups):  # a topological order
        device, height = graph.device(group), size[1]
        if items:
            height = 2 * PAD + TITLE + len(items[group]) * (size[1] + GAP) - GAP
        y = max([bottom[device], *(boxes[s].y + boxes[s].h + ROW for s in sources[group])])
        boxes[group] = _Place(x[device], y, width, height)
        bottom[device] = y + height + ROW
    return boxes


def _pills(
    graph: _Graph,
    ends: Mapping[tuple[End, End], Sequence[_Place | None]],
    kind: str,
    side: int,
    x: int,
) -> dict[tuple[str, str], _Place]:
    """Return the place of each input or output: beside the first one that it is linked with."""
    beside: dict[End, int] = {}
    for pair, places in ends.items():
        if (other := places[1 - side]) is not None:
            beside[pair[side]] = min(other.y, beside.get(pair[side], other.y))
    pills: dict[tuple[str, str], _Place] = {}
    y = 0
    names = dict.fromkeys(port["name"] for port in graph.document["model"][kind + "s"])
    for name in sorted(names, key=lambda name: beside.get((kind, name), 0)):
        y = max(y, beside.get((kind, name), 0))
        pills[kind, name] = _Place(x, y, *PILL)
        y += PILL[1] + GAP
    return pills


def _edges(graph: _Graph, places: Mapping[int, _Place]) -> list[str]:
    """Return the paths between the items of each subgraph: down, or around those between."""
    nodes = graph.document["nodes"]
    pairs = {
        (places[maker], places[p]): None
        for p in places
        for value in nodes[p]["inputs"]
        if (maker := graph.makers.get(value)) is not None
        and _group(nodes[maker]) == _group(nodes[p])
        and places[maker] != places[p]
    }
    paths = []
    for a, b in pairs:
        passed = (b.y - a.y) // (a.h + GAP) - 1
        if passed == 0:
            paths.append(f"M{a.x + a.w // 2} {a.y + a.h}L{b.x + b.w // 2} {b.y}")
        else:
            x, bulge = a.x + a.w, min(ARCS + PAD, 10 + 5 * passed)
            y, to_y = a.y + 2 * a.h // 3, b.y + b.h // 3
            paths.append(f"M{x} {y}C{x + bulge} {y} {x + bulge} {to_y} {x} {to_y}")
    return paths


def _box(graph: _Graph, group: int, place: _Place) -> dict[str, Any]:
    device = graph.device(group)
    title = "whole model, not cut"
    detail = counted(len(graph.groups[group]), "node")
    if group >= 0:
        subgraph = graph.document["subgraphs"][group]
        title = f"{group} · {device or 'no device'}"
        detail = counted(len(subgraph["nodes"]), "node")
        if subgraph["run_s"] is not None:
            detail += f" · {seconds_text(subgraph['run_s'])}"
    told = {"subgraph": group, "device": device, "title": title, "detail": detail}
    return {**place._asdict(), **told}


def _item(graph: _Graph, item: Item, size: tuple[int, int]) -> dict[str, Any]:
    nodes = graph.document["nodes"]
    label_room, detail_room = _TEXT[size]
    single = len(item.nodes) == 1
    if single:
        node = nodes[item.nodes[0]]
        label, detail = node["op_type"], node["name"]
    else:
        part = item.nodes[: len(item.nodes) // item.repeats]
        counts = Counter(nodes[p]["op_type"] for p in part)
        label = f"{item.repeats} × {len(part)} nodes" if item.repeats > 1 else f"{len(part)} nodes"
        ranked = sorted(counts.items(), key=lambda pair: pair[0] not in _TELLING)
        detail = " · ".join(f"{op} {n}" if n > 1 else op for op, n in ranked)
    return {
        "label": _clip(label, label_room, end=True),
        "detail": _clip(detail, detail_room) if single else _lines(detail, detail_room),
        "repeats": item.repeats,
        "device": nodes[item.nodes[0]]["device"],
        "nodes": list(item.nodes),
    }


def _wire(
    graph: _Graph, a: End, b: End, values: Sequence[str], start: _Place, stop: _Place
) -> dict[str, Any]:
    """Describe a wire between two sides that face each other, or two left sides in one column."""
    sizes = [graph.ports[v] for v in values if v in graph.ports]
    unsure = any(port["nbytes"] is None or port["open_dims"] for port in sizes)
    known = sum(port["nbytes"] or 0 for port in sizes)
    label = ("≥ " if unsure else "") + nbytes_text(known) if known or not unsure else "size unknown"
    if len(values) > 1:
        label = f"{len(values)} tensors, {label}"
    y, to_y = start.y + start.h // 2, stop.y + stop.h // 2
    if start.x + start.w <= stop.x:
        x, to_x = start.x + start.w, stop.x
        bend = (x + to_x) // 2
    elif stop.x + stop.w <= start.x:
        x, to_x = start.x, stop.x + stop.w
        bend = (x + to_x) // 2
    else:
        x, to_x = start.x, stop.x
        bend = min(x, to_x) - 2 * GUTTER // 3
    return {
        "d": f"M{x} {y}C{bend} {y} {bend} {to_y} {to_x} {to_y}",
        "from": a if isinstance(a, int) else None,
        "to": b if isinstance(b, int) else None,
        "tensors": list(values),
        "label": label,
        "x": (x + 6 * bend + to_x) // 8,
        "y": (y + to_y) // 2,
    }


def _lines(text: str, room: int) -> str:
    """Break a list of operators into two lines, the second one shortened."""
    if len(text) <= room:
        return text
    cut = text.rfind(" · ", 0, room)
    if cut < 0:
        return _clip(text, room, end=True)
    return text[:cut] + "\n" + _clip(text[cut + 3 :], room, end=True)


def _clip(text: str, room: int, *, end: bool = False) -> str:
    """Shorten a label: in its middle, as names differ at their ends, or at the end."""
    if len(text) <= room:
        return text
    if end:
        return text[: room - 1] + "…"
    head = (room - 1) // 3
    return text[:head] + "…" + text[len(text) - (room - 1 - head) :]
