"""Order of a device's queue: pipeline order for one client, equal turns for several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.request.request import Request
from hetero.scheduler.device.fair_queue import ClientQueue, FairQueue, Key
from hetero.scheduler.device.task_queue import DeviceMachine
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.messages import Task

LEVELS = 4


def machine(clients: Sequence[str]) -> DeviceMachine:
    """Return a machine on which each client has a deployment with one stage per level."""
    m = DeviceMachine()
    for client in clients:
        for level in range(LEVELS):
            m.open(ev.StageOpened(client, level, ("x",), level, client=client))
    return m


def arrive(
    m: DeviceMachine, client: str, sequence: int, *, level: int = 0, priority: int = 0
) -> list[Task]:
    """Deliver a task's only input; return the started tasks."""
    request = Request(deployment=client, id=sequence, attempt=1, priority=priority)
    return runs(m.add_inputs(Task(request, level), {"x": None}, (), 0.0))


def runs(instructions: list[ev.DeviceInstruction]) -> list[Task]:
    return [i.task for i in instructions if isinstance(i, ev.TaskRun)]


def drain(m: DeviceMachine, running: list[Task]) -> Iterator[Task]:
    """End the running tasks one by one."""
    while running:
        (task,) = running
        yield task
        running = end(m, task)


def end(m: DeviceMachine, task: Task) -> list[Task]:
    """End a running task; return the started tasks."""
    run = m.find(task)
    assert run is not None
    return runs(m.end(run)[1:])


one = st.tuples(st.integers(2, 9), st.integers(0, LEVELS - 1), st.integers(0, 1))


@given(st.lists(one, max_size=12, unique_by=lambda t: t[:2]))
def test_tasks_run_by_request_level_and_priority(
    tasks,
):
    m = machine("AB")
    for _ in drain(m, arrive(m, "B", 1)):  # another task runs
        pass
    running = arrive(m, "A", 1)
    for sequence, level, priority in tasks:
        assert arrive(m, "A", sequence, level=level, priority=priority) == []
    order = [(t.request.id, t.stage) for t in drain(m, running)][1:]
    expected = sorted(tasks, key=lambda t: (t[0] + t[1], -t[2]))
    assert order == [t[:2] for t in expected]


def test_flood_of_a_client_does_not_delay_anothers_request():
    m = machine("AB")
    running = [task for n in range(1, 1001) for task in arrive(m, "A", n)]
    for _ in range(10):
        running = end(m, running[0])
    arrive(m, "B", 1)
    arrive(m, "B", 2)
    order = [task.request.deployment for task in drain(m, running)]
    assert order.index("B") <= 2
    assert "".join(order[:6]).count("B") == 2


@pytest.mark.parametrize("first", [1, 10**6])
def test_sequential_client_gets_half_of_a_flooded_device(first):
    m = machine("AB")
    running = [task for n in range(1, 1001) for task in arrive(m, "A", n)]
    count = Counter[str]()
    for step in range(200):
        if not step or running[0].request.deployment == "B":
            arrive(m, "B", first + step)
        count[running[0].request.deployment] += 1
        running = end(m, running[0])
    assert count["A"] == pytest.approx(100, abs=3)


@pytest.mark.parametrize("in_flight", [8, 64])
def test_flood_of_chains_delays_each_stage_by_one_task(in_flight):
    m = machine("AB")
    running = [task for n in range(1, in_flight + 1) for task in arrive(m, "A", n)]
    newest = Counter(A=in_flight, B=1)
    order = ""
    for step in range(20 * in_flight):
        (task,) = running
        client, level = task.request.deployment, task.stage
        order += client
        if level + 1 < LEVELS:
            arrive(m, client, task.request.id, level=level + 1)
        else:
            newest[client] += 1
            arrive(m, client, newest[client])
        if step == 10 * in_flight:  # the flood has requests at all levels
            arrive(m, "B", 1)
        running = end(m, task)
    assert "AA" not in order[10 * in_flight + 2 :]


def test_idle_client_saves_no_turns():
    m = machine("AB")
    for _ in drain(m, arrive(m, "B", 1)):
        pass
    running = [task for n in range(1, 1001) for task in arrive(m, "A", n)]
    for _ in range(500):
        running = end(m, running[0])
    for sequence in range(2, 200):
        arrive(m, "B", sequence)
    first = [task.request.deployment for task in islice(drain(m, running), 100)]
    assert first.count("B") == pytest.approx(50, abs=2)


@given(st.lists(st.integers(1, 20), min_size=2, max_size=4), st.integers(0, 3))
def test_busy_clients_get_equal_turns_despite_numbering(gaps, levels):
    """Request numbers on a device have gaps if other devices run some requests."""
    clients = "ABCD"[: len(gaps)]
    m = machine(clients)
    running: list[Task] = []
    for turn in range(1, 31):
        for client, gap in zip(clients, gaps, strict=True):
            running += arrive(m, client, turn * gap, level=turn % (levels + 1))
    count = Counter[str]()
    for task in islice(drain(m, running), 20 * len(clients)):
        count[task.request.deployment] += 1
    assert max(count.values()) - min(count.values()) <= 2 + 2 * levels


def test_clients_that_return_are_served_by_arrival():
    queue, lines = FairQueue[str](), {name: ClientQueue[str]() for name in "abc"}

    def run(name: str) -> str:
        client, _, task = queue.peek()
        queue.remove_first(client)
        queue.count_turn(lines[name])
        return task

    for name in "acccc":  # a has had a turn, b has had none, c has had several
        queue.push(lines[name], Key(0, 0, 0), name)
        assert run(name) == name
    queue.push(lines["a"], Key(0, 0, 1), "a")
    queue.push(lines["b"], Key(0, 0, 2), "b")
    assert [run("a"), run("b")] == ["a", "b"]
