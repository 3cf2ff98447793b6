"""Mutation test of the simulator: plants bugs one by one, and searches a seed that finds each.

`python -m tests.simulation.planted_bugs [--seeds 10000] [--only NAME ...] [--json FILE]`
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
PLANTED_BUGS = tomllib.loads((Path(__file__).parent / "planted_bugs.toml").read_text())


def with_bug(name: str, root: Path = ROOT) -> tuple[Path, str]:
    """Return the path and the text of a file with a bug.

    Raises ValueError: the line does not occur exactly once.
    """
    row = PLANTED_BUGS[name]
    text = (root / row["file"]).read_text()
    if text.count(row["old"]) != 1:
        raise ValueError(
            f"{name}: {row['old']!r} is {text.count(row['old'])} times in {row['file']}"
        )
    return Path(row["file"]), text.replace(row["old"], row["new"])


def find_seed(name: str, seeds: range, folder: Path) -> tuple[int, str] | None:
    """Run seeds on a copy with a bug; return the first seed with a violation, and its message."""
    path, text = with_bug(name, folder)
    before = (folder / path).read_text()
    (folder / path).write_text(text)
    command = [sys.executable, "-m", "tests.simulation", "--until-broken"]
    command += ["--texts"] * PLANTED_BUGS[name].get("texts", False)
    command += ["--first", str(seeds.start), "--seeds", str(len(seeds))]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    finally:
        (folder / path).write_text(before)
    if not run.returncode:
        return None
    if match := re.search(r"^seed (\d+): (.*)", run.stdout, re.MULTILINE):
        return int(match[1]), match[2]
    # An unknown seed ended the process.
    return 0, f"ended with {run.returncode}: {run.stderr.strip().splitlines()[-1:]}"


def main() -> int:
    """Test the selected bugs; return 1 if fewer than 95 % are found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.planted_bugs", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=list(PLANTED_BUGS))
    parser.add_argument(
        "--json", type=Path, help="write the bugs that were found, with their seeds"
    )
    options = parser.parse_args()
    rows: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        for package in ("devices", "scheduler", "hetero", "tests/simulation"):
            shutil.copytree(ROOT / package, folder / package, symlinks=True)
        (folder / "tests" / "__init__.py").touch()
        known_seeds = {name: PLANTED_BUGS[name].get("seed", 0) for name in options.only}
        # Bugs that are found quickly come first, because the others take most of the time.
        rounds = [{name: range(seed, seed + 1) for name, seed in known_seeds.items()}]
        bounds = sorted({0, *(n for n in (30, 300) if n < options.seeds), options.seeds})
        rounds += [dict.fromkeys(known_seeds, range(*part)) for part in pairwise(bounds)]
        for part in rounds:
            for name, seeds in part.items():
                if name not in rows and (finding := find_seed(name, seeds, folder)):
                    rows[name] = dict(zip(("seed", "says"), finding, strict=True))
                    print(f"{name}: seed {finding[0]}: {finding[1][:130]}", flush=True)
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
