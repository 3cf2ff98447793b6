"""Runs every model of the corpus whole on each device, by priority, and cut at random.

``python -m tests.wild [--json] [--packages N] [--ray]``; a row for each model and way that is not
right, and a closing line with the counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.wild.corpus import models, package_names
from tests.wild.trial import WAYS

#: Time for one model in one way, in seconds.
_TRIAL_S = 120


def trial(path: Path, way: str) -> dict[str, str]:
    """Return the outcome of a model in a process of its own."""
    command = [sys.executable, "-m", "tests.wild.trial", str(path), way]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRIAL_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "too long", "why": f"over {_TRIAL_S} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"outcome": "crashed", "why": last[0]}
    found: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    """Return 1 where an answer was wrong or a process crashed."""
    parser = argparse.ArgumentParser(prog="python -m tests.wild", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each trial")
    parser.add_argument("--packages", type=int, metavar="N", help="the first N packages")
    parser.add_argument("--ray", action="store_true", help="cut at random on Ray, too")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    absent, tried = [], 0
    for package in package_names()[: asked.packages]:
        try:
            found = list(models(package))
        except (OSError, subprocess.TimeoutExpired) as error:
            absent.append(f"{package}: {error}")
            continue
        for path in found:
            tried += 1
            for way in WAYS:
                if way == "ray" and not asked.ray:
                    continue
                row = {"package": package, "model": path.name, "way": way, **trial(path, way)}
                counts[row["outcome"]] += 1
                if asked.json:
                    print(json.dumps(row), flush=True)
                elif row["outcome"] != "right":
                    print(*row.values(), sep=" | ", flush=True)
    for line in absent:
        print(f"absent: {line}", file=sys.stderr)
    total = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
    packages = len(package_names()[: asked.packages]) - len(absent)
    print(f"{tried} models of {packages} packages: {total}")
    return int(bool(counts["wrong"] or counts["crashed"]))


if __name__ == "__main__":
    sys.exit(main())
