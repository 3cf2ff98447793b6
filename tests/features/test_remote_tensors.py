"""Remote tensors, which a device's process keeps between requests."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero
from hetero.errors import (
    ClusterError,
    DeviceMemoryError,
    HeteroError,
    KernelError,
    TensorError,
    TensorShapeError,
    TensorTypeError,
    UnsupportedOperationError,
)
from hetero.scheduler.channels.memory import MemoryChannel
from hetero.scheduler.types.events import DeviceLost
from hetero.scheduler.types.messages import FetchTensors, Message
from tests.support.remote_cores import (
    CHAIN,
    DEVICES,
    Counting,
    await_freed,
    core_on,
    crossed,
    kept_nbytes,
)

X = np.arange(6, dtype=np.float32)


@pytest.fixture(params=[MemoryChannel, Counting])
def core(request):
    with core_on(request.param) as core:
        yield core


def compile_chain(core: hetero.Core, **config: Any) -> hetero.CompiledModel:
    pins = {"h": "CPU.0", "y": "CPU.1"}
    return core.compile_model(parse_model(CHAIN), DEVICES, config, affinity=pins)


@pytest.mark.parametrize("device", ["CPU.0", "CPU.1"])
def test_remote_tensor_as_input(core, device):
    tensor = core.create_context(device).from_host(X)
    assert (tensor.device, tensor.shape, tensor.nbytes) == (device, (6,), 24)
    np.testing.assert_array_equal(compile_chain(core)({"x": tensor})["y"], X - 1)
    np.testing.assert_array_equal(tensor.to_host(), X)


@pytest.mark.parametrize("core", [Counting], indirect=True)
def test_remote_tensor_goes_directly_between_devices(
    core,
):
    first, second = compile_chain(core), compile_chain(core)
    request = first.create_infer_request()
    request.keep_remote("y")
    tensor = request.infer({"x": X})["y"]
    assert tensor.device == "CPU.1"
    crossed()
    np.testing.assert_array_equal(second({"x": tensor})["y"], X - 2)
    routes = [(sender, to) for sender, to, nbytes in crossed() if nbytes >= X.nbytes]
    assert routes[:2] == [("CPU.1", "CPU.0"), ("CPU.0", "CPU.1")]
    assert routes[2][0] == "CPU.1"  # the result
    assert len(routes) == 3


@pytest.mark.parametrize("core", [Counting], indirect=True)
def test_remote_tensor_on_same_device_is_not_transferred(core):
    request = core.compile_model(parse_model(CHAIN), "CPU.0").create_infer_request()
    request.keep_remote()
    first = request.infer({"x": X})["y"]
    crossed()
    second = request.infer({"x": first})["y"]
    assert not any(nbytes for *_, nbytes in crossed())
    np.testing.assert_array_equal(second.to_host(), X - 2)


def test_output_is_written_to_a_remote_tensor(core):
    request = compile_chain(core).create_infer_request()
    tensor = core.create_context("CPU.0").create_tensor("f32", (6,))
    np.testing.assert_array_equal(tensor.to_host(), np.zeros(6))
    request.set_tensor("y", tensor)
    request.infer({"x": X})
    assert tensor.device == "CPU.1"
    np.testing.assert_array_equal(tensor.to_host(), X - 1)
    request.infer({"x": tensor})
    np.testing.assert_array_equal(tensor.to_host(), X - 2)


def test_remote_output_as_input_of_the_next_run(core):
    request = compile_chain(core).create_infer_request()
    request.keep_remote("y")
    value: Any = X
    for _ in range(5):
        value = request.infer({"x": value})["y"]
    request.keep_remote("y", keep=False)
    np.testing.assert_array_equal(request.infer({"x": value})["y"], X - 6)


def test_copy_from(core):
    context = compile_chain(core).get_context()
    first, second = context.create_tensor(np.float32, (6,)), context.from_host(X * 3)
    first.copy_from(X)
    np.testing.assert_array_equal(first.to_host(), X)
    first.copy_from(second)
    second.copy_from(X)
    np.testing.assert_array_equal(first.to_host(), X * 3)


def test_pass_through_input_stays_on_its_device(core):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    pass (float[n] x) => (float[n] x, float[n] y) { y = Neg (x) }"""
    tensor = core.create_context("CPU.1").from_host(X)
    results = core.compile_model(parse_model(text), "CPU.0")({"x": tensor})
    np.testing.assert_array_equal(results["y"], -X)
    np.testing.assert_array_equal(results["x"].to_host(), X)


def test_remote_tensors_with_dynamic_batching(core):
    request = compile_chain(core, AUTO_BATCH_SIZE=4).create_infer_request()
    tensor = core.create_context("CPU.0").from_host(X)
    np.testing.assert_array_equal(request.infer({"x": tensor})["y"], X - 1)
    request.keep_remote("y")
    np.testing.assert_array_equal(request.infer({"x": X})["y"].to_host(), X - 1)


def test_remote_tensors_are_freed_with_their_owners(core):
    tensor = core.create_context("CPU.0").from_host(X)
    assert kept_nbytes(core) == 24
    with compile_chain(core) as model:
        request = model.create_infer_request()
        request.keep_remote("y")
        output = request.infer({"x": tensor})["y"]
        assert kept_nbytes(core) == 48
    np.testing.assert_array_equal(output.to_host(), X - 1)  # the tensor outlives its model
    tensor.close()
    del request, tensor
    await_freed(core, 24)
    del output
    await_freed(core, 0)


def test_failed_request_keeps_no_tensor(core):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    fails (float[2] x) => (float[2] z, float[3] y)
    <int64[1] three = {3}> { z = Neg (x) y = Reshape (z, three) }"""
    pins = {"z": "CPU.0", "y": "CPU.1"}
    request = core.compile_model(parse_model(text), DEVICES, affinity=pins).create_infer_request()
    request.keep_remote("z")
    with pytest.raises(KernelError):
        request.infer({"x": X[:2]})
    await_freed(core, 0)


def test_error_while_receiving_outputs_fails_the_request(core, monkeypatch):
    def fail(*arguments: object) -> None:
        raise RuntimeError("no memory")

    request = compile_chain(core).create_infer_request()
    request.keep_remote("y")
    with monkeypatch.context() as patch:
        patch.setattr("hetero.scheduler.client.remote_tensors.RemoteMemory.outputs", fail)
        with pytest.raises(RuntimeError, match=r"^no memory$"):
            request.infer({"x": X})
    assert request.infer({"x": X})["y"].device == "CPU.1"


def test_device_memory_limits_remote_tensors(core):
    descriptor = next(d for d in core.device_descriptors if d.name == "CPU.0")
    assert descriptor.memory_nbytes is not None
    object.__setattr__(descriptor, "memory_nbytes", 40)
    context = core.create_context("CPU.0")
    tensor = context.from_host(X)
    with pytest.raises(DeviceMemoryError, match=r"CPU\.0.*stores 24 bytes.*exceed its limit of 40"):
        context.create_tensor("i64", (3,))
    tensor.close()
    await_freed(core, 0)
    assert context.create_tensor("i64", (3,)).nbytes == 24


class TestInvalidUse:
    def test_direct_read_is_rejected(self, core):
        tensor = core.create_context("CPU.0").from_host(X)
        for read in (np.asarray, lambda t: t.data, lambda t: hetero.Tensor(t).data):
            with pytest.raises(UnsupportedOperationError, match="to_host"):
                read(tensor)
        with pytest.raises(UnsupportedOperationError, match="to_host"):
            pickle.dumps(tensor)

    def test_tensor_of_another_core_is_rejected(self, core):
        with hetero.Core("inprocess", devices={"CPU": 2}) as other_core:
            tensor = other_core.create_context("CPU.0").from_host(X)
            with pytest.raises(TensorError, match=r"input 'x'.*CPU\.0.*another Core.*to_host"):
                compile_chain(core)({"x": tensor})
        with pytest.raises(ClusterError, match="closed"):
            tensor.to_host()

    def test_closed_tensor_is_rejected(self, core):
        tensor = core.create_context("CPU.0").from_host(X)
        tensor.close()
        tensor.close()
        assert tensor.is_closed
        for use in (lambda t: compile_chain(core)({"x": t}), lambda t: t.to_host()):
            with pytest.raises(TensorError, match="closed"):
                use(tensor)

    def test_wrong_type_or_shape_is_rejected(self, core):
        context, request = core.create_context("CPU.0"), compile_chain(core).create_infer_request()
        with pytest.raises(TensorTypeError, match="input 'x'"):
            request.set_tensor("x", context.create_tensor("i64", (6,)))
        with pytest.raises(TensorShapeError, match="input 'x'"):
            request.infer({"x": context.create_tensor("f32", (6, 1))})
        with pytest.raises(TensorShapeError):
            context.from_host(X).copy_from(X[:2])
        request.set_tensor("y", context.create_tensor("f32", (5,)))
        with pytest.raises(TensorShapeError, match="output 'y'"):
            request.infer({"x": X})

    def test_sequence_output_cannot_be_kept(self, core):
        text = """<ir_version: 8, opset_import: ["" : 17]>
        lists (float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x) }"""
        request = core.compile_model(parse_model(text), "CPU.0").create_infer_request()
        with pytest.raises(TensorTypeError, match="output 'y'"):
            request.keep_remote("y")
        with pytest.raises(HeteroError, match="z"):
            request.keep_remote("z")


class NoGiveChannel(MemoryChannel):
    """A channel that drops messages of type Give."""

    def send(self, address: str, message: Message) -> None:
        if not isinstance(message, FetchTensors):
            super().send(address, message)


@pytest.mark.parametrize("core", [NoGiveChannel], indirect=True)
def test_request_with_tensor_of_lost_device_fails(
    core,
):
    model = core.compile_model(parse_model(CHAIN), "CPU.0")
    request = model.create_infer_request()
    request.start_async({"x": core.create_context("CPU.1").from_host(X)})
    executor: Any = core.executor
    for device in ("CPU.0", "CPU.1"):
        assert not request.wait_for(0)
        event = DeviceLost(0.0, device, "local", "by design")
        executor._deployments.notify(event)
        executor._deployments.fail_lost_tensors(event)
    with pytest.raises(TensorError, match=r"input 'x' was lost with device CPU\.1"):
        request.wait()
