"""InferRequest.start_next, which starts a run on the outputs of the current run."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.request.infer_request import InferRequest
from hetero.errors import InferenceError, TensorTypeError
from hetero.scheduler.channels.memory import MemoryChannel
from hetero.scheduler.device.host import DeviceHost
from tests.support.decoders import decoder
from tests.support.feedback_model import (
    AFFINITY,
    COUNTS,
    DEVICE_CASES,
    FEEDBACK_MODEL,
    GAIN,
    STATES,
    UNUSED_INPUT,
    X,
    compile_feedback_model,
    expected_outputs,
)
from tests.support.remote_cores import await_freed, core_on

SPLIT = "HETERO:CPU.0,CPU.1"


class Gate:
    """Delays each run of stage 0 until `start_next` or `infer` was called once more."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.start_next_results: list[bool] = []
        self._condition = threading.Condition()
        self._num_runs = self._num_permits = 0
        run_stage, start_next, infer = (
            DeviceHost.run_stage,
            InferRequest.start_next,
            InferRequest.infer,
        )

        def run_stage_with_permit(
            host: DeviceHost, request: Any, stage: int, *arguments: Any, **options: Any
        ) -> Any:
            if stage == 0:
                with self._condition:
                    self._num_runs += 1
                    number = self._num_runs
                    assert self._condition.wait_for(lambda: self._num_permits >= number, 60)
            return run_stage(host, request, stage, *arguments, **options)

        def start_next_and_permit(request: InferRequest, inputs: Any) -> bool:
            try:
                self.start_next_results.append(start_next(request, inputs))
            finally:
                self.permit_run()
            return self.start_next_results[-1]

        def permit_and_infer(request: InferRequest, *arguments: Any, **options: Any) -> Any:
            self.permit_run()
            return infer(request, *arguments, **options)

        patch.setattr(DeviceHost, "run_stage", run_stage_with_permit)
        patch.setattr(InferRequest, "start_next", start_next_and_permit)
        patch.setattr(InferRequest, "infer", permit_and_infer)

    def permit_run(self) -> None:
        """Permit one more run of stage 0."""
        with self._condition:
            self._num_permits += 1
            self._condition.notify_all()


@pytest.fixture
def core():
    with core_on(MemoryChannel) as core:
        yield core


@pytest.fixture
def compiled(core):
    with core.compile_model(FEEDBACK_MODEL, SPLIT, affinity=AFFINITY, states=STATES) as compiled:
        yield compiled


@pytest.fixture
def request_(compiled):
    infer_request = compiled.create_infer_request()
    infer_request.feedback = {"x": "y"}
    return infer_request


@pytest.mark.parametrize(("devices", "output_device", "stage_replicas"), DEVICE_CASES)
def test_next_run_reads_the_outputs_on_devices(
    monkeypatch,
    devices,
    output_device,
    stage_replicas,
):
    with (
        core_on(MemoryChannel, COUNTS) as core,
        compile_feedback_model(core, devices, output_device, stage_replicas) as compiled,
    ):
        request = compiled.create_infer_request()
        request.feedback = {"x": "y"}
        gate = Gate(monkeypatch)
        request.start_async({"x": X, "gain": GAIN})
        outputs = []
        for _ in range(5):
            assert request.start_next({"gain": GAIN})
            request.wait()
            outputs.append(request.results["y"])
            # The run has already started, with other inputs.
            request.start_async({"x": UNUSED_INPUT, "gain": UNUSED_INPUT})
        gate.permit_run()
        request.wait()
        np.testing.assert_allclose([*outputs, request.results["y"]], expected_outputs(6), rtol=1e-5)
        state = request.query_state()[0].state.data
        np.testing.assert_allclose(state, sum(expected_outputs(5)) + X, rtol=1e-5)
        request.reset_state()
        await_freed(core, 0)


def test_next_run_is_discarded_after_reset_state(core, request_, monkeypatch):
    gate = Gate(monkeypatch)
    request_.start_async({"x": X, "gain": GAIN})
    assert request_.start_next({"gain": GAIN})
    request_.wait()
    gate.permit_run()
    request_.reset_state()
    assert request_.infer({"x": X, "gain": GAIN})["y"].tolist() == expected_outputs(1)[0].tolist()
    request_.reset_state()
    await_freed(core, 0)


def test_next_run_is_discarded_after_a_failure(core, request_, monkeypatch):
    gate = Gate(monkeypatch)
    first = request_.infer({"x": X, "gain": GAIN})["y"]
    with monkeypatch.context() as patch:
        run_stage = DeviceHost.run_stage

        def fail_after_stage_0(
            host: DeviceHost, request: Any, stage: int, *arguments: Any, **options: Any
        ) -> Any:
            if stage == 0:
                return run_stage(host, request, stage, *arguments, **options)
            raise InferenceError("failure by design")

        patch.setattr(DeviceHost, "run_stage", fail_after_stage_0)
        request_.start_async({"x": first, "gain": GAIN})
        assert request_.start_next({"gain": GAIN})
        with pytest.raises(InferenceError, match="failure by design"):
            request_.wait()
    gate.permit_run()
    np.testing.assert_array_equal(
        request_.infer({"x": first, "gain": GAIN})["y"], expected_outputs(2)[1]
    )
    request_.reset_state()
    await_freed(core, 0)


def test_start_next_without_run_or_feedback(core, request_):
    assert not request_.start_next({"gain": GAIN})  # no run is in flight
    with pytest.raises(TensorTypeError, match="expected an input and an output of one type"):
        request_.feedback = {"x": "size"}
    assert request_.feedback == {"x": "y"}
    with core.compile_model("light:squeezenet", "CPU") as stateless:
        request = stateless.create_infer_request()
        port = request.model_inputs[0]
        request.start_async([np.zeros(port.get_partial_shape().get_min_shape(), np.float32)])
        assert not request.start_next({})
        request.wait()


def test_generate_starts_the_next_step_early(core, monkeypatch):
    model = hetero.read_decoder(decoder())
    with core.compile_model(model, SPLIT) as compiled:
        expected = list(compiled.generate([3, 14, 15, 1], 12, temperature=0.7, seed=5))
        gate = Gate(monkeypatch)
        assert list(compiled.generate([3, 14, 15, 1], 12, temperature=0.7, seed=5)) == expected
        assert gate.start_next_results == [True] * 10  # for all steps except the first and the last
        await_freed(core, 0)
