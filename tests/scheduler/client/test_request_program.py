"""Request programs: runs on callers' threads, and their adoption by the state machine."""

from __future__ import annotations

import gc
import itertools
import re
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import (
    DeviceMemoryError,
    HeteroError,
    RequestCancelledError,
    UnsupportedOperationError,
)
from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.scheduler import InProcessExecutor, Limits, create_executor
from hetero.scheduler.channels.memory import MemoryChannel
from hetero.scheduler.client import deployment as deployment_module
from hetero.scheduler.client.request_runner import Submission
from hetero.scheduler.device.resident_tensors import ResidentTensors
from hetero.scheduler.executor import Deployment
from hetero.scheduler.inprocess import InProcessDeployment
from hetero.scheduler.types.placement import share
from hetero.scheduler.types.plan import Plan
from hetero.scheduler.types.request_record import RequestState
from tests.scheduler.models import Line, build, chain, cut, diamond, replicate
from tests.scheduler.observers import Notes
from tests.scheduler.plugins import ToyPlugin, ToyProgram

X = np.arange(4, dtype=np.float32)
PATIENCE_S = 60.0
WAITS = Request(inline=True)
STARTS = Request(inline=None)


@pytest.fixture(autouse=True)
def all_requests_are_short(monkeypatch):
    """Classify every request that has run once as short, independent of the load."""
    monkeypatch.setattr(deployment_module, "_QUICK_S", PATIENCE_S)
    monkeypatch.setattr(deployment_module, "_TINY_S", PATIENCE_S)


@pytest.fixture
def executor():
    executor = create_executor("inprocess", devices={"TOY": 3}, plugins=(ToyPlugin,))
    yield executor
    executor.close()


def warm(deployment: InProcessDeployment, **inputs: np.ndarray) -> InProcessDeployment:
    """Return a deployment with idle workers, whose requests are classified as short."""
    for _ in range(deployment_module._STEADY):
        deployment.submit(inputs or {"x": X}).future.result(PATIENCE_S)
    while not deployment._workers.are_idle:
        threading.Event().wait(0.001)
    return deployment


def learn_that_it_is_short(deployment: Deployment, nbytes: int = X.nbytes) -> None:
    """Classify a deployment's requests as short without a run."""
    for _ in range(deployment_module._STEADY):
        deployment._learn(0.0, nbytes)


def held_nothing(executor: InProcessExecutor, deployment: Deployment) -> bool:
    """Return whether nothing is counted, reserved or running."""
    runner = deployment._runner
    in_flight, machine = executor._deployments.in_flight, runner.machine
    loops = executor._loops.values()
    return (
        runner.counts() == (0, 0)
        and not runner.live_records()
        and not runner._calls
        and in_flight.nbytes == in_flight.num_running == 0
        and all(way.num_running == 0 for way in machine._routes.states)
        and all(loop._machine.num_running == loop._machine.num_tasks == 0 for loop in loops)
        and not any(loop.host._running for loop in loops)
    )


@pytest.mark.parametrize("request_", [WAITS, STARTS])
def test_short_request_runs_on_its_callers_thread(executor, request_):
    deployment = warm(executor.deploy(*diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0"))))
    submission = deployment.submit({"x": X}, request_)
    assert isinstance(submission, CompletedSubmission)
    np.testing.assert_array_equal(submission.outputs["y"], 2 - 4 * X)
    assert [run.stage for run in submission.stage_timings] == [0, 1, 2, 3]
    assert submission.waited_s == 0
    assert not submission.cancel()
    assert submission.pending_outputs() == {}
    assert [line.event for line in submission.story()] == [
        f"submitted with {X.nbytes} bytes",
        "started",
        "answered",
    ]
    assert held_nothing(executor, deployment)


@pytest.mark.parametrize(
    "request_",
    [
        Request(),
        Request(inline=True, timeout_s=300),
        Request(inline=True, profile=True),
        Request(inline=True, resident_copies=("t0",)),
    ],
    ids=["its caller goes on", "own deadline", "profile", "kept output"],
)
def test_request_with_options_is_submitted(executor, request_):
    deployment = warm(executor.deploy(*chain("TOY.0")))
    submission = deployment.submit({"x": X}, request_)
    assert isinstance(submission, Submission)
    np.testing.assert_array_equal(submission.future.result(PATIENCE_S).outputs["t0"], X + 1)


@pytest.mark.parametrize(
    "limits", [Limits(in_order=True), Limits(timeout_s=300)], ids=["in order", "model's time-out"]
)
def test_deployment_with_special_limits_has_no_program(executor, limits):
    deployment = warm(executor.deploy(*chain("TOY.0"), limits=limits))
    assert isinstance(deployment.submit({"x": X}, WAITS), Submission)


def test_deployment_with_passthrough_or_constant_output_has_no_program(
    executor,
):
    model = build(
        [("Neg", "a", ["x"], "y")], ["y", "x", "c"], weights={"c": np.ones(1, np.float32)}
    )
    plan, sources = cut(model, ("TOY.0", ["a"]))
    deployment = warm(executor.deploy(plan, sources, {"c": np.ones(1, np.float32)}))
    submission = deployment.submit({"x": X}, WAITS)
    assert isinstance(submission, Submission)
    assert submission.future.result(PATIENCE_S).outputs.keys() == {"x", "y", "c"}


def test_request_with_other_values_or_names_is_submitted(
    executor,
):
    deployment = warm(executor.deploy(*chain("TOY.0")))
    text = np.array(["a"], dtype=object)
    assert isinstance(deployment.submit({"x": text}, WAITS), Submission)
    for inputs in ({}, {"y": X}, {"x": X, "y": X}):
        with pytest.raises(ValueError, match="missing"):
            deployment.submit(inputs, WAITS)
    assert held_nothing(executor, deployment)


def test_started_request_is_submitted_if_workers_are_busy(executor, gate):
    gate.set()
    deployment = warm(executor.deploy(*chain("TOY.0")))
    other = executor.deploy(*chain("TOY.1"))
    assert isinstance(deployment.submit({"x": X}, STARTS), CompletedSubmission)
    larger = deployment.submit({"x": np.ones(5, np.float32)}, STARTS)
    assert isinstance(larger, Submission)
    larger.future.result(PATIENCE_S)
    gate.clear()
    busy = other.submit({"x": X})
    waits = deployment.submit({"x": X}, STARTS)
    assert isinstance(waits, Submission)
    gate.set()
    assert busy.future.result(PATIENCE_S)
    assert waits.future.result(PATIENCE_S)


def test_observers_receive_requests_run_by_callers():
    notes = Notes()
    observed = create_executor(
        "inprocess", devices={"TOY": 1}, plugins=(ToyPlugin,), observers=[notes]
    )
    deployment = warm(observed.deploy(*chain("TOY.0")))
    submission = deployment.submit({"x": X}, WAITS)
    assert isinstance(submission, CompletedSubmission)
    observed_request = notes.requests[-1]
    assert (observed_request.record.id, observed_request.record.state) == (
        submission.request_id,
        RequestState.ANSWERED,
    )
    assert observed_request.runs == notes.ran_stages[-1] == submission.stage_timings
    observed.close()


def test_inputs_are_read_only_and_outputs_are_writable(executor, monkeypatch):
    model = build([("Neg", "a", ["x"], "y"), ("Neg", "b", ["y"], "z")], ["y", "z"])
    deployment = warm(executor.deploy(*cut(model, ("TOY.0", ["a"]), ("TOY.1", ["b"]))))
    run, writeable = ToyProgram.run, []

    def noted(self: ToyProgram, inputs: Any, context: Any) -> Any:
        writeable.extend(value.flags.writeable for value in inputs)
        return run(self, inputs, context)

    monkeypatch.setattr(ToyProgram, "run", noted)
    mine = X.copy()
    submission = deployment.submit({"x": mine}, WAITS)
    assert isinstance(submission, CompletedSubmission)
    assert writeable == [False, False]
    assert mine.flags.writeable
    assert all(submission.outputs[name].flags.writeable for name in "yz")


def test_routes_take_turns(executor):
    plan, sources = chain("TOY.0", "TOY.1")
    placed = replicate(plan, {0: {"TOY.0": 2.0, "TOY.2": 1.0}})
    deployment = warm(executor.deploy(placed, [*sources, sources[0]]))
    submissions = [deployment.submit({"x": X}, WAITS) for _ in range(9)]
    assert all(isinstance(one, CompletedSubmission) for one in submissions)
    runs = Counter(
        tuple((run.stage, run.device) for run in one.future.result().stage_timings)
        for one in submissions
    )
    # In stage order, which is not the order of the second route.
    assert runs == {((0, "TOY.0"), (1, "TOY.1")): 6, ((1, "TOY.1"), (2, "TOY.2")): 3}
    assert [line.event for line in submissions[0].story()][1].startswith("started on route ")
    assert held_nothing(executor, deployment)


@pytest.fixture
def gate(monkeypatch):
    """Event for which runs on devices wait."""
    gate_opened = threading.Event()
    run = ToyProgram.run

    def held(self: ToyProgram, *arguments: object) -> object:
        assert gate_opened.wait(PATIENCE_S)
        return run(self, *arguments)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(ToyProgram, "run", held)
    return gate_opened


@pytest.mark.parametrize("busy", ["TOY.0", "TOY.1", "TOY.2"])
@pytest.mark.parametrize("is_resident", [False, True], ids=["plain", "resident"])
def test_request_at_a_busy_device_is_adopted(executor, busy, is_resident, monkeypatch):
    deployment = warm(executor.deploy(*diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0"))))
    request, x = WAITS, X
    if is_resident:
        source = warm(executor.deploy(*chain("TOY.0", name="source")))
        stays = Request(inline=True, resident_outputs=("t0",))
        x = source.submit({"x": X - 1}, stays).future.result(PATIENCE_S).outputs["t0"]
        request = Request(inline=True, resident_outputs=("y",))
    other = executor.deploy(*chain(busy, name="meet_other_"))
    run_started, gate_opened = threading.Event(), threading.Event()
    run = ToyProgram.run

    def held(self: ToyProgram, *arguments: Any) -> object:
        if self._model.nodes[0].name.startswith("meet_other"):
            run_started.set()
            assert gate_opened.wait(PATIENCE_S)
        return run(self, *arguments)

    monkeypatch.setattr(ToyProgram, "run", held)
    first = other.submit({"x": X})
    assert run_started.wait(PATIENCE_S)
    submission = deployment.submit({"x": x}, request)
    assert isinstance(submission, Submission)
    assert not submission.future.done()
    assert [line.event for line in submission.story()][1:] == ["started"]
    assert deployment._runner.counts() == (0, 1)
    gate_opened.set()
    answer = submission.future.result(PATIENCE_S)
    y: Any = answer.outputs["y"]
    np.testing.assert_array_equal(y.tensor.to_host() if is_resident else y, 2 - 4 * X)
    assert [run.stage for run in answer.stage_timings] == [0, 1, 2, 3]
    assert first.future.result(PATIENCE_S)
    assert [line.event for line in submission.story()][1:] == ["started", "answered"]
    assert held_nothing(executor, deployment)


def test_waiting_task_runs_once_the_caller_frees_its_stream(executor, gate):
    gate.set()
    deployment = warm(executor.deploy(*chain("TOY.0")))
    gate.clear()
    submissions: list[Any] = []
    caller = threading.Thread(target=lambda: submissions.append(deployment.submit({"x": X}, WAITS)))
    caller.start()
    while not executor._loops["TOY.0"]._machine.num_running:
        threading.Event().wait(0.001)
    other = deployment.submit({"x": X + 1})
    assert not other.future.done()
    gate.set()
    np.testing.assert_array_equal(other.future.result(PATIENCE_S).outputs["t0"], X + 2)
    caller.join(PATIENCE_S)
    assert isinstance(submissions[0], CompletedSubmission)
    assert held_nothing(executor, deployment)


def test_waiting_request_is_admitted_once_the_caller_leaves(executor, gate):
    gate.set()
    deployment = warm(executor.deploy(*chain("TOY.0"), limits=Limits(requests=1)))
    gate.clear()
    caller = threading.Thread(target=deployment.submit, args=({"x": X}, WAITS))
    caller.start()
    while deployment._runner.counts() != (0, 1):
        threading.Event().wait(0.001)
    waits = deployment.submit({"x": X}, Request(waits=None))
    assert deployment._runner.counts() == (1, 1)
    gate.set()
    assert waits.future.result(PATIENCE_S)
    caller.join(PATIENCE_S)
    assert held_nothing(executor, deployment)


@pytest.mark.parametrize("kind", ["fail", "full", "refuse", "exit", "odd"])
def test_raising_stage_gives_the_error_of_a_submission(executor, kind):
    stories = []
    for request in (Request(), WAITS):
        deployment = executor.deploy(*chain("TOY.0", "TOY.1", names=["a", f"{kind}_b"]))
        learn_that_it_is_short(deployment)
        submission = deployment.submit({"x": X}, request)
        error = submission.future.exception(PATIENCE_S)
        assert isinstance(error, HeteroError)
        assert (kind == "fail") == isinstance(error.__cause__, ZeroDivisionError)
        data = {n: v for n, v in error.data.items() if n != "request_id"}
        story = [line.event for line in submission.story()]
        state = deployment._runner.machine.state(submission.request_id)
        all_told = repr((error, str(error), data, error.__cause__, story, state))
        stories.append(re.sub(rf"0x\w+|(?<=request ){submission.request_id}\b", "N", all_told))
        assert held_nothing(executor, deployment)
    assert stories[0] == stories[1]


def test_stage_without_memory_runs_on_another_route(executor):
    (one, sources), (other, more) = chain("TOY.0", name="full"), chain("TOY.1")
    deployment = executor.deploy(share([one, other], [1, 1]), [*sources, *more])
    learn_that_it_is_short(deployment)
    for _ in range(4):
        submission = deployment.submit({"x": X}, WAITS)
        assert [run.device for run in submission.future.result(PATIENCE_S).stage_timings] == [
            "TOY.1"
        ]
    assert held_nothing(executor, deployment)
    alone = executor.deploy(one, sources)
    learn_that_it_is_short(alone)
    with pytest.raises(DeviceMemoryError, match=r"stage 0 on device TOY\.0"):
        alone.submit({"x": X}, WAITS).future.result(PATIENCE_S)


def test_error_keeps_no_inputs_alive(executor):
    deployment = executor.deploy(*chain("TOY.0", name="refuse"))
    learn_that_it_is_short(deployment)
    mine = X.copy()
    error = deployment.submit({"x": mine}, WAITS).future.exception(PATIENCE_S)
    reference = weakref.ref(mine)
    del mine
    gc.collect()
    assert error is not None
    assert reference() is None


def test_close_cancels_a_run_in_its_callers_thread(executor):
    deployment = executor.deploy(*chain("TOY.0", name="sleep_60_"))
    learn_that_it_is_short(deployment)
    errors: list[BaseException | None] = []

    def call() -> None:
        errors.append(deployment.submit({"x": X}, WAITS).future.exception(PATIENCE_S))

    caller = threading.Thread(target=call)
    caller.start()
    while not executor._loops["TOY.0"].host._running:
        threading.Event().wait(0.001)
    deployment.close()
    caller.join(PATIENCE_S)
    assert isinstance(errors[0], RequestCancelledError)
    assert "closed with the request in flight" in str(errors[0])
    assert held_nothing(executor, deployment)
    with pytest.raises(RequestCancelledError, match="closed"):
        deployment.submit({"x": X}, WAITS).future.result(PATIENCE_S)


def interrupted_after(number: int) -> Callable[[FrameType, str, Any], None]:
    """Return a profiler that raises KeyboardInterrupt at the start or end of a call."""
    calls = itertools.count(1)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "return", "c_return") and next(calls) == number:
            sys.setprofile(None)
            raise KeyboardInterrupt

    return profile


def ways_to_run(executor: InProcessExecutor) -> Iterator[InProcessDeployment]:
    """Return deployments of a chain and of two routes."""
    yield executor.deploy(*chain("TOY.0", "TOY.1"))
    plans = [chain(name) for name in ("TOY.0", "TOY.1")]
    placement = share([plan for plan, _ in plans], [1, 1])
    yield executor.deploy(placement, [source for _, sources in plans for source in sources])


@pytest.mark.parametrize("number_of_way", [0, 1])
def test_ctrl_c_during_a_run_leaves_nothing_reserved(executor, number_of_way):
    deployment = warm([*ways_to_run(executor)][number_of_way])
    before = sys.getprofile()
    for number in itertools.count(1):
        sys.setprofile(interrupted_after(number))
        try:
            deployment.submit({"x": X}, WAITS)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
        assert held_nothing(executor, deployment), number
        assert isinstance(deployment.submit({"x": X}, WAITS), CompletedSubmission), number
    assert number > 50


@pytest.mark.parametrize("number_of_way", [0, 1])
@pytest.mark.parametrize("request_", [Request(), Request(timeout_s=300)], ids=["plain", "timed"])
def test_ctrl_c_during_a_submission_leaves_nothing_reserved(executor, number_of_way, request_):
    deployment = warm([*ways_to_run(executor)][number_of_way])
    before = sys.getprofile()
    for number in itertools.count(1):
        sys.setprofile(interrupted_after(number))
        try:
            submission = deployment.submit({"x": X}, request_)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
        until_s = time.monotonic() + PATIENCE_S
        while not held_nothing(executor, deployment):
            assert time.monotonic() < until_s, number
            time.sleep(0.0001)
        assert deployment.submit({"x": X}, request_).future.result(PATIENCE_S), number
    assert number > 50
    assert submission.future.result(PATIENCE_S)


def kept_nbytes(executor: InProcessExecutor) -> int:
    """Return the bytes of resident tensors on all devices."""
    return sum(loop._kept.nbytes for loop in executor._loops.values())


def test_resident_tensors_pass_from_run_to_run(executor):
    deployment = warm(executor.deploy(*chain("TOY.0")))
    request = Request(inline=True, restore_s=2.0, resident_outputs=("t0",))
    state: Any = X
    for number in range(1, 4):
        submission = deployment.submit({"x": state}, request)
        assert isinstance(submission, CompletedSubmission)
        state = submission.outputs["t0"]
        assert type(state) is ResidentTensor
        assert submission.stage_timings[0].resident == (("float", X.shape, (0,)),)
        np.testing.assert_array_equal(state.tensor.to_host(), X + number)
    del submission
    plain = deployment.submit({"x": state}, WAITS)
    assert isinstance(plain, CompletedSubmission)
    np.testing.assert_array_equal(plain.outputs["t0"], X + 4)
    assert kept_nbytes(executor) == X.nbytes  # earlier states are free
    assert held_nothing(executor, deployment)


def test_states_are_kept_and_freed_without_messages(executor, monkeypatch):
    deployment = warm(executor.deploy(*chain("TOY.0")))
    request = Request(inline=True, resident_outputs=("t0",))
    state: Any = deployment.submit({"x": X}, request).future.result(PATIENCE_S).outputs["t0"]
    messages: list[Any] = []
    monkeypatch.setattr(MemoryChannel, "send", lambda *message: messages.append(message))
    for _ in range(4):
        state = deployment.submit({"x": state}, request).outputs["t0"]
        assert kept_nbytes(executor) <= 2 * X.nbytes
    assert messages == []


def test_resident_outputs_of_several_shapes_are_grouped(executor):
    sources = {"a": "x", "b": "y", "c": "x"}
    lines: list[Line] = [("Neg", f"neg_{out}", (name,), out) for out, name in sources.items()]
    plan = cut(build(lines, "abc", inputs=("x", "y")), ("TOY.0", [line[1] for line in lines]))
    request = Request(inline=True, resident_outputs=("a", "b", "c"))
    y = np.ones(3, np.float32)
    deployment = warm(executor.deploy(*plan), x=X, y=y)
    direct = deployment.submit({"x": X, "y": y}, request)
    assert isinstance(direct, CompletedSubmission)
    submitted = deployment.submit({"x": X, "y": y}, request._replace(inline=False))
    (timing,) = submitted.future.result(PATIENCE_S).stage_timings
    assert direct.stage_timings[0].resident == timing.resident
    assert timing.resident == (("float", X.shape, (0, 2)), ("float", y.shape, (1,)))
    for name, want in (("a", -X), ("b", -y), ("c", -X)):
        np.testing.assert_array_equal(direct.outputs[name].tensor.to_host(), want)


def test_resident_tensor_of_another_device_is_submitted(executor):
    first = warm(executor.deploy(*chain("TOY.0")))
    second = warm(executor.deploy(*chain("TOY.1", "TOY.0")))
    request = Request(inline=True, resident_outputs=("t0",))
    state = first.submit({"x": X}, request).future.result(PATIENCE_S).outputs["t0"]
    submission = second.submit({"x": state}, WAITS)
    assert isinstance(submission, Submission)
    np.testing.assert_array_equal(submission.future.result(PATIENCE_S).outputs["t1"], X + 3)


def test_device_without_memory_for_a_resident_output_fails_the_request(executor, monkeypatch):
    deployment = warm(executor.deploy(*chain("TOY.0")))

    def keep(*arguments: object) -> None:
        raise DeviceMemoryError("full", device="TOY.0")

    monkeypatch.setattr(ResidentTensors, "keep", keep)
    submission = deployment.submit({"x": X}, Request(inline=True, resident_outputs=("t0",)))
    with pytest.raises(DeviceMemoryError, match="full"):
        submission.future.result(PATIENCE_S)
    assert held_nothing(executor, deployment)
    assert kept_nbytes(executor) == 0


def test_ctrl_c_during_a_run_with_states_frees_them(executor):
    deployment = warm(executor.deploy(*chain("TOY.0", "TOY.1")))
    request = Request(inline=True, resident_outputs=("t1",))
    state = deployment.submit({"x": X}, request).future.result(PATIENCE_S).outputs["t1"]
    assert not isinstance(deployment.submit({"x": X}, request), Submission)
    before = sys.getprofile()
    for number in itertools.count(1):
        sys.setprofile(interrupted_after(number))
        try:
            deployment.submit({"x": X}, request)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
        assert held_nothing(executor, deployment), number
        executor._deployments.memory.free_released()
        assert kept_nbytes(executor) == X.nbytes, number
    assert number > 80
    np.testing.assert_array_equal(state.tensor.to_host(), X + 2)


def test_ctrl_c_after_a_run_starts_waiting_tasks(executor, monkeypatch):
    deployment = warm(executor.deploy(*chain("TOY.0")))
    before, run_program = sys.getprofile(), ToyProgram.run
    waiting: list[Any] = []

    def run(self: ToyProgram, *arguments: Any) -> Any:
        outputs = run_program(self, *arguments)
        if not waiting:  # this run occupies the device's only stream
            waiting.extend([deployment.submit({"x": X}, Request()) for _ in range(3)])
            sys.setprofile(interrupted_after(number))
        return outputs

    monkeypatch.setattr(ToyProgram, "run", run)
    for number in itertools.count(1):
        is_interrupted = False
        try:
            deployment.submit({"x": X}, WAITS)
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.setprofile(before)
        for submission in waiting:
            np.testing.assert_array_equal(submission.future.result(10.0).outputs["t0"], X + 1)
        until_s = time.monotonic() + PATIENCE_S
        while not (held_nothing(executor, deployment) and deployment._workers.are_idle):
            assert time.monotonic() < until_s, number
            time.sleep(0.0001)
        assert len(waiting) == 3
        waiting.clear()
        if not is_interrupted:
            break
    assert number > 30


def drawn_plan(random: Random, fault: str) -> tuple[Plan, list[Any]]:
    """Return a random graph on random devices; one node may have a fault."""
    values, lines = ["x", "y"], list[Line]()
    for index in range(random.randint(1, 6)):
        operator, arity = random.choice([("Add", 2), ("Mul", 2), ("Neg", 1), ("Relu", 1)])
        arguments = [random.choice(values) for _ in range(arity)]
        lines.append((operator, f"n{index}", arguments, f"v{index}"))
        values.append(f"v{index}")
    if fault:
        index = random.randrange(len(lines))
        operator, _, arguments, gives = lines[index]
        lines[index] = (operator, f"{fault}_n{index}", arguments, gives)
    read = {name for _, _, arguments, _ in lines for name in arguments}
    outputs = {gives for *_, gives in lines if gives not in read or random.random() < 0.3}
    model = build(lines, sorted(outputs), inputs=("x", "y"))
    devices = [f"TOY.{random.randrange(3)}" for _ in lines]
    return cut(model, *((d, [line[1]]) for d, line in zip(devices, lines, strict=True)))


def lives(seed: int, path: str) -> Iterator[Any]:
    """Yield the outcome of random requests, and the counters after each.

    `path`: whether requests have a record, are sent without one, or run on their callers' threads.
    """
    random = Random(seed)
    notes = Notes()
    executor = create_executor(
        "inprocess",
        devices={"TOY": 3},
        plugins=(ToyPlugin,),
        observers=[notes],
    )
    try:
        for fault in ("", *random.choices(["", "fail", "full", "refuse", "exit"], k=3)):
            deployment = executor.deploy(*drawn_plan(random, fault))
            if path != "program":
                deployment._program = None
            deployment._sends_directly = path != "record"
            ended_numbers: list[int] = []
            note = partial(
                lambda ended_numbers, number, _: ended_numbers.append(number), ended_numbers
            )
            for _ in range(5):
                inputs = {n: np.float32(random.random()) * X for n in "xy"}
                learn_that_it_is_short(deployment, 2 * X.nbytes)
                request = random.choice([WAITS, STARTS, Request(inline=True, trace="00-ab-cd-01")])
                submission = deployment.submit(inputs, request)
                submission.future.add_done_callback(partial(note, submission.request_id))
                error = submission.future.exception(PATIENCE_S)
                answer = None if error else submission.future.result()
                record = deployment._runner.machine.record(submission.request_id)
                assert record is not None
                yield {
                    "kind": type(submission),
                    "error": (type(error), str(error)),
                    "outputs": answer and {n: v.tolist() for n, v in answer.outputs.items()},
                    "runs": answer and [(r.stage, r.device, r[9:]) for r in answer.stage_timings],
                    "record": (record.id, record.state, record.attempt, record.route),
                    "sizes": (record.submitted.nbytes, record.nbytes, record.submitted.trace),
                    # Other branches of a submitted request may continue after one has failed.
                    "story": [
                        (line.attempt, line.event)
                        for line in record.story
                        if "came late" not in line.event
                    ],
                    "counts": deployment._runner.counts(),
                    "expected": deployment._runner.machine._expected._output_nbytes,
                }
            yield ended_numbers
            yield [(it.record.id, it.record.state, len(it.runs)) for it in notes.requests]
            until_s = time.monotonic() + PATIENCE_S
            while not held_nothing(executor, deployment):
                assert time.monotonic() < until_s
                time.sleep(0.001)
            deployment.close()
    finally:
        executor.close()


@pytest.mark.parametrize("seed", range(12))
def test_direct_and_submitted_requests_have_equal_records(seed):
    usual, sent, direct = ([*lives(seed, path)] for path in ("record", "sent", "program"))
    kinds = [one.pop("kind") for one in direct if isinstance(one, dict)]
    submitted = {one.pop("kind") for one in [*usual, *sent] if isinstance(one, dict)}
    assert submitted == {Submission}
    assert CompletedSubmission in kinds
    assert usual == direct
    assert usual == sent


def test_forked_process_is_refused(executor, monkeypatch):
    deployment = warm(executor.deploy(*chain("TOY.0")))
    monkeypatch.setattr(deployment._runner.home_process, "is_current", False)
    with pytest.raises(UnsupportedOperationError, match="fork"):
        deployment.submit({"x": X}, WAITS)


def test_starts_run_directly_after_many_short_requests(executor, monkeypatch):
    monkeypatch.setattr(deployment_module, "_TINY_S", 0.5)
    deployment = executor.deploy(*chain("TOY.0"))

    def runs_as_it_starts(took_s: float, nbytes: int = X.nbytes) -> bool:
        deployment._learn(took_s, nbytes)
        return X.nbytes <= deployment._max_direct_nbytes(STARTS)

    assert [runs_as_it_starts(0.4) for _ in range(16)] == [False] * 7 + [True] * 9
    assert runs_as_it_starts(0.6)
    assert not runs_as_it_starts(0.6)
    assert [runs_as_it_starts(0.4) for _ in range(8)] == [False] * 7 + [True]
    assert runs_as_it_starts(0.6, 2 * X.nbytes)  # durations of larger requests do not count
    assert runs_as_it_starts(0.6, 2 * X.nbytes)
    assert not runs_as_it_starts(0.4, 2 * X.nbytes)  # until larger requests are in the statistics
