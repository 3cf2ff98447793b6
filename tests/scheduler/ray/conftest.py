"""Fixture of the tests of `scheduler/ray`: the Ray cluster of the test process."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _start_ray(request):
    """Start Ray before the tests of a file that is marked `ray`."""
    if request.node.get_closest_marker("ray"):
        request.getfixturevalue("local_ray")
