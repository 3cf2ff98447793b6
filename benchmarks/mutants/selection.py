"""Tests of a package, and those of one mutant by the lines that they execute."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.mutants.mutant import Mutant

#: The core's folders.
PACKAGES = (
    *(f"hetero/{name}" for name in ("affinity", "query", "partition", "planning")),
    *(f"hetero/{name}" for name in ("compile", "cache", "batching")),
    *("scheduler/client", "scheduler/device"),
    *("devices/request", "devices/plugin", "devices/model"),
)
#: Tests of applications and faces: they execute much of it and check little.
_APPLICATIONS = ("tests/hetero/apps", "tests/hetero/faces", "tests/features", "tests/benchmarks")
#: The scheduler's packages are tested together: by simulation, and by executors in one process.
_SHARED_TESTS = dict.fromkeys(
    ("scheduler/client", "scheduler/device"),
    ("tests/scheduler", "tests/simulation", "tests/features"),
)

#: Modules that run in worker processes, whose lines are not recorded -> folders or files of their
#: tests.
_TESTS_OF_WORKERS = {
    "devices/model/type_inference_rules.py": ("tests/devices/model/test_type_inference_rules.py",),
    "devices/model/type_inference_worker.py": ("tests/devices/model/test_type_inference",),
    "devices/model/worker_program.py": ("tests/devices/model/test_worker_process.py",),
    "scheduler/device/isolated_run.py": ("tests/scheduler/device/test_isolated_run.py",),
}


def files_with_tests(root: Path, package: str, *, own_only: bool = False) -> list[str]:
    """Return the test files of a package: in the folder that mirrors it, in folders that test it
    with others, and those that import it.

    `own_only`: the first folder alone.
    """
    folder = own_tests_folder(root, package)
    module = package.replace("/", ".")
    module = module if module.startswith("hetero.") else f"hetero.{module}"
    imports = re.compile(rf"^\s*(from|import) {re.escape(module)}\b", re.MULTILINE)
    applications = [root / top for top in _APPLICATIONS]
    shared = [root / top for top in _SHARED_TESTS.get(package, ())]
    files = [
        path
        for path in sorted((root / "tests").rglob("test_*.py"))
        if path.is_relative_to(root / folder)
        or (
            not own_only
            and (
                any(map(path.is_relative_to, shared))
                or (
                    not any(map(path.is_relative_to, applications))
                    and imports.search(path.read_text())
                )
            )
        )
    ]
    return [path.relative_to(root).as_posix() for path in files]


def own_tests_folder(root: Path, package: str) -> str:
    """Return the folder of a package's own tests: the nearest that exists."""
    folder = Path("tests") / package
    while not (root / folder).is_dir():
        folder = folder.parent
    return folder.as_posix()


@dataclass
class Record:
    """Which tests executed which lines, and how long each test took."""

    seconds: dict[str, float] = field(default_factory=dict)
    #: Source file -> line -> tests.
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def add(
        self,
        seconds: Mapping[str, float],
        lines: Mapping[str, Mapping[str, Sequence[str]]],
        failed: Sequence[str],
    ) -> None:
        """Add the record of a session."""
        self.seconds.update(seconds)
        self.failed += failed
        for file, tests_by_line in lines.items():
            by_line = self.lines.setdefault(file, {})
            for line, tests in tests_by_line.items():
                by_line.setdefault(int(line), set()).update(tests)

    def tests_of(self, mutant: Mutant, folder: str, limit_s: float) -> list[str]:
        """Return tests that execute a mutant: first the module's own, then the package's own, then
        the shortest.

        Together they take at most ``limit_s``, and one of them may take any time.
        """
        own_file = f"/test_{Path(mutant.path).stem}.py::"
        by_line = self.lines.get(mutant.path, {})
        tests: set[str]
        if (places := _TESTS_OF_WORKERS.get(mutant.path)) is not None:
            tests = {test for test in self.seconds if test.startswith(places)}
        elif mutant.function:
            tests = self._tests_at(by_line, mutant)
        else:  # a constant of the module or class, which may be read from other packages
            own_tests = (test for test in self.seconds if own_file in test)
            tests = set(own_tests).union(*by_line.values())

        def order(test: str) -> tuple[bool, bool, float, str]:
            is_elsewhere = not test.startswith(f"{folder}/")
            return own_file not in test, is_elsewhere, self.seconds.get(test, 0.0), test

        ordered = sorted(tests, key=order)
        chosen: list[str] = []
        total = 0.0
        for test in ordered:
            total += self.seconds.get(test, 0.0)
            if chosen and total > limit_s:
                break
            chosen.append(test)
        return chosen

    @staticmethod
    def _tests_at(by_line: Mapping[int, set[str]], mutant: Mutant) -> set[str]:
        """Return the tests of a mutant's lines, or of the statement that continues on them."""
        lines = range(mutant.first_line, mutant.last_line + 1)
        tests = set().union(*(by_line.get(line, set()) for line in lines))
        line = mutant.first_line
        while not tests and line > max(0, mutant.first_line - 10):
            line -= 1
            tests = by_line.get(line, set())
        return tests
