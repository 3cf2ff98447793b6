"""Endless requests: deadlines, cancellation and closing end them."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices import errors
from tests.support.gated_plugin import GatedPlugin
from tests.support.models import branches

X = np.ones(2, np.float32)
TEST_TIMEOUT_S = 60


def endless_model(body: str) -> onnx.ModelProto:
    """Return a model with an endless Loop."""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        endless (float[2] x) => (float[2] y)
        {{
            going = Constant <value = bool {{1}}> ()
            y = Loop (, going, x) <body = step (int64 i, bool again, float[2] held)
                => ({body}
            >
        }}"""
    )


BODIES = {
    "nodes": "bool more, float[2] next) { more = Identity (again) next = Neg (held) }",
    "no nodes": "bool again, float[2] held) { }",
}


@pytest.fixture(params=BODIES)
def request_(core, request):
    with core.compile_model(endless_model(BODIES[request.param]), "CPU") as compiled:
        yield compiled.create_infer_request()


def is_device_free(core: hetero.Core) -> bool:
    """Return whether the device runs another request."""
    with core.compile_model(neg_model(), "CPU") as compiled:
        request = compiled.create_infer_request()
        return bool((request.infer({"x": X}, timeout_s=TEST_TIMEOUT_S)[0] == -X).all())


def neg_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        neg (float[2] x) => (float[2] y) { y = Neg (x) }"""
    )


def test_deadline_ends_endless_loop(core, request_):
    with pytest.raises(errors.DeadlineError):
        request_.infer({"x": X}, timeout_s=0.05)
    request_.start_async({"x": X}, timeout_s=0.05)
    with pytest.raises(errors.DeadlineError):
        request_.wait()
    assert is_device_free(core)


def test_cancel_ends_endless_loop(core, request_):
    request_.start_async({"x": X})
    request_.cancel()
    with pytest.raises(errors.RequestCancelledError):
        request_.wait()
    assert is_device_free(core)


def test_request_timeout_ends_a_request_that_ignores_cancellation():
    with (
        hetero.Core("inprocess", plugins=[GatedPlugin]) as core,
        core.compile_model(neg_model(), "GATED", {"REQUEST_TIMEOUT_S": 0.05}) as compiled,
    ):
        request = compiled.create_infer_request()
        GatedPlugin.gate.set()
        request.infer({"x": X}, timeout_s=TEST_TIMEOUT_S)
        with GatedPlugin.closed():
            with pytest.raises(errors.DeadlineError):
                request.infer({"x": X})
            assert core._devices.load().devices["GATED"].status["running"] == 1


@pytest.mark.parametrize("close", [hetero.CompiledModel.close, hetero.Core.close])
def test_close_cancels_requests_and_ends_threads(
    close,
):
    before = set(threading.enumerate())
    with hetero.Core(executor="inprocess") as core:
        compiled = core.compile_model(endless_model(BODIES["nodes"]), "CPU")
        queue = hetero.AsyncInferQueue(compiled, jobs=3)
        for _ in range(3):
            queue.start_async({"x": X})
        close(core if close is hetero.Core.close else compiled)
        with pytest.raises(errors.RequestCancelledError):
            queue.wait_all()
        for request in queue:
            with pytest.raises(errors.RequestCancelledError):
                request.wait()
    for thread in set(threading.enumerate()) - before:
        thread.join(TEST_TIMEOUT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("timeout_s", [0, -1.0])
def test_timeout_of_zero_or_less_is_rejected(core, timeout_s):
    request = core.compile_model(neg_model(), "CPU").create_infer_request()
    for start in (request.infer, request.start_async):
        with pytest.raises(errors.DeadlineError, match="timeout_s greater than 0"):
            start({"x": X}, timeout_s=timeout_s)
    np.testing.assert_array_equal(request.infer({"x": X})[0], -X)


def test_unlimited_timeout(core):
    compiled = core.compile_model(neg_model(), "CPU", {"REQUEST_TIMEOUT_S": 1e300})
    request = compiled.create_infer_request()
    for timeout_s in (None, float("inf")):
        np.testing.assert_array_equal(request.infer({"x": X}, timeout_s=timeout_s)[0], -X)
    queue = hetero.AsyncInferQueue(compiled, jobs=1)
    queue.start_async({"x": X})
    queue.wait_all()


def test_device_and_stage_timeouts_are_rejected_inprocess():
    with hetero.Core("inprocess") as core:
        for use in (
            lambda: core.set_property("HETERO", {"DEVICE_TIMEOUT_S": 3}),
            lambda: core.compile_model(branches(), "CPU", {"DEVICE_TIMEOUT_S": 3}),
        ):
            with pytest.raises(errors.PropertyError, match="cannot be changed here"):
                use()
        with pytest.raises(errors.PropertyError, match="cannot be ended"):
            core.compile_model(branches(), "CPU", {"STAGE_TIMEOUT_S": 2})
    with hetero.Core("ray") as core:  # Ray starts only when a device is needed
        core.set_property("HETERO", {"DEVICE_TIMEOUT_S": 4})
        assert core.get_property("HETERO", "DEVICE_TIMEOUT_S") == 4.0
        assert core._settings.executor_options("ray") == {"device_timeout_s": 4.0}
