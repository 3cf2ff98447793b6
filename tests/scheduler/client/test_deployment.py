"""Deployments without devices: messages to stages, constants, clocks, and measured durations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import PlanError, TensorLostError, TensorNameError
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response, StageTiming
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.client.constant_folding import ConstantStages
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.messages import Dropped, Failure, Outputs, Task
from hetero.scheduler.types.placement import Placement, share, single_placement
from tests.scheduler.models import Line, build, cut
from tests.support.manual_clock import ManualClock

X = np.arange(4, dtype=np.float32)
#: Stage 0 on A makes h and y, stage 1 on B makes c from constants, stage 2 on C makes z.
LINES: list[Line] = [
    ("Neg", "first", ["x"], "h"),
    ("Relu", "too", ["x"], "y"),
    ("Neg", "fixed", ["w"], "c"),
    ("Mul", "last", ["h", "c"], "z"),
]


class Deployed(Deployment):
    """Deployment whose devices are the test."""

    def executed_nodes(self, stage: int) -> Any: ...

    def export(self, stage: int) -> Any: ...

    def _unload(self) -> None: ...


class Client:
    """A deployment of three stages, and the messages that it sends."""

    def __init__(self, placement: Placement | None = None, **options: Any) -> None:
        model = build(LINES, ["y", "z", "x", "w"], weights={"w": np.float32([2])})
        self.plan, _ = cut(model, ("A", ["first", "too"]), ("B", ["fixed"]), ("C", ["last"]))
        self.board, self.clock = Switchboard(), ManualClock(50.0)
        self.sent: list[tuple[str, Any]] = []
        for address in ("a", "b", "c", "c2"):
            self.board.connect(address, lambda message, to=address: self.sent.append((to, message)))  # type: ignore[misc]
        memory = RemoteMemory("memory", self.board.connect, self.clock)
        self.deployments: Deployments[Any] = Deployments([], memory, self.clock)
        options.setdefault("constants", {"w": np.float32([2]), "more": X})
        constants = options.pop("constants")
        self.deployment = Deployed(
            "key",
            placement or single_placement(self.plan),
            constants,
            options.pop("limits", Limits()),
            self.deployments,
            connect=partial(self.board.connect, "client"),
            addresses={"A": "a", "B": "b", "C": "c"},
            **options,
        )

    def submit(self, **options: Any) -> Any:
        self.sent.clear()
        return self.deployment.submit({"x": X}, Request(**options))

    def answer(self, outputs: dict[str, Any], *runs: StageTiming, attempt: int = 1) -> None:
        number = self.sent[0][1].task.request.id
        request = Request(deployment="key", id=number, attempt=attempt)
        self.board.connect("device", lambda message: None).send(
            "client", Outputs(Task(request, runs[-1].stage), outputs, runs)
        )


@pytest.fixture
def client():
    client = Client()
    yield client
    client.deployment.close()


def timing(stage: int, device: str, started_s: float = 0.0, ended_s: float = 0.0) -> StageTiming:
    return StageTiming(stage, device, 0.0, started_s, ended_s)


def test_stages_that_need_no_other_get_a_message(client):
    client.submit(priority=3)
    messages = dict(client.sent)
    assert {a: (m.task.stage, list(m.tensors)) for a, m in messages.items()} == {
        "a": (0, ["x"]),
        "b": (1, []),
    }
    request = messages["a"].task.request
    assert (request.deployment, request.id, request.attempt, request.route, request.priority) == (
        *("key", 1, 1, 0),
        3,
    )


def test_response_has_the_outputs_in_order(client):
    submission = client.submit()
    client.answer({"y": X + 1}, timing(0, "A"))
    assert not submission.future.done()
    client.answer({"z": X + 2}, timing(0, "A"), timing(1, "B"), timing(2, "C"))
    response: Response = submission.future.result(0)
    assert [(name, value.tolist()) for name, value in response.outputs.items()] == [
        ("y", (X + 1).tolist()),
        ("z", (X + 2).tolist()),
        ("x", X.tolist()),
        ("w", [2]),
    ]
    assert not np.shares_memory(response.outputs["x"], X)  # the caller may change its input
    assert [run.stage for run in response.stage_timings] == [0, 1, 2]


def test_failure_of_a_stage_ends_the_request(client):
    submission = client.submit()
    task = client.sent[0][1].task
    client.board.connect("device", lambda m: None).send("client", Failure(task, ValueError("bad")))
    assert str(submission.future.exception(0)) == "bad"
    assert {(a, type(m)) for a, m in client.sent[2:]} == {(a, Dropped) for a in "abc"}


def test_missing_devices_of_packed_timings_are_those_of_the_stages(client):
    submission = client.submit()
    client.answer({"y": X, "z": X}, timing(0, ""), timing(1, "B'"), timing(2, ""))
    devices = [run.device for run in submission.future.result(0).stage_timings]
    assert devices == ["A", "B'", "C"]


def test_device_times_are_those_of_the_clients_clock():
    offsets = {"a": 100.0, "b": None, "c": -20.0}
    client = Client(clock_offset_s=offsets.__getitem__)
    submission = client.submit()
    runs = (timing(0, "A", 151, 152), timing(1, "B", 7, 8), timing(2, "C", 33, 34.5))
    client.answer({"y": X, "z": X}, *runs)
    times = [(run.started_s, run.ended_s) for run in submission.future.result(0).stage_timings]
    assert times == [(51, 52), (7, 8), (53, 54.5)]
    client.deployment.close()


def test_constant_stage_runs_once(client):
    calls: list[int] = []

    def run() -> dict[str, Any]:
        calls.append(1)
        return {"c": np.float32([-2])}

    known = client.deployment.constant_stages
    for _ in range(2):
        known.make(1, run)
    client.deployment.switch_to()
    assert calls == [1]
    submission = client.submit()
    assert [(a, m.task.stage) for a, m in client.sent] == [("a", 0)]
    client.answer({"y": X, "z": X}, timing(0, "A"), timing(2, "C"))
    run_of_b = submission.future.result(0).stage_timings[1]
    assert (run_of_b.stage, run_of_b.device, run_of_b.started_s, run_of_b.ended_s) == (
        *(1, "B"),
        *(50, 50),
    )
    client.submit(profile=True)  # profiling runs it
    assert [a for a, _ in client.sent] == ["a", "b"]
    # Its reader receives h alone, with the position 0 among the inputs that vary.
    description = client.deployment.stage_description(2, 4)
    assert (description.inputs, description.num_streams, description.level) == (("h",), 4, 1)


def test_description_of_a_stage(client):
    description = client.deployment.stage_description(0, 2)
    assert description == ev.StageOpened(
        "key",
        0,
        ("x",),
        0,
        {0: (ev.Send("c", 2, ("h",), (0,)),)},
        ("y",),
        2,
        "client",
        0.0,
        1,
    )
    client.deployment.set_address("C", "c2")
    again = client.deployment.stage_description(0, 2)
    assert (again.sends, again.number) == ({0: (ev.Send("c2", 2, ("h",), (0,)),)}, 2)
    assert client.deployment.stage_description(1, 1).sends == {0: (ev.Send("c2", 2, ("c",), (1,)),)}


def test_tensors_have_the_order_of_their_receivers_inputs():
    lines: list[Line] = [*LINES[:2], ("Sub", "last", ["y", "h"], "z")]
    plan, _ = cut(build(lines, ["z"]), ("A", ["first", "too"]), ("C", ["last"]))
    assert (plan.stages[0].outputs, plan.stages[1].inputs) == (("h", "y"), ("y", "h"))
    client = Client(single_placement(plan), constants={})
    description = client.deployment.stage_description(0, 1)
    assert description.sends == {0: (ev.Send("c", 1, ("y", "h"), (0, 1)),)}
    client.deployment.close()


def test_extended_placement_has_another_route(client):
    model = build(LINES, ["y", "z", "x", "w"], weights={"w": np.float32([2])})
    other, _ = cut(model, ("D", ["first", "too", "fixed", "last"]))
    client.board.connect("d", lambda message: client.sent.append(("d", message)))
    placement = client.deployment.extend(single_placement(other), {}, {"D": "d"})
    assert [route.stages for route in placement.routes] == [(0, 1, 2), (3,)]
    runner = client.deployment._runner
    runner.handle(ev.RoutesAdded(0.0, placement.routes[1:]))
    runner.handle(ev.DeviceRemoved(0.0, "A", "n", "left"))
    submission = client.submit()
    assert [(a, m.task.stage, m.task.request.route) for a, m in client.sent] == [("d", 3, 1)]
    client.answer({"y": X, "z": X}, timing(3, "D"))
    assert submission.future.result(0).outputs["w"].tolist() == [2]
    assert client.deployment._runner.counts() == (0, 0)


def test_request_that_waits_for_a_lost_tensor_fails(client):
    memory = client.deployments.memory
    task = Task(Request(deployment="other", id=1, attempt=1), 0)
    tensor = memory.outputs("Z", "z", task, {"t": ("float", (4,))})["t"]
    submission = client.deployment.submit({"x": tensor})
    plain = client.submit()
    for device in ("Y", "A"):  # another device; one of its route, which causes a replay
        client.deployment.tensors_lost(device)
        assert not submission.future.done()
    client.deployment.tensors_lost("Z")
    error = submission.future.exception(0)
    assert isinstance(error, TensorLostError)
    assert (error.data["port"], error.data["device"]) == ("x", "Z")
    assert not plain.future.done()


def test_deployment_requires_its_constants_and_inputs(client):
    with pytest.raises(PlanError, match=r"no values for constant outputs \['w'\]"):
        Client(constants={})
    for inputs, missing, unknown in (
        ({}, "['x']", "[]"),
        ({"x": X, "q": X}, "[]", "['q']"),
        (dict.fromkeys("xhgfedcba", X), "[]", f"{[*'abcdefgh']}"),
    ):
        with pytest.raises(TensorNameError) as caught:
            client.deployment.submit(inputs)
        assert f"inputs missing {missing}, unknown {unknown}; it takes ['x']" in str(caught.value)


def test_plan_without_stages_is_answered_at_once():
    model = build([], ["x"])
    plan, _ = cut(model)
    client = Client(single_placement(plan))
    assert client.submit().future.result(0).outputs["x"].tolist() == X.tolist()
    assert client.sent == []
    client.deployment.close()


def test_closed_deployment_is_forgotten(client):
    submission = client.submit()
    assert (len(client.deployments), len(client.deployment.in_flight())) == (1, 1)
    assert client.deployment.in_flight()[0].record.id == submission.request_id
    client.deployment.close_later()
    client.clock.pass_s(0.0)
    deadline = client.deployment
    while not deadline.is_closed:  # its thread
        pass
    deadline.close()
    assert len(client.deployments) == 0
    assert "closed with the request in flight" in str(submission.future.exception(0))
    with pytest.raises(RuntimeError):
        deadline.callback_executor.submit(print)


# A request is tiny if it takes less than 0.2 ms; eight in a row make requests of at most their
# input size tiny. A slow one among them takes eight away, at most 16 are counted.
@pytest.mark.parametrize(
    ("requests", "nbytes", "is_tiny"),
    [
        ([(0.0001, 10)] * 8, 10, True),
        ([(0.0001, 10)] * 7, 10, False),
        ([(0.0001, 10)] * 8, 11, False),
        ([(0.0001, 10)] * 8, 3, True),
        ([(0.0002, 10)] * 20, 10, False),
        ([(0.0001, 10)] * 15 + [(0.0002, 10)], 10, False),
        ([(0.0001, 10)] * 16 + [(0.0002, 10)], 10, True),
        ([(0.0001, 10)] * 99 + [(0.0002, 10)] * 2, 10, False),
        ([(0.0001, 10)] * 8 + [(0.0002, 11)], 10, True),  # larger requests may be slower
        ([(0.0001, 10)] * 8 + [(0.0001, 11)], 10, False),  # counted anew for the larger size
        ([(0.0001, 10)] * 8 + [(0.0001, 11)] + [(0.0001, 3)] * 7, 11, True),
        ([(0.0001, 0)] * 8, 0, True),
    ],
)
def test_requests_are_tiny_after_several_quick_ones(client, requests, nbytes, is_tiny):
    for took_s, size in requests:
        client.deployment._learn(took_s, size)
    assert (nbytes <= client.deployment._max_tiny_nbytes) == is_tiny


@pytest.mark.parametrize(
    ("took_s", "inline", "timeout_s", "helps"),
    [
        (0.0199, True, 600.0, True),
        (0.02, True, 600.0, False),
        (0.0199, False, 600.0, False),
        (0.0199, None, 600.0, False),
        (0.0199, True, 599.0, False),  # callers observe a deadline that the user has set
    ],
)
def test_waiting_callers_run_quick_requests(took_s, inline, timeout_s, helps):
    helped: list[int] = []

    def help_with(number: int, begin: Callable[[], None]) -> None:
        helped.append(number)
        begin()

    client = Client(help_with=help_with, limits=Limits(timeout_s=timeout_s))
    client.submit(inline=True)
    assert helped == []  # nothing is known of the first
    client.answer({"y": X, "z": X}, timing(0, "A", 0, took_s), timing(1, "B"), timing(2, "C"))
    client.submit(inline=inline)
    assert helped == [2] * helps
    assert [a for a, _ in client.sent] == ["a", "b"]
    client.deployment.close()


def test_constants_of_several_routes():
    model = build(LINES, ["y", "z"], weights={"w": np.float32([2])})
    plans = [
        cut(model, ("A", ["first", "too"]), (device, ["fixed"]), ("C", ["last"]))[0]
        for device in ("B", "D")
    ]
    placement = share(plans, [1.0, 1.0])
    constants = ConstantStages()
    assert constants.inputs_of(placement, 2) == {}
    constants.make(1, lambda: {"c": np.float32([1])})
    assert {n: c.array.tolist() for n, c in constants.inputs_of(placement, 2).items()} == {"c": [1]}
    constants.make(3, lambda: {"c": np.float32([3])})
    assert {n: c.array.tolist() for n, c in constants.inputs_of(placement, 2).items()} == {"c": [3]}
    assert constants.inputs_of(placement, 0) == {}
    constants.make(2, lambda: {"z": [np.float32([1])]})  # not a tensor
    assert sorted(constants.outputs) == [1, 3]
    assert not constants.outputs[1]["c"].array.flags.writeable
    constants.keep(3)
    assert sorted(constants.outputs) == [1]


def test_constant_stage_is_deterministic():
    placement = single_placement(Client().plan)
    constants = ConstantStages()
    models = {
        name: build([(operator, name, [], "c")], ["c"], inputs=())
        for name, operator in (("random", "RandomNormal"), ("fixed", "Neg"))
    }
    fixed = build([("Neg", "fixed", ["w"], "c")], ["c"], inputs=(), weights={"w": X})
    assert constants.includes(placement, 1, fixed)
    assert not constants.includes(placement, 1, models["random"])
    assert not constants.includes(
        placement, 1, build([("Neg", "n", ["q"], "c")], ["c"], inputs=["q"])
    )
    assert not constants.includes(placement, 1, build([], ["w"], inputs=(), weights={"w": X}))
    constants.make(1, lambda: {"c": X})
    reader = build([("Neg", "last", ["c"], "z")], ["z"], inputs=["c"])
    assert constants.includes(placement, 2, reader)
