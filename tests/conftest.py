"""What several tests use."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from zlib import crc32

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.support.command_line import Shell
from tests.support.onnx_cases import keep_node_cases

# Else each of a hundred interpreters that tests start would compile all sources for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same examples in each run; `--hypothesis-profile=default` draws others.
settings.register_profile("few", derandomize=True, deadline=None, max_examples=60)
settings.register_profile("many", settings.get_profile("few"), max_examples=300)
# Else it draws the constants of all modules that are imported: of what ran before, and in seconds.
providers.is_local_module_file = lambda path: False


def pytest_configure(config: pytest.Config) -> None:
    """Draw few examples in a plain run, many where slow tests run as well; keep ONNX's cases."""
    # What a script starts in the background ignores Ctrl-C, and what nohup starts the end of a
    # terminal; so would the programs of tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("few" if config.getoption("-m") == "not slow" else "many")
    if hasattr(config, "cache"):  # `-p no:cacheprovider` has none
        keep_node_cases(config.cache.mkdir("onnx"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking through all tests again and again."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_xdist_auto_num_workers() -> int:
    """Have one worker more than cores: some tests wait for what comes late, or not at all."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)  # before those that are slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but one in N of the cases marked ``sampled(N)`` to the slow set; order them.

    Those of Ray come first, so that few workers start one, and what is slow before what is not. Of
    those of hosts, which wait more than they work, each worker begins with a share.
    """
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and crc32(item.name.encode()) % mark.args[0]:
            item.add_marker(pytest.mark.slow)

    def order(item: pytest.Item) -> int:
        return 0 if item.get_closest_marker("ray") else 1 if item.get_closest_marker("slow") else 2

    items.sort(key=order)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    hosts = [item for item in items if item.get_closest_marker("hosts")]
    others = [item for item in items if not item.get_closest_marker("hosts")]
    items[:] = [
        item
        for k in range(workers)
        for some in (hosts, others)
        for item in some[len(some) * k // workers : len(some) * (k + 1) // workers]
    ]


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Start a Ray that executors find and leave running: a process can have one of this kind."""
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    import ray

    folder = tempfile.mkdtemp(prefix="ht-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=400 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        configure_logging=False,
        namespace="hetero-test",
        _temp_dir=folder,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have a module's generator give a test the same numbers whatever ran before it."""
    generator = getattr(getattr(item, "module", None), "RNG", None)
    if generator is not None:
        seed = crc32(item.nodeid.encode())
        generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


class _SignalStack(ctypes.Structure):
    """C's ``stack_t``."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("nbytes", ctypes.c_size_t),
    )


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Have signals come on the thread's own stack.

    Where the first of two of OpenVINO's cores is freed before the second, this leaves the thread
    the first one's, freed as well (2026.4): the next Ctrl-C would end the process by a fault.
    """
    disabled = _SignalStack(None, 2, 0)  # SS_DISABLE
    ctypes.CDLL(None).sigaltstack(ctypes.byref(disabled), None)


@pytest.fixture(scope="session", autouse=True)
def _no_clock_and_no_terminal() -> Iterator[None]:
    """Let searches for plans end by their steps alone, however slow the machine is.

    Leave out what says how wide a terminal is, and that there is one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetero.planning.solver.search.DEADLINE_FRACTIONS", (math.inf, math.inf))
        for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a shell whose terminal is wide enough for tables not to wrap words."""
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(monkeypatch, capsys)
