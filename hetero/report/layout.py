"""Layout of the report's drawing: a column for each device, with its subgraphs and the wires.

A subgraph stands below the subgraphs whose outputs it reads, so that subgraphs side by side can
run at the same time. Model inputs stand left of the devices, model outputs right of them. Nodes
are drawn by Netron, from a model that `hetero query --annotate` wrote.

No layout library: measured with subgraphs as clusters, 580 and 5,200 nodes, this took 0.15 s and
1.2 s; dagre 3.1 (49 kB minified) 9 s and 380 s; for 580, elkjs 0.12 (1.6 MB) 10 s and Graphviz
(1.2 MB as WebAssembly) 1 s. None of them keeps one column for each device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hetero.formatting import counted, nbytes_text, seconds_text

#: Width and height in pixels: a subgraph, and a model input or output.
BOX: Final = (190, 66)
PILL: Final = (124, 28)
#: Pixels between columns, between subgraphs of a column, and between inputs or outputs.
COLUMN_GAP: Final = 104
ROW_GAP: Final = 46
PILL_GAP: Final = 16
#: A drawing of more subgraphs is omitted: nobody could read it.
MAX_SUBGRAPHS: Final = 6000
#: Characters of an input's or output's label.
_LABEL_LENGTH: Final = 15
#: The index that stands for the whole model if it cannot be partitioned.
WHOLE_MODEL: Final = -1
#: End of a wire: a subgraph's index, or ``input``/``output`` and a name.
End = int | tuple[str, str]


class _Rectangle(NamedTuple):
    """Upper left corner and size, in pixels."""

    x: int
    y: int
    w: int
    h: int


@dataclass(frozen=True, slots=True)
class _Graph:
    """The document as a graph of subgraphs, inputs and outputs."""

    document: Mapping[str, Any]
    #: Subgraph -> its device.
    devices: dict[int, str | None]
    #: Tensor -> its type and size.
    ports: dict[str, Mapping[str, Any]]
    #: (from, to) -> the tensors that pass.
    links: dict[tuple[End, End], list[str]]


def drawing(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the drawing of a report's subgraphs, or None if they are too many.

    Returns
    -------
    dict or None
        ``width`` and ``height``; ``boxes``, one for each subgraph; ``pills``, the model's inputs
        and outputs; ``wires``, SVG paths with their tensors and bytes. All sizes are in pixels.
    """
    if len(document["subgraphs"]) > MAX_SUBGRAPHS:
        return None
    graph = _graph(document)
    boxes = _boxes(graph)
    right = max((box.x + box.w for box in boxes.values()), default=0) + COLUMN_GAP
    pills = _pills(graph, boxes, "input", 0) | _pills(graph, boxes, "output", right)
    rectangles: dict[End, _Rectangle] = dict(boxes.items())
    rectangles.update(pills.items())
    return {
        "width": max((r.x + r.w for r in rectangles.values()), default=0),
        "height": max((r.y + r.h for r in rectangles.values()), default=0),
        "boxes": [_box(graph, index, box) for index, box in boxes.items()],
        "pills": [
            {**pill._asdict(), "kind": kind, "label": _shorten(name), "name": name}
            for (kind, name), pill in pills.items()
        ],
        "wires": [
            _wire(graph, source, target, tensors, rectangles[source], rectangles[target])
            for (source, target), tensors in graph.links.items()
        ],
    }


def _graph(document: Mapping[str, Any]) -> _Graph:
    nodes = document["nodes"]
    model = document["model"]
    devices = {s["index"]: s["device"] for s in document["subgraphs"]}
    if document["uncut"] is not None:
        devices = {WHOLE_MODEL: None}
    ports = {port["name"]: port for node in nodes for port in node["outputs"]}
    ports |= {port["name"]: port for port in model["inputs"]}
    return _Graph(document, devices, ports, _links(document, devices))


def _links(
    document: Mapping[str, Any], devices: Mapping[int, str | None]
) -> dict[tuple[End, End], list[str]]:
    links: dict[tuple[End, End], dict[str, None]] = {}
    inputs = {port["name"] for port in document["model"]["inputs"]}
    producers: dict[str, int] = {}

    def add(source: End, target: End, tensor: str) -> None:
        links.setdefault((source, target), {})[tensor] = None

    for node in document["nodes"]:
        subgraph = WHOLE_MODEL if node["subgraph"] is None else node["subgraph"]
        if subgraph not in devices:  # folded: it runs in no subgraph
            continue
        producers |= dict.fromkeys((port["name"] for port in node["outputs"]), subgraph)
        for tensor in node["inputs"]:
            if tensor in inputs:
                add(("input", tensor), subgraph, tensor)
    for wire in document["wires"]:
        add(wire["producer"], wire["consumer"], wire["tensor"])
    for port in document["model"]["outputs"]:
        name = port["name"]
        if name in producers:
            add(producers[name], ("output", name), name)
        elif name in inputs:
            add(("input", name), ("output", name), name)
    return {ends: list(tensors) for ends, tensors in links.items()}


def _boxes(graph: _Graph) -> dict[int, _Rectangle]:
    """Place each subgraph in its device's column, below its sources and the column's others."""
    used = set(graph.devices.values())
    columns = [d for d in (*graph.document["request"]["devices"], None) if d in used]
    left = PILL[0] + COLUMN_GAP
    x = {device: left + i * (BOX[0] + COLUMN_GAP) for i, device in enumerate(columns)}
    sources: dict[int, list[int]] = {index: [] for index in graph.devices}
    for source, target in graph.links:
        if isinstance(source, int) and isinstance(target, int):
            sources[target].append(source)
    boxes: dict[int, _Rectangle] = {}
    bottom = dict.fromkeys(columns, 0)
    for index in sorted(graph.devices):  # a topological order
        device = graph.devices[index]
        y = max([bottom[device], *(boxes[s].y + boxes[s].h + ROW_GAP for s in sources[index])])
        boxes[index] = _Rectangle(x[device], y, *BOX)
        bottom[device] = y + BOX[1] + ROW_GAP
    return boxes


def _pills(
    graph: _Graph, boxes: Mapping[int, _Rectangle], kind: str, x: int
) -> dict[tuple[str, str], _Rectangle]:
    """Place inputs or outputs, each as high as the first subgraph that it is linked with."""
    linked_y: dict[End, int] = {}
    for source, target in graph.links:
        pill, box = (source, target) if kind == "input" else (target, source)
        if isinstance(box, int):
            linked_y[pill] = min(boxes[box].y, linked_y.get(pill, boxes[box].y))
    pills: dict[tuple[str, str], _Rectangle] = {}
    y = 0
    names: Iterable[str] = dict.fromkeys(p["name"] for p in graph.document["model"][f"{kind}s"])
    for name in sorted(names, key=lambda name: linked_y.get((kind, name), 0)):
        y = max(y, linked_y.get((kind, name), 0))
        pills[kind, name] = _Rectangle(x, y, *PILL)
        y += PILL[1] + PILL_GAP
    return pills


def _box(graph: _Graph, index: int, rectangle: _Rectangle) -> dict[str, Any]:
    device = graph.devices[index]
    if index == WHOLE_MODEL:
        title = "whole model, not partitioned"
        detail = counted(len(graph.document["nodes"]), "node")
    else:
        subgraph = graph.document["subgraphs"][index]
        title = f"{index} · {device or 'no device'}"
        detail = counted(len(subgraph["nodes"]), "node")
        if subgraph["run_s"] is not None:
            detail += f" · {seconds_text(subgraph['run_s'])}"
    labels = {"subgraph": index, "device": device, "title": title, "detail": detail}
    return {**rectangle._asdict(), **labels}


def _wire(
    graph: _Graph,
    source: End,
    target: End,
    tensors: Sequence[str],
    start: _Rectangle,
    stop: _Rectangle,
) -> dict[str, Any]:
    """Draw a wire between two sides that face each other, or between left sides of one column."""
    ports = [graph.ports[tensor] for tensor in tensors if tensor in graph.ports]
    at_least = any(port["nbytes"] is None or port["open_dims"] for port in ports)
    nbytes = sum(port["nbytes"] or 0 for port in ports)
    if nbytes or not at_least:
        label = ("≥ " if at_least else "") + nbytes_text(nbytes)
    else:
        label = "size unknown"
    if len(tensors) > 1:
        label = f"{len(tensors)} tensors, {label}"
    y, to_y = start.y + start.h // 2, stop.y + stop.h // 2
    if start.x + start.w <= stop.x:
        x, to_x = start.x + start.w, stop.x
        bend = (x + to_x) // 2
    elif stop.x + stop.w <= start.x:
        x, to_x = start.x, stop.x + stop.w
        bend = (x + to_x) // 2
    else:
        x, to_x = start.x, stop.x
        bend = min(x, to_x) - 2 * COLUMN_GAP // 3
    return {
        "d": f"M{x} {y}C{bend} {y} {bend} {to_y} {to_x} {to_y}",
        "from": source if isinstance(source, int) else None,
        "to": target if isinstance(target, int) else None,
        "tensors": list(tensors),
        "label": label,
        "x": (x + 6 * bend + to_x) // 8,
        "y": (y + to_y) // 2,
    }


def _shorten(name: str) -> str:
    """Shorten a name in its middle: names differ at their ends."""
    if len(name) <= _LABEL_LENGTH:
        return name
    head = (_LABEL_LENGTH - 1) // 3
    return name[:head] + "…" + name[len(name) - (_LABEL_LENGTH - 1 - head) :]
