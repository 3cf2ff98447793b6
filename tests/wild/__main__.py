"""Runs every model of the corpus whole on each device, by priority, and cut at random.

``python -m tests.wild [--only PACKAGE ...] [--rows FILE] [--ray]``; a row for each model and way
that is not right, and a closing line with the counts. ``vendor`` is a difference that is ONNX
Runtime's, the row says why. A run with the same file goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

from tests.wild.corpus import models, package_names
from tests.wild.outcomes import closing, outcome
from tests.wild.trial import WAYS

_KEYS = ("package", "model", "way")
_EACH_ON_RAY = 10


def main() -> int:
    """Return 1 where an answer was wrong or a process crashed."""
    parser = argparse.ArgumentParser(prog="python -m tests.wild", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PACKAGE", default=package_names())
    parser.add_argument("--rows", type=Path, help="a file for a line of JSON for each trial")
    parser.add_argument("--ray", action="store_true", help="every tenth cut at random on Ray, too")
    asked = parser.parse_args()
    kept = asked.rows.read_text().splitlines() if asked.rows and asked.rows.exists() else []
    rows = {tuple(row[key] for key in _KEYS): row for row in map(json.loads, kept)}
    absent, number = [], 0
    for package in asked.only:
        try:
            paths = list(models(package))
        except (OSError, subprocess.TimeoutExpired) as error:
            absent.append(f"{package}: {error}")
            continue
        for path, way in itertools.product(paths, WAYS):
            key = (package, path.name, way)
            number += way == "ray"
            on_ray = asked.ray and number % _EACH_ON_RAY == 1
            if key in rows or (way == "ray" and not on_ray):
                continue
            found = outcome("tests.wild.trial", str(path), way)
            row = rows[key] = {**dict(zip(_KEYS, key, strict=True)), **found}
            if asked.rows:
                with asked.rows.open("a") as file:
                    print(json.dumps(row), file=file)
            if row["outcome"] != "right":
                print(*row.values(), sep=" | ", flush=True)
    for line in absent:
        print(f"absent: {line}", file=sys.stderr)
    files = {(row["package"], row["model"]) for row in rows.values()}
    print(f"{len(files)} models of {len({package for package, _ in files})} packages")
    print(closing(rows.values(), WAYS))
    return int(any(row["outcome"] in ("wrong", "crashed") for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
