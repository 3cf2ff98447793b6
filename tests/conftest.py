"""What several tests use."""

from __future__ import annotations

import math

import pytest

from tests.command_line import Shell


@pytest.fixture(autouse=True)
def _unhurried_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches for plans end by their steps alone, however slow the machine is."""
    monkeypatch.setattr("hetero.planning.solver.search.PATIENCE", math.inf)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a shell whose terminal is wide enough for tables not to wrap words."""
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(monkeypatch, capsys)
