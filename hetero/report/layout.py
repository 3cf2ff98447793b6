"""Layout of the report's drawing: a column for each device, with its subgraphs and the wires.

A subgraph stands below the subgraphs whose outputs it reads, so that subgraphs side by side can
run at the same time. Model inputs stand left of the devices, model outputs right of them. A drawing
of many rows is wrapped into bands, side by side like the columns of a newspaper. Nodes are drawn by
Netron, from a model that `hetero query --annotate` wrote.

No layout library: measured with subgraphs as clusters, 580 and 5,200 nodes, this took 0.15 s and
1.2 s; dagre 3.1 (49 kB minified) 9 s and 380 s; for 580, elkjs 0.12 (1.6 MB) 10 s and Graphviz
(1.2 MB as WebAssembly) 1 s. None of them keeps one column for each device.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hetero.formatting import count_text, nbytes_text, seconds_text

#: Width and height in pixels: a subgraph, and a model input or output.
BOX: Final = (190, 66)
PILL: Final = (124, 28)
#: Pixels between columns, between subgraphs of a column, and between inputs or outputs.
COLUMN_GAP: Final = 104
ROW_GAP: Final = 46
PILL_GAP: Final = 16
#: A drawing of more subgraphs is omitted: nobody could read it.
MAX_SUBGRAPHS: Final = 6000
#: A drawing of more rows of subgraphs is wrapped into bands.
MAX_ROWS: Final = 40
#: Width over height of a wrapped drawing, about that of a screen.
ASPECT: Final = 1.8
#: Longest repeated sequence of devices that `chains` finds.
MAX_PATTERN: Final = 16
#: Height of a wire's label, width of its characters, and its margin, in pixels. The page draws a
#: margin of 3.5 pixels in the background's colour.
_LABEL_HEIGHT: Final = 16
_CHARACTER_WIDTH: Final = 6.5
_LABEL_MARGIN: Final = 4
#: Places on a wire, from 0 at its start to 1, where a label is tried. A label that overlaps another
#: one or a subgraph in all of them is omitted.
_LABEL_PLACES: Final = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8)
#: Width of a wire: its minimum, and the increase for ten times the bytes above 1 kB.
_WIRE_WIDTH: Final = (1.5, 1.2)
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

    def overlaps(self, other: _Rectangle) -> bool:
        """Return whether the rectangles overlap."""
        return (
            self.x < other.x + other.w
            and other.x < self.x + self.w
            and self.y < other.y + other.h
            and other.y < self.y + self.h
        )


class _OccupiedAreas:
    """Set of rectangles that finds overlaps by a grid of cells."""

    _CELL: Final = 128

    def __init__(self, rectangles: Iterable[_Rectangle]) -> None:
        self._cells: defaultdict[tuple[int, int], list[_Rectangle]] = defaultdict(list)
        for rectangle in rectangles:
            self.add(rectangle)

    def add(self, rectangle: _Rectangle) -> None:
        """Add a rectangle."""
        for key in self._keys(rectangle):
            self._cells[key].append(rectangle)

    def is_free(self, rectangle: _Rectangle) -> bool:
        """Return whether no rectangle of the set overlaps this one."""
        return not any(
            rectangle.overlaps(other)
            for key in self._keys(rectangle)
            for other in self._cells.get(key, ())
        )

    def _keys(self, rectangle: _Rectangle) -> Iterator[tuple[int, int]]:
        for column in range(
            rectangle.x // self._CELL, (rectangle.x + rectangle.w) // self._CELL + 1
        ):
            for row in range(
                rectangle.y // self._CELL, (rectangle.y + rectangle.h) // self._CELL + 1
            ):
                yield column, row


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
        and outputs; ``wires``, SVG paths with their tensors and bytes; a wire whose label would
        overlap has no ``label_x`` and ``label_y``. All sizes are in pixels.
    """
    if len(document["subgraphs"]) > MAX_SUBGRAPHS:
        return None
    graph = _graph(document)
    boxes, bands = _boxes(graph)
    pills = _place_ports(graph, boxes, bands, "input") | _place_ports(graph, boxes, bands, "output")
    rectangles: dict[End, _Rectangle] = dict(boxes.items())
    rectangles.update(pills.items())
    occupied = _OccupiedAreas(rectangles.values())
    return {
        "width": max((r.x + r.w for r in rectangles.values()), default=0),
        "height": max((r.y + r.h for r in rectangles.values()), default=0),
        "boxes": [
            {**_box(graph, index, box), "band": bands.band_of[index]}
            for index, box in boxes.items()
        ],
        "pills": [
            {**pill._asdict(), "kind": kind, "label": _shorten_name(name), "name": name}
            for (kind, name), pill in pills.items()
        ],
        "wires": [
            _with_label(
                *_wire(graph, source, target, tensors, rectangles[source], rectangles[target]),
                occupied,
            )
            for (source, target), tensors in graph.links.items()
        ],
    }


def chains(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the devices of all subgraphs in their order, with repeated sequences counted.

    Returns
    -------
    list of dict
        ``devices``: a sequence of devices; ``times``: the number of its repetitions in a row;
        ``first``: the index of its first subgraph.
    """
    devices = [subgraph["device"] for subgraph in document["subgraphs"]]
    rows: list[dict[str, Any]] = []
    position = 0
    while position < len(devices):
        length, times = _repetition(devices, position)
        pattern = devices[position : position + length]
        if times == 1 and rows and rows[-1]["times"] == 1:
            rows[-1]["devices"] += pattern
        else:
            rows.append({"devices": pattern, "times": times, "first": position})
        position += length * times
    return rows


def _repetition(devices: Sequence[str | None], start: int) -> tuple[int, int]:
    """Return the length and count of the repeated sequence at `start` that covers most."""
    best = (1, 1)
    for length in range(1, MAX_PATTERN + 1):
        pattern = devices[start : start + length]
        times = 1
        while devices[start + times * length : start + (times + 1) * length] == pattern:
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best


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


@dataclass(frozen=True, slots=True)
class _Bands:
    """Bands of a wrapped drawing; a drawing with few rows has one.

    `band_of`: subgraph -> its band. `width`: distance between bands. `right`: x of the outputs in
    the first band.
    """

    band_of: Mapping[int, int]
    width: int
    right: int


def _boxes(graph: _Graph) -> tuple[dict[int, _Rectangle], _Bands]:
    """Place each subgraph in its device's column, below its sources and the column's others."""
    used = set(graph.devices.values())
    columns = [d for d in (*graph.document["request"]["devices"], None) if d in used]
    left = PILL[0] + COLUMN_GAP
    x = {device: left + i * (BOX[0] + COLUMN_GAP) for i, device in enumerate(columns)}
    sources: dict[int, list[int]] = {index: [] for index in graph.devices}
    for source, target in graph.links:
        if isinstance(source, int) and isinstance(target, int):
            sources[target].append(source)
    rows: dict[int, int] = {}
    next_row = dict.fromkeys(columns, 0)
    for index in sorted(graph.devices):  # a topological order
        device = graph.devices[index]
        rows[index] = max([next_row[device], *(rows[source] + 1 for source in sources[index])])
        next_row[device] = rows[index] + 1
    right = max([0, *(x[device] + BOX[0] for device in columns)]) + COLUMN_GAP
    width = right + PILL[0] + COLUMN_GAP
    height = _rows_of_a_band(max(rows.values(), default=0) + 1, width)
    bands = {index: row // height for index, row in rows.items()}
    boxes = {
        index: _Rectangle(
            x[graph.devices[index]] + bands[index] * width,
            row % height * (BOX[1] + ROW_GAP),
            *BOX,
        )
        for index, row in rows.items()
    }
    return boxes, _Bands(bands, width, right)


def _rows_of_a_band(rows: int, width: int) -> int:
    """Return the number of rows per band for a drawing of about the aspect ratio `ASPECT`.

    Bands are `width` pixels wide and side by side; at most `MAX_ROWS` rows are not wrapped.
    """
    if rows <= MAX_ROWS:
        return rows
    count = math.ceil(math.sqrt(ASPECT * rows * (BOX[1] + ROW_GAP) / width))
    return math.ceil(rows / count)


def _place_ports(
    graph: _Graph, boxes: Mapping[int, _Rectangle], bands: _Bands, kind: str
) -> dict[tuple[str, str], _Rectangle]:
    """Place inputs or outputs, each beside the first subgraph that it is linked with."""
    linked: dict[End, tuple[int, int]] = {}
    for source, target in graph.links:
        pill, box = (source, target) if kind == "input" else (target, source)
        if isinstance(box, int):
            place = (bands.band_of[box], boxes[box].y)
            linked[pill] = min(place, linked.get(pill, place))
    pills: dict[tuple[str, str], _Rectangle] = {}
    next_y: defaultdict[int, int] = defaultdict(int)
    names: Iterable[str] = dict.fromkeys(p["name"] for p in graph.document["model"][f"{kind}s"])
    for name in sorted(names, key=lambda name: linked.get((kind, name), (0, 0))):
        band, box_y = linked.get((kind, name), (0, 0))
        y = max(next_y[band], box_y)
        x = band * bands.width + (0 if kind == "input" else bands.right)
        pills[kind, name] = _Rectangle(x, y, *PILL)
        next_y[band] = y + PILL[1] + PILL_GAP
    return pills


def _box(graph: _Graph, index: int, rectangle: _Rectangle) -> dict[str, Any]:
    device = graph.devices[index]
    if index == WHOLE_MODEL:
        title = "whole model, not partitioned"
        detail = count_text(len(graph.document["nodes"]), "node")
    else:
        subgraph = graph.document["subgraphs"][index]
        title = f"{index} · {device or 'no device'}"
        detail = count_text(len(subgraph["nodes"]), "node")
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
) -> tuple[dict[str, Any], _Curve]:
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
        "width": round(_WIRE_WIDTH[0] + _WIRE_WIDTH[1] * math.log10(1 + nbytes / 1000), 1),
    }, _Curve((x, bend, bend, to_x), (y, y, to_y, to_y))


class _Curve(NamedTuple):
    """Cubic Bezier curve: the coordinates of its four points."""

    x: tuple[int, int, int, int]
    y: tuple[int, int, int, int]

    def point(self, place: float) -> tuple[int, int]:
        """Return the point at a place from 0, the start, to 1."""
        rest = 1 - place
        weights = (rest**3, 3 * rest**2 * place, 3 * rest * place**2, place**3)
        x, y = (
            round(sum(weight * value for weight, value in zip(weights, values, strict=True)))
            for values in self
        )
        return x, y


def _with_label(wire: dict[str, Any], curve: _Curve, occupied: _OccupiedAreas) -> dict[str, Any]:
    """Add the place of a wire's label on the wire, if there is a free one."""
    width = round(_CHARACTER_WIDTH * len(wire["label"])) + 2 * _LABEL_MARGIN
    height = _LABEL_HEIGHT + 2 * _LABEL_MARGIN
    for place in _LABEL_PLACES:
        x, y = curve.point(place)
        area = _Rectangle(x - width // 2, y - height // 2, width, height)
        if occupied.is_free(area):
            occupied.add(area)
            return wire | {"label_x": x, "label_y": y}
    return wire


def _shorten_name(name: str) -> str:
    """Shorten a name in its middle: names differ at their ends."""
    if len(name) <= _LABEL_LENGTH:
        return name
    head = (_LABEL_LENGTH - 1) // 3
    return name[:head] + "…" + name[len(name) - (_LABEL_LENGTH - 1 - head) :]
