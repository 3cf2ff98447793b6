"""Mutation testing of the core packages: the share of small code changes that the tests detect.

The command draws mutants of each package at random, chooses for each the tests that execute its
lines, and runs them in a copy of the working tree. A mutant is killed if a test fails, and survives
if all pass; one that exceeds its time limit counts as killed. `equivalent.txt` lists mutants that
behave like the original; they do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from benchmarks.mutants.generation import mutants_of
from benchmarks.mutants.mutant import Mutant, equivalent_mutants
from benchmarks.mutants.selection import PACKAGES, Record, files_with_tests, own_tests_folder
from benchmarks.mutants.session import KILLED, SURVIVED, TIMEOUT
from benchmarks.tables import print_rows

_ROOT: Final = Path(__file__).parents[2]


class Session:
    """Process that tests mutants in its own copy of the sources."""

    def __init__(self, copy: Path, package: str, share: tuple[int, int], tests: Sequence[str]):
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        command = [sys.executable, "-m", "benchmarks.mutants.session", package, *map(str, share)]
        self._process = subprocess.Popen(
            [*command, *tests],
            cwd=copy,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def reply(self) -> dict[str, Any]:
        """Return the next reply."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        document: dict[str, Any] = json.loads(line) if line else {"error": "the session ended"}
        if "error" in document:
            raise SystemExit(f"mutants: {document['error']}")
        return document

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.reply()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def copy_tree(root: Path, folder: Path) -> Path:
    """Copy the files of a working tree that git knows or would add."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        source, target = root / name, folder / name
        if source.is_symlink() or source.is_file():  # not if it was deleted
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def draw_mutants(
    root: Path, package: str, number: int, seed: int, again: Iterable[str] = ()
) -> dict[Mutant, str]:
    """Return mutants of a package, drawn at random, with their sources."""
    mutants: dict[Mutant, str] = {}
    keys = set(again)
    files = {root / key.partition("::")[0] for key in keys}
    for path in sorted((root / package).rglob("*.py")):
        if not keys or path in files:
            mutants.update(mutants_of(root, path))
    if keys:
        return {mutant: source for mutant, source in mutants.items() if mutant.key in keys}
    drawn = random.Random(f"{seed} {package}").sample(list(mutants), min(number, len(mutants)))
    return {mutant: mutants[mutant] for mutant in drawn}


def run_package(
    root: Path,
    package: str,
    mutants: Mapping[Mutant, str],
    jobs: int,
    limit_s: float,
    *,
    own_only: bool = False,
) -> dict[Mutant, str]:
    """Return the status of each mutant."""
    tests = files_with_tests(root, package, own_only=own_only)
    folder = own_tests_folder(root, package)
    with ExitStack() as stack:
        copies = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
            for _ in range(jobs)
        ]
        sessions = [
            Session(copy_tree(root, copy), package, (index, jobs), tests)
            for index, copy in enumerate(copies)
        ]
        for session in sessions:
            stack.callback(session.close)
        record = Record()
        for session in sessions:
            record.add(**session.reply())
        number = f"{len(record.seconds)} tests in {len(tests)} files"
        _progress(f"{package}: {number}, {len(record.failed)} fail unchanged {record.failed}")
        waiting: SimpleQueue[Mutant] = SimpleQueue()
        for mutant in mutants:
            waiting.put(mutant)
        statuses: dict[Mutant, str] = {}
        lock = threading.Lock()

        def work(session: Session) -> None:
            while True:
                try:
                    mutant = waiting.get_nowait()
                except Empty:
                    return
                chosen = record.tests_of(mutant, folder, limit_s)
                status, seconds = SURVIVED, 0.0
                if chosen:
                    expected_s = sum(record.seconds[test] for test in chosen)
                    reply = session.ask(
                        {
                            "path": mutant.path,
                            "source": mutants[mutant],
                            "function": mutant.function,
                            "tests": chosen,
                            "limit_s": 3 + 3 * expected_s,
                        }
                    )
                    status, seconds = reply["status"], reply["seconds"]
                with lock:
                    statuses[mutant] = status
                    count = f"{len(statuses)}/{len(mutants)}"
                    _progress(
                        f"{count} {status:8} {len(chosen):4} tests {seconds:6.1f} s "
                        f"{mutant.first_line}: {mutant.key}"
                    )

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, sessions))
    return statuses


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def summary(
    package: str, statuses: Mapping[Mutant, str], equivalent: Iterable[str]
) -> dict[str, Any]:
    """Return the row of a package."""
    listed = set(equivalent)
    counts = Counter(
        "equivalent" if mutant.key in listed and status == SURVIVED else status
        for mutant, status in statuses.items()
    )
    judged = len(statuses) - counts["equivalent"]
    return {
        "package": package,
        "mutants": len(statuses),
        KILLED: counts[KILLED],
        SURVIVED: counts[SURVIVED],
        TIMEOUT: counts[TIMEOUT],
        "equivalent": counts["equivalent"],
        "score": round((judged - counts[SURVIVED]) / judged, 3) if judged else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Test mutants of each package and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="mutants per package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--package", action="append", choices=PACKAGES)
    parser.add_argument("--jobs", type=int, default=2, help="concurrent sessions")
    parser.add_argument(
        "--test-seconds", type=float, default=20.0, help="duration of the tests of one mutant"
    )
    parser.add_argument(
        "--own-tests", action="store_true", help="run the tests of the package's folder only"
    )
    parser.add_argument("--again", type=Path, help="output of --json: test its survivors only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    equivalent = equivalent_mutants()
    again = json.loads(options.again.read_text())["survivors"] if options.again else []
    rows, survivors = [], []
    for package in options.package or PACKAGES:
        mutants = draw_mutants(_ROOT, package, options.sample, options.seed, again)
        statuses = run_package(
            _ROOT,
            package,
            mutants,
            options.jobs,
            options.test_seconds,
            own_only=options.own_tests,
        )
        rows.append(summary(package, statuses, equivalent))
        survivors += sorted(
            mutant.key
            for mutant, status in statuses.items()
            if status == SURVIVED and mutant.key not in equivalent
        )
    if options.json:
        print_rows(rows, True, survivors=survivors)
    else:
        print_rows(rows, False)
        print("survivors:", *survivors, sep="\n")
