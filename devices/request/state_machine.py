"""State machine of an infer request on a device or a plan.

A request is idle, busy, or cancelled (stopping). The caller's thread checks and converts the
inputs, the target runs the model, and the first access to the results stores the outputs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from enum import Enum
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np

from hetero.devices.errors import (
    ArgumentTypeError,
    DeadlineError,
    HeteroError,
    InferenceError,
    RequestBusyError,
    RequestCancelledError,
    RequestNotStartedError,
    TensorTypeError,
)
from hetero.devices.plugin.program import Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.promise import FutureLike
from hetero.devices.request.request import (
    DEFAULT_REQUEST,
    INLINE_REQUEST,
    QUICK_REQUEST,
    Request,
)
from hetero.devices.request.request_tensors import RequestTensors
from hetero.devices.request.response import Response
from hetero.devices.request.results import Results
from hetero.devices.request.run import Run, node_times_s
from hetero.devices.request.target import RequestTarget, Submission
from hetero.devices.request.variable_states import RequestStates

#: Seconds that a run may take to stop after its deadline.
_STOP_S: Final = 1.0

Callback = Callable[[Any], object]


class State(Enum):
    """State of an infer request."""

    IDLE = "idle"
    BUSY = "busy"
    #: Cancelled while busy; idle when the run has stopped or finished.
    CANCELLED = "cancelled"


_IDLE, _BUSY = State.IDLE, State.BUSY


class _NextRun(NamedTuple):
    """A run that was submitted during the previous run, and the states that it reads."""

    submission: Submission
    states: Mapping[str, Value]


class RequestStateMachine:
    """Starts runs of a target's model, one at a time, and stores the last run."""

    def __init__(self, target: RequestTarget) -> None:
        self._target = target
        self.tensors: Final = RequestTensors(
            tuple(target.inputs),
            tuple(target.outputs),
            target.optional_inputs,
            target.copy_input,
        )
        self.states: Final = RequestStates(target.variables, tuple(target.inputs))
        self.state = State.IDLE
        #: The last started run.
        self.run: Run | None = None
        #: Default argument of the callback.
        self.userdata: Any = None
        #: Seconds of the last finished run.
        self.latency_s = 0.0
        #: Priority of the next run among requests that wait for admission.
        self.priority = 0
        #: Maximum seconds for the recomputation of lost states.
        self.restore_s = inf
        #: Called after each run and its callback.
        self.on_end: Callable[[], object] | None = None
        #: Input -> output of the previous run that it reads, in runs of `start_next`.
        self.feedback: Mapping[str, str] = {}
        #: Options of the last request record, and the record.
        self._last_request: tuple[tuple[Any, ...], Request] = (), DEFAULT_REQUEST
        self._next: _NextRun | None = None
        self._callback: Callback | None = None
        self._lock = threading.RLock()

    # Checks of the state.

    @contextmanager
    def hold_idle(self, action: str) -> Iterator[None]:
        """Keep the request idle within this block; raise RequestBusyError if it is busy."""
        with self._lock:
            self._require_idle(action)
            run = self.run
            if run is not None and run.outputs is not None and run.error is None:
                self.collect(run, True)  # the run has ended, and nobody has waited for it yet
            yield

    def started_run(self, attribute: str) -> Run:
        """Return the last run; RequestNotStartedError if there is none."""
        if (run := self.run) is None:
            raise RequestNotStartedError(
                f"{attribute}: expected a request of model {self._target.name!r} that has run; "
                "call infer, or start_async and wait."
            )
        return run

    def ended_run(self, attribute: str) -> Run:
        """Return the last run; RequestBusyError if it has not ended."""
        with self._lock:
            if self.state is not _IDLE:
                self._require_idle(attribute)
            return self.run or self.started_run(attribute)

    def is_calling_back(self) -> bool:
        """Return whether the calling thread is inside the last run's callback."""
        run = self.run
        return run is not None and run.callback_thread == threading.get_ident()

    def set_callback(self, callback: Callback | None, userdata: Any) -> None:
        """Set the callback of runs that are started with `call_back`."""
        with self.hold_idle("set_callback"):
            self._callback, self.userdata = callback, userdata

    def _require_idle(self, action: str) -> None:
        if self.state is not State.IDLE:
            raise RequestBusyError(
                f"{action}: expected an idle request of model {self._target.name!r}, got one that "
                f"is {self.state.value}; call wait() first, or use another request.",
                state=self.state.value,
            )

    # Runs.

    def infer(
        self, inputs: Any, share_inputs: bool, share_outputs: bool, timeout_s: float | None
    ) -> Results:
        """Run and return the outputs."""
        try:
            run = self.start(inputs, None, share_inputs, timeout_s, inline=True)
            if not run.end.is_set():
                self._wait_for_end(run)
        except KeyboardInterrupt:
            self.cancel()  # nobody waits for the run any more
            raise
        return self.collect(run, share_outputs)

    def start(
        self,
        inputs: Any,
        userdata: Any,
        share: bool,
        timeout_s: float | None,
        *,
        call_back: bool = False,
        inline: bool = False,
    ) -> Run:
        """Start a run; `inline` means that the caller only waits for it."""
        if share is not True and not isinstance(share, (bool, int, np.bool_)):
            raise TensorTypeError(
                f"share_inputs: expected True or False, got {type(share).__name__}. Pass several "
                "inputs as one list or dict: [a, b] or {'name': a}."
            )
        if timeout_s is not None:
            self._check_timeout(timeout_s)
        with self._lock:
            if self.state is not _IDLE:
                self._require_idle("infer" if inline else "start_async")
            run = Run(userdata, timeout_s)
            next_submission = None if self._next is None else self._take_next()
            values = {} if next_submission else self.tensors.collect(inputs, copy=not share)
            run.preprocess_s = time.perf_counter() - run.start_s
            previous, self.run, self.state = self.run, run, _BUSY
            callback = self._callback if call_back else None
        try:
            if next_submission:
                submission = next_submission
            else:
                if variables := self.states.variables:
                    values |= self.states.values_for(values)
                has_options = (
                    timeout_s is not None
                    or variables
                    or self.feedback
                    or self.priority
                    or self.tensors.may_have_resident_outputs
                )
                if has_options:
                    may_run_inline = (inline or None) if timeout_s is None else False
                    request = self._request(run.timeout_s, inline=may_run_inline)
                else:
                    request = INLINE_REQUEST if inline else QUICK_REQUEST
                submission = self._target.submit(values, request)
                if type(submission) is CompletedSubmission:
                    run.outputs, run.stage_timings, run.request_id, story_of = submission
                    if self.states.variables or self._target.profiles:
                        self._use_response(run)
                    run.story = partial(story_of, run.request_id)
                    self._finish(run, callback)
                    return run
        except BaseException:
            with self._lock:
                self.run, self.state = previous, State.IDLE
            self._end(run)
            raise
        run.admission_s, run.story = submission.waited_s, submission.story
        run.request_id, future = submission.request_id, submission.future
        if future.done():
            self._receive(run, callback, future)
            return run
        with self._lock:
            run.submission = submission
            is_cancelled = self.state is State.CANCELLED
        if is_cancelled:
            submission.cancel()
        future.add_done_callback(partial(self._receive, run, callback))
        return run

    def _check_timeout(self, timeout_s: float) -> None:
        if not (isinstance(timeout_s, int | float | np.number) and timeout_s == timeout_s):
            raise ArgumentTypeError(
                f"timeout_s: expected a number of seconds, or None for no limit; got {timeout_s!r}."
            )
        if timeout_s <= 0:
            raise DeadlineError(
                f"a request of model {self._target.name!r}: expected a timeout_s greater than 0, "
                f"got {timeout_s}.",
                timeout_s=timeout_s,
            )

    def _request(
        self, timeout_s: float | None = None, *, inline: bool | None = False, waits: bool = True
    ) -> Request:
        """Return the request record of a run with options.

        Runs with equal options get the same object, which targets may recognize.
        """
        resident, restore_s = self.tensors.resident_outputs, 0.0
        if self.states.variables:
            resident, restore_s = resident + self.states.outputs, self.restore_s
        # A caller that waits cannot call `start_next`, which alone reads copies.
        feedback = () if inline else tuple(self.feedback.values())
        options = (timeout_s, waits, inline, self.priority, restore_s, resident, feedback)
        last_options, request = self._last_request
        if options != last_options:
            request = Request(
                timeout_s,
                waits=waits,
                inline=inline,
                priority=self.priority,
                restore_s=restore_s,
                resident_outputs=resident,
                resident_copies=tuple(name for name in feedback if name not in resident),
            )
            self._last_request = options, request
        return request

    def start_next(self, inputs: Mapping[str, Any]) -> bool:
        """Submit the next run during the current one; return whether that was possible."""
        with self._lock:
            current = None if self.run is None else self.run.submission
            is_possible = self._next is None and self.state is State.BUSY
            if current is None or not is_possible or not self.states.variables:
                return False
            request = self._request(waits=False)
        try:
            outputs = current.pending_outputs()
            states = {v.input.name: outputs[v.output.name] for v in self.states.variables}
            feedback = {name: outputs[output] for name, output in self.feedback.items()}
        except (KeyError, HeteroError):  # an output is not resident, or the run has just ended
            return False
        ports = tuple(port for port in self._target.inputs if port.name not in feedback)
        values = RequestTensors(ports, ()).collect(inputs, copy=False)
        try:
            submission = self._target.submit({**values, **states, **feedback}, request)
        except HeteroError:  # not admitted; the next call of `start` submits the run
            return False
        self._next = _NextRun(submission, states)
        if self.state is State.IDLE:
            self._cancel_next()
        return True

    def _take_next(self) -> Submission | None:
        """Return the submitted next run if it reads the current states; cancel it otherwise."""
        next_run, self._next = self._next, None
        if next_run is None:
            return None
        future = next_run.submission.future
        has_failed = future.done() and future.exception()
        if self.states.are_current(next_run.states) and not has_failed:
            return next_run.submission
        next_run.submission.cancel()
        return None

    def _cancel_next(self, *, force: bool = False) -> None:
        """Cancel the submitted next run if it reads outdated states; with `force`, always."""
        with self._lock:
            next_run = self._next
            if next_run is None or (not force and self.states.are_current(next_run.states)):
                return
            self._next = None
        next_run.submission.cancel()

    def cancel(self) -> None:
        """Cancel the current run; no effect on an idle request."""
        self._cancel_next(force=True)
        with self._lock:
            if self.state is not State.BUSY:
                return
            self.state = State.CANCELLED
            submission = self.run.submission if self.run else None
        if submission is not None:
            submission.cancel()

    def _receive(self, run: Run, callback: Callback | None, future: FutureLike[Response]) -> None:
        """Store the response of a run; called in a thread of the target, so it must be fast."""
        try:
            # `exception()` does not raise: a traceback would keep the caller's inputs alive.
            run.error = future.exception()
            if run.error is None:
                response = future.result()
                run.outputs, run.stage_timings = response.outputs, response.stage_timings
                if self.states.variables or self._target.profiles:
                    self._use_response(run)
        except CancelledError:
            run.error = RequestCancelledError(
                f"a request of model {self._target.name!r} was cancelled before it ran."
            )
        except BaseException as error:  # `wait` raises it in the caller's thread
            run.error = error
        run.submission = None  # it references the response, and thereby device memory
        self._finish(run, callback)

    def _finish(self, run: Run, callback: Callback | None) -> None:
        """Submit the callback of a run that has its response, or end the run."""
        if self._next is not None:
            self._cancel_next()
        run.has_response = True
        self.latency_s = run.latency_s = time.perf_counter() - run.start_s
        if callback is not None:
            try:
                self._target.callback_executor.submit(self._call_back, run, callback)
                return
            except RuntimeError as error:  # the executor is shut down or cannot start a thread
                run.callback_error = InferenceError(
                    f"the callback of a request of model {self._target.name!r} could not run: "
                    f"{error}.",
                    cause=str(error),
                )
        with self._lock:
            self.state = _IDLE
        run.end.set()
        if run.futures or self.on_end is not None:
            self._end(run)

    def _use_response(self, run: Run) -> None:
        """Store the states and node times of a response."""
        if self.states.variables:
            with self._lock:
                run.has_response = True
                if not run.has_timed_out:
                    self.states.commit(run.outputs or {})
        if self._target.profiles:
            self._target.node_times.add(node_times_s(run.stage_timings, self._target))

    def _call_back(self, run: Run, callback: Callback) -> None:
        run.callback_thread = threading.get_ident()
        with self._lock:
            self.state = State.IDLE
        try:
            callback(self.userdata if run.userdata is None else run.userdata)
        except BaseException as error:  # `wait` raises it
            run.callback_error = error
        finally:
            run.callback_thread = 0
            self._end(run)

    def _end(self, run: Run) -> None:
        """Mark a run as ended: after its callback, or because it could not start."""
        run.end.set()
        if run.futures:
            try:  # not in a thread that runs models
                self._target.callback_executor.submit(self._set_futures, run)
            except RuntimeError:  # the executor is shut down
                self._set_futures(run)
        if self.on_end is not None:
            self.on_end()

    # Results.

    def wait(self) -> None:
        """Wait until the run, its callback and all runs that the callback started have ended."""
        while (run := self.run) is not None:
            if not run.end.is_set() and not self.is_calling_back():
                self._wait_for_end(run)
            if run.callback_error is not None:
                raise run.callback_error
            if run is self.run:
                self.collect(run, True)
                return

    def wait_for(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the end of the last run; return whether it has ended."""
        run = self.run
        if run is None or self.is_calling_back():
            return True
        if not run.end.wait(timeout_s):
            return False
        if run.error is None:
            self.collect(run, True)
        return True

    def collect(self, run: Run, share: bool) -> Results:
        """Return the results of a run, or raise its error; the first call stores the outputs.

        The outputs of the last run are stored in the request's tensors, those of an earlier run in
        separate tensors.
        """
        if run.error is not None:
            raise run.error
        if run.results is not None:
            return run.results
        with self._lock:
            if run.results is None:
                start = time.perf_counter()
                tensors = self.tensors if run is self.run else self.tensors.new_tensors()
                try:
                    values = tensors.store(run.outputs or {}, copy=not share)
                except HeteroError as error:  # later calls raise it again
                    run.error = error
                    raise
                if share:  # as in OpenVINO, shared arrays do not own their memory
                    for name, value in values.items():
                        if isinstance(value, np.ndarray):
                            values[name] = value.view()
                run.results = Results(self._target.outputs, values)
                run.outputs = None
                run.postprocess_s = time.perf_counter() - start
            return run.results

    def future_of(self, run: Run) -> Future[Results]:
        """Return a future of a run's results; cancelling the future cancels the run."""
        future: Future[Results] = Future()
        future.add_done_callback(partial(self._cancel_with, run))
        with self._lock:
            run.futures += (future,)
        if run.end.is_set():  # otherwise `_end` sets the future
            self._set_futures(run)
        return future

    def _wait_for_end(self, run: Run) -> None:
        if run.timeout_s is None:
            run.end.wait()
            return
        remaining_s = run.start_s + run.timeout_s - time.perf_counter()
        run.end.wait(max(0.0, remaining_s))
        with self._lock:
            run.has_timed_out = not run.has_response
        if run.has_timed_out:
            self.cancel()
            run.end.wait(_STOP_S)
            raise DeadlineError(
                f"no response of model {self._target.name!r} within {run.timeout_s} s; the request "
                "was cancelled. Increase timeout_s, or find slow nodes with PERF_COUNT.",
                timeout_s=run.timeout_s,
            )
        run.end.wait()  # for the callback

    def _cancel_with(self, run: Run, future: Future[Results]) -> None:
        """Cancel a run if its future was cancelled."""
        if future.cancelled() and run is self.run:
            self.cancel()

    def _set_futures(self, run: Run) -> None:
        """Set the futures of a run that has ended."""
        with self._lock:
            futures, run.futures = run.futures, ()
        for future in futures:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if run.callback_error is not None:
                    raise run.callback_error
                with self._lock:  # prevents the start of the next run
                    results = self.collect(run, True)
                future.set_result(results)
            except BaseException as error:  # the waiting thread raises it
                future.set_exception(error)
