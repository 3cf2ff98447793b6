"""pytest session that records which tests execute which lines and tests mutants in forks of itself.

The session imports and collects everything once. A fork replaces the code of one function, runs
some of the collected tests, and ends at the first failure. A mutant is also written to the copy of
the sources, for modules that tests import later and for processes that they start. Changes outside
functions take effect at import, so they run in a new process.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import coverage
import pytest
from hypothesis import Phase, settings

#: Options of pytest, in place of those in pyproject.toml; `-m` selects few hypothesis examples.
_OPTIONS: Final = (
    *("-o", "addopts=", "-o", "timeout=120", "--import-mode=importlib", "-m", "not slow", "-q"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # hypothesis is imported before
    *("-n", "0", "--capture=no", "--tb=no", "--hypothesis-profile=mutants"),
)
#: Tests of clusters and hosts start processes for seconds.
_LEFT_OUT: Final = ("ray", "hosts")
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
_RECORDING_LIMIT_S: Final = 1200.0


class MutantSession:
    """Plugin of pytest that runs tests for mutants in place of its usual loop.

    Parameters
    ----------
    package
        Folder of the mutated sources, relative to the root.
    share
        Index of this session and number of sessions; each records its share of the tests.
    send, requests
        Channel to the command: one JSON document per line.

    """

    def __init__(
        self,
        package: str,
        share: tuple[int, int],
        send: Callable[[Any], None],
        requests: Iterator[Any],
    ) -> None:
        self._root = Path.cwd().resolve()
        self._package = package
        self._share = share
        self._send = send
        self._requests = requests
        self._failures: list[str] = []
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[str, list[FunctionType]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that start a cluster."""
        items[:] = [i for i in items if not any(i.get_closest_marker(m) for m in _LEFT_OUT)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the failures."""
        if report.failed:
            self._failures.append(report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record the tests of this share, then test each requested mutant."""
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _functions_in(self._root / self._package)
        index, number = self._share
        self._send(self._record(session.items[index::number]))
        for request in self._requests:
            self._send(self._test(**request))
        return True

    def _record(self, items: Sequence[pytest.Item]) -> dict[str, Any]:
        """Run tests in a fork; return their seconds and, by file and line, which ran it."""
        with tempfile.NamedTemporaryFile(dir="/tmp", suffix=".json") as file:
            status = _in_fork(lambda: self._record_here(items, file.name), _RECORDING_LIMIT_S)
            text = Path(file.name).read_text()
        if status != SURVIVED or not text:
            return {"error": f"recording {len(items)} tests: {status}"}
        result: dict[str, Any] = json.loads(text)
        return result

    def _record_here(self, items: Sequence[pytest.Item], path: str) -> int:
        measured = coverage.Coverage(
            data_file=None, config_file=False, include=[f"{self._root / self._package}/*"]
        )
        seconds: dict[str, float] = {}
        measured.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            start = time.perf_counter()
            measured.switch_context(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = round(time.perf_counter() - start, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            measured.stop()
            data = measured.get_data()
        passed = seconds.keys() - set(self._failures)
        lines = {
            Path(file).relative_to(self._root).as_posix(): {
                line: [test for test in tests if test in passed]
                for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        failed = sorted(set(self._failures))
        document = {"seconds": seconds, "lines": lines, "failed": failed}
        Path(path).write_text(json.dumps(document))
        return 0

    def _test(
        self, path: str, source: str, function: str, tests: Sequence[str], limit_s: float
    ) -> dict[str, Any]:
        """Run tests on a mutant until one fails."""
        start = time.perf_counter()
        with _written(self._root / path, source) as original:
            functions = self._functions.get(path)
            if functions is None:  # not imported yet
                status = _in_fork(lambda: self._run(tests), limit_s)
            elif new := _new_codes(original, source, function, functions):
                status = _in_fork(lambda: self._run(tests, new), limit_s)
            else:
                status = _in_new_process(tests, limit_s)
        return {"status": status, "seconds": round(time.perf_counter() - start, 2)}

    def _run(
        self, tests: Sequence[str], codes: Sequence[tuple[FunctionType, CodeType]] = ()
    ) -> int:
        """Replace the code of functions and run tests; return 1 at the first failure."""
        for function, code in codes:
            function.__code__ = code
        items = [self._items[test] for test in tests if test in self._items]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failures:
                return 1
        return 0


def _functions_in(folder: Path) -> dict[str, list[FunctionType]]:
    """Return the functions of all imported modules in a folder, by file relative to the root."""
    root = Path.cwd().resolve()
    names: dict[str, str | None] = {}
    functions: defaultdict[str, list[FunctionType]] = defaultdict(list)
    gc.unfreeze()  # frozen objects are not listed
    for value in gc.get_objects():
        if not isinstance(value, FunctionType):
            continue
        file = value.__code__.co_filename
        if file not in names:
            real = Path(file).resolve()
            names[file] = real.relative_to(root).as_posix() if real.is_relative_to(folder) else None
        if (name := names[file]) is not None:
            functions[name].append(value)
    gc.freeze()
    return functions


def _new_codes(
    original: str, source: str, function: str, functions: Sequence[FunctionType]
) -> list[tuple[FunctionType, CodeType]]:
    """Pair the live functions of a name with their mutated code; none if that is not possible."""
    if not function:
        return []
    file = functions[0].__code__.co_filename
    # A property's getter and setter have one name, in this order.
    old = list(_codes(compile(original, file, "exec", dont_inherit=True), function))
    new = list(_codes(compile(source, file, "exec", dont_inherit=True), function))
    mutated = {a.co_firstlineno: b for a, b in zip(old, new, strict=True)}
    pairs = [
        (live, mutated[live.__code__.co_firstlineno])
        for live in functions
        if live.__code__.co_qualname == function and live.__code__.co_firstlineno in mutated
    ]
    if any(live.__code__.co_freevars != code.co_freevars for live, code in pairs):
        return []
    return pairs


def _codes(code: CodeType, function: str) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == function:
                yield constant
            elif function.startswith(f"{constant.co_qualname}."):
                yield from _codes(constant, function)


@contextmanager
def _written(path: Path, source: str) -> Iterator[str]:
    """Write a mutant into this copy of the sources; yield the original and write it afterwards."""
    original = path.read_text()
    _write(path, source)
    try:
        yield original
    finally:
        _write(path, original)


_write_times = count(10**9, 2)


def _write(path: Path, source: str) -> None:
    path.write_text(source)
    # Files of bytecode are checked by seconds and size only.
    second = next(_write_times)
    os.utime(path, (second, second))


def _in_fork(work: Callable[[], int], limit_s: float) -> str:
    """Run a function in a fork; return its outcome, and end its child processes."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            seconds = int(limit_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
            status = work()
        finally:
            os._exit(status)
    descriptor = os.pidfd_open(child)
    try:
        # A busy machine slows a fork down; only a deadlock reaches this limit.
        ready, _, _ = select.select([descriptor], [], [], 4 * limit_s + 30)
    finally:
        os.close(descriptor)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    _, code = os.waitpid(child, 0)
    if not ready or (os.WIFSIGNALED(code) and os.WTERMSIG(code) == signal.SIGXCPU):
        return TIMEOUT
    return SURVIVED if code == 0 else KILLED


def _in_new_process(tests: Sequence[str], limit_s: float) -> str:
    """Run tests in a new pytest process."""
    command = [sys.executable, "-m", "benchmarks.mutants.fresh_run"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, text=True
    )
    try:
        process.communicate("\n".join(tests), timeout=4 * limit_s + 60)
    except subprocess.TimeoutExpired:
        return TIMEOUT
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return SURVIVED if process.returncode == 0 else KILLED


def pytest_options() -> list[str]:
    """Return pytest's options, and register the profile of hypothesis that they name."""
    # The first failure decides, so no smaller example is looked for.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "mutants", derandomize=True, deadline=None, max_examples=60, phases=phases
    )
    return list(_OPTIONS)


def main(arguments: Sequence[str]) -> None:
    """Run a session; its requests come from standard input, its replies go to standard output."""
    package, index, number, *files = arguments
    replies = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_RDWR)
    requests = os.fdopen(os.dup(0))
    for standard_stream in (0, 1, 2):
        os.dup2(silence, standard_stream)

    def send(document: Any) -> None:
        replies.write(json.dumps(document) + "\n")
        replies.flush()

    session = MutantSession(package, (int(index), int(number)), send, map(json.loads, requests))
    status = pytest.main([*pytest_options(), *files], plugins=[session])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        send({"error": f"pytest ended with {status!r}"})


if __name__ == "__main__":
    main(sys.argv[1:])
