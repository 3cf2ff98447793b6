"""Common fixtures: a Core in this process, and a model file."""

from __future__ import annotations

import onnx
import pytest

from tests.support.core_fixtures import core_fixture
from tests.support.models import branches

core = core_fixture("module")


@pytest.fixture
def model(tmp_path):
    """Return the path of a model with two branches."""
    path = tmp_path / "branches.onnx"
    onnx.save_model(branches(), path)
    return path
