"""HTML page of a simulation: plots against the load, and tables; one self-contained file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil, log10
from typing import Final

from hetero.apps.simulate.simulation import Simulation

#: Size of a plot, and of the margins for its scales, in pixels.
_WIDTH: Final = 640
_HEIGHT: Final = 240
_LEFT: Final = 70
_BELOW: Final = 40
_COLORS: Final = ("#1f77b4", "#ff7f0e", "#d62728", "#2ca02c", "#9467bd", "#8c564b")
#: Number of curves in the plot of utilisation: the busiest parts.
_MAX_CURVES: Final = 5
_STYLE: Final = (
    "body{font:14px sans-serif;max-width:760px;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:2px 10px;text-align:right;"
    "border-bottom:1px solid #ddd}svg{font-size:12px}td:first-child,th:first-child{text-align:left}"
)
_Curves = Mapping[str, Sequence[tuple[float, float]]]


def page_html(simulation: Simulation) -> str:
    """Return the page of a simulation; its plots need a `curve`."""
    times = {
        name: [(rate, getattr(outcome, f"{name}_s") * 1e3) for rate, outcome in simulation.curve]
        for name in ("p50", "p95", "p99")
    }
    busiest = (
        [used.name for used in simulation.curve[-1][1].used[:_MAX_CURVES]]
        if simulation.curve
        else []
    )
    used = {
        name: [
            (r, 100 * u.busy)
            for r, outcome in simulation.curve
            for u in outcome.used
            if u.name == name
        ]
        for name in busiest
    }
    outcome = simulation.outcome
    head = ("requests", "results/s", "in time/s", "p50 ms", "p95 ms", "p99 ms", "failed")
    cells = (
        simulation.arrivals,
        outcome.throughput_per_s,
        outcome.goodput_per_s,
        outcome.p50_s * 1e3,
        outcome.p95_s * 1e3,
        outcome.p99_s * 1e3,
        outcome.failed,
    )
    changes = [
        (c.name, c.rate_per_s, f"{c.gain:+.1%}", c.price or "")
        for c in (*simulation.added, *simulation.removed)
    ]
    knee = ""
    if simulation.knee_per_s is not None:
        rate, slo_s = simulation.knee_per_s, simulation.slo_s
        knee = f" 99 % finish within {slo_s:g} s up to {rate:.5g} per second."
    title = escape(f"{simulation.model}, simulated")
    return "".join(
        (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>",
            f"<style>{_STYLE}</style><h1>{title}</h1><p>{escape(simulation.basis)}</p>",
            f"<p>Capacity: {simulation.capacity_per_s:.5g} requests per second: ",
            f"{escape(simulation.bottleneck)}{knee}</p>",
            _table(head, [cells]),
            _plot("latency in milliseconds", times),
            _plot("utilisation in percent", used),
            _table(
                ("part", "name", "busy", "waiting, ms per request"),
                [(u.kind, u.name, f"{u.busy:.1%}", u.queued_s * 1e3) for u in outcome.used[:50]],
            ),
            _table(("change", "results/s", "gain", "price"), changes),
            "</html>\n",
        )
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def row(cells: Sequence[object], kind: str) -> str:
        texts = (f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in cells)
        return "<tr>" + "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts) + "</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _plot(title: str, curves: _Curves) -> str:
    """Return an SVG of curves over requests per second, with round scales from 0."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    limit = _round(max(x for x, _ in points)), _round(max(y for _, y in points))

    def at(x: float, y: float) -> str:
        return f"{_LEFT + x / limit[0] * _WIDTH:.1f},{_HEIGHT * (1 - y / limit[1]) + 10:.1f}"

    size = f"0 0 {_LEFT + _WIDTH + 20} {_HEIGHT + _BELOW + 10}"
    parts = [f"<h2>{escape(title)}</h2><svg role='img' viewBox='{size}'>"]
    for part in range(5):
        x, y = limit[0] * part / 4, limit[1] * part / 4
        (left, height), (across, _) = (at(*p).split(",") for p in ((0, y), (x, 0)))
        parts.append(
            f"<line x1='{left}' x2='{_LEFT + _WIDTH}' y1='{height}' y2='{height}' stroke='#ddd'/>"
            f"<text x='{_LEFT - 8}' y='{height}' text-anchor='end'>{y:g}</text>"
            f"<text x='{across}' y='{_HEIGHT + 28}' text-anchor='middle'>{x:g}/s</text>"
        )
    for number, (name, curve) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        line = " ".join(at(*point) for point in curve)
        parts.append(
            f"<polyline points='{line}' fill='none' stroke='{color}' stroke-width='2'/>"
            f"<text x='{_LEFT + 10}' y='{26 + 16 * number}' fill='{color}'>"
            f"{escape(name)}</text>"
        )
    return "".join((*parts, "</svg>"))


def _round(maximum: float) -> float:
    """Round up to 1, 1.5, 2, 2.5 and so on, times a power of ten."""
    step = 10.0 ** ceil(log10(maximum or 1.0)) / 20
    return ceil(maximum / step) * step
