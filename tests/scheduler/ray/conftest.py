"""Fixture of the tests of `scheduler/ray`: the Ray cluster of the test process."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _start_ray(local_ray: None) -> None:
    """Start Ray before all tests of this folder."""
