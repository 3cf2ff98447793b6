"""Generator of the diagrams in this folder: ``python docs/diagrams.py`` writes the SVG files.

The drawings follow the colour scheme of the reader's system, light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

_STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; }
  .note { font-size: 12px; fill: #59636e; }
  .box { fill: #f6f8fa; stroke: #8c959f; }
  .group { fill: none; stroke: #8c959f; stroke-dasharray: 5 4; }
  .client { fill: #ddf4ff; stroke: #0969da; }
  .device { fill: #dafbe1; stroke: #1a7f37; }
  .control { fill: #fff8c5; stroke: #9a6700; }
  .arrow { fill: none; stroke: #59636e; stroke-width: 1.5; marker-end: url(#head); }
  .head { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .box { fill: #21262d; stroke: #656c76; }
    .group { stroke: #656c76; }
    .client { fill: #0c2d6b; stroke: #4493f8; }
    .device { fill: #0f3d1e; stroke: #3fb950; }
    .control { fill: #3d2e00; stroke: #d29922; }
    .arrow { stroke: #9198a1; }
    .head { fill: #9198a1; }
  }
"""
_LINE_HEIGHT: Final = 18


@dataclass(frozen=True)
class Box:
    """Rectangle with a title and further lines of text; `kind` is a class of the style."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    kind: str = "box"

    def svg(self) -> str:
        """Return the box as SVG; the lines of a group stand at its top, others in its middle."""
        place = f'x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"'
        rows = [f'<rect class="{self.kind}" {place} rx="6"/>']
        is_group = self.kind == "group"
        top = self.y + 20
        if not is_group:
            top = self.y + (self.height - _LINE_HEIGHT * (len(self.lines) - 1)) // 2 + 4
        x, anchor = (self.x + 12, "start") if is_group else (self.x + self.width // 2, "middle")
        for number, line in enumerate(self.lines):
            style = "note" if number else "title"
            y = top + _LINE_HEIGHT * number
            place = f'x="{x}" y="{y}" text-anchor="{anchor}"'
            rows.append(f'<text class="{style}" {place}>{escape(line)}</text>')
        return "\n".join(rows)


@dataclass(frozen=True)
class Arrow:
    """Polyline with a head at its end, and a label at `label_at`."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    label_at: tuple[int, int] = (0, 0)

    def svg(self) -> str:
        """Return the arrow as SVG."""
        path = " ".join(f"{x},{y}" for x, y in self.points)
        x, y = self.label_at
        label = f'<text class="note" x="{x}" y="{y}">{escape(self.label)}</text>'
        return f'<polyline class="arrow" points="{path}"/>' + (label if self.label else "")


@dataclass(frozen=True)
class Diagram:
    """Drawing of boxes and arrows."""

    name: str
    title: str
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Arrow] = field(default=())

    def svg(self) -> str:
        """Return the drawing as an SVG document."""
        shapes = "\n".join(shape.svg() for shape in (*self.boxes, *self.arrows))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<style>{_STYLE}</style>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker>'
            f"</defs>\n{shapes}\n</svg>\n"
        )


def architecture() -> Diagram:
    """Return the processes of a compiled model on two nodes, and the messages between them."""
    boxes = [
        Box(20, 50, 260, 200, ("Your process",), "group"),
        Box(35, 85, 230, 46, ("Core", "query, partition, plan, compile"), "client"),
        Box(35, 140, 230, 46, ("CompiledModel", "subgraphs and their devices"), "client"),
        Box(35, 196, 230, 46, ("Requests", "InferRequest, AsyncInferQueue"), "client"),
        Box(20, 290, 260, 50, ("Cache", "content-addressed msgpack blobs")),
        Box(350, 50, 660, 210, ("Ray cluster",), "group"),
        Box(365, 80, 260, 165, ("Node A",), "group"),
        Box(735, 80, 260, 165, ("Node B",), "group"),
        Box(380, 108, 230, 50, ("Device actor OV.CPU", "stages 0 and 2"), "device"),
        Box(380, 184, 230, 50, ("Device actor ORT", "stage 1"), "device"),
        Box(750, 108, 230, 50, ("Device actor GPU.0", "stage 3"), "device"),
        Box(
            350,
            290,
            660,
            50,
            ("Supervisor, in your process or in a shared pool", "restarts lost device actors"),
            "control",
        ),
    ]
    arrows = [
        Arrow(((265, 219), (320, 219), (320, 133), (380, 133)), "inputs", (284, 152)),
        Arrow(((440, 158), (440, 184)), "shared memory", (450, 176)),
        Arrow(((550, 184), (550, 158))),
        Arrow(((610, 133), (750, 133)), "ZeroMQ, CURVE", (635, 126)),
        Arrow(((865, 108), (865, 30), (150, 30), (150, 50)), "result, to your process", (420, 24)),
        Arrow(((150, 250), (150, 290)), "blobs", (158, 275)),
        Arrow(((495, 234), (495, 290)), "heartbeats", (503, 278)),
        Arrow(((865, 158), (865, 290)), "heartbeats", (873, 278)),
    ]
    return Diagram("architecture", "Processes and messages of hetero", 1030, 360, boxes, arrows)


def data_flow() -> Diagram:
    """Return the values from the model to its requests, in their order."""
    steps = [
        ("Model", "ONNX graph"),
        ("Support", "device -> nodes"),
        ("Affinity", "node -> device"),
        ("Partition", "subgraphs"),
        ("Plan", "stages, replicas"),
        ("Deployment", "stages on actors"),
        ("Requests", "pipelined"),
    ]
    width, gap = 114, 16
    boxes = [
        Box(10 + number * (width + gap), 20, width, 54, lines, "client" if number < 5 else "device")
        for number, lines in enumerate(steps)
    ]
    arrows = [Arrow(((box.x + width, 47), (box.x + width + gap, 47))) for box in boxes[:-1]]
    total = 10 + len(steps) * (width + gap)
    return Diagram("data-flow", "From a model to its requests", total, 94, boxes, arrows)


def request() -> Diagram:
    """Return the life of a request in eight steps."""
    steps = [
        ("1 Submit", "infer or start_async"),
        ("2 Admission", "bounded by count and bytes"),
        ("3 Route", "the replica that ends first"),
        ("4 Send inputs", "to the first stages"),
        ("5 Join", "a stage waits for its inputs"),
        ("6 Run", "fair queue, one per stream"),
        ("7 Forward", "outputs to the next device"),
        ("8 Deliver", "one result or typed error"),
    ]
    width, height, gap = 205, 58, 26
    boxes = [
        Box(
            10 + (number % 4) * (width + gap),
            20 + (number // 4) * (height + 50),
            width,
            height,
            lines,
            "device" if number in (4, 5, 6) else "client",
        )
        for number, lines in enumerate(steps)
    ]
    arrows = [
        Arrow(((a.x + width, a.y + height // 2), (b.x, b.y + height // 2)))
        for a, b in pairwise(boxes)
        if a.y == b.y
    ]
    last, first = boxes[3], boxes[4]
    middle = last.y + height + 25
    x = last.x + width // 2
    arrows.append(
        Arrow(
            (
                (x, last.y + height),
                (x, middle),
                (first.x + width // 2, middle),
                (first.x + width // 2, first.y),
            )
        )
    )
    replay_y = boxes[6].y + height + 30
    arrows.append(
        Arrow(
            (
                (boxes[5].x + width // 2, boxes[5].y + height),
                (boxes[5].x + width // 2, replay_y),
                (boxes[4].x - 4, replay_y),
                (boxes[4].x - 4, 10),
                (boxes[2].x + width // 2, 10),
                (boxes[2].x + width // 2, 20),
            ),
            "device lost: replay on another route",
            (boxes[4].x + 4, replay_y - 8),
        )
    )
    return Diagram("request", "The life of a request", 4 * (width + gap), 220, boxes, arrows)


def main() -> None:
    """Write the files."""
    for diagram in (architecture(), data_flow(), request()):
        (Path(__file__).parent / f"{diagram.name}.svg").write_text(diagram.svg())


if __name__ == "__main__":
    main()
