"""States on Ray: KV caches stay in the actors and are lost with them."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.request.infer_request import InferRequest
from hetero.errors import TensorError
from tests.support.core_fixtures import core_fixture
from tests.support.feedback_model import (
    COUNTS,
    DEVICE_CASES,
    GAIN,
    UNUSED_INPUT,
    X,
    compile_feedback_model,
    expected_outputs,
)
from tests.support.remote_cores import await_freed
from tests.support.stateful_models import STATES, decoder, expected, generated

pytestmark = pytest.mark.ray
#: Runs of each request, and concurrent requests.
COUNT, THREADS = 12, 4


feedback_core = core_fixture("module", executor="ray", devices=COUNTS)


@pytest.mark.slow
def test_split_decoder_matches_and_names_lost_states():
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            decoder(), "HETERO:CPU.0,CPU.1", affinity={"1/*": "CPU.1"}, states=STATES
        ) as compiled,
    ):
        request = compiled.create_infer_request()
        expected_tokens = expected(decoder())
        assert generated(request) == expected_tokens
        devices = {s.name: s._states._values[s.name].bundle.device for s in request.query_state()}
        assert devices == {
            f"past.{i}.{kind}": f"CPU.{i}" for i in (0, 1) for kind in ("key", "value")
        }
        request.restore_s = 0.0  # disables the lineage of later runs
        request.reset_state()
        assert generated(request) == expected_tokens
        executor: Any = core.executor
        os.kill(executor._ask(executor._devices.device("CPU.1"), "ping"), signal.SIGKILL)
        with pytest.raises(TensorError, match=r"'past\.1\.\w+'.*CPU\.1.*reset_state\(\)"):
            request.infer({"ids": [[1]]})
        request.reset_state()
        assert generated(request) == expected_tokens


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("devices", "last", "others"), DEVICE_CASES)
def test_next_run_reads_outputs_on_actors(feedback_core, devices, last, others):
    def run_with_feedback(request: InferRequest) -> list[np.ndarray]:
        request.feedback = {"x": "y"}
        x, outputs = X, []
        for _ in range(COUNT):
            request.start_async({"x": x, "gain": GAIN})
            is_early = request.start_next({"gain": GAIN})  # False if the run has already ended
            request.wait()
            outputs.append(request.results["y"])
            x = UNUSED_INPUT if is_early else outputs[-1]
        request.cancel()  # the run after the last
        request.reset_state()
        return outputs

    with (
        compile_feedback_model(feedback_core, devices, last, others) as compiled,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        requests = [compiled.create_infer_request() for _ in range(THREADS)]
        for outputs in pool.map(run_with_feedback, requests):
            np.testing.assert_allclose(outputs, expected_outputs(COUNT), rtol=1e-5)
        await_freed(feedback_core, 0)
