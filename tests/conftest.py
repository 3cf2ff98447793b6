"""What several tests use."""

from __future__ import annotations

import pytest

from tests.command_line import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a shell whose terminal is wide enough for tables not to wrap words."""
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(monkeypatch, capsys)
