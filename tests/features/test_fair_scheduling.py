"""Fair scheduling: many requests of one model do not delay those of another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hetero.devices.errors import ArgumentTypeError
from hetero.observe.metrics_server import MetricsServer
from tests.scheduler.endpoints import wait_for
from tests.support import prometheus_text as exposition
from tests.support.core_fixtures import core_fixture
from tests.support.gated_plugin import GatedPlugin
from tests.support.models import branches, branches_output

TIMEOUT_S = 60


core = core_fixture("module", plugins=(GatedPlugin,))


def x(rows: int) -> np.ndarray:
    return np.ones((rows, 3), np.float32)


@pytest.mark.parametrize("priority", [0, 9])
@pytest.mark.parametrize("is_batched", [False, True])
def test_busy_model_does_not_delay_another(core, is_batched, priority):
    config = {"AUTO_BATCH_SIZE": 4 if is_batched else 0}
    with (
        GatedPlugin.closed(),
        core.compile_model(branches(), "GATED", config) as busy_model,
        core.compile_model(branches(), "GATED") as idle_model,
    ):
        busy_futures = [busy_model.submit({"x": x(1)}, priority=priority).future for _ in range(20)]
        assert GatedPlugin.began.wait(TIMEOUT_S)
        idle_future = idle_model.submit({"x": x(7)}).future
        GatedPlugin.gate.set()
        for rows, future in ((7, idle_future), *((1, future) for future in busy_futures)):
            output = future.result(TIMEOUT_S).outputs["y"]
            np.testing.assert_allclose(output, branches_output(x(rows)), rtol=1e-6)
        # After the running request, the request of the idle model is the first or second.
        assert 7 in GatedPlugin.runs[1:3]


def test_highest_priority_is_admitted_first(
    core,
):
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

        futures = [threads.submit(infer, -1)]
        assert GatedPlugin.began.wait(TIMEOUT_S)
        for count, priority in enumerate((0, 2, 1, 3), 1):
            futures.append(threads.submit(infer, priority))
            wait_for(lambda count=count: num_waiting(metrics) == count)
        GatedPlugin.gate.set()
        for future in futures:
            future.result(TIMEOUT_S)
        assert GatedPlugin.runs == [1, 5, 4, 3, 2]
        with pytest.raises(ArgumentTypeError, match="priority: expected an integer, got 'high'"):
            compiled.create_infer_request().priority = "high"  # type: ignore[assignment]


def num_waiting(metrics: MetricsServer) -> float:
    return exposition.read(metrics.text())["hetero_requests_waiting"].value(model="branches")
