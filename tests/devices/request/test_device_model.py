"""The compiled model of a plugin, used without a Core."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hetero.devices import read_model
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import InferenceError, UnknownPropertyError, UnsupportedOperationError
from hetero.devices.request.response import StageTiming
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def compiled():
    plugin = CPUPlugin()
    model = plugin.compile_model(read_model(branches()), {"NUM_STREAMS": 2, "PERF_COUNT": True})
    yield model
    model.close()


def test_requests_run_on_threads_of_the_process(compiled):
    requests = [compiled.create_infer_request() for _ in range(4)]
    for factor, request in enumerate(requests):
        request.start_async({"x": X * factor})
    for factor, request in enumerate(requests):
        request.wait()
        np.testing.assert_allclose(request.results["y"], branches_output(X * factor), rtol=1e-5)


def test_timing_of_a_request_names_the_device(compiled):
    request = compiled.create_infer_request()
    before_s = time.monotonic()
    request.infer({"x": X})
    (timing,) = request.times.stages
    assert (timing.stage, timing.device, timing.queued_s) == (0, "CPU.0", 0.0)
    assert before_s <= timing.started_s <= timing.ended_s <= time.monotonic()
    assert StageTiming(3, "X") == (3, "X", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, 0, ())


def test_runtime_model_has_the_times_of_requests(compiled):
    compiled.create_infer_request().infer({"x": X})
    nodes = compiled.get_runtime_model().nodes
    assert nodes
    assert all(node.metadata["layerType"] for node in nodes)
    assert any(node.metadata["execTimeMcs"] != "not_executed" for node in nodes)


def test_properties_are_fixed(compiled):
    with pytest.raises(UnsupportedOperationError, match="compile again"):
        compiled.set_property({"NUM_STREAMS": 1})
    with pytest.raises(UnknownPropertyError, match="NO_SUCH"):
        compiled.set_property({"NO_SUCH": 1})


def test_requests_of_a_closed_model_fail(compiled):
    request = compiled.create_infer_request()
    compiled.close()
    with pytest.raises(InferenceError, match="is closed"):
        request.infer({"x": X})
