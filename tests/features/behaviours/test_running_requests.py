"""Behaviours of running requests that applications of OpenVINO rely on.

The table in docs/behaviours.md lists them.
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
from tests.features.behaviours.controlled_device import DOUBLE
from tests.support.networks import X

# Requests, synchronous or not.


def test_start_then_wait(infer_request):
    infer_request.start_async({"x": X})
    infer_request.wait()
    np.testing.assert_array_equal(infer_request.get_tensor("y").data, X * 2)
    assert infer_request.latency > 0


def test_start_of_a_busy_request_raises(running_request):
    for action in (
        lambda: running_request.start_async({"x": X}),
        lambda: running_request.infer({"x": X}),
    ):
        with pytest.raises(RequestBusyError, match="wait"):
            action()


@pytest.mark.parametrize(
    "action",
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
def test_busy_request_rejects_access(running_request, action):
    with pytest.raises(RequestBusyError):
        action(running_request)
    assert running_request.state is State.BUSY


def test_wait_of_an_idle_request_returns(infer_request):
    infer_request.wait()
    assert infer_request.state is State.IDLE
    infer_request.start_async({"x": X})
    infer_request.wait()
    infer_request.wait()
    assert infer_request.state is State.IDLE


def test_wait_for_honours_its_timeout(control, infer_request):
    assert infer_request.wait_for(0) is True
    control.gate.clear()
    infer_request.start_async({"x": X})
    assert infer_request.wait_for(0) is False
    control.gate.set()
    assert infer_request.wait_for(5000) is True
    with pytest.raises(ArgumentError, match="0 or more"):
        infer_request.wait_for(-1)


def test_cancel_before_start(infer_request):
    infer_request.cancel()
    np.testing.assert_array_equal(infer_request.infer({"x": X})["y"], X * 2)


def test_cancelled_run_leaves_request_usable(control, running_request):
    running_request.cancel()
    assert running_request.state is State.CANCELLED or running_request.wait_for(0)
    with pytest.raises(RequestCancelledError):
        running_request.wait()
    assert running_request.state is State.IDLE
    control.gate.set()
    np.testing.assert_array_equal(running_request.infer({"x": X})["y"], X * 2)


def test_cancel_of_a_queued_request(control, double, running_request):
    queued_request = double.create_infer_request()
    queued_request.start_async({"x": X})
    queued_request.cancel()
    with pytest.raises(RequestCancelledError):
        queued_request.wait()
    control.gate.set()
    running_request.wait()


def test_cancel_after_the_run_has_no_effect(infer_request):
    infer_request.start_async({"x": X})
    infer_request.wait()
    infer_request.cancel()
    np.testing.assert_array_equal(infer_request.results["y"], X * 2)


def test_wait_and_callback_get_the_error(control, infer_request):
    control.error = ZeroDivisionError("on purpose")
    outcomes = []

    def callback(_):
        try:
            outcomes.append(infer_request.results)
        except InferenceError as error:
            outcomes.append(error)

    infer_request.set_callback(callback)
    infer_request.start_async({"x": X})
    with pytest.raises(InferenceError, match=r"DENSE\.0 .*'g'.*x\[2, 3\].*on purpose") as error:
        infer_request.wait()
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert outcomes == [error.value]
    control.error = None
    infer_request.infer({"x": X})


def test_request_outlives_its_model(subject):
    request = subject.compile_model(DOUBLE).create_infer_request()
    gc.collect()
    np.testing.assert_array_equal(request.infer({"x": X})["y"], X * 2)
    request.start_async({"x": X})
    del request
    gc.collect()


def test_tensors_outlive_the_model(subject):
    compiled = subject.compile_model(DOUBLE)
    request = compiled.create_infer_request()
    request.infer({"x": X})
    tensor = request.get_tensor("y")
    compiled.close()
    del compiled, request
    gc.collect()
    np.testing.assert_array_equal(tensor.data, X * 2)


def test_infer_raises_deadline_error(control, infer_request):
    control.gate.clear()
    with pytest.raises(DeadlineError, match=r"within 0\.05 s|after \d|exceeded its deadline"):
        infer_request.infer({"x": X}, timeout_s=0.05)
    control.gate.set()
    infer_request.wait_for(5000)
    np.testing.assert_array_equal(infer_request.infer({"x": X}, timeout_s=300)["y"], X * 2)


def test_wait_raises_at_the_deadline(control, infer_request):
    control.gate.clear()
    infer_request.start_async({"x": X}, timeout_s=0.05)
    with pytest.raises(DeadlineError):
        infer_request.wait()
    control.gate.set()


def test_callback_may_exceed_the_deadline(infer_request):
    start, proceed = threading.Event(), threading.Event()
    infer_request.set_callback(lambda _: (start.set(), proceed.wait(300)))
    infer_request.start_async({"x": X}, timeout_s=300)
    assert start.wait(300)
    infer_request._machine.run.timeout_s = 0.0  # as if the callback took that long
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(infer_request.wait)
        proceed.set()
        future.result(300)
    np.testing.assert_array_equal(infer_request.results["y"], X * 2)


def test_closed_model_starts_no_thread(double):
    request = double.create_infer_request()
    request.set_callback(lambda _: None)
    request.start_async({"x": X})
    double.close()
    with suppress(RequestCancelledError):  # a device finishes the run, a Core cancels it
        request.wait()
    before = set(threading.enumerate())
    for start in (request.infer, request.start_async):
        with pytest.raises((InferenceError, RequestCancelledError), match="closed"):
            start({"x": X})
    assert set(threading.enumerate()) <= before
    double.close()


def test_exclusive_async_requests_run_one_at_a_time(control, subject):
    options = {"EXCLUSIVE_ASYNC_REQUESTS": True, "NUM_STREAMS": 4}
    models = [subject.compile_model(DOUBLE, options) for _ in range(3)]
    requests = [compiled.create_infer_request() for compiled in models]
    runs, peak, lock = 0, 0, threading.Lock()

    def enter():
        nonlocal runs, peak
        with lock:
            runs += 1
            peak = max(peak, runs)
        threading.Event().wait(0.01)
        with lock:
            runs -= 1

    control.on_run = enter
    for request in requests:
        request.start_async({"x": X})
    for request in requests:
        request.wait()
    assert peak == 1
    for compiled in models:
        compiled.close()
    concurrent_model = subject.compile_model(DOUBLE, {"NUM_STREAMS": 3})
    control.on_run = threading.Barrier(3, timeout=300).wait  # three concurrent runs pass it
    requests = [concurrent_model.create_infer_request() for _ in range(3)]
    for request in requests:
        request.start_async({"x": X})
    for request in requests:
        request.wait()


# Callbacks.


def test_callback_runs_once_before_wait_returns(infer_request):
    calls = []
    infer_request.set_callback(lambda data: calls.append((data, threading.get_ident())), "data")
    for _ in range(3):
        infer_request.start_async({"x": X})
        infer_request.wait()
    assert [data for data, _ in calls] == ["data"] * 3
    assert threading.get_ident() not in {ident for _, ident in calls}


def test_infer_does_not_call_the_callback(infer_request):
    calls = []
    infer_request.set_callback(calls.append)
    infer_request.infer({"x": X})
    assert calls == []


def test_callback_can_restart_the_request(infer_request):
    values = []

    def restart(_):
        assert infer_request.state is State.IDLE
        values.append(float(infer_request.results["y"][0, 1]))
        if len(values) < 10:
            infer_request.start_async({"x": infer_request.results["y"]})

    infer_request.set_callback(restart)
    infer_request.start_async({"x": X})
    infer_request.wait()  # for the whole chain
    assert values == [2.0**i for i in range(1, 11)]


def test_wait_in_a_callback_returns(infer_request):
    returns = []

    def callback(_):
        infer_request.wait()
        returns.append(infer_request.wait_for(0))

    infer_request.set_callback(callback)
    infer_request.start_async({"x": X})
    infer_request.wait()
    assert returns == [True]


def test_wait_raises_the_error_of_a_callback(infer_request):
    def fail(_):
        raise KeyError("mine")

    infer_request.set_callback(fail)
    infer_request.start_async({"x": X})
    with pytest.raises(KeyError, match="mine"):
        infer_request.wait()
    infer_request.set_callback(None)
    np.testing.assert_array_equal(infer_request.infer({"x": X})["y"], X * 2)


def test_replaced_callback_is_freed(infer_request):
    class Callback:
        def __call__(self, _):
            pass

    import weakref

    callback = Callback()
    reference = weakref.ref(callback)
    infer_request.set_callback(callback)
    del callback
    infer_request.set_callback(None)
    gc.collect()
    assert reference() is None


def test_userdata_of_a_run_overrides_the_callbacks(infer_request):
    calls = []
    infer_request.set_callback(calls.append, "always")
    infer_request.start_async({"x": X}, "this time")
    infer_request.wait()
    assert infer_request.userdata == "this time"
    infer_request.start_async({"x": X})
    infer_request.wait()
    assert calls == ["this time", "always"]


# Profiles and state.


def test_profiling_info_has_five_stages(subject):
    names = [
        "1. input preprocessing",
        "2. input transfer to a device",
        "3. execution time",
        "4. output transfer from a device",
        "5. output postprocessing",
    ]
    for profile in (True, False):
        compiled = subject.compile_model(DOUBLE, {"PERF_COUNT": profile})
        request = compiled.create_infer_request()
        for run in (None, request.infer, request.start_async):
            if run:
                run({"x": X})
                request.wait()
            rows = request.profiling_info
            assert [r.node_name for r in rows if r.node_name[:1].isdigit()] == names
            status = "EXECUTED" if profile and run else "NOT_RUN"
            assert {r.status for r in rows} == {status}
            assert (max(r.real_time for r in rows).total_seconds() > 0) is bool(profile and run)


def counters(request):
    """Return the seconds of the five stages by their number."""
    rows = [r for r in request.profiling_info if r.node_name[:1].isdigit()]
    return {int(r.node_name[0]): r.real_time.total_seconds() for r in rows}


def test_execution_time_excludes_queueing(control, subject):
    compiled = subject.compile_model(DOUBLE, {"PERF_COUNT": True})
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    control.gate.clear()
    first.start_async(X)
    second.start_async(X)
    start_s = time.perf_counter()
    assert control.entered.wait(60)
    while time.perf_counter() < start_s + 0.05:
        pass
    queue_s = time.perf_counter() - start_s
    control.gate.set()
    second.wait()
    assert sum(counters(second).values()) <= second.latency / 1000 - queue_s + counters(second)[5]
    compiled.close()


class TransferPlugin(DensePlugin):
    """A plugin whose programs report transfer times."""

    def compile(self, model, config):
        return TransferProgram(super().compile(model, config))


class TransferProgram(Program):
    def __init__(self, program):
        self.program = program

    def run(self, inputs, context):
        start = time.perf_counter()
        while (upload_s := time.perf_counter() - start) < 1e-3:
            pass
        context.upload_s += upload_s
        context.download_s += upload_s / 2
        return self.program.run(inputs, context)


def test_execution_time_excludes_transfers():
    compiled = PluginSubject(TransferPlugin()).compile_model(DOUBLE, {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    request.infer(X)
    seconds = counters(request)
    assert seconds[2] >= 1e-3
    assert seconds[4] >= 0.5e-3
    assert sum(seconds.values()) <= request.latency / 1000 + seconds[5]
    compiled.close()


def test_stateless_model_has_no_states(infer_request):
    assert infer_request.query_state() == ()
    infer_request.reset_state()
