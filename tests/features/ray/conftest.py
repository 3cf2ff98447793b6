"""Fixtures of the Ray tests: one small Ray cluster and a shared Core, which are slow to start."""

from __future__ import annotations

import pytest

import hetero


@pytest.fixture(scope="module", autouse=True)
def _start_ray(request):
    """Start Ray before the tests of a file that is marked `ray`."""
    if request.node.get_closest_marker("ray"):
        request.getfixturevalue("local_ray")


@pytest.fixture(scope="session")
def core(local_ray):
    """A Core for tests that end no device; other tests create their own."""
    plugins = ("tests.support.waiting_plugin:WaitingPlugin",)
    with hetero.Core(devices={"CPU": 3}, plugins=plugins) as core:
        yield core
