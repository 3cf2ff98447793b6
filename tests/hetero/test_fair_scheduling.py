"""Models that share a device take turns on it, however many requests one of them has in flight."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hetero
from hetero.devices.errors import ArgumentTypeError
from hetero.observe.metrics_server import MetricsServer
from tests.scheduler.parties import wait_for
from tests.support import exposition
from tests.support.gated_plugin import GatedPlugin
from tests.support.models import branches, branches_output

PATIENCE_S = 60


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", plugins=(GatedPlugin,)) as core:
        yield core


def x(rows: int) -> np.ndarray:
    return np.ones((rows, 3), np.float32)


@pytest.mark.parametrize("priority", [0, 9])
@pytest.mark.parametrize("flood_is_batched", [False, True])
def test_a_flood_of_one_model_does_not_keep_another_waiting(
    core: hetero.Core, flood_is_batched: bool, priority: int
) -> None:
    config = {"AUTO_BATCH_SIZE": 4 if flood_is_batched else 0}
    with (
        GatedPlugin.closed(),
        core.compile_model(branches(), "GATED", config) as flooding,
        core.compile_model(branches(), "GATED") as calm,
    ):
        flood = [flooding.submit({"x": x(1)}, priority=priority).future for _ in range(20)]
        assert GatedPlugin.began.wait(PATIENCE_S)
        one = calm.submit({"x": x(7)}).future
        GatedPlugin.gate.set()
        for rows, future in ((7, one), *((1, future) for future in flood)):
            got = future.result(PATIENCE_S).outputs["y"]
            np.testing.assert_allclose(got, branches_output(x(rows)), rtol=1e-6)
        # One ran already; of those that waited, the calm model's is the first or second.
        assert 7 in GatedPlugin.runs[1:3]


def test_of_requests_that_wait_for_admission_the_greatest_priority_goes_first(
    core: hetero.Core,
) -> None:
    with (
        GatedPlugin.closed(),
        core.compile_model(branches(), "GATED", {"MAX_REQUESTS_IN_FLIGHT": 1}) as compiled,
        core.serve_metrics() as metrics,
        ThreadPoolExecutor() as threads,
    ):

        def infer(priority: int) -> None:
            request = compiled.create_infer_request()
            request.priority = priority
            request.infer({"x": x(priority + 2)})

        waiting = [threads.submit(infer, -1)]
        assert GatedPlugin.began.wait(PATIENCE_S)
        for count, priority in enumerate((0, 2, 1, 3), 1):
            waiting.append(threads.submit(infer, priority))
            wait_for(lambda count=count: num_waiting(metrics) == count)
        GatedPlugin.gate.set()
        for future in waiting:
            future.result(PATIENCE_S)
        assert GatedPlugin.runs == [1, 5, 4, 3, 2]
        with pytest.raises(ArgumentTypeError, match="priority='high'"):
            compiled.create_infer_request().priority = "high"  # type: ignore[assignment]  # on purpose


def num_waiting(metrics: MetricsServer) -> float:
    return exposition.read(metrics.text())["hetero_requests_waiting"].value(model="branches")
