"""Sequences of starts, responses and waits of a queue, on a target that the test controls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import hetero
from hetero.devices.errors import ArgumentError, ArgumentTypeError, DeadlineError, InferenceError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.request.response import NodeTimes, Response

X, Y = (TensorSpec(name, "tensor(float)", (1,)) for name in "xy")


class InlineExecutor:
    """Executor of callbacks that runs them at once."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        function(*arguments)


class Target:
    """Target whose runs are in flight until the test responds."""

    name = "m"
    inputs, outputs = (X,), (Y,)
    optional_inputs = variables = ()
    profiles = False
    callback_executor = InlineExecutor()

    def __init__(self) -> None:
        self.node_times = NodeTimes()
        #: Input -> future, in order of submission.
        self.in_flight: dict[float, Future[Response]] = {}

    def copy_input(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def submit(self, values: Any, request: Any) -> Any:
        class Submission:
            request_id = 1
            waited_s = 0.0
            future: Future[Response] = Future()
            story = staticmethod(tuple)

            def cancel(self) -> None:
                self.future.cancel()

        submission = Submission()
        submission.future = self.in_flight[float(values["x"][0])] = Future()
        return submission


class Model(hetero.CompiledModel):
    """Compiled model without a deployment."""

    def __init__(self, timeout_s: float = 60.0, optimal: int = 5) -> None:
        self.controlled_target = Target()
        self.values = {
            "REQUEST_TIMEOUT_S": timeout_s,
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": optimal,
        }

    @property
    def target(self) -> Any:
        return self.controlled_target

    def get_property(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        return "Model"

    def __del__(self) -> None:
        """Release nothing."""


NUMBERS = st.floats(1, 99, width=16)


class QueueSequences(RuleBasedStateMachine):
    """A queue of two jobs whose requests end in any order, some with errors."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.target: Any = self.model.target
        self.queue = hetero.AsyncInferQueue(self.model, 2)
        self.calls: list[tuple[Any, float]] = []
        self.expected_calls: list[tuple[Any, float]] = []
        self.error: BaseException | None = None
        self.count = 0
        self.queue.set_callback(
            lambda request, data: self.calls.append((data, float(request.results["y"][0])))
        )

    @property
    def has_idle_job(self) -> bool:
        return len(self.target.in_flight) < 2

    @precondition(lambda self: self.has_idle_job)
    @rule()
    def start(self) -> None:
        self.count += 1
        self.queue.start_async({"x": np.full(1, self.count, np.float32)}, f"data {self.count}")
        assert list(self.target.in_flight)[-1] == self.count

    @precondition(lambda self: self.has_idle_job)
    @rule()
    def start_with_a_wrong_input(self) -> None:
        with pytest.raises(hetero.TensorError):
            self.queue.start_async({"x": np.zeros(2, np.float32)})

    @precondition(lambda self: not self.has_idle_job)
    @rule()
    def start_without_an_idle_job(self) -> None:
        with pytest.raises(DeadlineError, match="none of 2 jobs"):
            self.queue.start_async({"x": np.zeros(1, np.float32)}, timeout_s=1e-9)

    @precondition(lambda self: self.target.in_flight)
    @rule(is_first=st.booleans())
    def respond(self, is_first: bool) -> None:
        number = list(self.target.in_flight)[0 if is_first else -1]
        self.expected_calls.append((f"data {number:.0f}", number + 0.5))
        output = np.full(1, number + 0.5, np.float32)
        self.target.in_flight.pop(number).set_result(Response({"y": output}, ()))

    @precondition(lambda self: self.target.in_flight)
    @rule()
    def fail(self) -> None:
        number = next(iter(self.target.in_flight))
        error = InferenceError(f"error {number}")
        self.error = self.error or error
        self.target.in_flight.pop(number).set_exception(error)

    @precondition(lambda self: not self.target.in_flight)
    @rule()
    def wait_all(self) -> None:
        if self.error is None:
            self.queue.wait_all()
            return
        with pytest.raises(InferenceError) as caught:
            self.queue.wait_all()
        assert caught.value is self.error
        self.error = None

    @invariant()
    def jobs_and_calls_are_as_expected(self) -> None:
        assert self.queue.is_ready() == self.has_idle_job
        assert self.calls == self.expected_calls
        if self.has_idle_job:
            index = self.queue.get_idle_request_id()
            assert self.queue[index].state.name == "IDLE"


TestQueueSequences = QueueSequences.TestCase
TestQueueSequences.settings = settings(max_examples=20, stateful_step_count=15)


def test_number_of_jobs():
    assert len(hetero.AsyncInferQueue(Model(optimal=5))) == 5
    queue = hetero.AsyncInferQueue(Model(optimal=5), 3)
    assert len(queue) == len(list(queue)) == 3
    with pytest.raises(ArgumentError, match="got -1"):
        hetero.AsyncInferQueue(Model(), -1)
    with pytest.raises(ArgumentTypeError, match=r"got '1'|got 1\.5"):
        hetero.AsyncInferQueue(Model(), 1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="got str"):
        hetero.AsyncInferQueue("model")  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", ["wait_all", "get_idle_request_id"])
def test_wait_ends_at_the_request_timeout_in_seconds(wait):
    queue = hetero.AsyncInferQueue(Model(timeout_s=0.01), 1)
    queue.start_async({"x": np.ones(1, np.float32)})
    with pytest.raises(DeadlineError, match="none of 1 jobs"):
        getattr(queue, wait)()


def test_second_error_does_not_replace_the_first():
    model = Model()
    target: Any = model.target
    queue = hetero.AsyncInferQueue(model, 2)
    for number in (1, 2):
        queue.start_async({"x": np.full(1, number, np.float32)}, number)
    assert queue.userdata == [1, 2]
    for number in (2, 1):
        target.in_flight.pop(number).set_exception(InferenceError(f"error {number}"))
    with pytest.raises(InferenceError, match="error 2"):
        queue.wait_all()
    queue.wait_all()


def test_error_of_a_callback_is_raised_by_wait_all():
    model = Model()
    target: Any = model.target
    queue = hetero.AsyncInferQueue(model, 1)
    queue.set_callback(lambda request, data: [][data])
    queue.start_async({"x": np.ones(1, np.float32)}, 3)
    target.in_flight.pop(1).set_result(Response({"y": np.ones(1, np.float32)}, ()))
    with pytest.raises(IndexError):
        queue.wait_all()
    queue.wait_all()
    assert queue.is_ready()
