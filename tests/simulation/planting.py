"""Plant bugs in a copy of the scheduler, one at a time, and look for a seed that finds each.

`python -m tests.simulation.planting [--seeds 10000] [--only NAME ...] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLANTED = tomllib.loads((Path(__file__).parent / "planted.toml").read_text())


def planted(name: str, root: Path = ROOT) -> tuple[Path, str]:
    """Return a file with a bug in it: where it is, and its text.

    Raises ValueError: the line is not there once.
    """
    row = PLANTED[name]
    text = (root / row["file"]).read_text()
    if text.count(row["old"]) != 1:
        raise ValueError(
            f"{name}: {row['old']!r} is {text.count(row['old'])} times in {row['file']}"
        )
    return Path(row["file"]), text.replace(row["old"], row["new"])


def find(name: str, seeds: range, folder: Path) -> tuple[int, str] | None:
    """Run seeds on a copy with a bug; return the one that finds it, and what it says."""
    path, text = planted(name, folder)
    before = (folder / path).read_text()
    (folder / path).write_text(text)
    command = [sys.executable, "-m", "tests.simulation", "--until-broken"]
    command += ["--texts"] * PLANTED[name].get("texts", False)
    command += ["--first", str(seeds.start), "--seeds", str(len(seeds))]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    finally:
        (folder / path).write_text(before)
    if not run.returncode:
        return None
    if found := re.search(r"^seed (\d+): (.*)", run.stdout, re.MULTILINE):
        return int(found[1]), found[2]
    # Some seed ended the process: which one is not known.
    return 0, f"ended with {run.returncode}: {run.stderr.strip().splitlines()[-1:]}"


def main() -> int:
    """Plant what is asked for; 1 where fewer than 19 of 20 are found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.planting", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=list(PLANTED))
    parser.add_argument("--json", type=Path, help="write what was found, and by which seed")
    options = parser.parse_args()
    rows: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for package in ("devices", "scheduler", "hetero", "tests/simulation"):
            shutil.copytree(ROOT / package, folder / package)
        (folder / "tests" / "__init__.py").touch()
        known = {name: PLANTED[name].get("seed", 0) for name in options.only}
        # Those that are found soon come first: the others take nearly all of the time.
        rounds = [{name: range(seed, seed + 1) for name, seed in known.items()}]
        bounds = sorted({0, *(n for n in (30, 300) if n < options.seeds), options.seeds})
        rounds += [dict.fromkeys(known, range(*part)) for part in pairwise(bounds)]
        for part in rounds:
            for name, seeds in part.items():
                if name not in rows and (found := find(name, seeds, folder)):
                    rows[name] = dict(zip(("seed", "says"), found, strict=True))
                    print(f"{name}: seed {found[0]}: {found[1][:130]}", flush=True)
    for name in options.only:
        if name not in rows:
            print(f"{name}: not found in {options.seeds} seeds")
    print(f"{len(rows)} of {len(options.only)} found")
    if options.json is not None:
        options.json.write_text(
            json.dumps({"seeds": options.seeds, "found": len(rows), "planted": rows}, indent=1)
        )
    return int(len(rows) < 0.95 * len(options.only))


if __name__ == "__main__":
    sys.exit(main())
