"""Fixtures of Cores."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import hetero

Scope = Literal["function", "module"]


def core_fixture(scope: Scope = "function", executor: str = "inprocess", **options: Any) -> Any:
    """Return a fixture: a Core with these options, closed after the test or module."""

    @pytest.fixture(scope=scope)
    def core():
        with hetero.Core(executor, **options) as core:
            yield core

    return core
