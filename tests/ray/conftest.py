"""One lean Ray, and a Core on it, for all tests here: starting them takes longer than most."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hetero


@pytest.fixture(scope="session", autouse=True)
def _on_ray(local_ray: None) -> None:
    """Have all tests here find it."""


@pytest.fixture(scope="session")
def core(local_ray: None) -> Iterator[hetero.Core]:
    """Return what tests share that end no device; the others have a Core of their own."""
    plugins = ("tests.support.waiting_plugin:WaitingPlugin",)
    with hetero.Core(devices={"CPU": 2}, plugins=plugins) as core:
        yield core
