"""The drawings of a report: subgraphs as boxes, in them blocks or nodes, between them wires.

Each is laid out here, so that the page only paints: subgraphs are laid out one by one, then as
boxes of a graph of their own, so that no box overlaps another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from hetero.report.blocks import Item, block_items, single_items, visible_nodes
from hetero.report.layered import Drawing, draw
from hetero.report.units import counted, nbytes_text, seconds_text

#: Pixels: a node, a block, a subgraph drawn closed, an input or output; a point where wires enter.
NODE: Final = (172.0, 40.0)
BLOCK: Final = (236.0, 64.0)
CLOSED: Final = (226.0, 66.0)
PILL: Final = (150.0, 28.0)
#: Drawings of more boxes than this are left out: nobody could read them.
LARGEST: Final = 6000
POINT: Final = (8.0, 0.0)
#: Pixels around a subgraph's items, and for its title.
PAD: Final = 20.0
TITLE: Final = 30.0
#: Pixels between subgraphs, above each other and side by side, for a wire's label.
WIRE: Final = 46.0
LANE: Final = 116.0
#: Characters of a label, by box.
_TEXT: Final = {NODE: (22, 29), BLOCK: (29, 40)}
#: Operators that say most about a block.
_TELLING: Final = ("Attention", "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU")
#: Where a value comes from or goes to: a subgraph's index, or ``input``/``output`` and a name.
End = int | tuple[str, str]


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

    def group(self, position: int) -> int:
        subgraph = self.document["nodes"][position]["subgraph"]
        return -1 if subgraph is None else int(subgraph)


def drawings(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the drawings, the coarsest first: subgraphs, blocks, nodes.

    Returns: ``name``, ``width``, ``height``; ``boxes`` (subgraphs), ``items`` with their nodes'
        positions in the document, ``pills`` (inputs and outputs), ``edges`` as SVG paths, and
        ``wires``, edges between subgraphs with their tensors and bytes.
    """
    drawn, _ = visible_nodes(document)
    nodes = document["nodes"]
    groups: dict[int, list[int]] = {s["index"]: [] for s in document["subgraphs"]}
    for p in drawn:
        subgraph = nodes[p]["subgraph"]
        groups.setdefault(-1 if subgraph is None else subgraph, []).append(p)
    # A subgraph of nothing but constants is drawn as one box of them.
    bare = {group for group, members in groups.items() if not members}
    for position, node in enumerate(nodes):
        if node["subgraph"] in bare:
            groups[node["subgraph"]].append(position)
    everything = [p for members in groups.values() for p in members]
    makers = {port["name"]: p for p in everything for port in nodes[p]["outputs"]}
    ports = {port["name"]: port for node in nodes for port in node["outputs"]}
    ports |= {port["name"]: port for port in document["model"]["inputs"]}
    graph = _Graph(document, groups, makers, ports)
    views = []
    if 1 < len(groups) <= LARGEST:
        views.append({"name": "Subgraphs", **_macro(graph, None, CLOSED)})
    blocks = {
        g: [Item(tuple(members))] if g in bare else block_items(members, nodes)
        for g, members in groups.items()
    }
    if sum(map(len, blocks.values())) < min(len(drawn), LARGEST):
        views.append({"name": "Blocks", **_macro(graph, blocks, BLOCK)})
    singles = {
        g: [Item(tuple(members))] if g in bare else single_items(members)
        for g, members in groups.items()
    }
    if len(everything) <= LARGEST:
        views.append({"name": "Nodes", **_macro(graph, singles, NODE)})
    return views


@dataclass(frozen=True, slots=True)
class _Inside:
    """A subgraph's own drawing: its items, and where wires enter and leave."""

    items: Sequence[Item]
    drawing: Drawing
    edges: tuple[tuple[int, int], ...]
    ends_in: tuple[End, ...]
    ends_out: tuple[End, ...]


def _inside(
    graph: _Graph,
    group: int,
    items: Sequence[Item],
    size: tuple[float, float],
    links: Mapping[tuple[End, End], list[str]],
) -> _Inside:
    item_of = {p: i for i, item in enumerate(items) for p in item.nodes}
    ends_in = tuple(a for a, b in links if b == group)
    ends_out = tuple(b for a, b in links if a == group)
    entry = {end: len(items) + i for i, end in enumerate(ends_in)}
    leave = {end: len(items) + len(ends_in) + i for i, end in enumerate(ends_out)}
    edges: dict[tuple[int, int], None] = {}
    nodes = graph.document["nodes"]
    crossing = {value: a for (a, b), values in links.items() if b == group for value in values}
    for item in items:
        for p in item.nodes:
            for value in nodes[p]["inputs"]:
                if (maker := graph.makers.get(value)) in item_of:
                    if item_of[maker] != item_of[p]:
                        edges[item_of[maker], item_of[p]] = None
                elif value in crossing:
                    edges[entry[crossing[value]], item_of[p]] = None
    for end in ends_out:
        for value in links[group, end]:
            if (maker := graph.makers.get(value)) in item_of:
                edges[item_of[maker], leave[end]] = None
    sizes = [size] * len(items) + [POINT] * (len(ends_in) + len(ends_out))
    drawing = draw(sizes, list(edges), first=entry.values(), last=leave.values())
    return _Inside(items, drawing, tuple(edges), ends_in, ends_out)


def _links(graph: _Graph) -> dict[tuple[End, End], list[str]]:
    """Return what goes between subgraphs, inputs and outputs: (from, to) -> values."""
    links: dict[tuple[End, End], list[str]] = {}
    nodes = graph.document["nodes"]
    inputs = {port["name"] for port in graph.document["model"]["inputs"]}

    def add(source: End, target: End, value: str) -> None:
        values = links.setdefault((source, target), [])
        if value not in values:
            values.append(value)

    for group, members in graph.groups.items():
        for p in members:
            for value in nodes[p]["inputs"]:
                if (maker := graph.makers.get(value)) is not None:
                    if graph.group(maker) != group:
                        add(graph.group(maker), group, value)
                elif value in inputs:
                    add(("input", value), group, value)
    # Constants are drawn with their readers, but where they cross, that shows.
    for wire in graph.document["wires"]:
        if wire["tensor"] not in graph.makers:
            add(wire["producer"], wire["consumer"], wire["tensor"])
    for port in graph.document["model"]["outputs"]:
        if (maker := graph.makers.get(port["name"])) is not None:
            add(graph.group(maker), ("output", port["name"]), port["name"])
        elif port["name"] in inputs:
            add(("input", port["name"]), ("output", port["name"]), port["name"])
    return links


def _macro(
    graph: _Graph, items: Mapping[int, Sequence[Item]] | None, size: tuple[float, float]
) -> dict[str, Any]:
    """Lay out the subgraphs, closed or with their items in them."""
    links = _links(graph)
    pills = [("input", p["name"]) for p in graph.document["model"]["inputs"]]
    pills += [("output", p["name"]) for p in graph.document["model"]["outputs"]]
    ends: list[End] = [*graph.groups, *dict.fromkeys(pills)]
    index = {end: i for i, end in enumerate(ends)}
    insides: dict[End, _Inside] = {}
    sizes = []
    for end in ends:
        if not isinstance(end, int):
            sizes.append(PILL)
        elif items is None:
            sizes.append(CLOSED)
        else:
            insides[end] = inside = _inside(graph, end, items[end], size, links)
            box = inside.drawing
            sizes.append((max(box.width, PILL[0]) + 2 * PAD, box.height + 2 * PAD + TITLE))
    pairs = [(index[a], index[b]) for a, b in links]
    whole = draw(sizes, pairs, gap=WIRE, gutter=LANE)
    boxes = [
        _box(graph, end, whole.places[i], sizes[i])
        for i, end in enumerate(ends)
        if isinstance(end, int)
    ]
    view: dict[str, Any] = {
        "width": whole.width,
        "height": whole.height,
        "boxes": boxes,
        "pills": [
            {"x": x, "y": y, "w": PILL[0], "h": PILL[1], "kind": end[0], "label": _clip(end[1], 20),
             "name": end[1]}
            for end, (x, y) in zip(ends, whole.places, strict=True)
            if not isinstance(end, int)
        ],
        "items": [],
        "edges": [],
    }  # fmt: skip
    corner: dict[End, Callable[[float, float], tuple[float, float]]] = {}
    for end, inside in insides.items():
        x0, y0 = whole.places[index[end]]
        # A subgraph narrower than its title is centred in its box.
        slack = (sizes[index[end]][0] - 2 * PAD - inside.drawing.width) / 2

        def shift(
            x: float, y: float, dx: float = x0 + PAD + slack, dy: float = y0 + PAD + TITLE
        ) -> tuple[float, float]:
            return x + dx, y + dy

        corner[end] = shift
        for item, place in zip(inside.items, inside.drawing.places, strict=False):
            x, y = shift(*place)
            view["items"].append(_item(graph, item, x, y, size))
        for route in inside.drawing.routes:
            view["edges"].append(_path([shift(*point) for point in route]))
    view["wires"] = [
        _wire(graph, a, b, values, route, _ends(a, b, route, insides, corner))
        for ((a, b), values), route in zip(links.items(), whole.routes, strict=True)
    ]
    _round(view)
    return view


def _ends(
    a: End,
    b: End,
    route: Sequence[tuple[float, float]],
    insides: Mapping[End, _Inside],
    corner: Mapping[End, Callable[[float, float], tuple[float, float]]],
) -> list[tuple[float, float]]:
    """Let a wire begin and end at the points inside the subgraphs, not at their borders."""
    points = list(route)
    if a in insides:
        inside = insides[a]
        number = len(inside.items) + len(inside.ends_in) + inside.ends_out.index(b)
        place = inside.drawing.places[number]
        points = _moved(points, *corner[a](place[0] + POINT[0] / 2, place[1]))
    if b in insides:
        inside = insides[b]
        place = inside.drawing.places[len(inside.items) + inside.ends_in.index(a)]
        points = _moved(points[::-1], *corner[b](place[0] + POINT[0] / 2, place[1]))[::-1]
    return points


def _moved(points: Sequence[tuple[float, float]], x: float, y: float) -> list[tuple[float, float]]:
    """Let a route begin at another point, and pass its old beginning's height below that."""
    rest = list(points[1:])
    # On its way to another column it first goes straight down, then aside.
    if len(rest) > 1 and rest[0][1] == rest[1][1]:
        rest[0] = (x, rest[0][1])
    return [(x, y), (x, points[0][1]), *rest]


def _box(
    graph: _Graph, group: int, place: tuple[float, float], size: tuple[float, float]
) -> dict[str, Any]:
    subgraph = graph.document["subgraphs"][group] if group >= 0 else None
    title = "whole model, not cut"
    device, detail = None, counted(len(graph.groups[group]), "node")
    if subgraph is not None:
        device = subgraph["device"]
        title = f"{group} · {device or 'no device'}"
        detail = counted(len(subgraph["nodes"]), "node")
        if subgraph["run_s"] is not None:
            detail += f" · {seconds_text(subgraph['run_s'])}"
    return {
        "x": place[0], "y": place[1], "w": size[0], "h": size[1],
        "subgraph": group, "device": device, "title": title, "detail": detail,
    }  # fmt: skip


def _item(
    graph: _Graph, item: Item, x: float, y: float, size: tuple[float, float]
) -> dict[str, Any]:
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
        "x": x, "y": y, "w": size[0], "h": size[1],
        "label": _clip(label, label_room, end=True),
        "detail": _clip(detail, detail_room) if single else _lines(detail, detail_room),
        "repeats": item.repeats, "device": nodes[item.nodes[0]]["device"],
        "nodes": list(item.nodes),
    }  # fmt: skip


def _wire(
    graph: _Graph,
    a: End,
    b: End,
    values: Sequence[str],
    outside: Sequence[tuple[float, float]],
    points: Sequence[tuple[float, float]],
) -> dict[str, Any]:
    """Describe a wire; its label stands outside of the subgraphs."""
    sizes = graph.ports
    total = sum(sizes[v]["nbytes"] or 0 for v in values if v in sizes)
    unsure = any(sizes[v]["nbytes"] is None or sizes[v]["open_dims"] for v in values if v in sizes)
    label = ("≥ " if unsure else "") + nbytes_text(total)
    if len(values) > 1:
        label = f"{len(values)} tensors, {label}"
    middle = max(
        pairwise(outside),
        key=lambda ends: abs(ends[0][0] - ends[1][0]) + abs(ends[0][1] - ends[1][1]),
    )
    return {
        "d": _path(points),
        "from": a if isinstance(a, int) else None,
        "to": b if isinstance(b, int) else None,
        "tensors": list(values),
        "label": label,
        "x": (middle[0][0] + middle[1][0]) / 2,
        "y": (middle[0][1] + middle[1][1]) / 2,
    }


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return an SVG path: straight along rows and columns, curved in between."""
    x, y = points[0]
    parts = [f"M{x:.0f} {y:.0f}"]
    for to_x, to_y in points[1:]:
        if abs(to_x - x) < 1 or abs(to_y - y) < 1:
            parts.append(f"L{to_x:.0f} {to_y:.0f}")
        else:
            half = (y + to_y) / 2
            parts.append(f"C{x:.0f} {half:.0f} {to_x:.0f} {half:.0f} {to_x:.0f} {to_y:.0f}")
        x, y = to_x, to_y
    return "".join(parts)


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


def _round(view: dict[str, Any]) -> None:
    """Whole pixels are enough, and half the file."""
    for name in ("boxes", "pills", "items", "wires"):
        for row in view[name]:
            for key in ("x", "y", "w", "h"):
                if key in row:
                    row[key] = round(row[key])
    view["width"], view["height"] = round(view["width"]), round(view["height"])
