"""Results of benchmarks: kept as JSON by machine and date, and BENCHMARKS.md made from them.

``python -m benchmarks.results record MACHINE NAME [ARGUMENTS]`` runs one and keeps its rows;
``python -m benchmarks.results page`` writes the page: the newest result of each benchmark.
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
#: The order of the page.
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
HEAD = """# Benchmarks
`python -m benchmarks.NAME [--json]` runs one, beside a peer in the same run: shared machines drift, so ratios say more than times. `python -m benchmarks.results page` made this page and its picture of the newest in `benchmarks/results/`. epyc-2: AMD EPYC, 2 virtual cores; epyc-4: 4; xeon-2: Intel Xeon with AMX, 2. Hollow circles are earlier versions. ![Times over those of peers](benchmarks/results/ratios.svg)
"""  # noqa: E501 - a line of the page


def record(machine: str, name: str, arguments: Sequence[str]) -> Path:
    """Run a benchmark of the commit that is checked out, and keep what it prints."""
    command = ["-m", f"benchmarks.{name}", *arguments]
    done = subprocess.run(
        [sys.executable, *command, "--json"], capture_output=True, text=True, check=True
    )
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    rows = found if isinstance(found, list) else found.get("rows", [found])
    date = datetime.now(UTC).date().isoformat()
    document = {
        "benchmark": name,
        "machine": machine,
        "date": date,
        "commit": head.stdout.strip(),
        "command": " ".join(["python", *command]),
        "note": "",
        "rows": rows,
        # What it says besides, of all rows or of other things.
        "more": {k: v for k, v in found.items() if k != "rows"} if "rows" in found else {},
    }
    path = RESULTS / machine / f"{date}-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of the newest result of each benchmark."""
    return HEAD + "".join(map(_section, newest(results)))


def newest(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the newest result of each benchmark, in the page's order."""
    found = {r["benchmark"]: r for r in sorted(results, key=lambda r: r["date"])}
    return [found[n] for n in (*ORDER, *sorted(found.keys() - set(ORDER))) if n in found]


def _section(result: Mapping[str, Any]) -> str:
    rows = result["rows"]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([cell(row.get(name)) for name in columns] for row in rows)]
    if len(rows) > len(columns):  # the longer side goes across: the page is short
        cells = [list(line) for line in zip(*cells, strict=True)]
    cells.insert(1, ["---"] * len(cells[0]))
    lines = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    where = f"`{result['command']}`: {result['date']}, {result['machine']}, {result['commit']}."
    more = {k: v for k, v in result.get("more", {}).items() if not isinstance(v, list)}
    told = f" {json.dumps(more)[1:-1]}." if more else ""
    told = told.replace('"', "").replace("{", "").replace("}", "")
    note = " ".join((where, result["note"])).strip() + told
    return f"\n**{result['benchmark']}** {note}\n{lines}\n"


def kept() -> list[dict[str, Any]]:
    """Return every result."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.rglob("*.json"))]


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["record", machine, name, *rest]:
            print(record(machine, name, rest))
        case ["page"]:
            PAGE.write_text(page(kept()))
            PICTURE.write_text(ratios(newest(kept()), kept()))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
