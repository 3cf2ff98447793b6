"""State machine of the device: joining, order, forwarding and dropping of tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.errors import DeviceError, DeviceLostError
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.device.task_queue import DeviceMachine, InvalidTaskError
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.events import Send
from hetero.scheduler.types.messages import Failure, Task

JOIN = Send("B", 2, ("t",))


def machine(num_streams: int = 1) -> DeviceMachine:
    """Stage 0 has input x and forwards t; stage 1 has inputs a and b; stage 2 has none."""
    m = DeviceMachine()
    m.open(ev.StageOpened("d", 0, ("x",), 0, {0: (JOIN,)}, ("y",), num_streams))
    m.open(ev.StageOpened("d", 1, ("a", "b"), 1, num_streams=num_streams))
    m.open(ev.StageOpened("d", 2, (), 0, num_streams=num_streams))
    return m


def task(request_id: int, stage: int = 0, attempt: int = 1) -> Task:
    return Task(Request(deployment="d", id=request_id, attempt=attempt), stage)


def add_inputs(m: DeviceMachine, t: Task, *tensors: str) -> list[ev.DeviceInstruction]:
    return m.add_inputs(t, dict.fromkeys(tensors), (), 0.0)


def run(t: Task, *tensors: str) -> ev.TaskRun:
    return ev.TaskRun(t, dict.fromkeys(tensors))


def found(m: DeviceMachine, t: Task) -> ev.TaskRun:
    run = m.find(t)
    assert run is not None
    return run


def end(m: DeviceMachine, t: Task) -> list[ev.DeviceInstruction]:
    """End a running task; return the instructions."""
    run = found(m, t)
    run.outputs = {}
    return m.end(run)


def nbytes_of(m: DeviceMachine, client: str) -> int:
    return m._clients[client].nbytes if client in m._clients else 0


def passed_on(instructions: list[ev.DeviceInstruction]) -> list[Task]:
    return [i.task for i in instructions if isinstance(i, ev.TaskRun) and i.outputs is not None]


def test_task_runs_forwards_and_reports():
    m = machine()
    assert add_inputs(m, task(1), "x") == [run(task(1), "x")]
    assert end(m, task(1)) == [
        run(task(1), "x"),
    ]
    assert m.num_tasks == 0


def test_reopened_stage_keeps_its_tasks():
    m = machine()
    add_inputs(m, task(1), "x")
    add_inputs(m, task(2), "x")
    target = Send("B2", 2, ("t",))
    m.open(ev.StageOpened("d", 0, ("x",), 0, {0: (target,)}))
    assert end(m, task(1)) == [
        run(task(1), "x"),
        run(task(2), "x"),
    ]


def test_stage_waits_for_all_inputs_in_any_order():
    m = machine()
    assert add_inputs(m, task(1, 1), "b") == []
    assert add_inputs(m, task(1, 1), "a") == [run(task(1, 1), "b", "a")]


def test_stage_without_inputs_runs_on_its_task_message():
    assert add_inputs(machine(), task(1, 2)) == [run(task(1, 2))]


def test_older_requests_run_first_and_levels_count_as_requests():
    m = machine()
    add_inputs(m, task(1), "x")
    add_inputs(m, task(4), "x")
    add_inputs(m, task(3, 1), "a", "b")
    add_inputs(m, task(3), "x")
    order = []
    current = task(1)
    for _ in range(3):
        _, run = end(m, current)
        current = run.task
        order.append(current)
    assert order == [task(3), task(4), task(3, 1)]


def test_concurrent_runs_equal_the_streams():
    m = machine(2)
    assert add_inputs(m, task(1), "x")
    assert add_inputs(m, task(2), "x")
    assert add_inputs(m, task(3), "x") == []
    assert end(m, task(1))[-1] == run(task(3), "x")


def other(request_id: int) -> Task:
    """Return a task of a second deployment, whose only stage takes x."""
    return Task(Request(deployment="e", id=request_id, attempt=1), 0)


def test_each_stage_uses_its_own_streams():
    m = machine(4)
    m.open(ev.StageOpened("e", 0, ("x",), 0))
    assert m.num_streams == 4
    assert add_inputs(m, other(1), "x") == [run(other(1), "x")]
    assert add_inputs(m, other(2), "x") == []
    assert add_inputs(m, other(3), "x") == []
    # Free streams run other tasks, even later ones.
    assert add_inputs(m, task(4), "x") == [run(task(4), "x")]
    assert m.drop(other(2).request) == []
    assert end(m, other(1))[-1] == run(other(3), "x")
    m.close("d")
    assert m.num_streams == 1


def test_close_of_wide_stage_keeps_order_of_narrow_one():
    m = machine(2)
    m.open(ev.StageOpened("e", 0, ("x",), 0))
    for request_id in (1, 2, 3):
        add_inputs(m, other(request_id), "x")
    m.close("d")
    assert end(m, other(1))[-1] == run(other(2), "x")
    assert end(m, other(2))[-1] == run(other(3), "x")


def test_failure_is_reported_without_outputs():
    m = machine()
    add_inputs(m, task(1), "x")
    error = ValueError()
    assert m.end(found(m, task(1)), error) == [
        Failure(task(1), error),
    ]


def test_drop_cancels_running_and_discards_waiting_tasks():
    m = machine()
    add_inputs(m, task(1), "x")
    add_inputs(m, task(1, 1), "a")
    assert m.drop(task(1).request) == [ev.Stop(run(task(1), "x"))]
    assert end(m, task(1)) == []
    assert m.num_tasks == 0


def test_late_values_of_dropped_attempt_are_discarded():
    m = machine()
    m.drop(task(1).request)
    assert add_inputs(m, task(1), "x") == []
    assert add_inputs(m, task(1, attempt=2), "x") == [run(task(1, attempt=2), "x")]


def test_dropped_task_in_the_queue_does_not_run():
    m = machine()
    add_inputs(m, task(1), "x")
    add_inputs(m, task(2), "x")
    add_inputs(m, task(3), "x")
    m.drop(task(2).request)
    assert end(m, task(1))[-1] == run(task(3), "x")


def test_closed_deployment_drops_its_tasks_and_later_ones():
    m = machine()
    add_inputs(m, task(1), "x")
    add_inputs(m, task(2), "x")
    runs = found(m, task(1))
    assert m.close("d") == [ev.Stop(run(task(1), "x"))]
    assert refusal(add_inputs(m, task(3), "x"), task(3)).stage == 0
    assert m.end(runs) == []
    assert m.num_running == 0


@pytest.mark.parametrize("closes_first", [False, True])
def test_dropped_attempt_of_a_reopened_deployment(closes_first, monkeypatch):
    """A device that could not reach its client closes its deployments, and receives late inputs."""
    monkeypatch.setattr("hetero.scheduler.device.task_queue._REMEMBERED_DEPLOYMENTS", 1)
    m = machine()
    if closes_first:
        m.close("d")
    m.drop(task(1).request)
    m.close("d")
    m.open(ev.StageOpened("d", 1, ("a", "b"), 1))
    add_inputs(m, task(1, 1), "a")
    assert m.find(task(1, 1)) is None
    add_inputs(m, task(1, 1, attempt=2), "a")
    assert found(m, task(1, 1, attempt=2))
    m.close("d")
    m.open(ev.StageOpened("e", 1, ("a", "b"), 1))
    m.close("e")  # only the last one closed is remembered
    m.open(ev.StageOpened("d", 1, ("a", "b"), 1))
    add_inputs(m, task(1, 1), "a")
    assert found(m, task(1, 1))


def refusal(instructions: list[ev.DeviceInstruction], of: Task) -> DeviceError:
    (failure,) = instructions
    assert isinstance(failure, Failure)
    assert failure.task == of
    assert isinstance(failure.error, DeviceError)
    return failure.error


def test_values_for_unknown_stage_are_refused_by_name():
    m = machine()
    assert "is not loaded here" in str(refusal(add_inputs(m, task(1, 9), "x"), task(1, 9)))
    assert "['y']" in str(refusal(add_inputs(m, task(1), "y"), task(1)))
    assert m.num_tasks == 0


def test_task_runs_at_once_if_a_stream_is_free():
    m = machine()
    m.drop(task(1).request)
    assert add_inputs(m, task(1), "x") == []
    assert add_inputs(m, task(2), "x") == [run(task(2), "x")]
    assert add_inputs(m, task(2), "x") == []  # again
    assert add_inputs(m, task(3), "x") == []
    assert add_inputs(m, task(4), "x") == []
    assert end(m, task(2)) == [
        run(task(2), "x"),
        run(task(3), "x"),
    ]
    wide = machine(2)
    assert add_inputs(wide, task(1), "x")
    assert add_inputs(wide, task(2), "x")
    assert wide.drop(task(1).request) == [ev.Stop(run(task(1), "x"))]
    assert end(wide, task(1)) == []
    assert wide.find(task(2)) is not None
    assert (wide.num_running, wide.num_tasks) == (1, 1)


def test_duplicate_values_change_nothing():
    m = machine()
    add_inputs(m, task(1, 1), "a")
    assert add_inputs(m, task(1, 1), "a") == []
    assert add_inputs(m, task(1, 1), "b") == [run(task(1, 1), "b", "a")]
    assert add_inputs(m, task(1, 1), "a", "b") == []
    end(m, task(1, 1))
    assert m.num_tasks == 0


def test_impossible_events_raise():
    m = machine()
    add_inputs(m, task(1), "x")
    runs = found(m, task(1))
    m.end(runs)
    with pytest.raises(InvalidTaskError, match="gone"):
        m.end(runs)


@given(
    st.lists(st.tuples(st.sampled_from("xabed"), st.integers(1, 6)), max_size=60),
    st.integers(1, 3),
)
def test_random_events_keep_the_invariants(life, streams):
    m = machine(streams)
    sent_values: set[tuple[int, str]] = set()
    dropped: set[int] = set()
    running: list[Task] = []
    runs: list[Task] = []

    def follow(instructions: list[ev.DeviceInstruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, ev.TaskRun) and instruction.outputs is None:
                running.append(instruction.task)
                runs.append(instruction.task)
        for t in passed_on(instructions):
            assert t.request.id not in dropped

    for what, number in life:
        if what in "xab":  # some values are duplicates
            sent_values.add((number, what))
            came = task(number, 0 if what == "x" else 1)
            follow(m.add_inputs(came, {what: np.zeros(10, np.uint8)}, (), 0.0))
        elif what == "e" and running:
            follow(end(m, running.pop(number % len(running))))
        elif what == "d":
            dropped.add(number)
            follow(m.drop(task(number).request))
        assert m.num_running == len(running) <= streams
        num_waiting = m.num_tasks - m.num_running  # tasks that ran at once do not count
        assert 10 * num_waiting <= nbytes_of(m, "") <= 20 * m.num_tasks
    while running:
        follow(end(m, running.pop()))
    assert len(runs) == len(set(runs))
    ready = {task(n) for n, t in sent_values if t == "x"}
    ready |= {task(n, 1) for n, t in sent_values if t == "a" and (n, "b") in sent_values}
    assert {t for t in ready if t.request.id not in dropped} <= set(runs) <= ready


def test_duplicate_values_of_finished_task_are_discarded():
    m = machine()
    add_inputs(m, task(1), "x")
    end(m, task(1))
    assert add_inputs(m, task(1), "x") == []
    assert m.num_tasks == 0


def test_removed_client_leaves_no_state_and_others_continue():
    m = DeviceMachine()
    for deployment, client in (("d", "one"), ("e", "other")):
        m.open(ev.StageOpened(deployment, 0, ("x",), 0, client=client))
    add_inputs(m, task(1), "x")
    add_inputs(m, task(2), "x")
    add_inputs(m, other(1), "x")
    runs = found(m, task(1))
    assert m.close("d") == [ev.Stop(run(task(1), "x"))]
    assert m.end(runs) == [run(other(1), "x")]
    assert isinstance(refusal(add_inputs(m, task(3), "x"), task(3)), DeviceLostError)
    assert nbytes_of(m, "one") == 0


def joining(m: DeviceMachine, request_id: int, nbytes: int = 10) -> list[ev.DeviceInstruction]:
    return m.add_inputs(task(request_id, 1), {"a": np.zeros(nbytes, np.uint8)}, (), 0.0)


@pytest.mark.parametrize("bounds", [{"max_tasks": 8}, {"max_nbytes": 80}])
def test_client_over_its_memory_loses_its_oldest_join(
    bounds,
):
    m = DeviceMachine(**bounds)
    m.open(ev.StageOpened("d", 1, ("a", "b"), 1, client="one"))
    m.open(ev.StageOpened("e", 0, ("x",), 0, client="other"))
    add_inputs(m, other(1), "x")  # a task of another client runs and remains
    add_inputs(m, other(2), "x")
    for request_id in range(1, 9):
        assert joining(m, request_id) == []
    done = joining(m, 9)
    failed_tasks = [i.task for i in done if isinstance(i, Failure)]
    assert failed_tasks == [task(1, 1), task(2, 1), task(3, 1)]
    assert all(isinstance(i, Failure) for i in done)
    assert nbytes_of(m, "one") == 60
    assert m.num_tasks == 6 + 2
    assert joining(m, 1) == []  # late values of ended tasks


def test_reused_stage_number_takes_inputs_of_new_subgraph():
    m = machine()
    m.open(ev.StageOpened("d", 0, ("z",), 0))
    assert add_inputs(m, task(1), "z") == [run(task(1), "z")]


def test_queries_of_clients_and_attempts():
    m = machine()
    m.open(ev.StageOpened("e", 0, ("x",), 0, client="other", timeout_s=3.0))
    m.open(ev.StageOpened("e", 1, ("x",), 0, client="other", timeout_s=2.0))
    m.open(ev.StageOpened("f", 0, ("x",), 0, client="other"))
    assert (m.client_of("e"), m.client_of("d"), m.client_of("missing")) == ("other", "", None)
    assert (m.deployments_of("other"), m.deployments_of("nobody")) == (["e", "f"], [])
    assert set(m.clients) == {"", "other"}
    assert m.stall_allowance_s == 2.0  # 0 is no limit
    assert machine().stall_allowance_s == float("inf")
    m.drop(task(1, attempt=2).request)
    states = [m.is_dropped(task(1, attempt=n).request) for n in (1, 2, 3)]
    assert states == [False, True, False]
    assert not m.is_dropped(task(2, attempt=2).request)
    assert m.is_dropped(Request(deployment="missing"))
    m.close("e")
    assert m.deployments_of("other") == ["f"]
    m.close("f")
    assert set(m.clients) == {""}
    assert m.close("f") == []


def test_timings_of_two_paths_are_joined():
    m = machine()
    timings = [StageTiming(stage, "A") for stage in range(3)]
    m.add_inputs(task(1, 1), {"a": None}, (timings[0], timings[1]), 5.0)
    newer = timings[0]._replace(device="B")
    (run,) = m.add_inputs(task(1, 1), {"b": None}, (newer, timings[2]), 7.0)
    assert isinstance(run, ev.TaskRun)
    assert [(r.stage, r.device) for r in run.runs] == [(0, "B"), (1, "A"), (2, "A")]
    assert (run.ready_s, list(run.tensors)) == (7.0, ["a", "b"])


class Direct:
    """Task without a record."""

    entered: Any = None


def test_direct_task_occupies_a_stream_until_it_leaves():
    m = machine()
    stage, first, second = m.stage("d", 0), Direct(), Direct()
    assert m.enter(stage, first)
    assert (first.entered, stage.num_running, m.num_running) == (stage, 1, 1)
    assert not m.enter(stage, second)
    assert second.entered is None
    assert add_inputs(m, task(5), "x") == []  # it waits
    assert m.release_stream(stage, first) == [run(task(5), "x")]
    assert (first.entered, stage.num_running, m.num_running) == (None, 1, 1)
    assert m.release_stream(stage, first) == []
    assert (stage.num_running, m.num_running) == (1, 1)


def test_direct_task_is_remembered_by_its_attempt():
    m = machine(3)
    stage, direct = m.stage("d", 0), Direct()
    assert m.begin_direct(stage, (1, 1), direct)
    assert direct.entered is stage
    assert (m.num_tasks, m.num_running, stage.num_running) == (1, 1, 1)
    assert m.begin_direct(stage, (1, 1), Direct()) is None
    assert add_inputs(m, task(1), "x") == []
    assert m.end_direct(stage, direct) == []
    assert direct.entered is None
    assert (m.num_tasks, m.num_running, stage.num_running) == (0, 0, 0)
    m.drop(task(2).request)
    assert m.begin_direct(stage, (2, 1), Direct()) is None
    joins = m.stage("d", 1)
    add_inputs(m, task(3, 1), "a")
    assert m.begin_direct(joins, (3, 1), Direct()) is False  # it has a record already
    assert m.begin_direct(joins, (1, 1), Direct())  # another stage of the first attempt
    assert m.num_running == 1


def test_ended_direct_task_starts_the_next_one():
    m = machine()
    stage, direct = m.stage("d", 0), Direct()
    assert m.begin_direct(stage, (1, 1), direct)
    assert m.begin_direct(stage, (2, 1), Direct()) is False  # the stream is taken
    assert add_inputs(m, task(5), "x") == []  # it waits
    assert m.end_direct(stage, direct) == [run(task(5), "x")]


def test_few_ended_and_dropped_attempts_are_remembered(monkeypatch):
    monkeypatch.setattr("hetero.scheduler.device.task_queue._REMEMBERED", 2)
    m = machine()
    for number in (1, 2, 3):
        add_inputs(m, task(number), "x")
        end(m, task(number))
        m.drop(task(number + 10).request)
    stage = m.stage("d", 0)
    assert [m.begin_direct(stage, (n, 1), Direct()) for n in (2, 3)] == [None, None]
    direct = Direct()
    assert m.begin_direct(stage, (1, 1), direct)  # forgotten
    m.end_direct(stage, direct)
    assert m.begin_direct(stage, (2, 1), Direct())  # forgotten in its turn
    assert [m.is_dropped(task(n).request) for n in (11, 12, 13)] == [False, True, True]


def test_older_description_does_not_replace_a_newer_one():
    m = machine()
    for number, inputs in ((5, ("new",)), (4, ("old",)), (5, ("newest",))):
        m.open(ev.StageOpened("d", 0, inputs, 0, number=number))
    assert m.stage("d", 0).description.inputs == ("newest",)
    m.open(ev.StageOpened("d", 0, ("old",), 0, number=3))
    assert m.stage("d", 0).inputs == {"newest"}


def test_misplaced_tasks_name_the_stage_and_attempt():
    m = machine()
    expected = {"stage": 7, "request_id": 3, "attempt": 2}
    unknown = task(3, 7, attempt=2)
    for failure in (m.add_inputs(unknown, {"x": None}, (), 0.0)[0], m.misplaced_failure(unknown)):
        assert isinstance(failure, Failure)
        assert isinstance(failure.error, DeviceLostError)
        assert expected.items() <= failure.error.data.items()
    (failure,) = add_inputs(m, task(3, 0, attempt=2), "q")
    assert isinstance(failure, Failure)
    assert type(failure.error) is DeviceError
    assert failure.error.data == {**expected, "stage": 0}


def test_average_run_time_moves_by_a_quarter():
    stage = machine().stage("d", 0)
    assert stage.ewma_s == float("inf")
    averages = []
    for run_s in (8.0, 4.0, 7.0):
        stage.record_run(run_s)
        averages.append(stage.ewma_s)
    assert averages == [8.0, 7.0, 7.0]
