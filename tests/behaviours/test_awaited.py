"""Requests as futures, in asyncio, chained without copies, and as ONNX Runtime's users run them."""

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
from tests.behaviours.held import DOUBLE, held_plugin
from tests.support.networks import PAIR, X

A, B = np.float32([1, 2]), np.float32([10, 20])


def test_a_future_has_the_results_of_the_run_that_was_on_its_way(held, request_):
    held.gate.clear()
    request_.start_async({"x": X})
    futures = [request_.future(), request_.future()]
    assert not any(future.done() for future in futures)
    held.gate.set()
    for future in (*futures, request_.future()):
        np.testing.assert_array_equal(future.result(300)["y"], X * 2)


def test_a_future_has_the_error_of_its_run(held, request_):
    held.gate.clear()
    held.error = ZeroDivisionError("on purpose")
    request_.start_async({"x": X})
    future = request_.future()
    held.gate.set()
    assert "on purpose" in str(future.exception(300))
    held.error = None
    request_.set_callback(lambda _: 1 / 0)
    request_.start_async({"x": X})
    assert isinstance(request_.future().exception(300), ZeroDivisionError)


def test_a_future_that_is_answered_late_has_its_own_runs_answer(held, request_, monkeypatch):
    ended, late, machine = threading.Event(), [], request_._machine
    answer_futures = machine._answer_futures
    hold_back = lambda run: (late.append(run), ended.set())  # noqa: E731  # one expression
    monkeypatch.setattr(machine, "_answer_futures", hold_back)
    held.gate.clear()
    request_.start_async({"x": X})
    future = request_.future()
    held.gate.set()
    assert ended.wait(300)
    mine = np.zeros((2, 3), np.float32)
    request_.set_tensor("y", mine)
    request_.infer({"x": X + 1})
    answer_futures(late[0])
    np.testing.assert_array_equal(future.result(300)["y"], X * 2)
    np.testing.assert_array_equal(mine, (X + 1) * 2)


def test_a_future_of_nothing(request_):
    with pytest.raises(RequestNotStartedError, match="future"):
        request_.future()


def test_to_cancel_a_future_cancels_its_run_and_no_later_one(held, running):
    future = running.future()
    assert future.cancel()
    with pytest.raises(RequestCancelledError):
        running.wait()
    held.gate.set()
    held.entered.clear()
    running.start_async({"x": X})
    with pytest.raises(CancelledError):
        future.result(300)
    np.testing.assert_array_equal(running.future().result(300)["y"], X * 2)


def test_futures_of_many_requests(double):
    requests = [double.create_infer_request() for _ in range(8)]
    for i, request in enumerate(requests):
        request.start_async({"x": X + i})
    done, _ = wait([request.future() for request in requests], 300)
    assert len(done) == 8
    for i, request in enumerate(requests):
        np.testing.assert_array_equal(request.results["y"], (X + i) * 2)


def test_await(double):
    async def both():
        first, second = double.create_infer_request(), double.create_infer_request()
        first.start_async({"x": X})
        second.start_async({"x": X + 1})
        results = await asyncio.gather(first, second)
        return [*results, await first]

    for got, want in zip(asyncio.run(both()), (X, X + 1, X), strict=True):
        np.testing.assert_array_equal(got["y"], want * 2)


def test_what_asyncio_gives_up_is_cancelled(held, double):
    held.gate.clear()

    async def late():
        request = double.create_infer_request()
        request.start_async({"x": X})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request, 0.01)
        return request

    with pytest.raises(RequestCancelledError):
        asyncio.run(late()).wait()


def test_71_bettered_an_array_that_was_read_stays_what_it_was(request_):
    request_.infer({"x": X})
    tensor = request_.get_tensor("y")
    before = tensor.data
    request_.infer({"x": X + 1})
    np.testing.assert_array_equal(before, X * 2)
    np.testing.assert_array_equal(tensor.data, (X + 1) * 2)


def test_73_memory_that_was_set_goes_to_the_device_itself(double, monkeypatch):
    first, second = double.create_infer_request(), double.create_infer_request()
    first.infer({"x": X})
    second.set_tensor("x", first.get_tensor("y"))
    submitted = []
    submit = type(second._target).submit
    monkeypatch.setattr(
        type(second._target),
        "submit",
        lambda target, values, request: (submitted.append(values), submit(target, values, request))[
            1
        ],
    )
    second.infer()
    assert np.shares_memory(submitted[0]["x"], first.get_tensor("y").data)
    np.testing.assert_array_equal(second.results["y"], X * 4)


def test_75_a_region_of_a_tensor(request_):
    image = Tensor(np.arange(20, dtype=np.float32).reshape(4, 5))
    region = Tensor(image, [1, 1], [3, 4])
    request_.set_tensor("x", region)
    np.testing.assert_array_equal(request_.infer()["y"], image.data[1:3, 1:4] * 2)
    region.data[:] = 0
    assert not image.data[1:3, 1:4].any()
    for begin, end in (([0, 0], [5, 5]), ([0], [2]), ([2, 2], [1, 3]), ([-1, 0], [2, 2])):
        with pytest.raises(TensorShapeError, match="region"):
            Tensor(image, begin, end)


def test_a_run_has_a_number(request_):
    assert request_.request_id is None
    numbers = []
    for _ in range(3):
        request_.infer({"x": X})
        numbers.append(request_.request_id)
    assert len({*numbers}) == 3


@pytest.fixture(scope="module", params=["CPU", "HETERO:CPU,ORT"])
def compiled(request):
    with hetero.Core("inprocess") as core:
        yield core.compile_model(PAIR, request.param)


def test_the_number_of_a_run_is_the_one_that_its_model_tells_stories_by(compiled):
    request = compiled.create_infer_request()
    request.infer({"a": A, "b": B})
    assert [line.what for line in compiled.story(request.request_id)][-1] == "answered"


def test_outputs_are_chosen_as_in_onnx_runtime(compiled):
    feed = {"a": A, "b": B}
    for names, want in (
        (["d", "s"], [A - B, A + B]),
        (["s"], [A + B]),
        (["s", "s"], [A + B, A + B]),
        (None, [A + B, A - B]),
        ([], []),
    ):
        got = compiled.run(names, feed)
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(TensorNameError, match="'nope'"):
        compiled.run(["nope"], feed)
    with pytest.raises(DeadlineError):
        compiled.run(None, feed, timeout_s=0)


class Exchanged:
    """An array that is known by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_inputs_come_by_dlpack(compiled):
    results = compiled({"a": Exchanged(A.copy()), "b": Exchanged(B.copy())})
    np.testing.assert_array_equal(results["s"], A + B)


def streamed(queue, requests, **options):
    async def collect():
        return {name: results async for name, results in queue.stream(requests, **options)}

    return asyncio.run(collect())


@pytest.mark.parametrize("jobs", [1, 3, 20])
def test_a_stream_answers_each_request_under_its_name(compiled, jobs):
    queue = hetero.AsyncInferQueue(compiled, jobs)
    called = []
    queue.set_callback(lambda *_: called.append(1))
    answers = streamed(queue, ((i, {"a": A + i, "b": B}) for i in range(10)))
    assert answers.keys() == set(range(10))
    for i, results in answers.items():
        np.testing.assert_array_equal(results["s"], A + i + B)
    assert not called
    assert streamed(queue, []) == {}
    queue.wait_all()


def test_a_stream_takes_no_more_requests_than_it_has_jobs(compiled):
    queue = hetero.AsyncInferQueue(compiled, 2)
    taken = []

    def requests():
        for i in range(6):
            taken.append(i)
            yield i, {"a": A, "b": B}

    async def look():
        ended = 0
        async for _ in queue.stream(requests()):
            assert len(taken) <= ended + 3
            ended += 1

    asyncio.run(look())
    assert len(taken) == 6


def test_a_stream_raises_what_a_request_raises_and_the_queue_lives_on(compiled):
    queue = hetero.AsyncInferQueue(compiled, 2)
    good = {"a": A, "b": B}
    with pytest.raises(TensorNameError):
        streamed(queue, [(0, good), (1, {"a": A}), (2, good)])
    with pytest.raises(DeadlineError):
        streamed(queue, [(0, good)], timeout_s=0)
    with pytest.raises(ArgumentTypeError, match=r"pairs \(userdata, inputs\), got dict"):
        streamed(queue, [good])
    queue.wait_all()
    assert streamed(queue, [(0, good)]).keys() == {0}


def test_a_stream_that_is_left_ends_what_runs(held):
    async def leave(queue):
        stream = queue.stream((i, X) for i in range(4))
        async for _ in stream:
            held.gate.clear()
            break
        await stream.aclose()

    with hetero.Core("inprocess", plugins=[held_plugin(held)]) as core:
        queue = hetero.AsyncInferQueue(core.compile_model(DOUBLE, "DENSE"), 2)
        asyncio.run(leave(queue))
        queue.wait_all()
        held.gate.set()
