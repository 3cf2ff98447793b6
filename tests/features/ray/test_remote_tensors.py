"""Remote tensors on Ray: they cross between actors directly and are lost with their device."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero
from hetero.errors import DeviceLostError, TensorError
from tests.scheduler.endpoints import wait_for
from tests.support.core_fixtures import core_fixture
from tests.support.remote_cores import CHAIN, DEVICES

pytestmark = pytest.mark.ray
X = np.arange(2**16, dtype=np.float32)


#: A Core whose devices a test may end.
new_core = core_fixture(executor="ray", devices={"CPU": 3})


def compile_chain(core: hetero.Core) -> hetero.CompiledModel:
    pins = {"h": "CPU.0", "y": "CPU.1"}
    return core.compile_model(parse_model(CHAIN), DEVICES, affinity=pins)


def resident_nbytes(core: hetero.Core, device: str) -> float:
    executor: Any = core.executor
    address = executor._devices.with_addresses([device])[device].address
    return float(executor._channel.status_of(address).get("kept_nbytes", -1))


def test_tensors_cross_between_actors_and_are_freed(core):
    tensor = core.create_context("CPU.2").from_host(X)
    wait_for(lambda: resident_nbytes(core, "CPU.2") == X.nbytes)
    with compile_chain(core) as model:
        request = model.create_infer_request()
        request.keep_remote("y")
        output = request.infer({"x": tensor})["y"]
        np.testing.assert_array_equal(request.infer({"x": output})["y"].to_host(), X - 2)
        np.testing.assert_array_equal(output.to_host(), X - 1)
    tensor.close()
    del request, output
    wait_for(lambda: resident_nbytes(core, "CPU.2") == resident_nbytes(core, "CPU.1") == 0)


def kill(core: hetero.Core, name: str) -> None:
    executor: Any = core.executor
    os.kill(executor._ask(executor._devices.device(name), "ping"), signal.SIGKILL)


@pytest.mark.slow
def test_tensor_of_lost_actor_raises(new_core):
    context = new_core.create_context("CPU.2")
    tensor = context.from_host(X)
    kill(new_core, "CPU.2")
    with pytest.raises(DeviceLostError, match=r"CPU\.2"):
        tensor.to_host()
    with (
        compile_chain(new_core) as model,
        pytest.raises(TensorError, match=r"input 'x'.*CPU\.2.*Create the tensor again"),
    ):
        model({"x": tensor})
    np.testing.assert_array_equal(context.from_host(X + 1).to_host(), X + 1)
    kill(new_core, "CPU.2")
    assert context.from_host(X) is not None  # at once: the client has not noticed the loss yet
