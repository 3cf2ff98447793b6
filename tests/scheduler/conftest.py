"""Parties on direct channels, closed after each test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.parties import Party


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="het") as name:
        yield Path(name)


@pytest.fixture
def party(folder: Path) -> Iterator[Callable[..., Party]]:
    made: list[Party] = []

    def make(**options: Any) -> Party:
        made.append(Party(folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.channel.close()
    assert list(folder.iterdir()) == []
