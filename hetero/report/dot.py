"""The report for Graphviz: subgraphs as clusters, crossing tensors with their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from hetero.report.units import counted, nbytes_text

#: Fill colours by device, in order of preference; each is also named in its cluster's label.
FILLS: Final = (
    "#cfe2f7", "#fbdcc4", "#cdeedb", "#f6d3e6", "#e3d8f7", "#f4ebb8", "#c9ecf0", "#e6ddd2",
)  # fmt: skip
UNSUPPORTED_FILL: Final = "#ff9a9a"


def report_dot(document: dict[str, Any]) -> str:
    """Return the graph in the DOT language; literals and folded constants are left out."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: dict[str, Any]) -> Iterator[str]:
    yield f"digraph {_quote(document['model']['name'])} {{"
    yield '  graph [rankdir=TB, fontname="sans-serif", compound=true];'
    yield '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=10];'
    yield '  edge [fontname="sans-serif", fontsize=9];'
    order = document["request"]["devices"]
    drawn = [node for node in document["nodes"] if not node["constant"]]
    members: dict[int | None, list[dict[str, Any]]] = {}
    for node in drawn:
        members.setdefault(node["subgraph"], []).append(node)
    for port in document["model"]["inputs"]:
        yield f"  {_quote('input ' + port['name'])} [shape=ellipse, fillcolor=white];"
    for subgraph, nodes in members.items():
        device = nodes[0]["device"]
        if subgraph is not None:
            where = device or "no device"
            label = f"subgraph {subgraph} · {where} · {counted(len(nodes), 'node')}"
            yield f"  subgraph cluster_{subgraph} {{"
            yield f"    label={_quote(label)};"
        for node in nodes:
            place = node["device"]
            fill = FILLS[order.index(place) % len(FILLS)] if place else UNSUPPORTED_FILL
            text = f"{node['op_type']}\n{node['name']}" + ("" if place else "\nno device")
            yield f"    {_quote(node['name'])} [label={_quote(text)}, fillcolor={_quote(fill)}];"
        if subgraph is not None:
            yield "  }"
    yield from _edges(document, drawn)
    yield "}"


def _edges(document: dict[str, Any], drawn: list[dict[str, Any]]) -> Iterator[str]:
    makers = {port["name"]: node for node in drawn for port in node["outputs"]}
    sizes = {port["name"]: port["nbytes"] for node in drawn for port in node["outputs"]}
    inputs = {port["name"] for port in document["model"]["inputs"]}
    for node in drawn:
        for value in node["inputs"]:
            maker = makers.get(value)
            if maker is None:
                if value in inputs:
                    yield f"  {_quote('input ' + value)} -> {_quote(node['name'])};"
                continue
            crosses = maker["subgraph"] != node["subgraph"]
            label = f" [label={_quote(nbytes_text(sizes[value]))}, penwidth=2]" if crosses else ""
            yield f"  {_quote(maker['name'])} -> {_quote(node['name'])}{label};"
    for port in document["model"]["outputs"]:
        name = "output " + port["name"]
        yield f"  {_quote(name)} [shape=ellipse, fillcolor=white];"
        if port["name"] in makers:
            yield f"  {_quote(makers[port['name']]['name'])} -> {_quote(name)};"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
