"""AsyncInferQueue: direct starts, starts from callbacks, errors, timeouts."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import onnx.parser
import pytest

import hetero
from hetero.devices import InferRequest, errors
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def compiled():
    with hetero.Core(executor="inprocess") as core:
        yield core.compile_model(branches(), "CPU")


def test_wait_all_includes_directly_started_jobs(
    compiled,
):
    queue = hetero.AsyncInferQueue(compiled, jobs=2)
    userdata_of_calls: list[Any] = []
    queue.set_callback(lambda request, userdata: userdata_of_calls.append(userdata))
    for round_ in range(3):
        for number, request in enumerate(queue):
            request.start_async({"x": X}, (round_, number))
        queue.wait_all()
        queue.start_async({"x": X}, round_)
        queue.start_async({"x": X}, round_)
        queue.wait_all()
        assert queue.is_ready()
    assert sorted(userdata_of_calls, key=str) == sorted(
        [0, 0, 1, 1, 2, 2, *np.ndindex(3, 2)], key=str
    )
    queue[0].infer({"x": X})
    queue.start_async({"x": X})
    queue.wait_all()


def test_callback_starts_next_request_on_one_job(
    compiled,
):
    queue = hetero.AsyncInferQueue(compiled, jobs=1)
    sums: list[float] = []

    def chain(request: InferRequest, remaining: int) -> None:
        sums.append(float(np.sum(request.results[0])))
        if remaining:
            queue.start_async({"x": X + remaining}, remaining - 1)

    queue.set_callback(chain)
    queue.start_async({"x": X}, 3)
    queue.wait_all()
    expected = [float(np.sum(branches_output(X + increment))) for increment in (0, 3, 2, 1)]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)


def test_callback_finds_its_job_in_constant_time(
    compiled,
):
    def num_calls(num_jobs: int) -> int:
        queue = hetero.AsyncInferQueue(compiled, num_jobs)
        calls: list[str] = []
        ids: list[int] = []

        def callback(request: InferRequest, userdata: Any) -> None:
            queue._state.ended_jobs.clear()  # as if all other jobs were running
            sys.setprofile(lambda frame, event, argument: calls.append(event))
            ids.append(queue.get_idle_request_id())
            sys.setprofile(None)

        queue.set_callback(callback)
        queue[num_jobs - 1].start_async({"x": X})
        queue.wait_all()
        assert ids == [num_jobs - 1]
        return len(calls)

    assert num_calls(1000) < 1.5 * num_calls(10)


def test_callback_that_waits_for_itself_is_rejected(compiled):
    queue = hetero.AsyncInferQueue(compiled, jobs=1)
    job_errors: list[BaseException] = []
    may_end = threading.Event()

    def start_twice(request: InferRequest, userdata: Any) -> None:
        if userdata == "first":
            queue.start_async({"x": X})  # on the job of this callback
            with pytest.raises(errors.RequestBusyError, match="queue with 1 jobs") as error:
                queue.wait_all()
            job_errors.append(error.value)
            may_end.set()
        else:
            assert may_end.wait(TIMEOUT_S)

    queue.set_callback(start_twice)
    queue.start_async({"x": X}, "first")
    queue.wait_all()
    assert len(job_errors) == 1


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_wait_all_raises_the_callback_error(compiled, error):
    queue = hetero.AsyncInferQueue(compiled, jobs=2)

    def fail(request: InferRequest, userdata: Any) -> None:
        raise error

    queue.set_callback(fail)
    queue.start_async({"x": X})
    with pytest.raises(type(error)):
        queue.wait_all()
    queue.wait_all()


def test_set_callback_without_function_is_rejected(compiled):
    queue = hetero.AsyncInferQueue(compiled, jobs=1)
    for target in (queue, queue[0]):
        with pytest.raises(hetero.ArgumentTypeError, match="got 3"):
            target.set_callback(3)  # type: ignore[arg-type]


def test_hanging_callback_raises_deadline_error():
    release = threading.Event()
    with hetero.Core(executor="inprocess") as core:
        compiled = core.compile_model(branches(), "CPU", {"REQUEST_TIMEOUT_S": 0.2})
        queue = hetero.AsyncInferQueue(compiled, jobs=1)
        queue.set_callback(lambda request, userdata: release.wait(TIMEOUT_S))
        queue.start_async({"x": X}, timeout_s=TIMEOUT_S)
        for wait in (
            lambda: queue.start_async({"x": X}),
            lambda: queue.start_async({"x": X}, timeout_s=0.01),
            queue.wait_all,
            queue.get_idle_request_id,
        ):
            with pytest.raises(errors.DeadlineError, match="whether a callback hangs"):
                wait()
        release.set()


@pytest.mark.slow
def test_process_exits_while_callback_waits_for_queue():
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
def test_invalid_number_of_jobs_is_rejected(compiled, jobs, error):
    with pytest.raises(error, match="jobs: expected an integer >= 0"):
        hetero.AsyncInferQueue(compiled, jobs=jobs)


def test_queue_of_wrong_type_is_rejected():
    with pytest.raises(errors.ArgumentTypeError, match=r"returned by Core\.compile_model; got str"):
        hetero.AsyncInferQueue("model.onnx", jobs=2)  # type: ignore[arg-type]


def test_callback_is_called_for_failed_requests():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (int64[1] i) => (float[1] y) '
        "<float[2] table = {5, 7}> { y = Gather(table, i) }"
    )
    outcomes: dict[int, Any] = {}

    def record(request: InferRequest, index: int) -> None:
        try:
            outcomes[index] = request.results[0].tolist()
        except hetero.HeteroError as error:
            outcomes[index] = type(error)

    with hetero.Core(executor="inprocess") as core:
        queue = hetero.AsyncInferQueue(core.compile_model(model, "CPU"), jobs=2)
        queue.set_callback(record)
        for index in (0, 9, 1):
            queue.start_async({"i": np.array([index])}, index)
        with pytest.raises(errors.KernelError):
            queue.wait_all()
    assert outcomes == {0: [5.0], 9: errors.KernelError, 1: [7.0]}
