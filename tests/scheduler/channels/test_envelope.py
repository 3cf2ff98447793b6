"""Envelope: every message survives it, and damaged frames are refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import product
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.errors import (
    BlobError,
    DeviceLostError,
    HeteroError,
    InferenceError,
    TensorShapeError,
)
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.request import REPLAY, Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels import envelope
from hetero.scheduler.channels.envelope import INLINE_NBYTES, VERSION, MessageWriter, to_frames
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.types.messages import (
    ConcatTensors,
    Dropped,
    Failure,
    FetchTensors,
    FreeTensors,
    Message,
    Outputs,
    StoreTensors,
    Task,
    Values,
)
from tests.support.comparison import ELEMENT_TYPES, assert_identical
from tests.support.loopback import LoopbackChannel
from tests.support.rows import for_each_row

REQUEST = Request(1.5, True, False, deployment="key/model:0", id=2**40, attempt=3)
TASK = Task(REQUEST, 7)
TIMES_S = (1e-5, 10.5, 11.5, 0.1, 0.8, 0.1)
RUN = StageTiming(
    7,
    "ORT.0@host",
    *TIMES_S,
    {"conv": 0.25},
    4096,
    (("float", (2, 3), (0, 2)), ("int64", (), (1,))),
)


def arrived(message: Message) -> Any:
    return envelope.from_frames([bytes(frame) for frame in to_frames(message)])


def as_answered(task: Task) -> Task:
    """Return the task as results report it."""
    number, attempt = task.request.id, task.request.attempt
    return Task(Request(deployment="key/model:0", id=number, attempt=attempt), task.stage)


def check_tensors(actual: Any, expected_value: Any) -> None:
    task = (
        as_answered(expected_value.task) if type(expected_value) is Outputs else expected_value.task
    )
    assert actual._replace(tensors={}) == expected_value._replace(tensors={}, task=task)
    assert_identical(actual.tensors, expected_value.tensors)


@pytest.mark.parametrize("kind", [Values, Outputs])
def test_values_of_every_kind_survive(kind):
    tensors = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "y": np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        "scalar": np.float16(2.5),
        "strings": np.array([["a", "ü"]], object),
        "sequence": [np.zeros((0, 4), np.float32), np.ones(2, bool)],
        "map": {"k": 1, 3: np.arange(3)},
        "optional": None,
        "large": np.arange(INLINE_NBYTES, dtype=np.int32),
    }
    message = kind(TASK, tensors, (RUN, StageTiming(0, "NULL.1")))
    check_tensors(arrived(message), message)


@for_each_row("dtype, size", product(ELEMENT_TYPES, [1, INLINE_NBYTES]))
def test_tensors_of_every_element_type_survive(dtype, size):
    array = (np.arange(2 * size) % 2).astype(dtype).reshape(2, size)
    for case in (array, array.T, array[:, ::-1], array[:0], array[0, 0]):
        message = Values(TASK, {"x": case})
        check_tensors(arrived(message), message)


def test_numpy_numbers_in_requests_and_timings_survive():
    request = Request(np.float64(2), id=np.int64(5), deployment="d")  # type: ignore[arg-type]
    run = StageTiming(np.int32(1), "d", queued_s=np.float32(0.5))  # type: ignore[arg-type]
    actual = arrived(Values(Task(request, 0), {}, (run,)))
    assert actual.task.request == request
    assert actual.runs == (StageTiming(1, "d", queued_s=0.5),)


@pytest.mark.parametrize(
    "message",
    [
        Dropped(REQUEST),
        FetchTensors(
            TASK, "client", "device", {"key/1": {"x": "y", "z": "y"}, "key/2": {}}, ("key/3",)
        ),
        Outputs(as_answered(TASK), {}, (RUN,)),
        Values(Task(REQUEST._replace(route=REPLAY, resident_outputs=("y",)), 1), {}, (RUN,)),
        ConcatTensors(
            TASK, "client", "key/4", {"y": (RowLayout(0, 2, 7, True), (("key/1", "y", (0, 2)),))}
        ),
        ConcatTensors(
            TASK, "client", "k", {"z": (RowLayout(1), (("key/1", "y", (0,)), ("key/2", "z", ())))}
        ),
        FreeTensors(("key/1", "key/2")),
    ],
)
def test_messages_without_tensors_survive(message):
    actual = arrived(message)
    assert type(actual) is type(message)
    assert actual == message


def test_request_with_resident_outputs_survives():
    request = REQUEST._replace(resident_outputs=("y", "z"))
    assert {request: 1}[arrived(Dropped(request)).request] == 1


@pytest.mark.parametrize(
    ("message", "is_whole"),
    [
        (Values(Task(Request(deployment="d", id=3, priority=1.5), 1), {}), True),  # type: ignore[arg-type]
        (Outputs(Task(Request(deployment="d", id=3), 1), {}, (1,)), True),  # type: ignore[arg-type]
        (Values(Task(Request(deployment="d", id="3"), 1), {}), False),  # type: ignore[arg-type]
        (Values(Task(Request(deployment="d", id=3), 1.5), {}), False),  # type: ignore[arg-type]
        (FreeTensors((1,)), False),  # type: ignore[arg-type]
    ],
    ids=["priority", "runs", "id", "stage", "no task"],
)
def test_ill_typed_message_fails_its_task_if_identified(message, is_whole):
    parts = envelope.to_frames(message)
    with pytest.raises(BlobError) as raised:
        envelope.from_frames(parts)
    failure = envelope.unreadable_task(parts, raised.value)
    expected = Failure(Task(Request(deployment="d", id=3), 1), raised.value)
    assert failure == (expected if is_whole else None)


def test_damaged_message_fails_no_task():
    parts = envelope.to_frames(Values(Task(Request(deployment="d", id=3), 1), {}))
    parts[0] = parts[0][:-1]
    with pytest.raises(BlobError) as raised:
        envelope.from_frames(parts)
    assert envelope.unreadable_task(parts, raised.value) is None


def test_resident_tensors_survive():
    message = StoreTensors(
        TASK, "client", "key", {"x": np.arange(6.0), "y": np.zeros(INLINE_NBYTES)}
    )
    check_tensors(arrived(message), message)


def test_large_tensors_are_frames_without_a_copy():
    array = np.arange(INLINE_NBYTES, dtype=np.int32)
    parts = to_frames(Values(TASK, {"x": array}))
    assert np.shares_memory(np.frombuffer(parts[1], np.int32), array)
    received = [parts[0], memoryview(bytearray(parts[1]))]
    actual = envelope.from_frames(received)
    assert isinstance(actual, Values)
    assert np.shares_memory(actual.tensors["x"], np.frombuffer(received[1], np.int32))
    assert not actual.tensors["x"].flags.writeable


def test_unaligned_tensors_become_aligned():
    array = np.arange(INLINE_NBYTES, dtype=np.int32)
    head, segment = to_frames(Values(TASK, {"x": array}))
    unaligned = memoryview(b"x" + bytes(segment))[1:]
    actual = envelope.from_frames([head, unaligned])
    assert isinstance(actual, Values)
    assert actual.tensors["x"].flags.aligned
    np.testing.assert_array_equal(actual.tensors["x"], array)


def test_tensors_in_a_store_are_found():
    store: list[np.ndarray] = []

    def put(flat: np.ndarray) -> Sequence[int] | None:
        if flat.nbytes > 10 * INLINE_NBYTES:
            return None
        store.append(flat)
        return (len(store) - 1,)

    tensors = {
        "stored": np.arange(INLINE_NBYTES, dtype=np.int16),
        "sent": np.zeros(INLINE_NBYTES * 2),
    }
    parts = MessageWriter().frames(Values(TASK, tensors), put)
    assert len(parts) == 2
    actual = envelope.from_frames(parts, lambda place, nbytes: store[place[0]][:nbytes])
    check_tensors(actual, Values(TASK, tensors))


def test_unserializable_values_are_refused():
    with pytest.raises(TypeError, match="not an ONNX value"):
        to_frames(Values(TASK, {"x": object()}))


def test_error_keeps_class_message_data_and_cause():
    error = DeviceLostError("gone", device="ORT.0", node="n", attempt=2, shape=(1, 2))
    error.__cause__ = TensorShapeError("wrong", port="x")
    actual = arrived(Failure(TASK, error)).error
    assert type(actual) is DeviceLostError
    assert (str(actual), actual.node, actual.data["shape"]) == ("gone", "n", [1, 2])
    assert type(actual.__cause__) is TensorShapeError
    assert actual.__cause__.port == "x"


class OwnError(TensorShapeError):
    """An error class of a plugin."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OwnError("wrong"), TensorShapeError),
        (KeyError("x"), InferenceError),
        (SystemExit(3), InferenceError),
    ],
)
def test_foreign_errors_become_the_nearest_known_class(error, kind):
    actual = arrived(Failure(TASK, error)).error
    assert type(actual) is kind
    assert str(error) in str(actual)


def test_unserializable_error_data_become_text():
    actual = arrived(Failure(TASK, HeteroError("x", what=slice(1)))).error
    assert actual.what == "slice(None, 1, None)"


def test_long_chain_of_causes_is_truncated():
    error = HeteroError("0")
    for i in range(1, 2000):
        outer = HeteroError(str(i))
        outer.__cause__ = error
        error = outer
    assert str(arrived(Failure(TASK, error)).error.__cause__) == "1998"


def test_message_of_another_version_is_refused_by_name():
    head = bytearray(to_frames(Dropped(REQUEST))[0])
    head[3] = VERSION + 1
    with pytest.raises(BlobError, match=f"version {VERSION + 1}"):
        envelope.from_frames([bytes(head)])


def rewritten(change: Any) -> bytes:
    head = to_frames(Values(TASK, {"x": np.arange(6).reshape(2, 3)}, (RUN,)))[0]
    tree = msgpack.unpackb(head[5:])
    kind, data = tree[1]["x"]
    tensor = tree[1]["x"] = msgpack.unpackb(data)
    change(tree)
    if tree[1]["x"] is tensor:
        tree[1]["x"] = msgpack.ExtType(kind, msgpack.packb(tensor))
    return bytes(head[:5]) + msgpack.packb(tree)


def deep() -> Any:
    tree: Any = None
    for _ in range(400):
        tree = [0, tree]
    return tree


@for_each_row(
    "change",
    [
        lambda tree: tree.__setitem__(0, 9),
        lambda tree: tree.__setitem__(0, [0]),
        lambda tree: tree.pop(),
        lambda tree: tree[0].__setitem__(1, "7"),
        lambda tree: tree[0][0].__setitem__(4, b"key"),
        lambda tree: tree[0].pop(),
        lambda tree: tree[0][0].append(0),
        lambda tree: tree[0][0].__setitem__(11, [7]),
        lambda tree: tree[1].__setitem__("x", msgpack.ExtType(9, b"")),
        lambda tree: tree[1].__setitem__("x", {b"key": 1}),
        lambda tree: tree[1]["x"].pop(),
        lambda tree: tree[1]["x"].__setitem__(0, None),
        lambda tree: tree[1]["x"].__setitem__(1, [2, -3]),
        lambda tree: tree[1]["x"].__setitem__(3, [0, 0]),
        lambda tree: tree[1]["x"].__setitem__(3, [1, 2]),
        lambda tree: tree[1].__setitem__(5, None),
        lambda tree: tree[1].__setitem__("x", deep()),
        lambda tree: tree[1]["x"].__setitem__(0, "float128"),
        lambda tree: tree[1]["x"].__setitem__(1, [2, 2**61]),
        lambda tree: tree[1]["x"].__setitem__(1, [2, 4]),
        lambda tree: tree[1]["x"].__setitem__(1, deep()),
        lambda tree: tree[1]["x"].__setitem__(2, 1),
        lambda tree: tree[1]["x"].__setitem__(2, -1),
        lambda tree: tree[1]["x"].__setitem__(2, deep()),
        lambda tree: tree[1]["x"].__setitem__(2, ["f", 0]),
        lambda tree: tree[2][0].__setitem__(2, "0"),
        lambda tree: tree[2][0].__setitem__(8, {"conv": "x"}),
        lambda tree: tree[2].__setitem__(0, None),
        lambda tree: tree[2][0].append(0),
        lambda tree: tree.append(0),
    ],
)
def test_damaged_fields_are_refused(change):
    with pytest.raises(BlobError):
        envelope.from_frames([rewritten(change)])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTE",
        b"XYZ\x01\x93",
        b"HTE\x01\xdd\xff\xff\xff\xff",
        b"HTE" + bytes([VERSION]),
        b"HTE" + bytes([VERSION, 8]) + b"\x90",
    ],
)
def test_other_bytes_are_refused(head):
    with pytest.raises(BlobError):
        envelope.from_frames([head])


@pytest.mark.parametrize("claim", [b"\xdd", b"\xdf", b"\xc6", b"\xdb"])
def test_claimed_sizes_allocate_no_memory(claim):
    head = to_frames(Values(TASK, {}))[0]
    assert head.endswith(b"\x80\x90")  # no tensors, no runs
    tracemalloc.start()
    try:
        tensors = b"\x81\xa1x" + claim + b"\x0f\xff\xff\xff" + bytes(4096)
        with pytest.raises(BlobError):
            envelope.from_frames([head[:-2] + tensors])
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_frame_of_another_length_is_refused():
    head, segment = to_frames(Values(TASK, {"x": np.zeros(INLINE_NBYTES)}))
    for parts in ([head], [head, segment[:-8]], [head, bytes(segment) + b"x"]):
        with pytest.raises(BlobError):
            envelope.from_frames(parts)


SAMPLES = [
    to_frames(message)[0]
    for message in (
        Values(
            TASK,
            {"x": np.arange(3).astype(ml_dtypes.bfloat16), "s": np.array(["a"], object)},
            (RUN,),
        ),
        Outputs(TASK, {"y": [np.float32(1), {"k": None}]}, (RUN,)),
        Failure(TASK, InferenceError("no", device="d")),
        Dropped(REQUEST._replace(resident_outputs=("y",))),
        StoreTensors(TASK, "client", "key", {"x": np.arange(3)}),
        FetchTensors(TASK, "client", "device", {"key": {"x": "y"}}),
        ConcatTensors(TASK, "client", "new", {"y": (RowLayout(0, 2, 7), (("key", "y", (0, 2)),))}),
        FreeTensors(("key",)),
    )
]


@given(
    st.sampled_from(SAMPLES),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4)), min_size=1, max_size=4),
)
def test_mutated_bytes_are_read_or_refused(head, changes):
    data = bytearray(head)
    for position, replacement in changes:
        at = 4 + position % (len(data) - 4)
        data[at : at + max(1, len(replacement))] = replacement
    try:
        message = envelope.from_frames([bytes(data)])
    except BlobError:
        return
    assert isinstance(message, Message)


def test_loopback_channel_delivers_parsed_copies():
    came: list[Message] = []
    parties = Switchboard(LoopbackChannel)
    parties.connect("b", came.append)
    channel = parties.connect("a", came.append)
    array = np.arange(4)
    channel.send("b", Values(TASK, {"x": array}))
    channel.send("nobody", Dropped(REQUEST))
    (message,) = came
    check_tensors(message, Values(TASK, {"x": array}))
    assert isinstance(message, Values)
    assert not np.shares_memory(message.tensors["x"], array)
