"""AsyncInferQueue used in unusual ways: started directly, from callbacks, after close."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices import InferRequest, errors
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
PATIENCE_S = 60


@pytest.fixture(scope="module")
def compiled() -> Iterator[hetero.CompiledModel]:
    with hetero.Core(executor="inprocess") as core:
        yield core.compile_model(branches(), "CPU")


def test_jobs_that_are_started_directly_are_waited_for_and_used_again(
    compiled: hetero.CompiledModel,
) -> None:
    queue = hetero.AsyncInferQueue(compiled, jobs=2)
    seen: list[Any] = []
    queue.set_callback(lambda request, userdata: seen.append(userdata))
    for turn in range(3):
        for number, request in enumerate(queue):
            request.start_async({"x": X}, (turn, number))
        queue.wait_all()
        queue.start_async({"x": X}, turn)
        queue.start_async({"x": X}, turn)
        queue.wait_all()
        assert queue.is_ready()
    assert sorted(seen, key=str) == sorted([0, 0, 1, 1, 2, 2, *np.ndindex(3, 2)], key=str)
    queue[0].infer({"x": X})
    queue.start_async({"x": X})
    queue.wait_all()


def test_a_callback_starts_the_next_request_on_a_queue_of_one(
    compiled: hetero.CompiledModel,
) -> None:
    queue = hetero.AsyncInferQueue(compiled, jobs=1)
    sums: list[float] = []

    def chain(request: InferRequest, left: int) -> None:
        sums.append(float(np.sum(request.results[0])))
        if left:
            queue.start_async({"x": X + left}, left - 1)

    queue.set_callback(chain)
    queue.start_async({"x": X}, 3)
    queue.wait_all()
    want = [float(np.sum(branches_output(X + add))) for add in (0, 3, 2, 1)]
    np.testing.assert_allclose(sums, want, rtol=1e-5)


def test_a_callback_finds_its_own_job_among_a_thousand_as_soon_as_among_ten(
    compiled: hetero.CompiledModel,
) -> None:
    def num_calls(num_jobs: int) -> int:
        queue = hetero.AsyncInferQueue(compiled, num_jobs)
        calls: list[str] = []
        found: list[int] = []

        def callback(request: InferRequest, userdata: Any) -> None:
            queue._shared.ended.clear()  # as where all others run
            sys.setprofile(lambda frame, event, what: calls.append(event))
            found.append(queue.get_idle_request_id())
            sys.setprofile(None)

        queue.set_callback(callback)
        queue[num_jobs - 1].start_async({"x": X})
        queue.wait_all()
        assert found == [num_jobs - 1]
        return len(calls)

    assert num_calls(1000) < 1.5 * num_calls(10)


def test_a_callback_that_would_wait_for_itself_is_told(compiled: hetero.CompiledModel) -> None:
    queue = hetero.AsyncInferQueue(compiled, jobs=1)
    told: list[BaseException] = []
    hold = threading.Event()

    def start_twice(request: InferRequest, userdata: Any) -> None:
        if userdata == "first":
            queue.start_async({"x": X})  # its own job
            with pytest.raises(errors.RequestBusyError, match="queue of 1 jobs") as caught:
                queue.wait_all()
            told.append(caught.value)
            hold.set()
        else:
            assert hold.wait(PATIENCE_S)

    queue.set_callback(start_twice)
    queue.start_async({"x": X}, "first")
    queue.wait_all()
    assert len(told) == 1


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_callback_raises_is_raised_by_wait_all(
    compiled: hetero.CompiledModel, error: BaseException
) -> None:
    queue = hetero.AsyncInferQueue(compiled, jobs=2)

    def fail(request: InferRequest, userdata: Any) -> None:
        raise error

    queue.set_callback(fail)
    queue.start_async({"x": X})
    with pytest.raises(type(error)):
        queue.wait_all()
    queue.wait_all()


def test_a_callback_is_a_function(compiled: hetero.CompiledModel) -> None:
    queue = hetero.AsyncInferQueue(compiled, jobs=1)
    for target in (queue, queue[0]):
        with pytest.raises(hetero.ArgumentTypeError, match="got 3"):
            target.set_callback(3)  # type: ignore[arg-type]


def test_waits_end_where_no_job_ends() -> None:
    release = threading.Event()
    with hetero.Core(executor="inprocess") as core:
        compiled = core.compile_model(branches(), "CPU", {"REQUEST_TIMEOUT_S": 0.2})
        queue = hetero.AsyncInferQueue(compiled, jobs=1)
        queue.set_callback(lambda request, userdata: release.wait(PATIENCE_S))
        queue.start_async({"x": X}, timeout_s=PATIENCE_S)
        for wait in (
            lambda: queue.start_async({"x": X}),
            lambda: queue.start_async({"x": X}, timeout_s=0.01),
            queue.wait_all,
            queue.get_idle_request_id,
        ):
            with pytest.raises(errors.DeadlineError, match="callback that hangs"):
                wait()
        release.set()


def test_the_process_ends_though_a_callback_waits_for_its_own_queue() -> None:
    program = """
import hetero, numpy as np
from tests.support.models import branches
X = np.ones((2, 3), np.float32)
core = hetero.Core(executor="inprocess")
queue = hetero.AsyncInferQueue(core.compile_model(branches(), "CPU"), jobs=1)
def start_two(request, userdata):
    queue.start_async({"x": X})
    queue.start_async({"x": X})
queue.set_callback(start_two)
queue.start_async({"x": X})
core.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.parametrize(
    ("jobs", "error"), [(-1, errors.ArgumentError), (2.5, errors.ArgumentTypeError)]
)
def test_a_number_of_jobs_that_is_none_is_refused(
    compiled: hetero.CompiledModel, jobs: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"jobs={jobs}: wanted a whole number >= 0"):
        hetero.AsyncInferQueue(compiled, jobs=jobs)


def test_a_queue_of_something_else_is_refused() -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"compile_model makes; got str"):
        hetero.AsyncInferQueue("model.onnx", jobs=2)  # type: ignore[arg-type] # the mistake
