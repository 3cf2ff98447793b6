"""Resident tensors: the client's memory on two devices, with a clock that the test moves."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    DeviceMemoryError,
    TensorError,
    TensorLostError,
    TensorShapeError,
    TensorTypeError,
    UnsupportedOperationError,
)
from hetero.devices.plugin.remote_memory import RemoteTensor, ResidentTensor
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.client.device_tensors import (
    DeviceBundle,
    DeviceTensor,
    LineageNode,
    kept_specs,
)
from hetero.scheduler.client.lineage import JoinNode
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.device.resident_tensors import ResidentTensors
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.messages import Dropped, FetchTensors, FreeTensors, Message, Task
from tests.support.manual_clock import ManualClock

X = np.arange(6, dtype=np.float32).reshape(3, 2)
TASK = Task(Request(deployment="m", id=7, attempt=1), 2)
#: Rows on axis 0.
ROWS = RowLayout(0)


class Devices:
    """Devices with the addresses a and b, and the channel of their client."""

    address = "client"

    def __init__(self) -> None:
        descriptor = DeviceDescriptor("A", "TOY", "0", "here", memory_nbytes=200)
        self.stores = {
            "a": ResidentTensors(descriptor, np.array),
            "b": ResidentTensors(replace(descriptor, name="B"), np.array),
        }
        self.sent: list[tuple[str, Message]] = []
        self.received_by_stages: list[tuple[str, Message]] = []
        self.lost: set[str] = set()
        self.is_silent = self.is_closed = False
        self.receive: Receiver = lambda message: None

    def connect(self, name: str, receive: Receiver) -> Any:
        assert name == "me"
        self.receive = receive
        return self

    def send(self, address: str, message: Any) -> None:
        self.sent.append((address, message))
        if self.is_silent or address in self.lost:
            return
        if isinstance(message, FreeTensors):
            self.stores[address].free(message.keys)
        else:
            self.stores[address].answer(message, self._deliver)

    def _deliver(self, address: str, message: Message) -> None:
        if address == self.address:
            self.receive(message)
        else:
            self.received_by_stages.append((address, message))

    def close(self) -> None:
        self.is_closed = True

    @property
    def nbytes(self) -> tuple[int, int]:
        return self.stores["a"].nbytes, self.stores["b"].nbytes

    def kinds(self) -> list[tuple[str, str]]:
        """Return the receivers and types of the messages since the last call."""
        sent, self.sent = self.sent, []
        return [(address, type(message).__name__) for address, message in sent]


@pytest.fixture
def devices():
    return Devices()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def memory(devices, clock):
    memory = RemoteMemory("me", devices.connect, clock, devices.lost.__contains__)
    yield memory
    gc.collect()
    memory.close()


def put(memory: RemoteMemory, array: Any, device: str = "A") -> DeviceTensor:
    return memory.context(device, device.lower).from_host(np.asarray(array))


def test_tensor_is_a_copy_in_both_directions(memory, devices):
    assert not memory.is_used
    array = X.copy()
    tensor = put(memory, array)
    array[:] = -1
    host = tensor.to_host()
    assert (host.tolist(), host.dtype, tensor.shape, tensor.nbytes) == (
        X.tolist(),
        X.dtype,
        (3, 2),
        24,
    )
    host[:] = 0  # the caller's own
    assert tensor.to_host().tolist() == X.tolist()
    assert devices.kinds() == [("a", "StoreTensors"), ("a", "FetchTensors"), ("a", "FetchTensors")]
    assert (devices.nbytes, memory.is_used, memory.pending) == ((24, 0), True, {})
    assert (tensor.device, repr(tensor)) == ("A", "<DeviceTensor float32[3, 2] on A>")


def test_context_creates_zeros_at_the_present_address(memory, devices):
    addresses = iter("ab")
    context = memory.context("X", lambda: next(addresses))
    first, second = context.create_tensor("i64", (2, 3)), context.create_tensor(np.float16, [1], {})
    assert (first.to_host().tolist(), first.dtype) == ([[0] * 3] * 2, np.int64)
    assert (second.to_host().tolist(), second.dtype) == ([0], np.float16)
    assert devices.nbytes == (48, 2)
    assert context.create_host_tensor("u8", (2,)).data.tolist() == [0, 0]
    with pytest.raises(
        UnsupportedOperationError, match="create_tensor on X: expected no properties"
    ):
        context.create_tensor("f32", (1,), {"handle": 1})
    assert repr(context) == "<DeviceContext X>"


def test_device_errors_are_raised(memory, devices):
    with pytest.raises(DeviceMemoryError, match="208 more exceed its limit of 200"):
        put(memory, np.zeros(26))
    assert (devices.nbytes, memory.pending) == ((0, 0), {})
    tensor = put(memory, X)
    devices.stores["a"].free_all_of("client")
    with pytest.raises(TensorError, match="no longer keeps 'tensor'"):
        tensor.to_host()


@pytest.mark.parametrize("nbytes", [0, 10**9])
def test_silent_device_has_time_for_its_bytes(memory, devices, clock, nbytes):
    """A minute, and 0.1 microseconds per byte: 100 s for 1 GB."""
    devices.is_silent = True
    ask = memory._ask  # no test stores 1 GB
    with pytest.raises(DeadlineError, match="device A is reachable") as caught:
        ask("A", "a", nbytes, lambda task: FetchTensors(task, "client", "client", {}))
    expected_s = {0: 60, 10**9: 160}[nbytes]
    assert caught.value.data["timeout_s"] == pytest.approx(expected_s)
    assert clock.time_s - 100 == pytest.approx(expected_s, abs=max(clock.waits_s))
    assert memory.pending == {}


def test_lost_device_ends_the_wait_for_its_response(memory, devices):
    tensor = put(memory, X)
    devices.lost.add("a")
    with pytest.raises(DeviceLostError, match="device A was lost with its tensors") as caught:
        tensor.to_host()
    assert caught.value.data["device"] == "A"
    assert memory.pending == {}


def test_late_or_foreign_messages_are_ignored(memory, devices):
    devices.is_silent = True
    with pytest.raises(DeadlineError):
        put(memory, X)
    (_, message), devices.is_silent = devices.sent[0], False
    devices.send("a", message)  # its response comes after the deadline
    devices.receive(Dropped(Request(id=message.task.request.id)))  # type: ignore[union-attr]
    assert put(memory, X).to_host().tolist() == X.tolist()


def test_unreferenced_tensors_are_freed_together(memory, devices, clock):
    tensors = [put(memory, X), put(memory, X), put(memory, X, "B")]
    devices.kinds()
    tensors[0].close()
    del tensors
    clock.pass_s(0.0499)
    assert devices.nbytes == (48, 24)
    clock.pass_s(0.0002)
    assert devices.nbytes == (0, 0)
    assert devices.kinds() == [("a", "FreeTensors"), ("b", "FreeTensors")]
    put(memory, X).close()  # a second time
    clock.pass_s(0.06)
    assert (devices.nbytes, devices.kinds()[1:]) == ((0, 0), [("a", "FreeTensors")])


@pytest.mark.parametrize(("away_s", "is_freed"), [(0.2, True), (30, True), (59, True), (62, False)])
def test_tensors_of_an_unreachable_device_are_freed_within_a_minute(
    memory, devices, clock, away_s, is_freed
):
    tensors = [put(memory, X), put(memory, X[:1])]
    devices.lost.add("a")
    tensors.pop()
    clock.pass_s(0.1)
    tensors.clear()
    clock.pass_s(away_s)
    assert devices.nbytes == (32, 0)
    devices.kinds()
    devices.lost.clear()
    clock.pass_s(2.1)  # the client looks once a second
    assert devices.nbytes == ((0, 0) if is_freed else (32, 0))
    assert set(devices.kinds()) == ({("a", "FreeTensors")} if is_freed else set())


def test_rows_are_joined_on_their_device(memory, devices):
    first, second = put(memory, X), put(memory, X[:1] + 10)
    other = put(memory, [[1], [2]])
    devices.kinds()
    joins = {
        "s": ([(second, [0]), (first, [2, 0])], ROWS),
        # Padded to three columns, aligned to the end.
        "t": ([(other, [1, 0])], RowLayout(0, 1, 3, True)),
    }
    values: Any = first.join_rows(joins)
    assert devices.kinds() == [("a", "ConcatTensors")]
    assert {type(value) for value in values.values()} == {ResidentTensor}
    tensors = {name: value.tensor for name, value in values.items()}
    assert [(t.shape, t.dtype, t.device) for t in tensors.values()] == [
        ((3, 2), np.float32, "A"),
        ((2, 3), np.int64, "A"),
    ]
    assert tensors["s"].to_host().tolist() == [[10, 11], [4, 5], [0, 1]]
    assert tensors["t"].to_host().tolist() == [[0, 0, 2], [0, 0, 1]]


def test_rows_of_several_devices_are_joined_on_the_host(memory, devices):
    tensors = [put(memory, X), put(memory, X + 10, "B"), put(memory, X + 20, "B")]
    values: Any = memory.join(
        {
            "mixed": ([(tensors[1], [0]), (tensors[0], [1, 2])], ROWS),
            "b": ([(tensors[2], [0]), (tensors[1], [1])], ROWS),
            "a": ([(tensors[0], [1])], ROWS),
        }
    )
    assert values["mixed"].tolist() == [[10, 11], [2, 3], [4, 5]]
    assert values["b"].tensor.to_host().tolist() == [[20, 21], [12, 13]]
    assert values["a"].tensor.to_host().tolist() == [[2, 3]]
    assert (values["a"].bundle.device, values["b"].bundle.device) == ("A", "B")
    kinds = [kind for kind in devices.kinds() if kind[1] == "ConcatTensors"]
    assert kinds == [("b", "ConcatTensors"), ("a", "ConcatTensors")]


def test_joined_rows_have_the_lineage_of_their_sources(memory):
    tensors = [put(memory, X), put(memory, X + 10)]
    nodes = [LineageNode([], 5, lambda bundles: None) for _ in tensors]
    for tensor, node in zip(tensors, nodes, strict=True):
        tensor.kept.bundle.lineage = node
    values: Any = memory.join({"s": ([(t, [0]) for t in tensors], ROWS)})
    lineage = values["s"].bundle.lineage
    assert isinstance(lineage, JoinNode)
    assert [(o.lineage, o.name, rows) for o, rows in lineage.parts["s"][0]] == [
        (nodes[0], "tensor", (0,)),
        (nodes[1], "tensor", (0,)),
    ]


def given(
    memory: RemoteMemory, devices: Devices, **values: Any
) -> tuple[Any, list[tuple[str, Message]]]:
    """Return the values left on the host, and the messages to devices."""
    devices.sent.clear()
    resolved, _ = memory.usable(values)
    left: Any = memory.send_resident_inputs(devices, TASK, "stage", resolved)  # type: ignore[arg-type]
    return left, devices.sent


def test_devices_send_resident_inputs_to_the_stage(memory, devices):
    a, same, b = put(memory, X), put(memory, X + 1), put(memory, X + 2, "B")
    left, sent = given(memory, devices, h=X, a=a, twice=a, same=same, b=b)
    assert list(left) == ["h"]
    keys = [tensor.kept.bundle.key for tensor in (a, same, b)]
    expected_keys = [
        {keys[0]: {"a": "tensor", "twice": "tensor"}, keys[1]: {"same": "tensor"}},
        {keys[2]: {"b": "tensor"}},
    ]
    assert sent == [
        ("a", FetchTensors(TASK, "client", "stage", expected_keys[0])),
        ("b", FetchTensors(TASK, "client", "stage", expected_keys[1])),
    ]
    received: Any = dict(devices.received_by_stages)["stage"]
    assert received.task == TASK
    tensors = {
        name: value.tolist()
        for _, message in devices.received_by_stages
        for name, value in message.tensors.items()  # type: ignore[union-attr]
    }
    assert tensors == {
        "a": X.tolist(),
        "twice": X.tolist(),
        "same": (X + 1).tolist(),
        "b": (X + 2).tolist(),
    }
    assert given(memory, devices, a=a)[0] is None
    host = {"h": X}
    assert memory.send_resident_inputs(devices, TASK, "stage", host) is host  # type: ignore[arg-type]


def test_request_for_inputs_carries_the_bundles_to_free(memory, devices, clock):
    kept = put(memory, X)
    for device in "AAB":
        put(memory, X, device).close()
    assert devices.nbytes == (72, 24)
    _, sent = given(memory, devices, a=kept)
    assert [(address, type(message).__name__) for address, message in sent] == [
        ("a", "FetchTensors"),
        ("b", "FreeTensors"),
    ]
    assert len(sent[0][1].free) == 2  # type: ignore[union-attr]
    assert devices.nbytes == (24, 0)
    devices.kinds()
    clock.pass_s(0.1)
    assert devices.kinds() == []  # nothing is freed twice


def test_awaited_outputs_make_their_device_wait(memory, devices):
    pending: Any = memory.pending_outputs("A", "a", TASK, ["y", "z"], 40)
    assert (pending["y"].bundle, pending["z"].name) == (pending["z"].bundle, "z")
    assert (pending["y"].bundle.is_awaited, pending["y"].bundle.lineage_nbytes) == (True, 40)
    assert given(memory, devices, a=pending["y"])[1][0][1].awaits is True  # type: ignore[union-attr]
    assert given(memory, devices, a=put(memory, X))[1][0][1].awaits is False  # type: ignore[union-attr]
    specs = {"y": ("float", (3, 2)), "z": ("int64", ())}
    outputs: Any = memory.outputs("A", "a", TASK, specs, {"y": X, "other": X})
    assert outputs == {name: ResidentTensor(pending["y"].bundle, name) for name in specs}
    bundle = outputs["y"].bundle
    assert (bundle.is_awaited, bundle.specs, list(bundle.copies)) == (False, specs, ["y"])
    assert bundle.copies["y"] is not X
    assert not bundle.copies["y"].flags.writeable
    tensor = outputs["z"].tensor
    assert (tensor.dtype, tensor.shape, bundle.key) == (np.int64, (), "m/7/1/2")
    assert memory.sent_bundle("A", "a", TASK).key == "m/7/1/2/sent"
    other = memory.outputs("A", "a", Task(TASK.request, 3), {"y": ("float", ())})["y"]
    assert other.bundle is not bundle


class HostTensor(RemoteTensor):
    """Tensor in a plugin's own memory."""

    device, shape, dtype = "P", (3, 2), np.dtype(np.float32)

    def to_host(self) -> np.ndarray:
        return X + 30

    def copy_from(self, array: np.ndarray) -> None:
        raise NotImplementedError


def test_unusable_inputs_raise(memory, devices):
    closed, own = put(memory, X), put(memory, X, "B")
    closed.close()
    other = put(RemoteMemory("me", Devices().connect, ManualClock()), X)
    for value, kind, text, port in (
        (HostTensor(), TensorTypeError, "input 'p'.*a plugin's own memory", "p"),
        (closed, TensorError, "expected an open remote tensor", None),
        (other, TensorError, "input 'p' is a tensor on A that belongs to another Core", "p"),
    ):
        with pytest.raises(kind, match=text) as caught:
            memory.usable({"h": X, "ok": own, "p": value})
        assert caught.value.data.get("port") == port
    inputs, near = memory.usable({"h": X, "ok": own, "again": own.kept, "list": [1]})
    assert (inputs["ok"], inputs["again"], inputs["h"]) == (own.kept, own.kept, X) or inputs[
        "h"
    ] is X
    assert near == {"B"}
    devices.lost.add("b")
    with pytest.raises(TensorLostError, match="input 'p' was lost with device B") as caught:
        memory.usable({"p": own})
    assert (caught.value.data["port"], caught.value.data["device"]) == ("p", "B")
    own.kept.bundle.lineage = LineageNode([], 0, lambda bundles: None)
    assert memory.usable({"p": own})[1] == {"B"}  # it is recomputed later
    with pytest.raises(TensorLostError):
        memory.send_resident_inputs(devices, TASK, "stage", {"p": own.kept})  # type: ignore[arg-type]


def recomputing(
    memory: RemoteMemory, devices: Devices, calls: list[Sequence[DeviceBundle]]
) -> Callable[[Sequence[DeviceBundle]], None]:
    """Return a function that recomputes lost bundles on device B."""

    def restore(bundles: Sequence[DeviceBundle]) -> None:
        calls.append(bundles)
        for bundle in bundles:
            bundle.move_to(put(memory, X + 50, "B").kept.bundle)

    return restore


def test_lost_tensor_is_recomputed_before_it_is_read(memory, devices):
    calls: list[Sequence[DeviceBundle]] = []
    tensors = [put(memory, X) for _ in range(3)]
    restore = recomputing(memory, devices, calls)
    shared = LineageNode([], 0, restore)
    nodes = [shared, shared, LineageNode([], 0, restore)]
    bundles = [tensor.kept.bundle for tensor in tensors]
    for bundle, node in zip(bundles, nodes, strict=True):
        bundle.lineage = node
    assert tensors[0].to_host().tolist() == X.tolist()
    assert calls == []
    devices.lost.add("a")
    values: Any = memory.join({"s": ([(t, [0]) for t in tensors], ROWS)})
    assert values["s"].tensor.to_host().tolist() == [[50, 51]] * 3
    assert calls == [bundles[:2], bundles[2:]]  # by their run
    assert [(b.device, b.address) for b in bundles] == [("B", "b")] * 3
    assert tensors[0].to_host().tolist() == (X + 50).tolist()
    assert len(calls) == 2


@pytest.mark.parametrize("num_failures", [2, 3])
def test_device_may_be_lost_twice_while_a_tensor_is_read(memory, devices, num_failures):
    tensor, tries = put(memory, X), list[int]()
    tensor.kept.bundle.lineage = LineageNode([], 0, lambda bundles: None)

    def ask() -> str:
        tries.append(1)
        if len(tries) <= num_failures:
            raise DeviceLostError("lost", device="A", node="", attempt=0)
        return "read"

    if num_failures == 2:
        assert memory._with_recomputation([tensor.kept.bundle], ask) == "read"
    else:
        with pytest.raises(DeviceLostError):
            memory._with_recomputation([tensor.kept.bundle], ask)
    assert len(tries) == 3
    tries.clear()
    tensor.kept.bundle.lineage = None  # it cannot be recomputed
    with pytest.raises(DeviceLostError):
        memory._with_recomputation([tensor.kept.bundle], ask)
    assert len(tries) == 1


def test_copy_from_replaces_the_contents(memory, devices):
    target, source = put(memory, X), put(memory, X + 1, "B")
    target.copy_from(memoryview(X + 2))
    assert (target.to_host().tolist(), target.device) == ((X + 2).tolist(), "A")
    target.copy_from(HostTensor())
    assert target.to_host().tolist() == (X + 30).tolist()
    other = put(RemoteMemory("me", Devices().connect, ManualClock()), X + 3)
    target.copy_from(other)
    assert (target.to_host().tolist(), target.device) == ((X + 3).tolist(), "A")
    devices.kinds()
    target.copy_from(source)
    assert devices.kinds() == []  # both refer to one memory
    assert (target.device, target.kept.bundle is source.kept.bundle) == ("B", True)
    with pytest.raises(TensorTypeError, match="tensor on B: expected dtype float32, got int64"):
        target.copy_from(np.zeros((3, 2), np.int64))
    with pytest.raises(TensorShapeError, match=r"expected shape \[3, 2\], got \[2, 3\]"):
        target.copy_from(X.T)
    assert target.to_host().tolist() == (X + 1).tolist()
    source.close()
    assert (source.is_closed, target.is_closed) == (True, False)
    assert repr(source) == "<DeviceTensor float32[3, 2] closed>"
    with pytest.raises(TensorError, match="expected an open remote tensor"):
        source.to_host()
    with pytest.raises(UnsupportedOperationError, match="cannot be copied or pickled"):
        target.__reduce__()


def test_closed_memory_raises_in_present_and_later_calls(devices):
    clock = ManualClock()
    memory = RemoteMemory("me", devices.connect, clock, expect=lambda: memory.close())
    with pytest.raises(ClusterError, match="the Core and its remote tensors are closed"):
        put(memory, X)  # closed while it waits
    assert devices.is_closed
    with pytest.raises(ClusterError):
        put(memory, X)
    never_used = RemoteMemory("me", devices.connect, clock)
    never_used.close()
    with pytest.raises(ClusterError, match="are closed"):
        put(never_used, X)
    assert never_used.pending == {}


def test_resident_outputs_are_named_by_position():
    run = StageTiming(0, "A", resident=(("float", (2,), (0, 2)), ("int64", (), (1,))))
    assert kept_specs(("x", "y", "z"), run) == {
        "x": ("float", (2,)),
        "z": ("float", (2,)),
        "y": ("int64", ()),
    }
    with pytest.raises(Exception, match="index out of range"):
        kept_specs(("x", "y"), run)
