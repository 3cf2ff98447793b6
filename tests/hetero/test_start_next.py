"""Runs that are started before their turn: what they read, and when they are not used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
    FED_BACK,
    GAIN,
    NOWHERE,
    PLACES,
    STATES,
    X,
    placed,
    wanted,
)
from tests.support.remote_cores import await_freed, core_on

SPLIT = "HETERO:CPU.0,CPU.1"


class Gate:
    """Holds each run of a first stage until its request was told of the next one, or of none."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.were_early: list[bool] = []
        self._state = threading.Condition()
        self._runs = self._told = 0
        run_stage, start_next, infer = (
            DeviceHost.run_stage,
            InferRequest.start_next,
            InferRequest.infer,
        )

        def held(host: DeviceHost, request: Any, stage: int, *given: Any, **options: Any) -> Any:
            if stage == 0:
                with self._state:
                    self._runs += 1
                    number = self._runs
                    assert self._state.wait_for(lambda: self._told >= number, 60)
            return run_stage(host, request, stage, *given, **options)

        def noted(request: InferRequest, inputs: Any) -> bool:
            try:
                self.were_early.append(start_next(request, inputs))
            finally:
                self.let_go()
            return self.were_early[-1]

        def alone(request: InferRequest, *given: Any, **options: Any) -> Any:
            self.let_go()
            return infer(request, *given, **options)

        patch.setattr(DeviceHost, "run_stage", held)
        patch.setattr(InferRequest, "start_next", noted)
        patch.setattr(InferRequest, "infer", alone)

    def let_go(self) -> None:
        """Have one more run go on."""
        with self._state:
            self._told += 1
            self._state.notify_all()


@pytest.fixture
def core() -> Iterator[hetero.Core]:
    with core_on(MemoryChannel) as made:
        yield made


@pytest.fixture
def compiled(core: hetero.Core) -> Iterator[hetero.CompiledModel]:
    with core.compile_model(FED_BACK, SPLIT, affinity=AFFINITY, states=STATES) as made:
        yield made


@pytest.fixture
def request_(compiled: hetero.CompiledModel) -> InferRequest:
    made = compiled.create_infer_request()
    made.feedback = {"x": "y"}
    return made


@pytest.mark.parametrize(("devices", "last", "others"), PLACES)
def test_the_next_run_reads_what_devices_made(
    monkeypatch: pytest.MonkeyPatch, devices: str, last: str, others: dict[str, list[str]]
) -> None:
    with core_on(MemoryChannel, COUNTS) as core, placed(core, devices, last, others) as compiled:
        request = compiled.create_infer_request()
        request.feedback = {"x": "y"}
        gate = Gate(monkeypatch)
        request.start_async({"x": X, "gain": GAIN})
        found = []
        for _ in range(5):
            assert request.start_next({"gain": GAIN})
            request.wait()
            found.append(request.results["y"])
            request.start_async({"x": NOWHERE, "gain": NOWHERE})  # it runs already, on others
        gate.let_go()
        request.wait()
        np.testing.assert_allclose([*found, request.results["y"]], wanted(6), rtol=1e-5)
        state = request.query_state()[0].state.data
        np.testing.assert_allclose(state, sum(wanted(5)) + X, rtol=1e-5)
        request.reset_state()
        await_freed(core, 0)


def test_it_is_not_used_once_its_states_are_others(
    core: hetero.Core, request_: InferRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    request_.start_async({"x": X, "gain": GAIN})
    assert request_.start_next({"gain": GAIN})
    request_.wait()
    gate.let_go()
    request_.reset_state()
    assert request_.infer({"x": X, "gain": GAIN})["y"].tolist() == wanted(1)[0].tolist()
    request_.reset_state()
    await_freed(core, 0)


def test_it_is_not_used_where_the_run_before_failed(
    core: hetero.Core, request_: InferRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    first = request_.infer({"x": X, "gain": GAIN})["y"]
    with monkeypatch.context() as patch:
        run_stage = DeviceHost.run_stage

        def failing(host: DeviceHost, request: Any, stage: int, *given: Any, **options: Any) -> Any:
            if stage == 0:
                return run_stage(host, request, stage, *given, **options)
            raise InferenceError("it does not run")

        patch.setattr(DeviceHost, "run_stage", failing)
        request_.start_async({"x": first, "gain": GAIN})
        assert request_.start_next({"gain": GAIN})
        with pytest.raises(InferenceError, match="it does not run"):
            request_.wait()
    gate.let_go()
    np.testing.assert_array_equal(request_.infer({"x": first, "gain": GAIN})["y"], wanted(2)[1])
    request_.reset_state()
    await_freed(core, 0)


def test_where_it_cannot_be_started(core: hetero.Core, request_: InferRequest) -> None:
    assert not request_.start_next({"gain": GAIN})  # none is in flight
    with pytest.raises(TensorTypeError, match="expected an input and an output of one type"):
        request_.feedback = {"x": "size"}
    assert request_.feedback == {"x": "y"}
    with core.compile_model("light:squeezenet", "CPU") as stateless:
        request = stateless.create_infer_request()
        port = request.model_inputs[0]
        request.start_async([np.zeros(port.get_partial_shape().get_min_shape(), np.float32)])
        assert not request.start_next({})
        request.wait()


def test_texts_start_each_step_with_the_one_before(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hetero.read_decoder(decoder())
    with core.compile_model(model, SPLIT) as compiled:
        want = list(compiled.generate([3, 14, 15, 1], 12, temperature=0.7, seed=5))
        gate = Gate(monkeypatch)
        assert list(compiled.generate([3, 14, 15, 1], 12, temperature=0.7, seed=5)) == want
        assert gate.were_early == [True] * 10  # from the second on; with the last none starts
        await_freed(core, 0)
