"""Run published ONNX models on each device, by priority and cut at random, against ONNX Runtime.

``python -m benchmarks.published_models [--only PACKAGE ...] [--ways NAMES] [--rows FILE] [--ray]``
prints a row for each model and placement that is not right or that verification (``VERIFY=YES``)
disputes, and closing lines with the counts. The outcome ``vendor`` is a difference that ONNX
Runtime causes; the row gives the reason. With the same FILE, a later run continues the earlier one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.published_models.corpus import models, package_names
from benchmarks.published_models.outcomes import closing, outcome
from benchmarks.published_models.trial import WAYS
from benchmarks.tables import names

_KEYS = ("package", "model", "way")
_RAY_INTERVAL = 10


def main() -> int:
    """Return 1 if a result was wrong or a process crashed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published_models", description=__doc__
    )
    parser.add_argument("--only", nargs="+", metavar="PACKAGE", default=package_names())
    parser.add_argument("--ways", type=names, default=list(WAYS), help="placements; default: all")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines, one for each trial")
    parser.add_argument("--ray", action="store_true", help="also run every tenth random cut on Ray")
    options = parser.parse_args()
    has_rows = options.rows and options.rows.exists()
    earlier_rows = options.rows.read_text().splitlines() if has_rows else []
    rows = {tuple(row[key] for key in _KEYS): row for row in map(json.loads, earlier_rows)}
    unavailable, number = [], 0
    for package in options.only:
        try:
            paths = list(models(package))
        except (OSError, subprocess.TimeoutExpired) as error:
            unavailable.append(f"{package}: {error}")
            continue
        for path, way in itertools.product(paths, options.ways):
            key = (package, path.name, way)
            number += way == "ray"
            on_ray = options.ray and number % _RAY_INTERVAL == 1
            if key in rows or (way == "ray" and not on_ray):
                continue
            result = outcome("benchmarks.published_models.trial", str(path), way)
            row = rows[key] = {**dict(zip(_KEYS, key, strict=True)), **result}
            if options.rows:
                with options.rows.open("a") as file:
                    print(json.dumps(row), file=file)
            disputes = row.get("verification", [])[1:]
            if row["outcome"] != "right" or disputes:
                shown = [*(row[key] for key in (*_KEYS, "outcome", "why")), *disputes]
                print(*shown, sep=" | ", flush=True)
    for line in unavailable:
        print(f"unavailable: {line}", file=sys.stderr)
    files = {(row["package"], row["model"]) for row in rows.values()}
    print(f"{len(files)} models of {len({package for package, _ in files})} packages")
    print(closing(rows.values(), WAYS))
    return int(any(row["outcome"] in ("wrong", "crashed") for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
