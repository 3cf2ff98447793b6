"""Models that share a device take turns on it, however many requests one of them has in flight."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hetero
from tests.hetero.gated_plugin import GatedPlugin
from tests.hetero.models import branches, branches_output

PATIENCE_S = 60


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", plugins=(GatedPlugin,)) as core:
        yield core


def x(rows: int) -> np.ndarray:
    return np.ones((rows, 3), np.float32)


@pytest.mark.parametrize("flood_is_batched", [False, True])
def test_a_flood_of_one_model_does_not_keep_another_waiting(
    core: hetero.Core, flood_is_batched: bool
) -> None:
    config = {"AUTO_BATCH_SIZE": 4 if flood_is_batched else 0}
    with (
        GatedPlugin.closed(),
        core.compile_model(branches(), "GATED", config) as flooding,
        core.compile_model(branches(), "GATED") as calm,
    ):
        flood = [flooding.submit({"x": x(1)}).future for _ in range(20)]
        assert GatedPlugin.began.wait(PATIENCE_S)
        one = calm.submit({"x": x(7)}).future
        GatedPlugin.gate.set()
        for rows, future in ((7, one), *((1, future) for future in flood)):
            got = future.result(PATIENCE_S).outputs["y"]
            np.testing.assert_allclose(got, branches_output(x(rows)), rtol=1e-6)
        # One ran already; of those that waited, the calm model's is the first or second.
        assert 7 in GatedPlugin.runs[1:3]
