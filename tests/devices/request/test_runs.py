"""Runs of an infer request on a target that responds when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from math import inf
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeadlineError,
    InferenceError,
    RequestBusyError,
    RequestCancelledError,
    RequestNotStartedError,
    TensorTypeError,
)
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable
from hetero.devices.plugin.program import ExecutedNode
from hetero.devices.request import state_machine
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.request import DEFAULT_REQUEST, REPLAY, Request, check_priority
from hetero.devices.request.response import NodeTimes, RequestTimes, Response, StageTiming
from hetero.devices.request.results import ProfilingStatus
from hetero.devices.request.run import MAX_TIMEOUT_S, Run
from hetero.devices.request.state_machine import State
from hetero.devices.request.story import StoryLine, format_story

X, Z = (TensorSpec(name, "tensor(float)", (2,)) for name in "xz")
Y = TensorSpec("y", "tensor(float)", (2,))
S = Variable(TensorSpec("s", "tensor(float)", (2,)), TensorSpec("s.next", "tensor(float)", (2,)))
TIMING = StageTiming(0, "D", 1.0, 2.0, 5.0, 0.25, 0.5, 1.25, {"n": 0.125})
ONES, TWOS = np.ones(2, np.float32), np.full(2, 2, np.float32)


class InlineExecutor:
    """Executor of callbacks that runs them at once, or refuses."""

    def __init__(self) -> None:
        self.refuses = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        if self.refuses:
            raise RuntimeError("shut down")
        function(*arguments)


class Submission:
    """A run in flight."""

    waited_s = 0.5

    def __init__(self, number: int) -> None:
        self.request_id = number
        self.future: Future[Response] = Future()
        self.cancelled = 0

    def story(self) -> tuple[StoryLine, ...]:
        return (StoryLine(7.0, 1, "admitted"), StoryLine(7.5, 1, "returned"))

    def cancel(self) -> None:
        self.cancelled += 1
        self.future.cancel()

    def pending_outputs(self) -> Mapping[str, Any]:
        return {}

    def respond(self, **outputs: np.ndarray) -> None:
        self.future.set_result(Response(outputs, (TIMING,)))


class Target:
    """Target with one or two inputs and one output."""

    name = "m"
    outputs = (Y,)
    optional_inputs = ()

    def __init__(self, *variables: Variable, inputs: tuple[TensorSpec, ...] = (X,)) -> None:
        self.inputs = inputs
        self.variables = variables
        self.profiles = False
        self.node_times = NodeTimes()
        self.callback_executor = InlineExecutor()
        self.runs: list[tuple[dict[str, Any], Request]] = []
        self.submissions: list[Submission] = []
        self.error: BaseException | None = None
        self.completes = False

    def copy_input(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def submit(self, values: Mapping[str, Any], request: Request) -> Any:
        if self.error is not None:
            raise self.error
        self.runs.append((dict(values), request))
        number = len(self.runs)
        if self.completes:
            return CompletedSubmission({"y": TWOS}, (TIMING,), number, lambda n: [(n, 0, "done")])
        self.submissions.append(Submission(number))
        return self.submissions[-1]

    def executed_name(self, stage: int, node: str) -> str:
        return f"{stage}/{node}"

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        return (
            ExecutedNode("0/n", "Neg", 0, "kernel", ("n",)),
            ExecutedNode("0/m", "Abs", 1, "kernel", ("m",)),
        )


@pytest.fixture
def target():
    return Target()


@pytest.fixture
def request_(target):
    return InferRequest(target, "compiled")


# Start and end.


def test_run_from_start_to_result(target, request_):
    assert (request_.state, request_.request_id, request_.story()) == (State.IDLE, None, ())
    request_.start_async(ONES)
    assert request_.state is State.BUSY
    assert not request_.wait_for(0)
    target.submissions[0].respond(y=TWOS)
    assert request_.state is State.IDLE
    assert request_.wait_for(0)
    np.testing.assert_array_equal(request_.results["y"], TWOS)
    np.testing.assert_array_equal(request_.get_tensor("y").data, TWOS)
    assert request_.request_id == 1
    assert request_.times.admission_s == 0.5
    assert request_.times.stages == (TIMING,)
    assert request_.get_compiled_model() == "compiled"


#: Name of the refused action in the message -> the action.
ACTIONS: dict[str, Callable[[InferRequest], Any]] = {
    "start_async": lambda r: r.start_async(ONES),
    "infer": lambda r: r.infer(ONES),
    "results": lambda r: r.results,
    "times": lambda r: r.times,
    "profiling_info": lambda r: r.profiling_info,
    "get_tensor": lambda r: r.get_tensor("x"),
    "set_tensor": lambda r: r.set_tensor("x", ONES),
    "set_tensors": lambda r: r.set_tensors("x", [ONES]),
    "set_input_tensor": lambda r: r.set_input_tensor(ONES),
    "set_output_tensor": lambda r: r.set_output_tensor(ONES),
    "get_input_tensor": lambda r: r.get_input_tensor(),
    "get_output_tensor": lambda r: r.get_output_tensor(),
    "keep_remote": lambda r: r.keep_remote("y"),
    "set_callback": lambda r: r.set_callback(None),
    "query_state": lambda r: r.query_state(),
    "reset_state": lambda r: r.reset_state(),
    "join_states": lambda r: r.join_states([], {}),
    "feedback": lambda r: setattr(r, "feedback", {"x": "y"}),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_busy_request_refuses(name, target, request_):
    request_.start_async(ONES)
    with pytest.raises(RequestBusyError, match=rf"^{name}: .*model 'm'.* busy") as caught:
        ACTIONS[name](request_)
    assert caught.value.data["state"] == "busy"
    target.submissions[0].respond(y=TWOS)
    assert len(target.runs) == 1


def test_run_before_its_submission():
    run = Run("data", 2.0)
    assert (run.submission, run.request_id, run.error, run.results) == (None,) * 4
    assert (run.story(), run.stage_timings, run.futures) == ((), (), ())
    assert (run.userdata, run.timeout_s, run.end.is_set()) == ("data", 2.0, False)
    assert Run(None, 1e300).timeout_s == MAX_TIMEOUT_S
    run.preprocess_s, run.admission_s, run.latency_s, run.postprocess_s = 1.0, 2.0, 7.0, 0.5
    assert run.times == RequestTimes(1.0, 2.0, 4.0, 0.5, ())
    run.latency_s = 2.0
    assert run.times.in_flight_s == 0


def test_run_that_cannot_be_cancelled_is_left(target, request_, monkeypatch):
    monkeypatch.setattr(state_machine, "_STOP_S", 0.001)
    monkeypatch.setattr(Submission, "cancel", lambda self: None)
    with pytest.raises(DeadlineError):
        request_.infer(ONES, timeout_s=0.001)
    assert request_.state is State.CANCELLED
    with pytest.raises(RequestBusyError, match=r"one that is cancelled; call wait\(\)"):
        request_.infer(ONES)


@pytest.mark.parametrize("action", [lambda r: r.results, lambda r: r.times, lambda r: r.future()])
def test_request_that_has_not_run(action, request_):
    with pytest.raises(RequestNotStartedError, match="model 'm'"):
        action(request_)
    request_.wait()
    assert request_.wait_for(0)
    assert request_.latency == 0


def test_second_run_has_its_own_result(target, request_):
    for number, values in enumerate((ONES, TWOS), start=1):
        request_.start_async(values)
        target.submissions[-1].respond(y=values)
        request_.wait()
        np.testing.assert_array_equal(request_.results["y"], values)
        assert request_.request_id == number


def test_failed_start_keeps_the_last_run(target, request_):
    request_.start_async(ONES)
    target.submissions[0].respond(y=TWOS)
    target.error = InferenceError("no")
    with pytest.raises(InferenceError):
        request_.start_async(ONES)
    assert request_.state is State.IDLE
    np.testing.assert_array_equal(request_.results["y"], TWOS)
    with pytest.raises(TensorTypeError):
        request_.start_async(np.zeros((2,), bool).astype("O"))
    assert request_.state is State.IDLE


def test_failed_run_raises_until_the_next(target, request_):
    request_.start_async(ONES)
    target.submissions[0].future.set_exception(InferenceError("first"))
    for action in (request_.wait, lambda: request_.results):
        with pytest.raises(InferenceError, match="first"):
            action()
    assert request_.wait_for(0)
    request_.start_async(ONES)
    target.submissions[1].respond(y=TWOS)
    request_.wait()


def test_run_in_the_callers_thread(target, request_):
    target.completes = True
    np.testing.assert_array_equal(request_.infer(ONES)["y"], TWOS)
    assert request_.request_id == 1
    assert request_._machine.run is not None
    assert list(request_._machine.run.story()) == [(1, 0, "done")]


@pytest.mark.parametrize(
    ("start", "inline"),
    [
        (lambda r: r.infer(ONES), True),
        (lambda r: r.start_async(ONES), None),
        (lambda r: r.infer(ONES, timeout_s=5), False),
        (lambda r: r.start_async(ONES, timeout_s=5), False),
    ],
)
def test_thread_of_a_run(start, inline, target, request_):
    target.completes = True
    start(request_)
    assert target.runs[0][1].inline is inline


# Deadlines and units.


@pytest.mark.parametrize(("milliseconds", "seconds"), [(0, 0.0), (1, 0.001), (2500, 2.5)])
def test_wait_for_takes_milliseconds(milliseconds, seconds, request_, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(request_._machine, "wait_for", waits.append)
    request_.wait_for(milliseconds)
    assert waits == [seconds]
    with pytest.raises(ArgumentError, match="got -1"):
        request_.wait_for(-1)


def test_latency_is_in_milliseconds(request_):
    request_._machine.latency_s = 0.25
    assert request_.latency == 250


@pytest.mark.parametrize("timeout_s", [0.5, 60, np.float32(2)])
def test_timeout_of_a_run_is_in_seconds(timeout_s, target, request_):
    target.completes = True
    request_.infer(ONES, timeout_s=timeout_s)
    assert target.runs[0][1].timeout_s == timeout_s


@pytest.mark.parametrize("timeout_s", [0, -1.0])
def test_timeout_in_the_past(timeout_s, target, request_):
    with pytest.raises(DeadlineError) as caught:
        request_.start_async(ONES, timeout_s=timeout_s)
    assert caught.value.data["timeout_s"] == timeout_s
    assert target.runs == []


@pytest.mark.parametrize("timeout_s", ["1", float("nan"), [1]])
def test_timeout_that_is_no_number(timeout_s, request_):
    with pytest.raises(ArgumentTypeError, match="timeout_s"):
        request_.start_async(ONES, timeout_s=timeout_s)


@pytest.mark.parametrize("action", ["infer", "start_async"])
def test_deadline_cancels_the_run(action, target, request_):
    def run() -> None:
        getattr(request_, action)(ONES, timeout_s=0.001)
        request_.wait()

    with pytest.raises(DeadlineError) as caught:
        run()
    assert caught.value.data["timeout_s"] == 0.001
    assert target.submissions[0].cancelled == 1
    assert request_.state is State.IDLE


def test_share_flag_that_is_an_input(request_):
    with pytest.raises(TensorTypeError, match="got ndarray"):
        request_.infer(ONES, ONES)  # type: ignore[arg-type]


# Cancellation.


def test_cancelled_run(target, request_):
    request_.cancel()
    request_.start_async(ONES)
    request_.cancel()
    request_.cancel()
    assert target.submissions[0].cancelled == 1
    assert request_.state is State.IDLE
    with pytest.raises(RequestCancelledError, match="model 'm'"):
        request_.wait()


def test_cancelled_future_cancels_its_run_alone(target, request_):
    request_.start_async(ONES)
    first = request_.future()
    target.submissions[0].respond(y=TWOS)
    np.testing.assert_array_equal(first.result(0)["y"], TWOS)
    request_.start_async(ONES)
    second = request_.future()
    assert second.cancel()
    assert [s.cancelled for s in target.submissions] == [0, 1]


@pytest.mark.parametrize("refuses", [False, True])
def test_future_of_a_failed_run(refuses, target, request_):
    target.callback_executor.refuses = refuses
    request_.start_async(ONES)
    futures = [request_.future(), request_.future()]
    target.submissions[0].future.set_exception(InferenceError("no"))
    futures.append(request_.future())
    assert [str(future.exception(0)) for future in futures] == ["no"] * 3


# Callbacks.


def test_callback_follows_each_asynchronous_run(target, request_):
    calls: list[Any] = []
    request_.set_callback(lambda data: calls.append((data, request_.results["y"][0])), "default")
    request_.start_async(ONES)
    target.submissions[0].respond(y=ONES)
    request_.start_async(ONES, "own")
    assert request_.userdata == "own"
    target.submissions[1].respond(y=TWOS)
    target.completes = True
    request_.infer(ONES)
    assert calls == [("default", 1), ("own", 2)]
    assert request_.userdata == "default"
    request_.set_callback(None)
    request_.start_async(ONES)
    assert len(calls) == 2


def test_callback_error_is_raised_once_per_wait(target, request_):
    def fail(_: Any) -> None:
        raise SystemExit(3)

    request_.set_callback(fail)
    request_.start_async(ONES)
    future = request_.future()
    target.submissions[0].respond(y=TWOS)
    with pytest.raises(SystemExit):
        request_.wait()
    assert isinstance(future.exception(0), SystemExit)
    np.testing.assert_array_equal(request_.results["y"], TWOS)


def test_callback_that_cannot_run(target, request_):
    request_.set_callback(lambda _: None)
    target.callback_executor.refuses = True
    request_.start_async(ONES)
    target.submissions[0].respond(y=TWOS)
    with pytest.raises(InferenceError, match=r"callback of a request of model 'm'.*shut down"):
        request_.wait()
    with pytest.raises(ArgumentTypeError, match="got 3"):
        request_.set_callback(3)  # type: ignore[arg-type]


def test_callback_starts_the_next_run(target, request_):
    def again(number: int) -> None:
        if number < 3:
            assert request_.wait_for(0)
            request_.start_async(ONES, number + 1)

    target.completes = True
    request_.set_callback(again)
    request_.start_async(ONES, 1)
    request_.wait()
    assert len(target.runs) == 3


def test_end_of_each_run_is_notified_after_its_callback(target, request_):
    events: list[str] = []
    request_._machine.on_end = lambda: events.append("end")
    request_.set_callback(lambda _: events.append("callback"))
    request_.start_async(ONES)
    target.submissions[0].respond(y=TWOS)
    target.error = InferenceError("no")
    with pytest.raises(InferenceError):
        request_.start_async(ONES)
    assert events == ["callback", "end", "end"]


# Records of runs.


def test_plain_runs_share_a_record(target, request_):
    target.completes = True
    request_.infer(ONES)
    assert target.runs[0][1] == Request(inline=True)
    request_.priority = 4
    request_.infer(ONES)
    assert target.runs[1][1] == Request(inline=True, priority=4)
    request_.priority = 0
    request_.keep_remote("y")
    request_.infer(ONES)
    assert target.runs[2][1] == Request(inline=True, resident_outputs=("y",))


def test_record_of_a_run_with_states():
    target = Target(S)
    request = InferRequest(target)
    assert request.restore_s == inf
    request.restore_s = 3
    request.start_async(ONES)
    record = target.runs[0][1]
    assert (record.resident_outputs, record.restore_s) == (("s.next",), 3.0)
    for bad in (-1, "1", float("nan")):
        with pytest.raises(ArgumentTypeError, match="restore_s"):
            request.restore_s = bad  # type: ignore[assignment]


@pytest.mark.parametrize("bad", ["1", 1.5, None])
def test_priority_is_an_integer(bad, request_):
    with pytest.raises(ArgumentTypeError, match="priority"):
        request_.priority = bad
    assert check_priority(np.int8(3)) == 3


def test_record_of_an_attempt():
    record = Request(5.0, inline=None, trace="t", priority=2)
    attempt = record.for_attempt("d", 7, 2, 1)
    assert attempt == Request(
        5.0, inline=False, deployment="d", id=7, attempt=2, route=1, priority=2
    )
    assert Request(inline=True).for_attempt("d", 1, 1, 0).inline is True
    assert REPLAY < 0


@pytest.mark.parametrize(
    ("options", "plain", "resident"),
    [
        ({}, True, False),
        ({"timeout_s": 1.0, "id": 3}, True, False),
        ({"profile": True}, False, False),
        ({"priority": 1}, False, False),
        ({"restore_s": 0.5}, False, True),
        ({"resident_outputs": ("y",)}, False, True),
        ({"resident_copies": ("y",)}, False, True),
    ],
)
def test_plain_record(options, plain, resident):
    record = DEFAULT_REQUEST._replace(**options)
    assert (record.is_plain, record.has_resident_tensors) == (plain, resident)


# States.


def test_states_follow_successful_runs_alone():
    target = Target(S)
    request = InferRequest(target)
    seen: list[float] = []
    for number, error in ((1, None), (2, InferenceError("no")), (3, None), (4, None)):
        request.start_async(ONES)
        seen.append(float(target.runs[-1][0]["s"][0]))
        if error is None:
            next_value = np.full(2, number, np.float32)
            target.submissions[-1].respond(y=ONES, **{"s.next": next_value})
        else:
            target.submissions[-1].future.set_exception(error)
    assert seen == [0, 1, 1, 3]
    (state,) = request.query_state()
    assert (state.name, state.state.data[0]) == ("s", 4)
    state.state = TWOS
    state.state = ONES
    assert state.state.data[0] == 1
    request.reset_state()
    assert state.state.data[0] == 0
    state.state = TWOS
    state.reset()
    assert state.state.data[0] == 0


def test_feedback_joins_ports_of_one_type():
    request = InferRequest(Target(inputs=(X, TensorSpec("i", "tensor(int64)", (2,)))))
    request.feedback = {"x": "y"}
    assert request.feedback == {"x": "y"}
    with pytest.raises(TensorTypeError, match="input 'i'") as caught:
        request.feedback = {"i": "y"}
    assert caught.value.data["port"] == "i"
    assert request.feedback == {"x": "y"}


def test_next_run_needs_states_and_a_run_in_flight(target, request_):
    assert not request_.start_next({"x": ONES})
    request_.start_async(ONES)
    assert not request_.start_next({"x": ONES})
    assert len(target.runs) == 1


# Tensors.


@pytest.mark.parametrize(
    "set_tensors",
    [
        lambda r: r.set_tensors({"x": ONES, "z": TWOS}),
        lambda r: r.set_input_tensors({0: ONES, 1: TWOS}),
        lambda r: r.set_input_tensors([ONES, TWOS]),
        lambda r: (r.set_input_tensor(0, ONES), r.set_input_tensor(1, TWOS)),
    ],
)
def test_inputs_that_are_set_together(set_tensors):
    target = Target(inputs=(X, Z))
    request = InferRequest(target)
    set_tensors(request)
    request.start_async()
    assert [target.runs[0][0][name][0] for name in "xz"] == [1, 2]
    target.submissions[0].respond(y=ONES)
    request.wait()
    assert [t.data[0] for t in request.input_tensors] == [1, 2]
    assert [t.data[0] for t in request.output_tensors] == [1]
    assert (request.model_inputs, request.model_outputs) == ([X, Z], [Y])


def test_list_of_tensors_for_one_input_is_a_batch():
    port = TensorSpec("x", "tensor(float)", ("N", 2))
    target = Target(inputs=(port,))
    request = InferRequest(target)
    for arguments in (([ONES[None], TWOS[None]],), (0, [ONES[None], TWOS[None]])):
        request.set_input_tensors(*arguments)
        request.start_async()
        np.testing.assert_array_equal(target.runs[-1][0]["x"], [ONES, TWOS])
        target.submissions[-1].respond(y=ONES)
    request.set_output_tensors([memory := np.zeros(2, np.float32)])
    request.start_async()
    target.submissions[-1].respond(y=TWOS)
    request.wait()
    assert memory[0] == 2
    assert request.get_output_tensor(0).data is memory


# Profiles and histories.


def test_profile_of_a_run(target, request_):
    target.profiles = target.completes = True
    before = request_.profiling_info
    assert {row.status for row in before} == {ProfilingStatus.NOT_RUN}
    assert [row.node_name for row in before][2:6] == [
        "3. execution time",
        "0/n",
        "0/m",
        "4. output transfer from a device",
    ]
    request_.infer(ONES)
    rows = {row.node_name: row for row in request_.get_profiling_info()}
    seconds = {"2. input transfer to a device": 0.25, "3. execution time": 0.5}
    seconds |= {"4. output transfer from a device": 1.25, "0/n": 0.125}
    assert {name: rows[name].real_time for name in seconds} == {
        name: timedelta(seconds=s) for name, s in seconds.items()
    }
    assert rows["0/n"].status is ProfilingStatus.EXECUTED
    assert (rows["0/n"].node_type, rows["0/n"].exec_type) == ("Neg", "kernel")
    assert rows["0/m"].status is ProfilingStatus.NOT_RUN
    request_.infer(ONES)
    assert target.node_times.averages_s() == {"0/n": 0.125}
    target.profiles = False
    assert {row.status for row in request_.profiling_info} == {ProfilingStatus.NOT_RUN}


def test_average_node_times():
    times = NodeTimes()
    for seconds in (1.0, 2.0, 6.0):
        times.add({"a": seconds, **({"b": 5.0} if seconds == 2 else {})})
    assert times.averages_s() == {"a": 3.0, "b": 5.0}


def test_history_in_milliseconds_by_time(target, request_):
    request_.start_async(ONES)
    target.submissions[0].respond(y=TWOS)
    assert request_.story() == (
        (
            "-5000.000 ms, attempt 1: stage 0 on D started after 1000.000 ms in its queue, "
            "ran 3000.000 ms, returned 0 bytes"
        ),
        "0.000 ms, attempt 1: admitted",
        "500.000 ms, attempt 1: returned",
    )
    lines = [StoryLine(1.0, 0, "submitted"), StoryLine(1.25, 1, "x"), StoryLine(2.0, 2, "y")]
    assert format_story(lines, [StageTiming(3, "E", started_s=1.5, ended_s=1.5)])[2].startswith(
        "500.000 ms, attempt 2: stage 3 on E"
    )
    assert format_story([], [TIMING]) == ()
