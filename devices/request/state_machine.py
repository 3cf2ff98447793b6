"""The state machine of an infer request, over whatever runs a model: a device or a whole plan.

A request is idle, busy or cancelled (asked to stop, not stopped yet). The caller's thread converts
and checks the inputs; the target runs; whoever asks for the answer first takes it over.
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
from hetero.devices.request.answered import Answered
from hetero.devices.request.promise import FutureLike
from hetero.devices.request.request import DEFAULT_REQUEST, Request
from hetero.devices.request.request_tensors import RequestTensors
from hetero.devices.request.response import Response
from hetero.devices.request.results import Results
from hetero.devices.request.run import Run, node_times_s
from hetero.devices.request.target import RequestTarget, Submission
from hetero.devices.request.variable_states import RequestStates

#: Seconds that a run may take to stop once its time is up, before it is given up.
_STOP_S: Final = 1.0

#: Requests that ask for nothing special, by `inline`.
_PLAIN: Final = {inline: DEFAULT_REQUEST._replace(inline=inline) for inline in (True, None, False)}

Callback = Callable[[Any], object]


class State(Enum):
    """Where a request is."""

    IDLE = "idle"
    BUSY = "busy"
    #: Asked to stop while busy; idle once the run has stopped or finished after all.
    CANCELLED = "cancelled"


class _Next(NamedTuple):
    """A run that was started before its turn, and the states of the run before that it reads."""

    submission: Submission
    states: Mapping[str, Value]


class RequestStateMachine:
    """Has a target run its model, once at a time, and keeps the last run."""

    def __init__(self, target: RequestTarget) -> None:
        self._target = target
        self.tensors: Final = RequestTensors(
            tuple(target.inputs), tuple(target.outputs), target.optional_inputs
        )
        self.states: Final = RequestStates(target.variables, tuple(target.inputs))
        self.state = State.IDLE
        #: The last run that was started.
        self.run: Run | None = None
        #: What each run is called back with where its start said nothing else.
        self.userdata: Any = None
        #: Seconds that the last finished run took.
        self.latency_s = 0.0
        #: Of the next start, among those that wait to be admitted.
        self.priority = 0
        #: Seconds of stages' runs that a start may spend to have lost states back.
        self.restore_s = inf
        #: Called after each run and its callback.
        self.when_ended: Callable[[], object] | None = None
        #: Input -> output of the run before that a run reads which `start_next` starts.
        self.feedback: Mapping[str, str] = {}
        self._next: _Next | None = None
        self._callback: Callback | None = None
        self._lock = threading.RLock()

    # What may be done when.

    @contextmanager
    def idle(self, action: str) -> Iterator[None]:
        """Keep the request idle; raise RequestBusyError if it is not."""
        with self._lock:
            self._require_idle(action)
            yield

    def started_run(self, wanted: str) -> Run:
        """Return the last run; RequestNotStartedError if there is none."""
        if (run := self.run) is None:
            raise RequestNotStartedError(
                f"a request of model {self._target.name!r} has no {wanted} before it has run; "
                "call infer, or start_async and wait."
            )
        return run

    def ended_run(self, wanted: str) -> Run:
        """Return the last run, once it has ended."""
        with self.idle(wanted):
            return self.started_run(wanted)

    def is_calling_back(self) -> bool:
        """Whether the calling thread is inside the last run's callback."""
        run = self.run
        return run is not None and run.callback_thread == threading.get_ident()

    def set_callback(self, callback: Callback | None, userdata: Any) -> None:
        """Set what is called after each run that is started with `call_back`."""
        with self.idle("set_callback"):
            self._callback, self.userdata = callback, userdata

    def _require_idle(self, action: str) -> None:
        if self.state is not State.IDLE:
            raise RequestBusyError(
                f"{action}: a request of model {self._target.name!r} is {self.state.value}; "
                "wait() for it first, or use another request.",
                state=self.state.value,
            )

    # From a start to its end.

    def infer(
        self, inputs: Any, share_inputs: bool, share_outputs: bool, timeout_s: float | None
    ) -> Results:
        """Run and return the outputs."""
        try:
            run = self.start(inputs, None, share_inputs, timeout_s, inline=True)
            self._wait_for_end(run)
        except KeyboardInterrupt:
            self.cancel()  # its caller has gone
            raise
        return self.settle(run, share_outputs)

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
        """Start a run; with `inline` its caller does nothing but wait for it."""
        if not isinstance(share, (bool, int, np.bool_)):
            raise TensorTypeError(
                f"share_inputs is True or False, got {type(share).__name__}. Give several inputs "
                "as one list or dict: [a, b] or {'name': a}."
            )
        if timeout_s is not None and not (
            isinstance(timeout_s, int | float | np.number) and timeout_s == timeout_s
        ):
            raise ArgumentTypeError(
                f"timeout_s={timeout_s!r}: wanted a number of seconds, or None for no limit."
            )
        if timeout_s is not None and timeout_s <= 0:
            raise DeadlineError(
                f"a request of model {self._target.name!r} was given {timeout_s} s: no time is "
                "left. Allow more.",
                timeout_s=timeout_s,
            )
        with self._lock:
            if self.state is not State.IDLE:
                self._require_idle("infer" if inline else "start_async")
            run = Run(userdata, timeout_s)
            begun = None if self._next is None else self._fit_next()
            values = {} if begun else self.tensors.collect(inputs, copy=not share)
            run.preprocess_s = time.perf_counter() - run.started
            before, self.run, self.state = self.run, run, State.BUSY
            callback = self._callback if call_back else None
        try:
            if begun:
                submission = begun
            else:
                if self.states.variables:
                    values |= self.states.given(values)
                may_run_here = (inline or None) if timeout_s is None else False
                request = self._request(run.timeout_s, inline=may_run_here)
                submission = self._target.submit(values, request)
                if type(submission) is Answered:
                    self._take_over(run, submission)
                    run.request_id = submission.request_id
                    run.story = partial(submission.story_of, submission.request_id)
                    self._hand_on(run, callback)
                    return run
        except BaseException:
            with self._lock:
                self.run, self.state = before, State.IDLE
            self._end(run)
            raise
        run.admission_s, run.story = submission.waited_s, submission.story
        run.request_id, made = submission.request_id, submission.future
        if made.done():
            self._answered(run, made, callback)
            return run
        with self._lock:
            run.submission = submission
            stop = self.state is State.CANCELLED
        if stop:
            submission.cancel()
        made.add_done_callback(lambda made: self._answered(run, made, callback))
        return run

    def _request(
        self, timeout_s: float | None = None, *, inline: bool | None = False, waits: bool = True
    ) -> Request:
        """Return what travels with a run."""
        if (
            waits
            and timeout_s is None
            and not (self.states.variables or self.feedback or self.priority)
            and not self.tensors.keeps_outputs
        ):
            return _PLAIN[inline]
        keep, restore_s = self.tensors.kept, 0.0
        if self.states.variables:
            keep, restore_s = keep + self.states.outputs, self.restore_s
        copies = tuple(name for name in self.feedback.values() if name not in keep)
        return Request(
            timeout_s,
            waits=waits,
            inline=inline,
            priority=self.priority,
            restore_s=restore_s,
            keep=keep,
            keep_copies=copies,
        )

    def start_next(self, inputs: Mapping[str, Any]) -> bool:
        """Start the run after the one that runs, if that may be: whether it was started."""
        with self._lock:
            running = None if self.run is None else self.run.submission
            is_free = self._next is None and self.state is State.BUSY
            if running is None or not is_free or not self.states.variables:
                return False
            request = self._request(waits=False)
        try:
            made = running.pending_outputs()
            states = {v.input.name: made[v.output.name] for v in self.states.variables}
            fed = {name: made[output] for name, output in self.feedback.items()}
        except (KeyError, HeteroError):  # not all of it stays on devices, or it has just ended
            return False
        left = tuple(port for port in self._target.inputs if port.name not in fed)
        values = RequestTensors(left, ()).collect(inputs, copy=False)
        try:
            submission = self._target.submit({**values, **states, **fed}, request)
        except HeteroError:  # no room: it is started in its turn
            return False
        self._next = _Next(submission, states)
        if self.state is State.IDLE:
            self._drop_next()
        return True

    def _fit_next(self) -> Submission | None:
        """Return the run that was started before its turn, if it reads what states are now."""
        begun, self._next = self._next, None
        if begun is None:
            return None
        future = begun.submission.future
        if self.states.hold(begun.states) and not (future.done() and future.exception()):
            return begun.submission
        begun.submission.cancel()
        return None

    def _drop_next(self, *, also_fit: bool = False) -> None:
        """Cancel the run that was started before its turn, where it waits for what never comes."""
        with self._lock:
            begun = self._next
            if begun is None or (not also_fit and self.states.hold(begun.states)):
                return
            self._next = None
        begun.submission.cancel()

    def cancel(self) -> None:
        """Ask a running request to stop; nothing happens where none runs."""
        self._drop_next(also_fit=True)
        with self._lock:
            if self.state is not State.BUSY:
                return
            self.state = State.CANCELLED
            submission = self.run.submission if self.run else None
        if submission is not None:
            submission.cancel()

    def _answered(
        self, run: Run, answered: FutureLike[Response], callback: Callback | None
    ) -> None:
        """Take what the target gave; runs in the target's thread, so it only hands on."""
        try:
            # Raised here, it would lead to whoever called, and hold the inputs on their stacks.
            run.error = answered.exception()
            if run.error is None:
                self._take_over(run, answered.result())
        except CancelledError:
            run.error = RequestCancelledError(
                f"a request of model {self._target.name!r} was cancelled before it ran."
            )
        except BaseException as error:  # the caller's, whatever it is: `wait` raises it
            run.error = error
        run.submission = None  # it holds the answer, and with it memory of the device's
        self._hand_on(run, callback)

    def _hand_on(self, run: Run, callback: Callback | None) -> None:
        """Have the callback called of a run that has its answer, or end the run."""
        if self._next is not None:
            self._drop_next()
        run.answered = True
        self.latency_s = run.latency_s = time.perf_counter() - run.started
        if callback is not None:
            try:
                self._target.callback_executor.submit(self._call_back, run, callback)
                return
            except RuntimeError as error:  # shut down with the run in flight, or no more threads
                run.callback_error = InferenceError(
                    f"the callback of a request of model {self._target.name!r} could not be "
                    f"called: {error}.",
                    cause=str(error),
                )
        with self._lock:
            self.state = State.IDLE
        self._end(run)

    def _take_over(self, run: Run, answer: Response | Answered) -> None:
        run.outputs = answer.outputs
        if self.states.variables:
            with self._lock:
                run.answered = True
                if not run.given_up:
                    self.states.commit(answer.outputs)
        run.stage_timings = answer.stage_timings
        if self._target.profiles:
            self._target.node_times.add(node_times_s(answer.stage_timings, self._target))

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
        """Note that a run and its callback have ended, or that it could not be started."""
        run.ended.set()
        if run.futures:
            try:  # in a thread that does not compute
                self._target.callback_executor.submit(self._answer_futures, run)
            except RuntimeError:  # closed with the run in flight
                self._answer_futures(run)
        if self.when_ended is not None:
            self.when_ended()

    # The answer.

    def wait(self) -> None:
        """Wait until the run, its callback and what the callback started have ended."""
        while (run := self.run) is not None:
            if not self.is_calling_back():
                self._wait_for_end(run)
            if run.callback_error is not None:
                raise run.callback_error
            if run is self.run:
                self.settle(run, True)
                return

    def wait_for(self, timeout_s: float) -> bool:
        """Wait for the end of the last run, at most `timeout_s`; return whether it has ended."""
        run = self.run
        if run is None or self.is_calling_back():
            return True
        if not run.ended.wait(timeout_s):
            return False
        if run.error is None:
            self.settle(run, True)
        return True

    def settle(self, run: Run, share: bool) -> Results:
        """Take a run's answer over into the request's tensors, once, and return it, or raise.

        They are a later run's, if there is one: an earlier one's answer is its own then.
        """
        if run.error is not None:
            raise run.error
        with run.taken:
            if run.results is None:
                start = time.perf_counter()
                tensors = self.tensors if run is self.run else self.tensors.fresh()
                values = tensors.take(run.outputs or {}, copy=not share)
                run.results = Results(self._target.outputs, values)
                run.outputs = None
                run.postprocess_s = time.perf_counter() - start
            return run.results

    def future_of(self, run: Run) -> Future[Results]:
        """Return what a run answers; to cancel it cancels the run."""
        future: Future[Results] = Future()
        future.add_done_callback(partial(self._cancelled_by, run))
        with self._lock:
            run.futures += (future,)
        if run.ended.is_set():  # else whoever ends it sees the future
            self._answer_futures(run)
        return future

    def _wait_for_end(self, run: Run) -> None:
        if run.timeout_s is None:
            run.ended.wait()
            return
        left_s = run.started + run.timeout_s - time.perf_counter()
        run.ended.wait(max(0.0, left_s))
        with self._lock:
            run.given_up = not run.answered
        if run.given_up:
            self.cancel()
            run.ended.wait(_STOP_S)
            raise DeadlineError(
                f"no answer of model {self._target.name!r} within {run.timeout_s} s; the request "
                "was cancelled. Allow more time, or find what is slow with PERF_COUNT.",
                timeout_s=run.timeout_s,
            )
        run.ended.wait()  # for the callback

    def _cancelled_by(self, run: Run, future: Future[Results]) -> None:
        if future.cancelled() and run is self.run:
            self.cancel()

    def _answer_futures(self, run: Run) -> None:
        """Give a run that has ended to all who wait for it."""
        with self._lock:
            futures, run.futures = run.futures, ()
        for future in futures:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if run.callback_error is not None:
                    raise run.callback_error
                with self._lock:  # the next run does not start meanwhile
                    results = self.settle(run, True)
                future.set_result(results)
            except BaseException as error:  # whoever waits raises it
                future.set_exception(error)
