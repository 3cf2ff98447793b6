"""State of a run, sizes of values, remote tensors, and errors of vendors."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import numpy as np
import pytest

from hetero.devices.errors import (
    BlobError,
    DeadlineError,
    DeviceMemoryError,
    InferenceError,
    KernelError,
    RequestCancelledError,
    TensorShapeError,
    UnsupportedOperationError,
)
from hetero.devices.plugin import native_call, program
from hetero.devices.plugin.native_call import NativeCall
from hetero.devices.plugin.operator_plugin import OperatorProgram
from hetero.devices.plugin.plugin_source import PluginSource
from hetero.devices.plugin.program import Payload, RunContext, nbytes_of, plain_nbytes
from hetero.devices.plugin.remote_memory import (
    RemoteContext,
    RemoteTensor,
    ResidentTensor,
    TensorBundle,
    is_remote,
)
from hetero.devices.plugin.support import Refusal, Support
from hetero.devices.plugin.vendor_errors import VendorErrors
from tests.support.graphs import build


class DeviceTensor(RemoteTensor):
    """Remote tensor in this process."""

    device = "D"

    def __init__(self, array: np.ndarray) -> None:
        self.array = array.copy()
        self.shape, self.dtype = array.shape, array.dtype

    def to_host(self) -> np.ndarray:
        return self.array.copy()

    def copy_from(self, array: np.ndarray) -> None:
        self.check_shape(array)
        self.array[...] = array


class Bundle(TensorBundle):
    """Bundle of one tensor."""

    specs: ClassVar = {"y": ("float", (2,))}

    def tensor(self, name: str) -> RemoteTensor:
        return DeviceTensor(np.full(2, len(name), np.float32))


class Context(RemoteContext):
    """Context of the device D."""

    device = "D"

    def from_host(self, array: np.ndarray) -> RemoteTensor:
        return DeviceTensor(array)


ARRAY = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (ARRAY, 24),
        (DeviceTensor(ARRAY), 24),
        (np.array(["abc", b"de", None], object), 3 + 2 + 8),
        ([ARRAY, ARRAY], 48),
        ((ARRAY, None), 24),
        ({"a": ARRAY, "b": [ARRAY]}, 48),
        (None, 0),
        (3, 8),
        (ResidentTensor(Bundle(), "y"), 0),
    ],
)
def test_size_of_a_value(value, nbytes):
    assert nbytes_of(value) == nbytes


@pytest.mark.parametrize(
    ("values", "nbytes"),
    [
        ({}, 0),
        ({"a": ARRAY, "b": ARRAY}, 48),
        ({"a": ARRAY, "b": np.array(["a"], object)}, None),
        ({"a": [ARRAY]}, None),
    ],
)
def test_size_of_plain_arrays(values, nbytes):
    assert plain_nbytes(values) == nbytes


def test_remote_tensor():
    tensor = Context().create_tensor(np.float16, (2, 3))
    assert (tensor.shape, tensor.dtype, tensor.nbytes) == ((2, 3), np.float16, 12)
    assert (tensor.get_shape(), tensor.get_byte_size()) == ((2, 3), 12)
    assert (tensor.get_device_name(), tensor.get_params()) == ("D", {})
    assert Context().get_device_name() == "D"
    for read in (lambda: tensor.data, lambda: tensor.str_data, lambda: np.asarray(tensor)):
        with pytest.raises(UnsupportedOperationError, match="tensor of D directly"):
            read()
    source, target = DeviceTensor(np.ones((2, 3))), DeviceTensor(np.zeros((2, 3)))
    source.copy_to(target)
    assert target.to_host().min() == 1
    with pytest.raises(TensorShapeError, match=r"tensor of D: expected shape \[2, 3\], got \[3\]"):
        target.copy_from(np.zeros(3))
    assert is_remote(DeviceTensor)
    assert not is_remote(np.ndarray)
    assert ResidentTensor(Bundle(), "y").tensor.to_host().tolist() == [1, 1]


# Runs.


@pytest.mark.parametrize(
    "block",
    [RunContext.on_cancel, lambda context, stop: NativeCall(stop, context)],
    ids=["on_cancel", "native call"],
)
def test_cancelled_run_stops_at_the_next_check(block):
    context, stops = RunContext(), []
    context.check_cancelled()
    with block(context, lambda: stops.append(1)):
        context.cancel()
        context.cancel()
    context.cancel()
    assert stops == [1, 1]
    with pytest.raises(RequestCancelledError):
        context.check_cancelled()
    with pytest.raises(RequestCancelledError):
        context.sleep(100)
    with block(context, lambda: stops.append(2)):
        pass
    assert stops == [1, 1, 2]


def test_deadline_of_a_run_in_seconds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(program.time, "monotonic", lambda: now[0])
    context = RunContext()
    context.set_timeout(2.5)
    for time_s, is_late in ((102.4, False), (102.5, False), (102.6, True)):
        now[0] = time_s
        if is_late:
            with pytest.raises(DeadlineError):
                context.check_cancelled()
            with pytest.raises(DeadlineError):
                context.sleep(100)
        else:
            context.check_cancelled()


def test_recorded_times_add_up():
    context = RunContext()
    for node, seconds in (("a", 1.0), ("b", 2.0), ("a", 4.0)):
        context.record(node, seconds)
    assert context.node_times_s == {"a": 5.0, "b": 2.0}


def test_payload_of_another_format():
    array = np.ones(2)
    payload = Payload({"format": "one"}, {"w": array})
    payload.check_format("one", "m")
    with pytest.raises(BlobError, match=r"model 'm'.*'two', got 'one'"):
        payload.check_format("two", "m")
    copy = payload.in_memory()
    array[0] = 5
    assert copy.tensors["w"].tolist() == [1, 1]
    assert copy.header == payload.header


def test_program_of_functions():
    model = build("a: v, = Split(x)\nb: y = Add(v, c)", outputs="y", constants="c")
    operators = {"Split": lambda x: (x * 2, x), "Add": lambda a, b: a + b}
    compiled = OperatorProgram(model, operators, "D")
    context = RunContext(profile=True)
    (result,) = compiled.run([np.ones(3, np.float32)], context)
    np.testing.assert_allclose(result, 2 + np.linspace(-1, 1, 3))
    assert list(context.node_times_s) == ["a", "b"]
    context = RunContext()
    compiled.run([np.ones(3, np.float32)], context)
    assert context.node_times_s == {}
    context.cancel()
    with pytest.raises(RequestCancelledError):
        compiled.run([np.ones(3, np.float32)], context)
    assert [(n.name, n.execution_order, n.implementation) for n in compiled.executed_nodes()] == [
        ("a", 0, "D"),
        ("b", 1, "D"),
    ]
    failing = OperatorProgram(model, {**operators, "Add": lambda a, b: 1 / 0}, "D")
    with pytest.raises(KernelError, match=r"node 'b' \(Add\) on D: ZeroDivisionError") as caught:
        failing.run([np.ones(3, np.float32)], RunContext())
    assert (caught.value.data["node"], caught.value.data["op_type"]) == ("b", "Add")


# Native calls.


@pytest.fixture
def shutdown(monkeypatch):
    """Replace the state of the interpreter's shutdown; return the runtime objects that are kept."""
    monkeypatch.setattr(native_call, "_is_shutting_down", False)
    monkeypatch.setattr(native_call, "_CALLS", set())
    kept: list[Any] = []
    monkeypatch.setattr(native_call, "_UNDESTROYED", kept)
    monkeypatch.setattr(native_call, "_WAIT_S", 0.01)
    return kept


def test_shutdown_stops_running_calls_and_rejects_new_ones(shutdown):
    with NativeCall():
        assert len(native_call._CALLS) == 1
    assert set() == native_call._CALLS
    assert shutdown == []
    stops: list[int] = []

    def stop() -> None:
        stops.append(1)

    with NativeCall(stop):
        native_call._shut_down()
        assert stops == [1]
    assert shutdown == [stop]
    with pytest.raises(RequestCancelledError, match="shutting down"), NativeCall():
        raise AssertionError
    assert set() == native_call._CALLS


# Messages and sources.


def test_messages_of_a_vendor():
    errors = VendorErrors(re.compile("bad_alloc"), re.compile(r"\[E\d+\]|at \S+:\d+"))
    assert (
        errors.reason(ValueError("[E12] no kernel \n  at a.cpp:7 for Abs ")) == "no kernel for Abs"
    )
    assert errors.reason(ValueError("x" * 999)) == "x" * 300
    assert errors.reason(ValueError("[E1]")) == "ValueError"
    error = errors.run_error("run of 'm'", ValueError("std::bad_alloc\n  here"))
    assert type(error) is DeviceMemoryError
    assert str(error).startswith("run of 'm': std::bad_alloc here")
    assert type(errors.run_error("run", ValueError("other"))) is InferenceError


@pytest.mark.parametrize(
    ("text", "source", "label", "is_library"),
    [
        ("m:A", ("", "m:A", ""), "m:A", False),
        ("NAME=m:A", ("NAME", "m:A", ""), "NAME", False),
        ("ORT", ("", "ORT", ""), "ORT", False),
        ("ORT@/bin/python", ("", "ORT", "/bin/python"), "ORT", False),
        ("N=m:A@/bin/python", ("N", "m:A", "/bin/python"), "N", False),
        ("ggml=/opt/libx.so", ("ggml", "/opt/libx.so", ""), "ORT_GGML", True),
        ("ggml=/opt/libx.so.1.2", ("ggml", "/opt/libx.so.1.2", ""), "ORT_GGML", True),
        ("g=/opt/a=b.dylib", ("g", "/opt/a=b.dylib", ""), "ORT_G", True),
    ],
)
def test_source_of_a_plugin(text, source, label, is_library):
    parsed = PluginSource.parse(text)
    assert tuple(parsed) == source
    assert (parsed.label, parsed.is_library, str(parsed)) == (label, is_library, text)
    assert parsed.without_interpreter == (*source[:2], "")


def test_refusals_and_supports_as_text():
    assert str(Refusal("opset", "too old")) == "too old [opset]"
    assert str(Refusal("memory", "too large", "A=1")) == "too large; set A=1 [memory]"
    with pytest.raises(ValueError, match="got 'size'"):
        Refusal("size", "too large")  # type: ignore[arg-type]
    refusals = {"c": {"X": Refusal("opset", "old"), "Y": Refusal("dtype", "double")}}
    support = Support({"a": "X", "b": "X", "d": "Y"}, refusals, {}, {"b": "by Z"})
    assert repr(support) == "<Support of 4 nodes: 2 on X, 1 on Y, 1 unsupported>"
    assert repr(Support({"a": "X"})) == "<Support of 1 nodes: 1 on X>"
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        for row in support._repr_html_().split("<tr>")[2:]
    ]
    assert rows == [
        ["c", "none", "X: old [opset]; Y: double [dtype]"],
        ["a", "X", ""],
        ["b", "X", "by Z"],
        ["d", "Y", ""],
    ]
    assert (len(support), list(support), support["d"]) == (3, ["a", "b", "d"], "Y")
