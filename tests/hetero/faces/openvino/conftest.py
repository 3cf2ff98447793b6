"""Fixture of cores on which the same code runs."""

from __future__ import annotations

import pytest

import hetero.openvino as face


@pytest.fixture(scope="module")
def cores():
    """Return the modules hetero.openvino and openvino, each with a core."""
    ov = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
    with face.Core("inprocess") as core:
        yield [(face, core), (ov, ov.Core())]
