"""Recorded results of benchmarks, as JSON by machine and date, and the generator of BENCHMARKS.md.

``python -m benchmarks.results record MACHINE NAME [ARGUMENTS]`` runs a benchmark and records its
rows. ``python -m benchmarks.results page`` writes the page with the newest results.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.plots import ratios
from benchmarks.tables import cell

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "BENCHMARKS.md"
PICTURE = RESULTS / "ratios.svg"
#: Order of the benchmarks on the page.
ORDER = (
    "kernels",
    "kernels-small",
    "memory-of-cpu",
    "one_device",
    "scheduler",
    "pipelines",
    "scale",
    "channels",
    "chaos",
    "memory",
    "cache",
    "batching",
    "state",
    "generate",
    "vendors",
    "partition",
    "partition_scale",
    "planning",
    "prediction",
)
#: Column of a result -> heading on the page.
_HEADINGS = {
    "what": "measurement",
    "way": "variant",
    "where": "executor",
    "bare": "loop by hand",
    "bare session": "plain session",
    "bare per second": "direct, per second",
    "cut in two": "split over two",
    "cut, with AUTO_BATCH": "split, with AUTO_BATCH",
    "between answers": "time per request at full load",
    "bytes a round": "bytes per round",
    "bytes a token, without state": "bytes per token, without states",
    "with state": "with states",
    "ms a stage": "ms per stage",
    "in process: µs more": "in process: additional µs",
    "on Ray: µs more": "on Ray: additional µs",
    "busy loops beside it (load average)": "busy loops (load average)",
    "its optimum": "optimum",
}
HEAD = """# Benchmarks
`python -m benchmarks.NAME [--json]` runs a benchmark together with a peer in the same run. Compare ratios rather than times, because shared machines vary. `python -m benchmarks.results page` generates this page and its plot from the newest files in `benchmarks/results/`. Machines: epyc-2 (AMD EPYC, 2 virtual cores), epyc-4 (4 cores), xeon-2 (Intel Xeon with AMX, 2 cores). Hollow circles in the plot are earlier versions. ![Times relative to peers](benchmarks/results/ratios.svg)
"""  # noqa: E501 - a line of the page


def record(machine: str, name: str, arguments: Sequence[str]) -> Path:
    """Run a benchmark at the current commit and record its output."""
    command = ["-m", f"benchmarks.{name}", *arguments]
    process = subprocess.run(
        [sys.executable, *command, "--json"], capture_output=True, text=True, check=True
    )
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    document = json.loads(process.stdout)
    rows = document if isinstance(document, list) else document.get("rows", [document])
    date = datetime.now(UTC).date().isoformat()
    document = {
        "benchmark": name,
        "machine": machine,
        "date": date,
        "commit": head.stdout.strip(),
        "command": " ".join(["python", *command]),
        "note": "",
        "rows": rows,
        # Additional values that are not part of a row.
        "more": {k: v for k, v in document.items() if k != "rows"} if "rows" in document else {},
    }
    path = RESULTS / machine / f"{date}-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with the newest result of each benchmark."""
    return HEAD + "".join(map(_section, newest(results)))


def newest(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the newest result of each benchmark, in the page's order."""
    by_name = {r["benchmark"]: r for r in sorted(results, key=lambda r: r["date"])}
    return [by_name[n] for n in (*ORDER, *sorted(by_name.keys() - set(ORDER))) if n in by_name]


def _section(result: Mapping[str, Any]) -> str:
    """Return a benchmark's section: its command, notes and table, and the tables within it."""
    more = result.get("more") or {}
    details = "".join(f" {name}: {value}." for name, value in more.items() if _is_scalar(value))
    origin = f"`{result['command']}`: {result['date']}, {result['machine']}, {result['commit']}."
    text = f"\n**{result['benchmark']}** {origin} {result['note']}".rstrip() + details
    text += "\n" + _table(result["rows"])
    for name, value in more.items():
        if isinstance(value, Mapping) and "command" in value:
            text += f"\n**{result['benchmark']}, {name}** `{value['command']}`\n"
            text += _table(value["rows"])
    return text


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Mapping | Sequence) or isinstance(value, str)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    headings = [_HEADINGS.get(name, name) for name in columns]
    cells = [headings, *([cell(row.get(name)) for name in columns] for row in rows)]
    if len(rows) > len(columns):  # transposed, so that the page stays short
        cells = [list(line) for line in zip(*cells, strict=True)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def recorded_results() -> list[dict[str, Any]]:
    """Return every recorded result."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.rglob("*.json"))]


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["record", machine, name, *rest]:
            print(record(machine, name, rest))
        case ["page"]:
            PAGE.write_text(page(recorded_results()))
            PICTURE.write_text(ratios(newest(recorded_results()), recorded_results()))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
