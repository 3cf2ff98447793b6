"""Configuration of pytest and fixtures for all tests."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from hetero.properties.table import HETERO_PROPERTIES
from tests.support.command_line import Shell
from tests.support.onnx_cases import keep_node_cases
from tests.support.oracle_versions import skip_for_older_oracles
from tests.support.sampling import drop_slow_cases, mark_cases_outside_samples
from tests.support.vendor_skips import group_by_vendor

# Otherwise each of the hundred interpreters that tests start would compile all sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Every run draws the same examples; `--hypothesis-profile=default` draws random ones.
# On a busy machine the draws of any test may be slow.
settings.register_profile(
    "few",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("many", settings.get_profile("few"), max_examples=300)
# Otherwise Hypothesis would also draw constants of imported modules, which is slow and depends on
# the tests that ran before.
providers.is_local_module_file = lambda path: False


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of Hypothesis examples, and cache the test cases of ONNX."""
    # Background jobs ignore SIGINT and nohup ignores SIGHUP; test programs would inherit that.
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
    """Exclude the collected tests from garbage collection, which would traverse them repeatedly."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are cores, because some tests wait instead of computing."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    """Mark cases outside the samples of large families as slow; drop what a plain run deselects.

    Cases that the command line names are only deselected, since pytest would report them as
    missing.
    """
    result = yield
    mark_cases_outside_samples(metafunc)
    config = metafunc.config
    if config.getoption("-m") == "not slow" and "[" not in "".join(config.args):
        drop_slow_cases(metafunc)
    return result


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests.

    Ray tests come first, so that few workers start a cluster, then slow tests, then all others.
    Each worker starts with a share of the tests of several hosts, which wait most of their time.
    """
    skip_for_older_oracles(items)

    def order(item: pytest.Item) -> int:
        return 0 if item.get_closest_marker("ray") else 1 if item.get_closest_marker("slow") else 2

    items.sort(key=order)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    hosts = [item for item in items if item.get_closest_marker("hosts")]
    others = [item for item in items if not item.get_closest_marker("hosts")]
    items[:] = [
        item
        for k in range(workers)
        for group in (hosts, others)
        for item in group[len(group) * k // workers : len(group) * (k + 1) // workers]
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    """Report the skips of a vendor in one line."""
    return group_by_vendor((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, object, object]:
    """Report the skips of a vendor in one line."""
    return group_by_vendor((yield))


@pytest.fixture(scope="session")
def local_ray():
    """Start the Ray cluster of this process; executors connect to it and leave it running."""
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    }
    earlier_values = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    import ray

    from hetero.scheduler.ray.private_api import without_monitors

    folder = tempfile.mkdtemp(prefix="ht-", dir="/tmp")
    with without_monitors():
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
    for name, value in earlier_values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed a module's generator `RNG` by the test, so that the order of tests is irrelevant."""
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Disable the alternative signal stack, and collect the garbage of a file after its tests.

    If the first of two OpenVINO cores is freed before the second, the thread keeps the freed signal
    stack of the first (OpenVINO 2026.4), and the next Ctrl-C would crash the process.

    Objects that outlive their file are modules and caches. Excluded from later collections, they no
    longer make each of them slower.
    """
    try:
        return (yield)
    finally:
        disabled = _SignalStack(None, 2, 0)  # SS_DISABLE
        ctypes.CDLL(None).sigaltstack(ctypes.byref(disabled), None)
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _ignore_clock_and_terminal():
    """Make tests independent of time and terminal.

    Plan searches end by their step budget alone, and variables that describe a terminal are unset.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetero.planning.solver.search.DEADLINE_FRACTIONS", (math.inf, math.inf))
        for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _verify_on_request():
    """Make VERIFY=NO the default: verification would run each model several times more."""
    rows = dict(HETERO_PROPERTIES)
    rows["VERIFY"] = replace(rows["VERIFY"], default="NO")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HETERO_PROPERTIES, "_properties", rows)
        yield


@pytest.fixture
def shell(monkeypatch, capsys):
    """Return a shell whose terminal is wide enough for tables not to wrap words."""
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(monkeypatch, capsys)
