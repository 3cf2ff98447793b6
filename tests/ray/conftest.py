"""One lean Ray, and a Core on it, for all tests here: starting them takes longer than most."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

import hetero


@pytest.fixture(scope="session", autouse=True)
def local_ray() -> Iterator[None]:
    """Start a Ray that executors find and leave running."""
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


@pytest.fixture(scope="session")
def core(local_ray: None) -> Iterator[hetero.Core]:
    """Return what tests share that end no device; the others have a Core of their own."""
    plugins = ("tests.support.waiting_plugin:WaitingPlugin",)
    with hetero.Core(devices={"CPU": 2}, plugins=plugins) as core:
        yield core
