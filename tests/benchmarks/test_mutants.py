"""Mutation testing: generated mutants, their tests, and the outcome on a small project."""

from __future__ import annotations

import ast
import subprocess
import textwrap
from pathlib import Path

import pytest

from benchmarks.mutants.mutant import Mutant, equivalent_mutants
from benchmarks.mutants.selection import PACKAGES, Record, files_with_tests, own_tests_folder
from tests.support.rows import for_each_row

ROOT = Path(__file__).parents[2]
SOURCE = '''
"""A module with one of each."""
import logging

LIMIT = 3
_log = logging.getLogger(__name__)


class Queue:
    """A queue."""

    def __init__(self) -> None:
        self.items: list[int | None] = []

    @property
    def longest(self) -> int:
        """Return the longest."""
        return max(self.items)

    def put(self, item: int) -> None:
        if item > LIMIT:
            raise ValueError(f"too large: {item}")
        _log.info("put %s", item)
        self.items.append(item)


def total(first: int, second: int) -> int:
    """Return the sum of two numbers."""
    return first + second


def name(kind: int) -> str:
    match kind:
        case 1:
            return "one"
        case _:
            return "many"
'''


@pytest.fixture
def command():
    """The command; its import takes a second, which each test process would need to collect."""
    pytest.importorskip("mutmut")
    from benchmarks.mutants import command

    return command


@pytest.fixture
def changes(command, tmp_path):
    """Return the mutants of the source above: their keys without the path, and their sources."""
    path = tmp_path / "queue.py"
    path.write_text(SOURCE)
    mutants = command.mutants_of(tmp_path, path)
    return {mutant.key.removeprefix("queue.py::"): text for mutant, text in mutants.items()}


def test_mutants_cover_constants_methods_properties_and_functions(changes):
    assert changes.keys() >= {
        "(module): 3 -> 4",
        "Queue.longest: max(self.items) -> min(self.items)",
        "Queue.longest: max(self.items) -> sum(self.items)",
        "Queue.put: > LIMIT -> >= LIMIT",
        "Queue.put: self.items.append(item) -> pass",
        'Queue.put: raise ValueError(f"too large: {item}") -> pass',
        "total: first + second -> first - second",
        "total: first + second -> first",
        "total: first + second -> second",
        "name: 1 -> 1 if False",
        'name: "one" -> "XXoneXX"',
    }


def test_mutants_leave_annotations_texts_and_logs_alone(changes):
    for key in changes:
        assert "int & None" not in key
        assert "module with" not in key
        assert "put %s" not in key
        assert "ValueError(None)" not in key


def test_each_mutant_differs_in_its_function_alone(changes):
    original = {getattr(node, "name", ""): ast.dump(node) for node in ast.parse(SOURCE).body}
    for key, text in changes.items():
        mutated = {getattr(node, "name", ""): ast.dump(node) for node in ast.parse(text).body}
        different = {name for name in original if name and original[name] != mutated[name]}
        assert different <= {key.partition(":")[0].partition(".")[0]}
        assert text != SOURCE


def test_equal_changes_of_a_function_have_different_keys(command, tmp_path):
    path = tmp_path / "two.py"
    path.write_text("def f(a, b):\n    return a < 1, b < 1\n")
    keys = [mutant.key for mutant in command.mutants_of(tmp_path, path)]
    assert len(set(keys)) == len(keys)
    assert {"two.py::f: < 1 -> <= 1", "two.py::f: < 1 -> <= 1 #1"} <= set(keys)


def mutant(first_line: int, last_line: int, function: str = "f") -> Mutant:
    return Mutant("a.py", function, first_line, last_line, "x -> y", 0)


RECORD = Record(
    {"tests/a/test_own.py::slow": 9, "tests/b/test_other.py::quick": 1, "tests/c.py::last": 2},
    {
        "a.py": {
            2: {"tests/a/test_own.py::slow", "tests/b/test_other.py::quick"},
            9: {"tests/c.py::last"},
        }
    },
)


def test_selection_takes_own_tests_first():
    chosen = RECORD.tests_of(mutant(2, 2), "tests/a", 20)
    assert chosen == ["tests/a/test_own.py::slow", "tests/b/test_other.py::quick"]


def test_selection_stops_at_the_limit_but_takes_one_test():
    assert RECORD.tests_of(mutant(2, 2), "tests/a", 1) == ["tests/a/test_own.py::slow"]


def test_selection_of_a_continued_line_takes_the_statement():
    assert RECORD.tests_of(mutant(11, 12), "tests/a", 20) == ["tests/c.py::last"]
    assert RECORD.tests_of(mutant(30, 30), "tests/a", 20) == []


def test_constant_selects_all_tests_of_the_file():
    assert len(RECORD.tests_of(mutant(1, 1, function=""), "tests/a", 20)) == 3


def test_constant_selects_the_test_file_of_its_module_first():
    record = Record({**RECORD.seconds, "tests/d/test_a.py::reads": 5}, RECORD.lines)
    chosen = record.tests_of(mutant(1, 1, function=""), "tests/a", 20)
    assert chosen[0] == "tests/d/test_a.py::reads"
    assert len(chosen) == 4
    assert "tests/d/test_a.py::reads" not in record.tests_of(mutant(2, 2), "tests/a", 20)


def test_module_of_a_worker_process_selects_its_test_file():
    folder = "tests/devices/model"
    tests = [f"{folder}/test_worker_process.py::ends", f"{folder}/test_reader.py::reads"]
    record = Record(dict.fromkeys(tests, 1.0))
    worker = Mutant("devices/model/worker_program.py", "main", 1, 1, "x -> y", 0)
    assert record.tests_of(worker, folder, 20) == tests[:1]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_tests(package):
    assert (ROOT / own_tests_folder(ROOT, package)).is_dir()
    assert files_with_tests(ROOT, package)


@for_each_row("key", [*equivalent_mutants()])
def test_equivalent_mutants_name_functions_that_exist(key):
    path, function = key.split(": ")[0].split("::")
    assert path.startswith(PACKAGES)
    name = function.rpartition(".")[2]
    assert function == "(module)" or f"def {name}(" in (ROOT / path).read_text()


def test_score_leaves_equivalent_mutants_out(command):
    statuses = {mutant(1, 1): "killed", mutant(2, 2): "timeout", mutant(3, 3, "g"): "survived"}
    assert command.summary("a", statuses, [])["score"] == pytest.approx(0.667)
    row = command.summary("a", statuses, ["a.py::g: x -> y"])
    assert (row["survived"], row["equivalent"], row["score"]) == (0, 1, 1)


@pytest.mark.slow
def test_mutants_of_a_small_project(command, tmp_path):
    files = {
        "area/__init__.py": "",
        "area/shapes.py": """
            FACTOR = 2

            def doubled(side):
                return FACTOR * side

            def positive(side):
                return side > 0

            def endless(side):
                while side > 0:
                    side -= 1
                return side
            """,
        "tests/area/test_shapes.py": """
            import signal

            import pytest

            from area import shapes

            def test_doubled():
                assert shapes.doubled(3) == 6

            def test_positive():
                assert shapes.positive(3)

            def test_endless():
                assert shapes.endless(3) == 0

            def test_ctrl_c():
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
            """,
        "pytest.ini": "[pytest]\nmarkers = slow\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    mutants = command.draw_mutants(tmp_path, "area", 100, seed=0)
    statuses = command.run_package(tmp_path, "area", mutants, jobs=1, limit_s=5)
    by_key = {mutant.key.removeprefix("area/shapes.py::"): s for mutant, s in statuses.items()}
    assert by_key["(module): 2 -> 3"] == "killed"
    assert by_key["doubled: FACTOR * side -> FACTOR / side"] == "killed"
    assert by_key["positive: > 0 -> >= 0"] == "survived"
    assert by_key["endless: side -= 1 -> side += 1"] in ("timeout", "killed")
    assert (tmp_path / "area/shapes.py").read_text() == textwrap.dedent(files["area/shapes.py"])
