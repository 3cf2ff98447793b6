"""Endpoints of direct channels, closed after each test."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.endpoints import ChannelEndpoint


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="het") as name:
        yield Path(name)


@pytest.fixture
def make_endpoint(folder):
    created: list[ChannelEndpoint] = []

    def make(**options: Any) -> ChannelEndpoint:
        created.append(ChannelEndpoint(folder, **options))
        return created[-1]

    yield make
    for one in created:
        one.channel.close()
    assert list(folder.iterdir()) == []
