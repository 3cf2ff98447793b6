"""Common fixtures: a Core in this process, and a model file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import hetero
from tests.support.models import branches


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    """Return a Core with the devices of this process."""
    with hetero.Core("inprocess") as core:
        yield core


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the path of a model with two branches."""
    path = tmp_path / "branches.onnx"
    onnx.save_model(branches(), path)
    return path
