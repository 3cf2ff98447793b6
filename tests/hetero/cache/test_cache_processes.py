"""One cache folder in several processes, some of which are killed."""

from __future__ import annotations

import random
import time

import pytest

from hetero.cache.folder import Cache
from tests.support.cache_workers import cache_log, compile_once, forkserver_context
from tests.support.counting_plugin import lines


@pytest.mark.slow
def test_concurrent_processes_compile_once(tmp_path):
    context = forkserver_context()
    results = context.SimpleQueue()
    arguments = (str(tmp_path / "cache"), str(tmp_path / "log"), 0.1, results)
    workers = [context.Process(target=compile_once, args=arguments) for _ in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0] * 16
    assert sorted(results.get() for _ in workers) == [False] + [True] * 15
    # One compilation per subgraph on COUNT.
    assert lines(tmp_path / "log").count("compile") == 2


@pytest.mark.slow
def test_killed_compiler_leaves_valid_entries_and_no_lock(tmp_path):
    kills = 20
    context = forkserver_context()
    moments = random.Random(kills)
    start_s = time.monotonic()
    assert not compile_once(str(tmp_path / "first"), str(tmp_path / "log"), 0.0)
    compile_s = time.monotonic() - start_s
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
        assert waiter.exitcode == 0  # it compiled or loaded, and its result was correct
        cache = Cache(folder)
        assert all(cache.check(entry) is None for entry in cache.entries())
        assert compile_once(*arguments)
