"""State on Ray: caches stay in the actors, and are gone with them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.request.infer_request import InferRequest
from hetero.errors import TensorError
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
#: Runs of a request, and requests at once.
COUNT, THREADS = 12, 4


@pytest.fixture(scope="module")
def fed() -> Iterator[hetero.Core]:
    with hetero.Core("ray", devices=COUNTS) as core:
        yield core


def test_a_decoder_over_two_actors_generates_the_same_tokens_and_says_what_is_lost() -> None:
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            decoder(), "HETERO:CPU.0,CPU.1", affinity={"1/*": "CPU.1"}, states=STATES
        ) as compiled,
    ):
        request = compiled.create_infer_request()
        want = expected(decoder())
        assert generated(request) == want
        kept = {s.name: s._states._values[s.name].bundle.device for s in request.query_state()}
        assert kept == {f"past.{i}.{kind}": f"CPU.{i}" for i in (0, 1) for kind in ("key", "value")}
        request.restore_s = 0.0  # what runs from now on, nothing is kept for
        request.reset_state()
        assert generated(request) == want
        executor: Any = core.executor
        os.kill(executor._ask(executor._devices.device("CPU.1"), "ping"), signal.SIGKILL)
        with pytest.raises(TensorError, match=r"'past\.1\.\w+'.*CPU\.1.*reset_state\(\)"):
            request.infer({"ids": [[1]]})
        request.reset_state()
        assert generated(request) == want


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("devices", "last", "others"), DEVICE_CASES)
def test_the_next_run_reads_what_actors_made(
    fed: hetero.Core, devices: str, last: str, others: dict[str, list[str]]
) -> None:
    def told(request: InferRequest) -> list[np.ndarray]:
        request.feedback = {"x": "y"}
        x, found = X, []
        for _ in range(COUNT):
            request.start_async({"x": x, "gain": GAIN})
            is_early = request.start_next({"gain": GAIN})  # unless the run has ended already
            request.wait()
            found.append(request.results["y"])
            x = UNUSED_INPUT if is_early else found[-1]
        request.cancel()  # the run after the last
        request.reset_state()
        return found

    with (
        compile_feedback_model(fed, devices, last, others) as compiled,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        requests = [compiled.create_infer_request() for _ in range(THREADS)]
        for found in pool.map(told, requests):
            np.testing.assert_allclose(found, expected_outputs(COUNT), rtol=1e-5)
        await_freed(fed, 0)
