"""The cache between processes: one compiles, and who is killed harms nobody."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from hetero.cache.folder import Cache
from tests.support.cache_workers import cache_log, compile_once, processes
from tests.support.counting_plugin import lines


@pytest.mark.slow
def test_of_sixteen_processes_one_compiles(tmp_path: Path) -> None:
    context = processes()
    answers = context.SimpleQueue()
    arguments = (str(tmp_path / "cache"), str(tmp_path / "log"), 0.1, answers)
    workers = [context.Process(target=compile_once, args=arguments) for _ in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0] * 16
    assert sorted(answers.get() for _ in workers) == [False] + [True] * 15
    # Two subgraphs are on the device that counts.
    assert lines(tmp_path / "log").count("compile") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [10, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_a_killed_compiler_leaves_nothing_wrong_and_nobody_waiting(
    tmp_path: Path, kills: int
) -> None:
    context = processes()
    moments = random.Random(kills)
    began = time.monotonic()
    assert not compile_once(str(tmp_path / "first"), str(tmp_path / "log"), 0.0)
    compile_s = time.monotonic() - began
    for i in range(kills):
        folder = tmp_path / f"cache{i}"
        arguments = (str(folder), str(cache_log(folder)), 0.02)
        victim, waiter = (context.Process(target=compile_once, args=arguments) for _ in range(2))
        victim.start()
        waiter.start()
        time.sleep(moments.uniform(0, 2 * compile_s + 0.1))
        victim.kill()
        victim.join(300)
        waiter.join(300)
        assert waiter.exitcode == 0  # it waited or took over, and its result was right
        cache = Cache(folder)
        assert all(cache.check(entry) is None for entry in cache.entries())
        assert compile_once(*arguments)
