"""The behaviours of running requests that applications of OpenVINO rely on, row by row.

As in test_values: numbers are rows of the project's behaviour table.
"""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from hetero.devices import Program, State
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import (
    ArgumentError,
    DeadlineError,
    InferenceError,
    RequestBusyError,
    RequestCancelledError,
)
from hetero.examples.third_party_plugin import DensePlugin
from tests.behaviours.held import DOUBLE
from tests.support.networks import X

# Requests, synchronous or not.


def test_89_start_then_wait(request_):
    request_.start_async({"x": X})
    request_.wait()
    np.testing.assert_array_equal(request_.get_tensor("y").data, X * 2)
    assert request_.latency > 0


def test_90_busy(running):
    for act in (lambda: running.start_async({"x": X}), lambda: running.infer({"x": X})):
        with pytest.raises(RequestBusyError, match="wait"):
            act()


@pytest.mark.parametrize(
    "act",
    [
        lambda r: r.get_tensor("x"),
        lambda r: r.set_tensor("x", X),
        lambda r: r.results,
        lambda r: r.set_callback(print),
        lambda r: r.profiling_info,
        lambda r: r.query_state(),
        lambda r: r.set_tensors("x", [X]),
        lambda r: r.get_output_tensor(0),
    ],
)
def test_91_nothing_is_touched_while_it_runs(running, act):
    with pytest.raises(RequestBusyError):
        act(running)
    assert running.state is State.BUSY


def test_92_wait_returns_at_once_where_nothing_runs(request_):
    request_.wait()
    assert request_.state is State.IDLE
    request_.start_async({"x": X})
    request_.wait()
    request_.wait()
    assert request_.state is State.IDLE


def test_93_94_wait_for(held, request_):
    assert request_.wait_for(0) is True
    held.gate.clear()
    request_.start_async({"x": X})
    assert request_.wait_for(0) is False
    held.gate.set()
    assert request_.wait_for(5000) is True
    with pytest.raises(ArgumentError, match="0 or more"):
        request_.wait_for(-1)


def test_95_cancel_before_start(request_):
    request_.cancel()
    np.testing.assert_array_equal(request_.infer({"x": X})["y"], X * 2)


def test_96_97_cancel_while_it_runs_then_use_again(held, running):
    running.cancel()
    assert running.state is State.CANCELLED or running.wait_for(0)
    with pytest.raises(RequestCancelledError):
        running.wait()
    assert running.state is State.IDLE
    held.gate.set()
    np.testing.assert_array_equal(running.infer({"x": X})["y"], X * 2)


def test_96_cancel_while_it_waits_for_the_device(held, double, running):
    queued = double.create_infer_request()
    queued.start_async({"x": X})
    queued.cancel()
    with pytest.raises(RequestCancelledError):
        queued.wait()
    held.gate.set()
    running.wait()


def test_96_cancel_too_late(request_):
    request_.start_async({"x": X})
    request_.wait()
    request_.cancel()
    np.testing.assert_array_equal(request_.results["y"], X * 2)


def test_98_an_error_is_raised_by_wait_and_seen_by_the_callback(held, request_):
    held.error = ZeroDivisionError("on purpose")
    seen = []

    def callback(_):
        try:
            seen.append(request_.results)
        except InferenceError as error:
            seen.append(error)

    request_.set_callback(callback)
    request_.start_async({"x": X})
    with pytest.raises(InferenceError, match=r"DENSE\.0 .*'g'.*x\[2, 3\].*on purpose") as caught:
        request_.wait()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert seen == [caught.value]
    held.error = None
    request_.infer({"x": X})


def test_99_114_request_outlives_what_made_it(subject):
    request = subject.compile_model(DOUBLE).create_infer_request()
    gc.collect()
    np.testing.assert_array_equal(request.infer({"x": X})["y"], X * 2)
    request.start_async({"x": X})
    del request
    gc.collect()


def test_100_tensors_outlive_the_model(subject):
    compiled = subject.compile_model(DOUBLE)
    request = compiled.create_infer_request()
    request.infer({"x": X})
    tensor = request.get_tensor("y")
    compiled.close()
    del compiled, request
    gc.collect()
    np.testing.assert_array_equal(tensor.data, X * 2)


def test_deadline(held, request_):
    held.gate.clear()
    with pytest.raises(DeadlineError, match=r"within 0\.05 s|after \d|time was up"):
        request_.infer({"x": X}, timeout_s=0.05)
    held.gate.set()
    request_.wait_for(5000)
    np.testing.assert_array_equal(request_.infer({"x": X}, timeout_s=300)["y"], X * 2)


def test_a_stuck_run_does_not_outlast_the_deadline_of_whoever_waits(held, request_):
    held.gate.clear()
    request_.start_async({"x": X}, timeout_s=0.05)
    with pytest.raises(DeadlineError):
        request_.wait()
    held.gate.set()


def test_a_slow_callback_is_not_bound_by_the_deadline(request_):
    called, go = threading.Event(), threading.Event()
    request_.set_callback(lambda _: (called.set(), go.wait(300)))
    request_.start_async({"x": X}, timeout_s=300)
    assert called.wait(300)
    request_._machine.run.timeout_s = 0.0  # as if the callback took that long
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(request_.wait)
        go.set()
        waiting.result(300)
    np.testing.assert_array_equal(request_.results["y"], X * 2)


def test_no_thread_starts_after_close(double):
    request = double.create_infer_request()
    request.set_callback(lambda _: None)
    request.start_async({"x": X})
    double.close()
    with suppress(RequestCancelledError):  # a device finishes what runs, a Core cancels it
        request.wait()
    before = set(threading.enumerate())
    for start in (request.infer, request.start_async):
        with pytest.raises((InferenceError, RequestCancelledError), match="closed"):
            start({"x": X})
    assert set(threading.enumerate()) <= before
    double.close()


def test_exclusive_requests_of_one_device_run_one_after_another(held, subject):
    exclusive = {"EXCLUSIVE_ASYNC_REQUESTS": True, "NUM_STREAMS": 4}
    models = [subject.compile_model(DOUBLE, exclusive) for _ in range(3)]
    requests = [compiled.create_infer_request() for compiled in models]
    running, most, lock = 0, 0, threading.Lock()

    def enter():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1

    held.on_run = enter
    for request in requests:
        request.start_async({"x": X})
    for request in requests:
        request.wait()
    assert most == 1
    for compiled in models:
        compiled.close()
    shared = subject.compile_model(DOUBLE, {"NUM_STREAMS": 3})
    held.on_run = threading.Barrier(3, timeout=300).wait  # passed only by three at once
    requests = [shared.create_infer_request() for _ in range(3)]
    for request in requests:
        request.start_async({"x": X})
    for request in requests:
        request.wait()


# Callbacks.


def test_101_once_in_another_thread_before_wait_returns(request_):
    calls = []
    request_.set_callback(lambda data: calls.append((data, threading.get_ident())), "data")
    for _ in range(3):
        request_.start_async({"x": X})
        request_.wait()
    assert [data for data, _ in calls] == ["data"] * 3
    assert threading.get_ident() not in {ident for _, ident in calls}


def test_102_not_called_by_infer(request_):
    calls = []
    request_.set_callback(calls.append)
    request_.infer({"x": X})
    assert calls == []


def test_103_a_callback_may_start_the_request_again(request_):
    values = []

    def again(_):
        assert request_.state is State.IDLE
        values.append(float(request_.results["y"][0, 1]))
        if len(values) < 10:
            request_.start_async({"x": request_.results["y"]})

    request_.set_callback(again)
    request_.start_async({"x": X})
    request_.wait()  # for the whole chain
    assert values == [2.0**i for i in range(1, 11)]


def test_103_wait_in_a_callback_returns(request_):
    waited = []

    def callback(_):
        request_.wait()
        waited.append(request_.wait_for(0))

    request_.set_callback(callback)
    request_.start_async({"x": X})
    request_.wait()
    assert waited == [True]


def test_104_a_raising_callback(request_):
    def fail(_):
        raise KeyError("mine")

    request_.set_callback(fail)
    request_.start_async({"x": X})
    with pytest.raises(KeyError, match="mine"):
        request_.wait()
    request_.set_callback(None)
    np.testing.assert_array_equal(request_.infer({"x": X})["y"], X * 2)


def test_105_replaced_callbacks_are_let_go(request_):
    class Callback:
        def __call__(self, _):
            pass

    import weakref

    callback = Callback()
    alive = weakref.ref(callback)
    request_.set_callback(callback)
    del callback
    request_.set_callback(None)
    gc.collect()
    assert alive() is None


def test_userdata_of_a_run_goes_before_that_of_the_callback(request_):
    seen = []
    request_.set_callback(seen.append, "always")
    request_.start_async({"x": X}, "this time")
    request_.wait()
    assert request_.userdata == "this time"
    request_.start_async({"x": X})
    request_.wait()
    assert seen == ["this time", "always"]


# Profiles and state.


def test_106_107_profiles(subject):
    names = [
        "1. input preprocessing",
        "2. input transfer to a device",
        "3. execution time",
        "4. output transfer from a device",
        "5. output postprocessing",
    ]
    for on in (True, False):
        compiled = subject.compile_model(DOUBLE, {"PERF_COUNT": on})
        request = compiled.create_infer_request()
        for run in (None, request.infer, request.start_async):
            if run:
                run({"x": X})
                request.wait()
            rows = request.profiling_info
            assert [r.node_name for r in rows if r.node_name[:1].isdigit()] == names
            status = "EXECUTED" if on and run else "NOT_RUN"
            assert {r.status for r in rows} == {status}
            assert (max(r.real_time for r in rows).total_seconds() > 0) is bool(on and run)


def counters(request):
    """Return the seconds of the five counters, by their number."""
    rows = [r for r in request.profiling_info if r.node_name[:1].isdigit()]
    return {int(r.node_name[0]): r.real_time.total_seconds() for r in rows}


def test_106_execution_time_is_without_the_queue(held, subject):
    compiled = subject.compile_model(DOUBLE, {"PERF_COUNT": True})
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    held.gate.clear()
    first.start_async(X)
    second.start_async(X)
    queued_from = time.perf_counter()
    assert held.entered.wait(60)
    while time.perf_counter() < queued_from + 0.05:
        pass
    queued_s = time.perf_counter() - queued_from
    held.gate.set()
    second.wait()
    assert sum(counters(second).values()) <= second.latency / 1000 - queued_s + counters(second)[5]
    compiled.close()


class Moving(DensePlugin):
    """Tells how long its transfers take."""

    def compile(self, model, config):
        return MovingProgram(super().compile(model, config))


class MovingProgram(Program):
    def __init__(self, program):
        self.program = program

    def run(self, inputs, context):
        start = time.perf_counter()
        while (upload_s := time.perf_counter() - start) < 1e-3:
            pass
        context.upload_s += upload_s
        context.download_s += upload_s / 2
        return self.program.run(inputs, context)


def test_106_transfers_that_a_program_tells_are_no_execution_time():
    compiled = PluginSubject(Moving()).compile_model(DOUBLE, {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    request.infer(X)
    seconds = counters(request)
    assert seconds[2] >= 1e-3
    assert seconds[4] >= 0.5e-3
    assert sum(seconds.values()) <= request.latency / 1000 + seconds[5]
    compiled.close()


def test_108_to_110_there_are_no_variables(request_):
    assert request_.query_state() == ()
    request_.reset_state()
