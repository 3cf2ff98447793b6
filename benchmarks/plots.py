"""Plot of BENCHMARKS.md: times relative to a peer in the same run, on a logarithmic axis.

Small circles are earlier versions of hetero on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks.tables import cell

#: Columns with times relative to a peer: less is better, 1 is equal.
RATIOS: Final = ("over ONNX Runtime", "in process: p50 ratio", "on Ray: p50 ratio")
_CHAIN: Final = "a bare ZeroMQ chain's: blue in process, orange on Ray"
_PEERS: Final = dict(zip(RATIOS, ("ONNX Runtime's", _CHAIN, _CHAIN), strict=True))
#: Results with the same key can be compared.
_KIND: Final = itemgetter("benchmark", "machine")
_COLOURS: Final = ("#2f6fde", "#2f6fde", "#d9690d")
#: Ends of the axis, and left and right edge of the plot in pixels.
_LOW, _HIGH, _LEFT, _RIGHT = 0.05, 20.0, 210, 780
_ROW: Final = 15
_HEAD: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" role="img">
<title>Times over those of a peer</title>
<style>text {{ font: 11px sans-serif; fill: #5d6878; }} .name {{ text-anchor: end; }}
.mark {{ text-anchor: middle; }} .head {{ font-weight: bold; }} line {{ stroke: #a3adba; }}
line.at1 {{ stroke: #5d6878; stroke-width: 2; }}</style>"""


def ratios(results: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG of every row of the results that has a ratio to a peer."""
    body: list[str] = []
    top = 40
    for result in results:
        rows = [row for row in result["rows"] if any(name in row for name in RATIOS)]
        if not rows:
            continue
        peer = next(_PEERS[name] for name in RATIOS if name in rows[0])
        title = f"{result['benchmark']}: time over {peer}"
        body.append(f'<text class="head" x="8" y="{top}">{title}</text>')
        kin = [r for r in earlier if _KIND(r) == _KIND(result) and r["commit"] != result["commit"]]
        for row in rows:
            top += _ROW
            body += [
                mark
                for r in kin
                for old in r["rows"]
                for mark in _draw_earlier_version(row, old, r, top)
            ]
            body += _row(row, top)
        top += 2 * _ROW
    axis = [
        f'<line class="at{mark:g}" x1="{_x(mark):.0f}" x2="{_x(mark):.0f}" y1="22" '
        f'y2="{top - _ROW}"/><text class="mark" x="{_x(mark):.0f}" y="14">{mark:g}×</text>'
        for mark in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
    ]
    return "\n".join([_HEAD.format(height=top), *axis, *body, "</svg>", ""])


def _label(row: Mapping[str, Any]) -> str:
    """Return a row's label from its first cells before the first ratio."""
    first = next((i for i, name in enumerate(row) if name in RATIOS), 0)
    leading_columns = list(row)[:first][:2]
    more = f", {cell(row[leading_columns[1]])} {leading_columns[1]}" if leading_columns[1:] else ""
    return cell(row[leading_columns[0]]) + more if leading_columns else ""


def _draw_earlier_version(
    row: Mapping[str, Any], old: Mapping[str, Any], result: Mapping[str, Any], y: int
) -> list[str]:
    """Return the marks of an earlier version on a row's line."""
    if _label(old) != _label(row):
        return []
    return [
        f'<circle cx="{_x(old[name]):.1f}" cy="{y}" r="2.5" fill="none" stroke="{colour}"><title>'
        f"{escape(result['date'])}, {escape(result['commit'])}: {old[name]:g}</title></circle>"
        for name, colour in zip(RATIOS, _COLOURS, strict=True)
        if old.get(name) is not None
    ]


def _row(row: Mapping[str, Any], y: int) -> list[str]:
    label = _label(row)
    marks = [f'<text class="name" x="{_LEFT - 12}" y="{y + 4}">{escape(label)}</text>']
    for name, colour in zip(RATIOS, _COLOURS, strict=True):
        if row.get(name) is not None:
            marks.append(
                f'<circle cx="{_x(row[name]):.1f}" cy="{y}" r="4.5" fill="{colour}"><title>'
                f"{escape(label)}, {name}: {row[name]:g}</title></circle>"
            )
    return marks


def _x(ratio: float) -> float:
    share = math.log(ratio / _LOW) / math.log(_HIGH / _LOW)
    return _LEFT + min(max(share, 0.0), 1.0) * (_RIGHT - _LEFT)
