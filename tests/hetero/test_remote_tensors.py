"""Remote tensors: kept by a device's process between requests, and never seen by the client."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
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
from hetero.scheduler.vocabulary.events import DeviceLost
from hetero.scheduler.vocabulary.messages import Give, Message
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
def core(request: pytest.FixtureRequest) -> Iterator[hetero.Core]:
    with core_on(request.param) as made:
        yield made


def compiled(core: hetero.Core, **config: Any) -> hetero.CompiledModel:
    pins = {"h": "CPU.0", "y": "CPU.1"}
    return core.compile_model(parse_model(CHAIN), DEVICES, config, affinity=pins)


@pytest.mark.parametrize("holder", ["CPU.0", "CPU.1"])
def test_a_tensor_of_any_device_is_an_input(core: hetero.Core, holder: str) -> None:
    tensor = core.create_context(holder).from_host(X)
    assert (tensor.device, tensor.shape, tensor.nbytes) == (holder, (6,), 24)
    np.testing.assert_array_equal(compiled(core)({"x": tensor})["y"], X - 1)
    np.testing.assert_array_equal(tensor.to_host(), X)


@pytest.mark.parametrize("core", [Counting], indirect=True)
def test_what_is_kept_goes_from_model_to_model_and_not_through_the_client(
    core: hetero.Core,
) -> None:
    first, second = compiled(core), compiled(core)
    request = first.create_infer_request()
    request.keep_remote("y")
    kept = request.infer({"x": X})["y"]
    assert kept.device == "CPU.1"
    crossed()
    np.testing.assert_array_equal(second({"x": kept})["y"], X - 2)
    routes = [(sender, to) for sender, to, nbytes in crossed() if nbytes >= X.nbytes]
    assert routes[:2] == [("CPU.1", "CPU.0"), ("CPU.0", "CPU.1")]
    assert routes[2][0] == "CPU.1"  # the answer
    assert len(routes) == 3


@pytest.mark.parametrize("core", [Counting], indirect=True)
def test_what_is_kept_where_it_is_read_crosses_no_wire(core: hetero.Core) -> None:
    request = core.compile_model(parse_model(CHAIN), "CPU.0").create_infer_request()
    request.keep_remote()
    kept = request.infer({"x": X})["y"]
    crossed()
    again = request.infer({"x": kept})["y"]
    assert not any(nbytes for *_, nbytes in crossed())
    np.testing.assert_array_equal(again.to_host(), X - 2)


def test_an_output_is_left_in_a_tensor_that_was_set_for_it(core: hetero.Core) -> None:
    request = compiled(core).create_infer_request()
    tensor = core.create_context("CPU.0").create_tensor("f32", (6,))
    np.testing.assert_array_equal(tensor.to_host(), np.zeros(6))
    request.set_tensor("y", tensor)
    request.infer({"x": X})
    assert tensor.device == "CPU.1"
    np.testing.assert_array_equal(tensor.to_host(), X - 1)
    request.infer({"x": tensor})
    np.testing.assert_array_equal(tensor.to_host(), X - 2)


def test_requests_hand_on_what_they_keep_in_steps(core: hetero.Core) -> None:
    request = compiled(core).create_infer_request()
    request.keep_remote("y")
    value: Any = X
    for _ in range(5):
        value = request.infer({"x": value})["y"]
    request.keep_remote("y", keep=False)
    np.testing.assert_array_equal(request.infer({"x": value})["y"], X - 6)


def test_a_tensor_takes_over_contents(core: hetero.Core) -> None:
    context = compiled(core).get_context()
    one, other = context.create_tensor(np.float32, (6,)), context.from_host(X * 3)
    one.copy_from(X)
    np.testing.assert_array_equal(one.to_host(), X)
    one.copy_from(other)
    other.copy_from(X)
    np.testing.assert_array_equal(one.to_host(), X * 3)


def test_an_input_that_passes_through_stays_where_it_is(core: hetero.Core) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    pass (float[n] x) => (float[n] x, float[n] y) { y = Neg (x) }"""
    tensor = core.create_context("CPU.1").from_host(X)
    results = core.compile_model(parse_model(text), "CPU.0")({"x": tensor})
    np.testing.assert_array_equal(results["y"], -X)
    np.testing.assert_array_equal(results["x"].to_host(), X)


def test_joined_requests_take_and_keep_remote_tensors(core: hetero.Core) -> None:
    request = compiled(core, AUTO_BATCH_SIZE=4).create_infer_request()
    tensor = core.create_context("CPU.0").from_host(X)
    np.testing.assert_array_equal(request.infer({"x": tensor})["y"], X - 1)
    request.keep_remote("y")
    np.testing.assert_array_equal(request.infer({"x": X})["y"].to_host(), X - 1)


def test_tensors_are_counted_and_freed_with_who_holds_them(core: hetero.Core) -> None:
    tensor = core.create_context("CPU.0").from_host(X)
    assert kept_nbytes(core) == 24
    with compiled(core) as model:
        request = model.create_infer_request()
        request.keep_remote("y")
        kept = request.infer({"x": tensor})["y"]
        assert kept_nbytes(core) == 48
    np.testing.assert_array_equal(kept.to_host(), X - 1)  # it outlives its model
    tensor.close()
    del request, tensor
    await_freed(core, 24)
    del kept
    await_freed(core, 0)


def test_an_attempt_that_nobody_waits_for_keeps_nothing(core: hetero.Core) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    fails (float[2] x) => (float[2] kept, float[3] y)
    <int64[1] three = {3}> { kept = Neg (x) y = Reshape (kept, three) }"""
    pins = {"kept": "CPU.0", "y": "CPU.1"}
    request = core.compile_model(parse_model(text), DEVICES, affinity=pins).create_infer_request()
    request.keep_remote("kept")
    with pytest.raises(KernelError):
        request.infer({"x": X[:2]})
    await_freed(core, 0)


def test_what_cannot_be_taken_in_of_an_answer_fails_its_request(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outputs(*of: object) -> None:
        raise RuntimeError("no room for it")

    request = compiled(core).create_infer_request()
    request.keep_remote("y")
    with monkeypatch.context() as patch:
        patch.setattr("hetero.scheduler.client.remote_memory.RemoteMemory.outputs", outputs)
        with pytest.raises(RuntimeError, match=r"^no room for it$"):
            request.infer({"x": X})
    assert request.infer({"x": X})["y"].device == "CPU.1"


def test_a_device_keeps_no_more_than_it_has_memory(core: hetero.Core) -> None:
    descriptor = next(d for d in core.device_descriptors if d.name == "CPU.0")
    assert descriptor.memory_nbytes is not None
    object.__setattr__(descriptor, "memory_nbytes", 40)
    context = core.create_context("CPU.0")
    held = context.from_host(X)
    with pytest.raises(DeviceMemoryError, match=r"CPU\.0.*keeps 24 bytes.*over its 40"):
        context.create_tensor("i64", (3,))
    held.close()
    await_freed(core, 0)
    assert context.create_tensor("i64", (3,)).nbytes == 24


class TestWrongUse:
    def test_reading_it_directly_says_how(self, core: hetero.Core) -> None:
        tensor = core.create_context("CPU.0").from_host(X)
        for read in (np.asarray, lambda t: t.data, lambda t: hetero.Tensor(t).data):
            with pytest.raises(UnsupportedOperationError, match="to_host"):
                read(tensor)
        with pytest.raises(UnsupportedOperationError, match="to_host"):
            pickle.dumps(tensor)

    def test_one_of_another_core(self, core: hetero.Core) -> None:
        with hetero.Core("inprocess", devices={"CPU": 2}) as other:
            tensor = other.create_context("CPU.0").from_host(X)
            with pytest.raises(TensorError, match=r"input 'x'.*CPU\.0.*another Core.*to_host"):
                compiled(core)({"x": tensor})
        with pytest.raises(ClusterError, match="closed"):
            tensor.to_host()

    def test_one_that_is_closed(self, core: hetero.Core) -> None:
        tensor = core.create_context("CPU.0").from_host(X)
        tensor.close()
        tensor.close()
        assert tensor.is_closed
        for use in (lambda t: compiled(core)({"x": t}), lambda t: t.to_host()):
            with pytest.raises(TensorError, match="closed"):
                use(tensor)

    def test_one_that_does_not_fit(self, core: hetero.Core) -> None:
        context, request = core.create_context("CPU.0"), compiled(core).create_infer_request()
        with pytest.raises(TensorTypeError, match="input 'x'"):
            request.set_tensor("x", context.create_tensor("i64", (6,)))
        with pytest.raises(TensorShapeError, match="input 'x'"):
            request.infer({"x": context.create_tensor("f32", (6, 1))})
        with pytest.raises(TensorShapeError):
            context.from_host(X).copy_from(X[:2])
        request.set_tensor("y", context.create_tensor("f32", (5,)))
        with pytest.raises(TensorShapeError, match="output 'y'"):
            request.infer({"x": X})

    def test_what_is_no_tensor_is_not_kept(self, core: hetero.Core) -> None:
        text = """<ir_version: 8, opset_import: ["" : 17]>
        lists (float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x) }"""
        request = core.compile_model(parse_model(text), "CPU.0").create_infer_request()
        with pytest.raises(TensorTypeError, match="output 'y'"):
            request.keep_remote("y")
        with pytest.raises(HeteroError, match="z"):
            request.keep_remote("z")


class Deaf(MemoryChannel):
    """A channel on which devices are not asked for what they keep."""

    def send(self, address: str, message: Message) -> None:
        if not isinstance(message, Give):
            super().send(address, message)


@pytest.mark.parametrize("core", [Deaf], indirect=True)
def test_a_request_whose_tensor_is_lost_on_a_device_that_is_not_its_own_hears_of_it(
    core: hetero.Core,
) -> None:
    model = core.compile_model(parse_model(CHAIN), "CPU.0")
    request = model.create_infer_request()
    request.start_async({"x": core.create_context("CPU.1").from_host(X)})
    executor: Any = core.executor
    for device in ("CPU.0", "CPU.1"):
        assert not request.wait_for(0)
        lost = DeviceLost(0.0, device, "local", "by design")
        executor._deployments.tell(lost)
        executor._deployments.told(lost)
    with pytest.raises(TensorError, match=r"input 'x'.*CPU\.1.*gone"):
        request.wait()
