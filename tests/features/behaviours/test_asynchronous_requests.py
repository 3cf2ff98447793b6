"""Requests as futures and in asyncio, streams of requests, and ONNX Runtime's form of run."""

import asyncio
import threading
from concurrent.futures import CancelledError, wait

import numpy as np
import pytest

import hetero
from hetero.devices import Tensor
from hetero.devices.errors import (
    ArgumentTypeError,
    DeadlineError,
    RequestCancelledError,
    RequestNotStartedError,
    TensorNameError,
    TensorShapeError,
)
from tests.features.behaviours.controlled_device import DOUBLE, controlled_plugin
from tests.support.networks import PAIR, X

A, B = np.float32([1, 2]), np.float32([10, 20])


def test_future_has_results_of_the_current_run(control, infer_request):
    control.gate.clear()
    infer_request.start_async({"x": X})
    futures = [infer_request.future(), infer_request.future()]
    assert not any(future.done() for future in futures)
    control.gate.set()
    for future in (*futures, infer_request.future()):
        np.testing.assert_array_equal(future.result(300)["y"], X * 2)


def test_future_has_error_of_its_run(control, infer_request):
    control.gate.clear()
    control.error = ZeroDivisionError("on purpose")
    infer_request.start_async({"x": X})
    future = infer_request.future()
    control.gate.set()
    assert "on purpose" in str(future.exception(300))
    control.error = None
    infer_request.set_callback(lambda _: 1 / 0)
    infer_request.start_async({"x": X})
    assert isinstance(infer_request.future().exception(300), ZeroDivisionError)


def test_late_future_has_results_of_its_own_run(control, infer_request, monkeypatch):
    end, runs, machine = threading.Event(), [], infer_request._machine
    set_futures = machine._set_futures
    hold_back = lambda run: (runs.append(run), end.set())  # noqa: E731  # one expression
    monkeypatch.setattr(machine, "_set_futures", hold_back)
    control.gate.clear()
    infer_request.start_async({"x": X})
    future = infer_request.future()
    control.gate.set()
    assert end.wait(300)
    memory = np.zeros((2, 3), np.float32)
    infer_request.set_tensor("y", memory)
    infer_request.infer({"x": X + 1})
    set_futures(runs[0])
    np.testing.assert_array_equal(future.result(300)["y"], X * 2)
    np.testing.assert_array_equal(memory, (X + 1) * 2)


def test_future_without_a_run_raises(infer_request):
    with pytest.raises(RequestNotStartedError, match="future"):
        infer_request.future()


def test_cancel_of_a_future_cancels_only_its_run(control, running_request):
    future = running_request.future()
    assert future.cancel()
    with pytest.raises(RequestCancelledError):
        running_request.wait()
    control.gate.set()
    control.entered.clear()
    running_request.start_async({"x": X})
    with pytest.raises(CancelledError):
        future.result(300)
    np.testing.assert_array_equal(running_request.future().result(300)["y"], X * 2)


def test_futures_of_many_requests_complete(double):
    requests = [double.create_infer_request() for _ in range(8)]
    for i, request in enumerate(requests):
        request.start_async({"x": X + i})
    finished, _ = wait([request.future() for request in requests], 300)
    assert len(finished) == 8
    for i, request in enumerate(requests):
        np.testing.assert_array_equal(request.results["y"], (X + i) * 2)


def test_awaited_request_returns_results(double):
    async def both():
        first, second = double.create_infer_request(), double.create_infer_request()
        first.start_async({"x": X})
        second.start_async({"x": X + 1})
        results = await asyncio.gather(first, second)
        return [*results, await first]

    for results, x in zip(asyncio.run(both()), (X, X + 1, X), strict=True):
        np.testing.assert_array_equal(results["y"], x * 2)


def test_asyncio_timeout_cancels_the_request(control, double):
    control.gate.clear()

    async def run_with_timeout():
        request = double.create_infer_request()
        request.start_async({"x": X})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request, 0.01)
        return request

    with pytest.raises(RequestCancelledError):
        asyncio.run(run_with_timeout()).wait()


def test_results_stay_unchanged_by_later_runs(infer_request):
    before = infer_request.infer({"x": X})["y"]
    infer_request.infer({"x": X + 1})
    np.testing.assert_array_equal(before, X * 2)


def test_tensor_keeps_its_memory_in_later_runs(infer_request):
    infer_request.infer({"x": X})
    memory = infer_request.get_tensor("y").data
    infer_request.infer({"x": X + 1})
    np.testing.assert_array_equal(memory, (X + 1) * 2)


def test_tensor_memory_is_passed_to_the_device(double, monkeypatch):
    first, second = double.create_infer_request(), double.create_infer_request()
    first.infer({"x": X})
    second.set_tensor("x", first.get_tensor("y"))
    submissions = []
    submit = type(second._target).submit

    def recording_submit(target, values, request):
        submissions.append(values)
        return submit(target, values, request)

    monkeypatch.setattr(type(second._target), "submit", recording_submit)
    second.infer()
    assert np.shares_memory(submissions[0]["x"], first.get_tensor("y").data)
    np.testing.assert_array_equal(second.results["y"], X * 4)


def test_region_shares_tensor_memory(infer_request):
    image = Tensor(np.arange(20, dtype=np.float32).reshape(4, 5))
    region = Tensor(image, [1, 1], [3, 4])
    infer_request.set_tensor("x", region)
    np.testing.assert_array_equal(infer_request.infer()["y"], image.data[1:3, 1:4] * 2)
    region.data[:] = 0
    assert not image.data[1:3, 1:4].any()
    for begin, end in (([0, 0], [5, 5]), ([0], [2]), ([2, 2], [1, 3]), ([-1, 0], [2, 2])):
        with pytest.raises(TensorShapeError, match="region"):
            Tensor(image, begin, end)


def test_runs_have_distinct_request_ids(infer_request):
    assert infer_request.request_id is None
    numbers = []
    for _ in range(3):
        infer_request.infer({"x": X})
        numbers.append(infer_request.request_id)
    assert len({*numbers}) == 3


@pytest.fixture(scope="module", params=["CPU", "HETERO:CPU,ORT"])
def compiled(request):
    with hetero.Core("inprocess") as core:
        yield core.compile_model(PAIR, request.param)


def test_request_id_selects_the_history_of_a_run(compiled):
    request = compiled.create_infer_request()
    request.infer({"a": A, "b": B})
    assert [line.event for line in compiled.story(request.request_id)][-1] == "answered"


def test_run_returns_the_named_outputs(compiled):
    feed = {"a": A, "b": B}
    for names, expected in (
        (["d", "s"], [A - B, A + B]),
        (["s"], [A + B]),
        (["s", "s"], [A + B, A + B]),
        (None, [A + B, A - B]),
        ([], []),
    ):
        arrays = compiled.run(names, feed)
        assert len(arrays) == len(expected)
        for actual, expected_array in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(actual, expected_array)
    with pytest.raises(TensorNameError, match="'nope'"):
        compiled.run(["nope"], feed)
    with pytest.raises(DeadlineError):
        compiled.run(None, feed, timeout_s=0)


class DLPackArray:
    """An object that has only the DLPack protocol of an array."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_inputs_are_accepted(compiled):
    results = compiled({"a": DLPackArray(A.copy()), "b": DLPackArray(B.copy())})
    np.testing.assert_array_equal(results["s"], A + B)


def run_stream(queue, requests, **options):
    async def collect():
        return {name: results async for name, results in queue.stream(requests, **options)}

    return asyncio.run(collect())


@pytest.mark.parametrize("jobs", [1, 3, 20])
def test_stream_returns_results_by_userdata(compiled, jobs):
    queue = hetero.AsyncInferQueue(compiled, jobs)
    calls = []
    queue.set_callback(lambda *_: calls.append(1))
    results_of = run_stream(queue, ((i, {"a": A + i, "b": B}) for i in range(10)))
    assert results_of.keys() == set(range(10))
    for i, results in results_of.items():
        np.testing.assert_array_equal(results["s"], A + i + B)
    assert not calls
    assert run_stream(queue, []) == {}
    queue.wait_all()


def test_stream_reads_at_most_one_request_ahead(compiled):
    queue = hetero.AsyncInferQueue(compiled, 2)
    indices = []

    def requests():
        for i in range(6):
            indices.append(i)
            yield i, {"a": A, "b": B}

    async def consume():
        results = 0
        async for _ in queue.stream(requests()):
            assert len(indices) <= results + 3
            results += 1

    asyncio.run(consume())
    assert len(indices) == 6


def test_stream_raises_request_errors_and_queue_survives(compiled):
    queue = hetero.AsyncInferQueue(compiled, 2)
    inputs = {"a": A, "b": B}
    with pytest.raises(TensorNameError):
        run_stream(queue, [(0, inputs), (1, {"a": A}), (2, inputs)])
    with pytest.raises(DeadlineError):
        run_stream(queue, [(0, inputs)], timeout_s=0)
    with pytest.raises(ArgumentTypeError, match=r"pairs \(userdata, inputs\), got dict"):
        run_stream(queue, [inputs])
    queue.wait_all()
    assert run_stream(queue, [(0, inputs)]).keys() == {0}


def test_closed_stream_cancels_running_requests(control):
    async def close_early(queue):
        stream = queue.stream((i, X) for i in range(4))
        async for _ in stream:
            control.gate.clear()
            break
        await stream.aclose()

    with hetero.Core("inprocess", plugins=[controlled_plugin(control)]) as core:
        queue = hetero.AsyncInferQueue(core.compile_model(DOUBLE, "DENSE"), 2)
        asyncio.run(close_early(queue))
        queue.wait_all()
        control.gate.set()
