"""Fixtures of the affinity tests."""

from __future__ import annotations

import pytest

from tests.support.graphs import build


@pytest.fixture
def model():
    return build(
        """conv1: a = Add(x, k)
           conv2: b = Abs(a)
           fc: c = Neg(b)
           out[0]: y = Abs(c)""",
        outputs="y",
        literals="k",
    )
