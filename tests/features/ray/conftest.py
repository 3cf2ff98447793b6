"""Fixtures of the Ray tests: one small Ray cluster and a shared Core, which are slow to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hetero


@pytest.fixture(scope="session", autouse=True)
def _start_ray(local_ray: None) -> None:
    """Start Ray before all tests of this folder."""


@pytest.fixture(scope="session")
def core(local_ray: None) -> Iterator[hetero.Core]:
    """A Core for tests that end no device; other tests create their own."""
    plugins = ("tests.support.waiting_plugin:WaitingPlugin",)
    with hetero.Core(devices={"CPU": 3}, plugins=plugins) as core:
        yield core
