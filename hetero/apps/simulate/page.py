"""HTML page of a simulation: plots against the load, and tables; one self-contained file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

from hetero.apps.simulate.simulation import Simulation
from hetero.formatting import seconds_text
from hetero.report.html_page import report_style

#: Size of a plot, and of the margins for its scales, in pixels.
_WIDTH: Final = 640
_HEIGHT: Final = 240
_LEFT: Final = 70
_BELOW: Final = 40
#: Number of colours in the report's style.
_NUM_COLORS: Final = 8
#: Number of curves in the plot of utilisation: the busiest parts.
_MAX_CURVES: Final = 5
#: Maximum number of steps of a scale, and what rounding adds to a maximum that is itself a tick.
_NUM_STEPS: Final = 5
_TOLERANCE: Final = 1 - 1e-9
#: Additions to the report's style.
_STYLE: Final = (
    "main{max-width:1100px}svg{display:block;max-width:760px;margin:6px 14px;font-size:12px}"
    "svg text{fill:var(--soft)}.plot .legend{padding:10px 14px 0}"
)
#: Follows the browser's preference for a dark page.
_SCRIPT: Final = (
    "document.documentElement.dataset.theme="
    "matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light'"
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
        (c.name, c.rate_per_s, f"{c.gain:+z.1%}", c.price or "")
        for c in (*simulation.added, *simulation.removed)
    ]
    knee = ""
    if simulation.knee_per_s is not None:
        rate, slo_s = simulation.knee_per_s, simulation.slo_s
        knee = f"at most {seconds_text(slo_s)} up to {rate:.5g} requests/s"
    title = escape(f"{simulation.model}, simulated")
    capacity = f"{simulation.capacity_per_s:.5g} requests/s"
    return "".join(
        (
            "<!doctype html><html lang=en><meta charset=utf-8>",
            '<meta name=viewport content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{report_style()}{_STYLE}</style>",
            f"<script>{_SCRIPT}</script><main>",
            f"<h1>{title}</h1><p class=facts>{escape(simulation.basis)}</p>",
            "<div class=cards>",
            _card("Capacity", capacity, simulation.bottleneck),
            _card("Median latency", f"{outcome.p50_s * 1e3:.4g} ms", f"of {simulation.arrivals}"),
            _card("99th percentile", f"{outcome.p99_s * 1e3:.4g} ms", knee),
            _card("Failed", str(outcome.failed), "requests"),
            "</div>",
            _section("Requests", _table(head, [cells])),
            _plot("Latency", "milliseconds", times),
            _plot("Utilisation", "percent", used),
            _section(
                "Parts",
                _table(
                    ("part", "name", "busy", "waiting per request"),
                    [
                        (u.kind, u.name, f"{u.busy:.1%}", seconds_text(u.queued_s))
                        for u in outcome.used[:50]
                    ],
                    num_texts=2,
                ),
            ),
            _section("Changes", _table(("change", "results/s", "gain", "price"), changes)),
            "</main></html>\n",
        )
    )


def _card(title: str, value: str, note: str) -> str:
    return (
        f"<div class=card><h3>{escape(title)}</h3><div class=big>{escape(value)}</div>"
        f"<div class=sub>{escape(note)}</div></div>"
    )


def _section(title: str, content: str) -> str:
    return f"<section><div class=head><h2>{escape(title)}</h2></div>{content}</section>"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], num_texts: int = 1) -> str:
    """Return a table whose first `num_texts` columns are text, and the others numbers."""
    numbers = [column >= num_texts for column in range(len(head))]

    def row(cells: Sequence[object], kind: str) -> str:
        texts = (f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in cells)
        fields = (
            f"<{kind}{' class=n' * is_number}>{escape(text)}</{kind}>"
            for text, is_number in zip(texts, numbers, strict=True)
        )
        return f"<tr>{''.join(fields)}</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _plot(title: str, unit: str, curves: _Curves) -> str:
    """Return a section with curves over requests per second, with round scales from 0."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    across, upward = (_ticks(max(point[axis] for point in points)) for axis in (0, 1))

    def at(x: float, y: float) -> str:
        return f"{_LEFT + x / across[-1] * _WIDTH:.1f},{_HEIGHT * (1 - y / upward[-1]) + 10:.1f}"

    size = f"0 0 {_LEFT + _WIDTH + 20} {_HEIGHT + _BELOW + 26}"
    parts = [f"<svg role='img' viewBox='{size}'>"]
    for y in upward:
        left, height = at(0, y).split(",")
        parts.append(
            f"<line x1='{left}' x2='{_LEFT + _WIDTH}' y1='{height}' y2='{height}' "
            f"stroke='var(--line)'/><text x='{_LEFT - 8}' y='{height}' dy='.35em' "
            f"text-anchor='end'>{y:g}</text>"
        )
    for x in across:
        left, _ = at(x, 0).split(",")
        parts.append(f"<text x='{left}' y='{_HEIGHT + 28}' text-anchor='middle'>{x:g}</text>")
    middle = _LEFT + _WIDTH // 2
    parts.append(
        f"<text x='{middle}' y='{_HEIGHT + 48}' text-anchor='middle'>requests per second</text>"
    )
    legend = []
    for number, (name, curve) in enumerate(curves.items()):
        color = f"var(--d{number % _NUM_COLORS})"
        line = " ".join(at(*point) for point in curve)
        parts.append(f"<polyline points='{line}' fill='none' stroke='{color}' stroke-width='2'/>")
        legend.append(f"<span class=chip style='--c:{color}'>{escape(name)}</span>")
    head = f"<div class=head><h2>{escape(title)}</h2><span class=muted>{escape(unit)}</span></div>"
    chips = f"<div class=legend>{''.join(legend)}</div>"
    return f"<section class=plot>{head}{chips}{''.join(parts)}</svg></section>"


def _ticks(maximum: float) -> list[float]:
    """Return four to six round numbers, the first 0, the last at least `maximum`.

    Their distance is 1, 2, 2.5 or 5 times a power of ten.
    """
    maximum = maximum or 1.0
    power = 10.0 ** floor(log10(maximum / _NUM_STEPS))
    step = next(s for s in (1, 2, 2.5, 5, 10) if s * power * _NUM_STEPS >= maximum * _TOLERANCE)
    count = ceil(maximum * _TOLERANCE / (step * power))
    return [float(f"{i * step * power:.12g}") for i in range(count + 1)]
