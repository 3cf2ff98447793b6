"""Tensors that stay in a device's memory, the timing of a run, and the state of a loop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    InferenceError,
    KernelError,
)
from hetero.devices.plugin.program import RunContext
from hetero.devices.plugin.support import Refusal, Support
from hetero.devices.request.request import Request
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.device.direct_stage import DirectStage, left_outputs
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.events import Send, StageOpened
from hetero.scheduler.types.messages import Task, Values
from tests.scheduler.models import build, chain, cut
from tests.scheduler.plugins import ToyProgram, TwinPlugin

X = np.arange(4, dtype=np.float32)
TOY = DeviceDescriptor("TOY", "TWIN", "1", "node 2")


@pytest.mark.parametrize(
    ("sends", "outputs", "resident", "expected"),
    [
        ([("here", "a")], "", "", "a"),
        ([("there", "a")], "", "", ""),
        ([("here", "ab"), ("there", "b")], "", "", "a"),
        ([("here", "ab")], "b", "", "a"),  # the client receives b
        ([("here", "ab")], "b", "b", "ab"),  # unless it is resident
        ([], "a", "a", "a"),
        ([("there", "a")], "a", "a", ""),
        ([("here", "a"), ("here", "b")], "", "c", "abc"),
        ([], "", "", ""),
    ],
)
def test_tensors_that_no_other_process_reads_stay(sends, outputs, resident, expected):
    wires = tuple(Send(address, 1, tuple(names)) for address, names in sends)
    assert left_outputs("here", wires, tuple(outputs), tuple(resident)) == set(expected)


class Ticks:
    """Clock that advances by one second with each reading."""

    def __init__(self) -> None:
        self.readings: Iterator[int] = itertools.count(10)

    def __call__(self) -> float:
        return float(next(self.readings))


def host(*lines: Any, outputs: tuple[str, ...] = ("y",)) -> DeviceHost:
    """Return a device with stage 5 of the deployment d."""
    model = build(lines or (("Neg", "neg", ("x",), "y"),), outputs)
    _, (source,) = cut(model, ("TOY", model.node_names))
    result = DeviceHost(TOY, TwinPlugin(), Ticks())
    result.load_stage("d", 5, source, 1)
    return result


def test_timing_of_a_run():
    device = host(("Neg", "neg", ("x",), "y"), ("Relu", "relu", ("x",), "z"), outputs=("y", "z"))
    request = Request(deployment="d", id=3, attempt=2)
    outputs, run = device.run_stage(request, 5, [X], ready_s=7.5)
    assert {name: value.tolist() for name, value in outputs.items()} == {
        "y": [0, -1, -2, -3],
        "z": [0, 1, 2, 3],
    }
    assert (run.stage, run.device, run.queued_s) == (5, "TOY", 2.5)
    assert (run.started_s, run.ended_s, run.output_nbytes) == (10, 11, 32)
    assert run.node_times_s == {}
    _, run = device.run_stage(request._replace(profile=True), 5, [X])
    assert (run.queued_s, run.started_s, set(run.node_times_s)) == (0, 12, {"neg", "relu"})


def test_size_of_outputs_includes_the_items_of_sequences():
    device = host(
        ("Neg", "neg", ("x",), "y"), ("SequenceConstruct", "s", ("x", "y"), "q"), outputs=("y", "q")
    )
    _, run = device.run_stage(Request(deployment="d", id=3, attempt=2), 5, [X])
    assert run.output_nbytes == 16 + 2 * 16


def test_constant_inputs_are_loaded_with_the_stage():
    model = build([("Add", "add", ("a", "b"), "y")], ["y"], inputs=("a", "b"))
    _, (source,) = cut(model, ("TOY", ["add"]))
    device = DeviceHost(TOY, TwinPlugin())
    device.load_stage("d", 0, source, 1, {"a": X * 10})
    outputs, _ = device.run_stage(Request(deployment="d"), 0, [X])
    assert outputs["y"].tolist() == [0, 11, 22, 33]
    device.load_stage("d", 1, source, 1, {"a": X * 10, "b": X})
    assert device.make("d", 1)["y"].tolist() == [0, 11, 22, 33]
    assert (device.has_all(["d"]), device.has_all(["d", "e"]), device.has_all([])) == (
        *(True, False),
        True,
    )


@pytest.mark.parametrize(("node", "kind"), [("refuse", KernelError), ("fail", InferenceError)])
def test_errors_of_a_run_name_stage_device_and_request(node, kind):
    device = host(("Neg", node, ("x",), "y"))
    with pytest.raises(kind, match=r"stage 5 on device TOY|by design") as caught:
        device.run_stage(Request(deployment="d", id=3, attempt=2), 5, [X])
    data = caught.value.data
    expected = {"stage": 5, "device": "TOY", "node": "node 2", "request_id": 3, "attempt": 2}
    if kind is KernelError:
        expected["node"] = data["node"]
    assert expected.items() <= data.items()
    with pytest.raises(DeviceLostError, match="stage 6 of deployment d is not loaded"):
        device.execute("d", 6, [X], RunContext())


class DirectTask:
    """Task of a caller's thread."""

    entered: Any = None


def direct_stage(*lines: Any) -> tuple[DirectStage, DeviceLoop, list[Any]]:
    """Return stage 5 of a device with one stream, its loop, and a list of the tasks to run."""
    board = Switchboard()
    board.connect("client", lambda message: None)
    device, waiting = host(*lines), []
    loop = DeviceLoop(device, partial(board.connect, "device"), lambda _, due: waiting.append(due))
    loop.open_stage(StageOpened("d", 5, ("x",), 0, {}, ("y",), 1, "client"))
    return loop.direct_stage("d", 5), loop, waiting


def test_direct_stage_runs_if_a_stream_is_free():
    stage, loop, waiting = direct_stage()
    task, other = DirectTask(), DirectTask()
    result = stage.run([X], frozenset(), task)
    assert result is not None
    assert result[0][0].tolist() == [0, -1, -2, -3]
    assert (result[1].stage, result[1].device, task.entered) == (5, "TOY", None)
    assert loop._machine.enter(loop._machine.stage("d", 5), other)
    assert stage.run([X], frozenset(), task) is None
    loop.receive(Values(Task(Request(deployment="d", id=1, attempt=1), 5), {"x": X}))
    assert waiting == []
    stage.release(other)
    stage.release(other)  # idempotent
    assert ([due.task.request.id for due in waiting], loop._machine.num_running) == ([1], 1)


def test_waiting_task_starts_after_a_direct_stage_fails(monkeypatch):
    stage, loop, waiting = direct_stage(("Neg", "fail", ("x",), "y"))
    run, task = ToyProgram.run, Task(Request(deployment="d", id=1, attempt=1), 5)
    direct_task = DirectTask()

    def receive_and_run(self: ToyProgram, *arguments: Any) -> Any:
        loop.receive(Values(task, {"x": X}))
        assert waiting == []
        return run(self, *arguments)

    monkeypatch.setattr(ToyProgram, "run", receive_and_run)
    with pytest.raises(InferenceError, match="by design") as caught:
        stage.run([X], frozenset(), direct_task)
    stage.release(direct_task)
    assert [due.task for due in waiting] == [task]
    error = stage.convert_error(caught.value, Request(deployment="d", id=3, attempt=2))
    data = {"stage": 5, "device": "TOY", "node": "node 2", "request_id": 3, "attempt": 2}
    assert type(error) is InferenceError
    assert data.items() <= error.data.items()
    assert error.__traceback__ is None


def test_outputs_of_a_direct_stage_that_stay(monkeypatch):
    monkeypatch.setattr(TwinPlugin, "leaves_outputs", True)
    stage, loop, _ = direct_stage()
    here, there = Send("device", 6, ("y", "h")), Send("there", 7, ("h",))
    for sends, expected in ({0: (here,), 1: (here, there)}, {0: "h", 1: ""}), ({}, {0: "", 1: ""}):
        loop.open_stage(StageOpened("d", 5, ("x",), 0, sends, ("y",), 1, "client"))
        for route, names in expected.items():
            assert stage.outputs_left(route) == set(names)


def test_query_names_the_device_of_the_cluster(monkeypatch):
    refusals = {"b": {"TWIN": Refusal("no_kernel", "no Tan")}}
    support = Support({"a": "TWIN.1"}, refusals, refusals, {"a": "note"})
    monkeypatch.setattr(TwinPlugin, "query_model", lambda self, model, config: support)
    renamed = {"b": {"TOY": Refusal("no_kernel", "no Tan")}}
    assert host().query(build([("Neg", "a", ("x",), "y")], ["y"]), {}) == Support(
        {"a": "TOY"}, renamed, renamed, {"a": "note"}
    )


@pytest.mark.parametrize("is_typed", [False, True])
def test_error_of_a_query_names_device_and_node(monkeypatch, is_typed):
    def fail(*_: Any) -> Support:
        raise DeviceMemoryError("full") if is_typed else OSError("by design")

    monkeypatch.setattr(TwinPlugin, "query_model", fail)
    with pytest.raises(DeviceMemoryError if is_typed else DeviceError) as caught:
        host().query(build([("Neg", "a", ("x",), "y")], ["y"]), {})
    assert {"device": "TOY", "node": "node 2"}.items() <= caught.value.data.items()
    assert (caught.value.device, caught.value.node) == ("TOY", "node 2")
    if not is_typed:
        assert caught.value.cause == "OSError('by design')"


def test_properties_are_those_of_the_physical_device(monkeypatch):
    monkeypatch.setattr(TwinPlugin, "get_property", lambda self, name, device_id: (name, device_id))
    device = DeviceHost(TOY, TwinPlugin())
    assert device.get_property("FULL_DEVICE_NAME") == ("FULL_DEVICE_NAME", "1")
    assert device.get_property("EXECUTION_DEVICES") == ("TOY",)


@pytest.mark.parametrize(
    ("timeout_s", "overdue_s", "allowance_s"),
    # The clock: 10 at the arrival of the inputs, 11 at the start, 12 at the start of the stage, 13
    # as it is read. The task has then run for 2 s.
    [(0.0, 0.0, float("inf")), (1.5, 2.0, 1.5), (0.5, 2.0, 0.5), (2.0, 0.0, 2.0), (9.0, 0.0, 9.0)],
)
def test_status_of_a_running_stage(monkeypatch, timeout_s, overdue_s, allowance_s):
    board, ticks = Switchboard(), Ticks()
    board.connect("client", lambda message: None)
    device = DeviceHost(TOY, TwinPlugin(), ticks)
    waiting: list[Any] = []
    loop = DeviceLoop(
        device, partial(board.connect, "device"), lambda _, due: waiting.append(due), now_s=ticks
    )
    _, (source,) = chain("TOY")
    device.load_stage("d", 0, source, 1)
    loop.open_stage(StageOpened("d", 0, ("x",), 0, {}, ("t0",), 1, "client", timeout_s))
    states: list[dict[str, float]] = []
    run = ToyProgram.run

    def observed(self: ToyProgram, *arguments: Any) -> Any:
        states.append(loop.status())
        return run(self, *arguments)

    monkeypatch.setattr(ToyProgram, "run", observed)
    for number in (1, 2):
        loop.receive(Values(Task(Request(deployment="d", id=number, attempt=1), 0), {"x": X}))
        ticks.readings = itertools.count(11)
    (due,) = waiting  # the second waits for the first
    loop.run(due)
    assert states == [
        {
            "tasks": 2,
            "running": 1,
            "streams": 1,
            "kept_nbytes": 0,
            "overdue_s": overdue_s,
            "stall_allowance_s": allowance_s,
        }
    ]
    assert (loop.status()["tasks"], loop.status()["overdue_s"], loop.num_clients) == (1, 0, 1)
    loop.client_gone("client")
    assert (loop.status()["tasks"], loop.num_clients) == (0, 0)
    loop.close()
