"""Dynamic batching on Ray: each caller receives the result of an unbatched request."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import numpy as np
import pytest
import ray

import hetero
from hetero.devices.errors import DeadlineError
from tests.support.models import branches, branches_output

pytestmark = pytest.mark.ray


def test_batches_over_two_actors_are_split_again(core, tmp_path):
    gate = tmp_path / "open"
    config = {"AUTO_BATCH_SIZE": 8, "AUTO_BATCH_TIMEOUT": 600_000, "WAIT_FILE": str(gate)}
    pins = {"tanh": "CPU"}
    with core.compile_model(branches(), "HETERO:WAITING,CPU", config, affinity=pins) as compiled:
        inputs = [np.full((1 + i % 3, 3), i, np.float32) for i in range(12)]
        requests = [compiled.create_infer_request() for _ in inputs]
        for request, x in zip(requests, inputs, strict=True):
            request.start_async({"x": x})
        expired = compiled.create_infer_request()
        expired.start_async({"x": inputs[0]}, timeout_s=0.01)
        with pytest.raises(DeadlineError):
            expired.wait()
        gate.touch()
        for request, x in zip(requests, inputs, strict=True):
            request.wait()
            np.testing.assert_allclose(request.results[0], branches_output(x), rtol=1e-6)
        # Three requests run alone, then full batches of 7 and 8 rows, and finally the last request.
        histories = [" ".join(request.story()) for request in requests]
        sizes = [set(re.findall(r"batch of (\d+):", history)) for history in histories]
        assert sizes == [{"1"}] * 3 + [{"4"}] * 8 + [{"1"}]


@pytest.mark.slow
def test_batch_of_lost_device_runs_again(tmp_path):
    gate = tmp_path / "open"
    config = {"AUTO_BATCH_SIZE": 4, "AUTO_BATCH_TIMEOUT": 600_000, "WAIT_FILE": str(gate)}
    plugins = ("tests.support.waiting_plugin:WaitingPlugin",)
    with (
        hetero.Core(devices={"CPU": 1}, plugins=plugins) as core,
        core.compile_model(branches(), "WAITING", config) as compiled,
    ):
        inputs = [np.full((1, 3), i, np.float32) for i in range(9)]
        requests = [compiled.create_infer_request() for _ in inputs]
        for request, x in zip(requests, inputs, strict=True):
            request.start_async({"x": x})
        executor: Any = core.executor
        os.kill(ray.get(executor._devices.device("WAITING").actor.ping.remote()), signal.SIGKILL)
        gate.touch()
        for request, x in zip(requests, inputs, strict=True):
            request.wait()
            np.testing.assert_allclose(request.results[0], branches_output(x), rtol=1e-6)
        assert "batch of 4: started" in " ".join(requests[-1].story())
