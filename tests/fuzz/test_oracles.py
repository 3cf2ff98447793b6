"""The process of an oracle ends although a case does not."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.conformance.drawn_cases import OperatorCase
from tests.fuzz import oracles


@pytest.mark.slow  # it starts two processes
def test_endless_case_has_no_result(monkeypatch):
    monkeypatch.setattr(oracles, "CASE_S", 0.5)
    worker = oracles._Worker()
    big = np.ones((6000, 6000), np.float32)
    endless = OperatorCase("Einsum", "", 12, {"equation": "ij,jk,kl->il"}, (big, big, big), ("y",))
    with pytest.raises(oracles.NoResultError):
        worker.run(endless)
    one = np.ones(1, np.float32)
    monkeypatch.setattr(oracles, "CASE_S", 60.0)
    assert worker.run(OperatorCase("Neg", "", 13, {}, (one,), ("y",)))[0] == [-1]
    worker.close()
