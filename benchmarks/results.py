"""Recorded results of benchmarks, as JSON by machine and date, and the pages generated from them.

``python -m benchmarks.results record MACHINE NAME [ARGUMENTS]`` runs a benchmark and records its
rows. ``python -m benchmarks.results page`` writes BENCHMARKS.md, with one sentence for each of the
main ratios, and docs/benchmarks.md, with the newest table of each benchmark.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.plots import ratios
from benchmarks.tables import cell

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "BENCHMARKS.md"
TABLES = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PICTURE = RESULTS / "ratios.svg"
#: Order of the benchmarks on the page.
ORDER = (
    "kernels",
    "kernels-small",
    "memory-of-cpu",
    "one_device",
    "by_hand",
    "gpu",
    "scheduler",
    "pipelines",
    "scale",
    "channels",
    "chaos",
    "memory",
    "cache",
    "verification",
    "batching",
    "state",
    "generate",
    "vendors",
    "provider_nodes",
    "provider_nodes-published",
    "partition",
    "partition_scale",
    "planning",
    "prediction",
    "mutants",
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


@dataclass(frozen=True)
class Headline:
    """Sentence about one cell of a benchmark's newest result.

    `row`: cells that identify the row. `column`: the cell that replaces ``{}`` in the sentence;
    other fields name cells of the row.
    """

    benchmark: str
    row: Mapping[str, Any]
    column: str
    sentence: str


HEADLINES = (
    Headline(
        "one_device",
        {"model": "resnet50"},
        "on Ray: share, 1 in flight",
        "One ORT device on Ray reaches {} of the rate of a plain ONNX Runtime session (resnet50, "
        "one request at a time).",
    ),
    Headline(
        "by_hand",
        {"model": "resnet50", "way": "ray"},
        "rate_ratio",
        "Two ORT devices on Ray reach {} of the rate of a pipeline that is written by hand: two "
        "processes with a session each, connected by pipes (resnet50, 8 requests in flight).",
    ),
    Headline(
        "pipelines",
        {"stage ms": 20, "visits to each device": 1},
        "on Ray",
        "A pipeline of four devices on Ray reaches {} of the rate of its slowest device (stages of "
        "20 ms).",
    ),
    Headline(
        "scheduler",
        {"bytes": "1 MB", "in flight": 8},
        "on Ray: p50 ratio",
        "Three stages with tensors of 1 MB on Ray take {} times the time of a chain of bare ZeroMQ "
        "processes (8 requests in flight).",
    ),
    Headline(
        "scheduler",
        {"bytes": "1 kB", "in flight": 1},
        "on Ray: p50 ratio",
        "With tensors of 1 kB and one request at a time, they take {} times its time.",
    ),
    Headline(
        "cache",
        {"model": "light:densenet121"},
        "gain",
        "Importing densenet121 from the cache is {} times as fast as compiling it.",
    ),
    Headline(
        "chaos",
        {"seeds": "201 to 205, 60 s each"},
        "lost",
        "{} of {requests:,} requests were lost while devices and nodes were killed, stopped and "
        "removed {faults} times; {duplicated} were answered twice, {wrong} wrong.",
    ),
    Headline(
        "serve",
        {"what": "x + 1: hetero / MLServer", "connections": 16},
        "ratio",
        "`hetero serve` answers {} times as many requests as MLServer (x + 1, 16 connections).",
    ),
)
HEAD = """# Benchmarks

`python -m benchmarks.NAME [--json]` runs a benchmark together with a peer in the same run. Compare
ratios rather than times, because shared machines vary. The [tables](docs/benchmarks.md) have all
results; `benchmarks/results/` has them as JSON.

| result | command | machine, date, commit |
| --- | --- | --- |
"""
TABLES_HEAD = """# Benchmark results

The newest table of each benchmark. Machines: epyc-2 (AMD EPYC, 2 virtual cores), xeon-2 (Intel Xeon
with AMX, 2 cores), h100-16 and h200-16 (NVIDIA H100 and H200, 16 processor cores).
`python -m benchmarks.results page` generates this page.
"""
FOOT = """
Machines: epyc-2 (AMD EPYC, 2 virtual cores), xeon-2 (Intel Xeon with AMX, 2 cores). `PATH` is
MLServer's command, and `PYTHON` an interpreter that has KServe's server; each needs an environment
of its own. The plot shows times relative to peers; hollow circles are earlier versions.
`python -m benchmarks.results page` generates this page.

![Times relative to peers](benchmarks/results/ratios.svg)
"""


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
    """Return the page with the main ratios, each with its command, machine, date and commit."""
    result_of = {result["benchmark"]: result for result in newest(results)}
    lines = []
    for headline in HEADLINES:
        if (result := result_of.get(headline.benchmark)) is None:
            continue
        row = next(r for r in result["rows"] if headline.row.items() <= r.items())
        sentence = headline.sentence.format(cell(row[headline.column]), **row)
        origin = f"{result['machine']}, {result['date']}, {result['commit']}"
        lines.append(f"| {sentence} | `{result['command']}` | {origin} |\n")
    return HEAD + "".join(lines) + FOOT


def tables(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with the newest table of each benchmark."""
    return TABLES_HEAD + "".join(map(_section, newest(results)))


def newest(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the newest result of each benchmark, in the page's order."""
    by_name = {r["benchmark"]: r for r in sorted(results, key=lambda r: r["date"])}
    return [by_name[n] for n in (*ORDER, *sorted(by_name.keys() - set(ORDER))) if n in by_name]


def _section(result: Mapping[str, Any]) -> str:
    """Return a benchmark's section: its command, notes and table, and the tables within it."""
    more = result.get("more") or {}
    details = "".join(f" {name}: {value}." for name, value in more.items() if _is_scalar(value))
    origin = f"`{result['command']}`: {result['date']}, {result['machine']}, {result['commit']}."
    text = f"\n## {result['benchmark']}\n\n{origin} {result['note']}".rstrip() + details
    text += "\n\n" + _table(result["rows"])
    for name, value in more.items():
        if isinstance(value, Mapping) and "command" in value:
            text += f"\n### {result['benchmark']}, {name}\n\n`{value['command']}`\n\n"
            text += _table(value["rows"])
    return text


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Mapping | Sequence) or isinstance(value, str)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    headings = [_HEADINGS.get(name, name) for name in columns]
    cells = [headings, *([cell(row.get(name)) for name in columns] for row in rows)]
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
            TABLES.write_text(tables(recorded_results()))
            PICTURE.write_text(ratios(newest(recorded_results()), recorded_results()))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
