"""The infer request: one state machine over whatever runs a model, a device or a whole plan.

A request is idle, busy or cancelled (asked to stop, not stopped yet). The caller's thread converts
and checks the inputs; the target runs; whoever asks for the answer first takes it over. Python
names are OpenVINO's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

import numpy as np

from devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeadlineError,
    RequestBusyError,
    RequestCancelledError,
    RequestNotStartedError,
    TensorTypeError,
)
from devices.model.tensor_spec import TensorSpec
from devices.request.answer import Answer
from devices.request.awaited import Awaited
from devices.request.has_story import HasStory
from devices.request.has_tensors import HasTensors
from devices.request.openvino_names import OpenVINONames
from devices.request.priority import Prioritised
from devices.request.promise import Promised
from devices.request.request import Request
from devices.request.results import ProfilingInfo, Results
from devices.request.run import Run, node_times_s, profile_rows
from devices.request.states import HasStates, RequestStates
from devices.request.target import RequestTarget
from devices.request.tensors import RequestTensors

#: Seconds that a run may take to stop once its time is up, before it is given up.
_STOP_S: Final = 1.0


class State(Enum):
    """Where a request is."""

    IDLE = "idle"
    BUSY = "busy"
    #: Asked to stop while busy; idle once the run has stopped or finished after all.
    CANCELLED = "cancelled"


class InferRequest(Awaited, HasStory, HasStates, HasTensors, OpenVINONames, Prioritised):
    """Runs a model, once at a time, synchronously or not.

    Parameters
    ----------
    target : RequestTarget
        What runs it.
    """

    def __init__(self, target: RequestTarget) -> None:
        self._target = target
        self._tensors = RequestTensors(target.inputs, target.outputs, target.optional_inputs)
        self._states = RequestStates(target.variables, target.inputs)
        self._lock = threading.RLock()
        self._state = State.IDLE
        self._run: Run | None = None
        self._callback: Callable[[Any], object] | None = None
        self._callback_userdata: Any = None
        self._latency_s = 0.0

    # Running.

    def infer(
        self,
        inputs: Any = None,
        share_inputs: bool = False,
        share_outputs: bool = False,
        *,
        timeout_s: float | None = None,
    ) -> Results:
        """Run and return the outputs; the callback is not called.

        Parameters
        ----------
        inputs : dict, sequence, array or None
            By name, position or port; by position; the one input's; or the current tensors.
        share_inputs : bool
            Whether the request may keep the arrays themselves.
        share_outputs : bool
            Whether results may share memory with tensors of the request; else they are copies
            wherever they would.
        timeout_s : float, optional
            Seconds until the answer must be there; none are left at 0.

        Raises
        ------
        TensorNameError, TensorTypeError, TensorShapeError
            What was given does not fit the ports.
        RequestBusyError, RequestCancelledError, DeadlineError, InferenceError
            The run was not started, or not finished.
        """
        try:
            run = self._start(inputs, None, share_inputs, timeout_s, inline=True)
            self._wait_for_end(run)
        except KeyboardInterrupt:
            self.cancel()  # its caller has gone
            raise
        return self._settle(run, share_outputs)

    def start_async(
        self,
        inputs: Any = None,
        userdata: Any = None,
        share_inputs: bool = False,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Start a run; `wait` for it, or be called back.

        Parameters
        ----------
        inputs : dict, sequence, array or None
            As for `infer`; whatever does not fit raises here. Copied, unless `share_inputs`.
        userdata : object, optional
            What the callback is given in this run.
        share_inputs : bool
            Whether the run may read the arrays themselves: do not write to them until it ends.
        timeout_s : float, optional
            As for `infer`.
        """
        self._start(inputs, userdata, share_inputs, timeout_s, call_back=True)

    def wait(self) -> None:
        """Wait until the run, its callback and what the callback started have ended.

        Raises
        ------
        RequestCancelledError
            The run was cancelled.
        DeadlineError
            There was no answer within the run's `timeout_s`.
        HeteroError, or what the callback raised
            The run, or its callback, failed.
        """
        while (run := self._run) is not None:
            if run.callback_thread != threading.get_ident():
                self._wait_for_end(run)
            if run.callback_error is not None:
                raise run.callback_error
            if run is self._run:
                self._settle(run, True)
                return

    def wait_for(self, timeout: float) -> bool:
        """Wait at most `timeout` milliseconds; return whether the request is not running.

        Raises
        ------
        ArgumentError
            If `timeout` is negative.
        """
        if timeout < 0:
            raise ArgumentError(f"wait_for({timeout!r}): milliseconds to wait are 0 or more.")
        run = self._run
        if run is None or run.callback_thread == threading.get_ident():
            return True
        if not run.ended.wait(timeout / 1000):
            return False
        if run.error is None:
            self._settle(run, True)
        return True

    def cancel(self) -> None:
        """Ask a running request to stop; nothing happens where none runs."""
        with self._lock:
            if self._state is not State.BUSY:
                return
            self._state = State.CANCELLED
            submission = self._run.submission if self._run else None
        if submission is not None:
            submission.cancel()

    @property
    def state(self) -> State:
        """Idle, busy, or cancelled but not stopped yet."""
        return self._state

    def set_callback(self, callback: Callable[[Any], object] | None, userdata: Any = None) -> None:
        """Set what is called with `userdata` after each `start_async`, in another thread.

        It is called once per run, failed ones included (`results` then raises the failure), before
        `wait` returns; it may start the request again. What it raises, ``SystemExit`` and
        ``KeyboardInterrupt`` included, `wait` raises.
        """
        check_callback(callback)
        with self._idle("set_callback"):
            self._callback, self._callback_userdata = callback, userdata

    @property
    def userdata(self) -> Any:
        """What the callback is given."""
        run = self._run
        return self._callback_userdata if run is None or run.userdata is None else run.userdata

    # What came of it.

    @property
    def results(self) -> Results:
        """The last run's outputs; raises what the run raised.

        Raises
        ------
        RequestBusyError
            It still runs.
        RequestNotStartedError
            It never ran.
        """
        return self._settle(self._ended_run("results"), True)

    @property
    def model_outputs(self) -> tuple[TensorSpec, ...]:
        """The output ports."""
        return self._target.outputs

    @property
    def model_inputs(self) -> tuple[TensorSpec, ...]:
        """The input ports."""
        return self._target.inputs

    @property
    def latency(self) -> float:
        """Milliseconds that the last finished run took; 0 before one did."""
        return self._latency_s * 1000

    @property
    def profiling_info(self) -> list[ProfilingInfo]:
        """The last run's stages and executed nodes; not run, and 0, without PERF_COUNT."""
        with self._idle("profiling_info"):
            run = self._run
        timed = self._target.profiles and run is not None and run.error is None
        return profile_rows(run if timed else None, self._target)

    # The machine.

    @contextmanager
    def _idle(self, what: str) -> Iterator[None]:
        """Keep the request idle; raise RequestBusyError if it is not."""
        with self._lock:
            self._require_idle(what)
            yield

    def _require_idle(self, what: str) -> None:
        if self._state is not State.IDLE:
            raise RequestBusyError(
                f"{what}: a request of model {self._target.name!r} is {self._state.value}; "
                "wait() for it first, or use another request.",
                state=self._state.value,
            )

    def _ended_run(self, what: str) -> Run:
        with self._idle(what):
            return self._started_run(what)

    def _started_run(self, what: str) -> Run:
        if (run := self._run) is None:
            raise RequestNotStartedError(
                f"a request of model {self._target.name!r} has no {what} before it has run; "
                "call infer, or start_async and wait."
            )
        return run

    def _start(
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
        if timeout_s is not None and timeout_s <= 0:
            raise DeadlineError(
                f"a request of model {self._target.name!r} was given {timeout_s} s: no time is "
                "left. Allow more.",
                timeout_s=timeout_s,
            )
        with self._lock:
            self._require_idle("infer" if inline else "start_async")
            run = Run(userdata, timeout_s)
            values = self._tensors.collect(inputs, copy=not share)
            run.preprocess_s = time.perf_counter() - run.started
            before, self._run, self._state = self._run, run, State.BUSY
            callback = self._callback if call_back else None
        try:
            inline = inline and timeout_s is None
            keep = self._tensors.kept
            if self._states.variables:
                values |= self._states.given(values)
                keep = tuple({*keep, *self._states.outputs})
            request = Request(run.timeout_s, inline=inline, keep=keep, priority=self._priority)
            submission = self._target.submit(values, request)
        except BaseException:
            with self._lock:
                self._run, self._state = before, State.IDLE
            self._end(run)
            raise
        run.admission_s, run.story = submission.waited_s, submission.story
        run.request_id, made = submission.request_id, submission.future
        if made.done():
            self._answered(run, made, callback)
            return run
        with self._lock:
            run.submission = submission
            stop = self._state is State.CANCELLED
        if stop:
            submission.cancel()
        made.add_done_callback(lambda made: self._answered(run, made, callback))
        return run

    def _answered(
        self, run: Run, answered: Promised[Answer], callback: Callable[[Any], object] | None
    ) -> None:
        """Take what the target gave; runs in the target's thread, so it only hands on."""
        try:
            answer = answered.result()
            run.outputs = answer.outputs
            if self._states.variables:
                with self._lock:
                    run.answered = True
                    if not run.given_up:
                        self._states.commit(answer.outputs)
            run.stage_runs = answer.stage_runs
            if self._target.profiles:
                self._target.node_times.add(node_times_s(answer.stage_runs, self._target))
        except CancelledError:
            run.error = RequestCancelledError(
                f"a request of model {self._target.name!r} was cancelled before it ran."
            )
        except BaseException as error:  # the caller's, whatever it is: `wait` raises it
            run.error = error
        run.submission = None  # it holds the answer, and with it memory of the device's
        run.answered = True
        self._latency_s = run.latency_s = time.perf_counter() - run.started
        if callback is None:
            with self._lock:
                self._state = State.IDLE
            self._end(run)
            return
        try:
            self._target.callback_executor.submit(self._call_back, run, callback)
        except RuntimeError as error:  # the executor was shut down with the run in flight
            run.callback_error = error
            with self._lock:
                self._state = State.IDLE
            self._end(run)

    def _call_back(self, run: Run, callback: Callable[[Any], object]) -> None:
        run.callback_thread = threading.get_ident()
        with self._lock:
            self._state = State.IDLE
        try:
            callback(self._callback_userdata if run.userdata is None else run.userdata)
        except BaseException as error:  # `wait` raises it
            run.callback_error = error
        finally:
            run.callback_thread = 0
            self._end(run)

    def _end(self, run: Run) -> None:
        """Note that a run and its callback have ended, or that it could not be started."""
        run.ended.set()
        if run.futures:
            self._hand_to_futures(run)

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

    def _settle(self, run: Run, share: bool) -> Results:
        """Take the answer over into the request's tensors, once, and return it.

        They are a later run's, if there is one: an earlier one's answer is its own then.
        """
        if run.error is not None:
            raise run.error
        with run.taken:
            if run.results is None:
                start = time.perf_counter()
                tensors = self._tensors if run is self._run else self._tensors.fresh()
                values = tensors.take(run.outputs or {}, copy=not share)
                run.results = Results(self._target.outputs, values)
                run.outputs = None
                run.postprocess_s = time.perf_counter() - start
            return run.results


def check_callback(callback: object) -> None:
    """Raise ArgumentTypeError if `callback` is neither None nor can be called."""
    if callback is not None and not callable(callback):
        raise ArgumentTypeError(f"a callback is a function, got {callback!r}.")
