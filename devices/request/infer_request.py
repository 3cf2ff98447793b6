"""The infer request as its user sees it, under the names of OpenVINO's Python API."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from hetero.devices.errors import ArgumentError, ArgumentTypeError, TensorTypeError
from hetero.devices.model.property_getter import getter
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.response import RequestTimes
from hetero.devices.request.results import ProfilingInfo, Results
from hetero.devices.request.run import profile_rows
from hetero.devices.request.state_machine import RequestStateMachine, State
from hetero.devices.request.story import format_story
from hetero.devices.request.target import RequestTarget
from hetero.devices.request.tensor import Tensor
from hetero.devices.request.variable_states import VariableState


class InferRequest:
    """Runs a model, once at a time, synchronously or not.

    Parameters
    ----------
    target : RequestTarget
        What runs it.
    compiled_model : CompiledModel, optional
        Whose request it is.
    """

    def __init__(self, target: RequestTarget, compiled_model: Any = None) -> None:
        self._target = target
        self._compiled_model = compiled_model
        self._machine = RequestStateMachine(target)
        self._tensors = self._machine.tensors

    def __repr__(self) -> str:
        ports = ", ".join(f"{port.name!r} {port}" for port in self.model_inputs)
        return f"<InferRequest {self.state.name.lower()}: takes {ports or 'nothing'}>"

    # Running.

    def infer(
        self,
        inputs: Any = None,
        share_inputs: bool = False,
        share_outputs: bool = False,
        *,
        decode_strings: bool = True,
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
        decode_strings : bool
            Whether text is answered as str; else as bytes in UTF-8.
        timeout_s : float, optional
            Seconds until the answer must be there; none are left at 0.

        Raises
        ------
        TensorNameError, TensorTypeError, TensorShapeError
            What was given does not fit the ports.
        RequestBusyError, RequestCancelledError, DeadlineError, InferenceError
            The run was not started, or not finished.
        """
        results = self._machine.infer(inputs, share_inputs, share_outputs, timeout_s)
        return results if decode_strings else results.with_bytes()

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
        self._machine.start(inputs, userdata, share_inputs, timeout_s, call_back=True)

    @property
    def feedback(self) -> Mapping[str, str]:
        """Input -> output that it is of the run before, in runs that `start_next` starts."""
        return self._machine.feedback

    @feedback.setter
    def feedback(self, value: Mapping[str, str]) -> None:
        tensors = self._tensors
        pairs = [(tensors.input_port(i), tensors.output_port(o)) for i, o in value.items()]
        for taken, given in pairs:
            if taken.type != given.type:
                raise TensorTypeError(
                    f"feedback: input {taken.name!r} is {taken}, output {given.name!r} {given}; "
                    "both have to be of one type.",
                    port=taken.name,
                )
        with self._machine.idle("feedback"):
            self._machine.feedback = {taken.name: given.name for taken, given in pairs}

    def start_next(self, inputs: Mapping[str, Any]) -> bool:
        """Start the run that comes after the one in flight, on devices' word that it has ended.

        It reads the states that the run in flight makes, and its outputs by `feedback`, from device
        to device, without waiting for this process. The next `infer` or `start_async` is that run,
        whose own inputs then count for nothing; where it reads what did not come to be, as the run
        before failed, was tried again, or states were set since, it is cancelled, and that call
        starts its run itself.

        Parameters
        ----------
        inputs : mapping of str to array
            All others, by name; do not write to them before that run has ended.

        Returns
        -------
        bool
            Whether it was started: there has to be a run in flight, started with `start_async`, of
            a model with states, and room for one more.
        """
        return self._machine.start_next(inputs)

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
        self._machine.wait()

    def wait_for(self, timeout: float) -> bool:
        """Wait at most `timeout` milliseconds; return whether the request is not running.

        Raises
        ------
        ArgumentError
            If `timeout` is negative.
        """
        if timeout < 0:
            raise ArgumentError(f"wait_for({timeout!r}): milliseconds to wait are 0 or more.")
        return self._machine.wait_for(timeout / 1000)

    def future(self) -> Future[Results]:
        """Return what the last run answers, for those who wait for several things at once.

        It has an answer, or the run's error, once the run and its callback have ended. To cancel
        it cancels the run. ``await request`` is the same for asyncio, and returns the results.

        Raises
        ------
        RequestNotStartedError
            It never ran.
        """
        return self._machine.future_of(self._machine.started_run("future"))

    def __await__(self) -> Generator[Any, None, Results]:
        import asyncio  # here, as few have a loop: it is not needed at every start

        return asyncio.wrap_future(self.future()).__await__()

    def cancel(self) -> None:
        """Ask a running request to stop; nothing happens where none runs."""
        self._machine.cancel()

    @property
    def state(self) -> State:
        """Idle, busy, or cancelled but not stopped yet."""
        return self._machine.state

    @property
    def priority(self) -> int:
        """Which of a compiled model's requests that wait to be admitted go first: the greatest.

        0 until it is set; a run has the priority of its start. On a device it decides only between
        those whose turn is the same: other clients of the device get theirs all the same.
        """
        return self._machine.priority

    @priority.setter
    def priority(self, value: int) -> None:
        if not isinstance(value, int | np.integer):
            raise ArgumentTypeError(f"priority={value!r}: wanted a whole number.")
        self._machine.priority = int(value)

    @property
    def restore_s(self) -> float:
        """Seconds of stages' runs that a run may spend to have states back that are lost.

        A device that is lost takes states with it. Its stages run again then, elsewhere, on what
        they were given in each run since the beginning; where that takes longer, or is no longer
        known, the run raises TensorLostError. Any time by default; at 0 nothing is kept for it.
        """
        return self._machine.restore_s

    @restore_s.setter
    def restore_s(self, value: float) -> None:
        if not isinstance(value, int | float | np.number) or not value >= 0:
            raise ArgumentTypeError(f"restore_s={value!r}: wanted a number of seconds, 0 or more.")
        self._machine.restore_s = float(value)

    def set_callback(self, callback: Callable[[Any], object] | None, userdata: Any = None) -> None:
        """Set what is called with `userdata` after each `start_async`, in another thread.

        It is called once per run, failed ones included (`results` then raises the failure), before
        `wait` returns; it may start the request again. What it raises, ``SystemExit`` and
        ``KeyboardInterrupt`` included, `wait` raises.
        """
        check_callback(callback)
        self._machine.set_callback(callback, userdata)

    @property
    def userdata(self) -> Any:
        """What the callback is given."""
        run = self._machine.run
        return self._machine.userdata if run is None or run.userdata is None else run.userdata

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
        return self._machine.settle(self._machine.ended_run("results"), True)

    @property
    def latency(self) -> float:
        """Milliseconds that the last finished run took; 0 before one did."""
        return self._machine.latency_s * 1000

    @property
    def times(self) -> RequestTimes:
        """Where the time of the last run went: admission, stages and the rest, in seconds.

        Raises
        ------
        RequestBusyError, RequestNotStartedError
            It still runs, or never ran.
        """
        return self._machine.ended_run("times").times

    @property
    def profiling_info(self) -> list[ProfilingInfo]:
        """The last run's stages and executed nodes; not run, and 0, without PERF_COUNT."""
        with self._machine.idle("profiling_info"):
            run = self._machine.run
        timed = self._target.profiles and run is not None and run.error is None
        return profile_rows(run if timed else None, self._target)

    get_profiling_info = getter(profiling_info)

    @property
    def request_id(self) -> int | None:
        """The last run's number, which errors, traces and `CompiledModel.story` know it by."""
        return None if self._machine.run is None else self._machine.run.request_id

    def get_compiled_model(self) -> Any:
        """Return the compiled model that made the request."""
        return self._compiled_model

    def story(self) -> tuple[str, ...]:
        """Return what happened to the last run so far, line by line.

        Empty before the first run is admitted, and once many later requests have ended.

        Each line says when, in milliseconds since the run was submitted, in which attempt, and
        what: how it was admitted, started, replayed, answered or failed, and how each stage went.
        """
        run = self._machine.run
        return () if run is None else format_story(run.story(), run.stage_timings)

    # States.

    def query_state(self) -> tuple[VariableState, ...]:
        """Return the variables that outlive a run; none where the model declares none.

        Each request has its own. They change when a run is answered; one that fails, or is
        cancelled, leaves them as they were.
        """
        machine = self._machine
        with machine.idle("query_state"):
            states = machine.states
            return tuple(VariableState(v, states, machine.idle) for v in states.variables)

    def reset_state(self) -> None:
        """Have the next run begin with every variable at its beginning."""
        with self._machine.idle("reset_state"):
            for variable in self._machine.states.variables:
                self._machine.states.reset(variable)

    def join_states(
        self, parts: Sequence[tuple[InferRequest, Sequence[int]]], layouts: Mapping[str, RowLayout]
    ) -> None:
        """Have the next run go on with rows of the states of other requests of the same model.

        They are put together on the devices that keep them.

        Parameters
        ----------
        parts : sequence of (InferRequest, sequence of int)
            Requests that have run, and which rows of each.
        layouts : mapping of str to RowLayout
            How rows lie in each variable, by its name.

        Raises
        ------
        TensorLostError, DeviceLostError
            A device is gone, and states with it.
        DeviceMemoryError
            A device has no room.
        """
        with self._machine.idle("join_states"):
            states = [(other._machine.states, rows) for other, rows in parts]
            self._machine.states.join(states, layouts)

    # Tensors.

    @property
    def model_inputs(self) -> list[TensorSpec]:
        """The input ports."""
        return list(self._target.inputs)

    @property
    def model_outputs(self) -> list[TensorSpec]:
        """The output ports."""
        return list(self._target.outputs)

    @property
    def input_tensors(self) -> list[Tensor]:
        """Each input's tensor."""
        return [self.get_tensor(port) for port in self.model_inputs]

    @property
    def output_tensors(self) -> list[Tensor]:
        """Each output's tensor."""
        return [self.get_tensor(port) for port in self.model_outputs]

    def get_tensor(self, name: str | TensorSpec) -> Tensor:
        """Return the tensor of an input or output; it stays the same object over runs."""
        with self._machine.idle("get_tensor"):
            return self._tensors.get(name)

    def set_tensor(self, name: str | TensorSpec, tensor: Any) -> None:
        """Read an input from, or write an output to, the given memory from now on.

        An input is not copied: do not write to it while a run is in flight.

        Raises
        ------
        TensorNameError, TensorTypeError, TensorShapeError
            It does not fit; shared memory is never converted.
        """
        with self._machine.idle("set_tensor"):
            self._tensors.set(name, tensor)

    def set_tensors(self, name: Any, tensors: Sequence[Any] | None = None) -> None:
        """Set several tensors, or one input's batch.

        Parameters
        ----------
        name : mapping, or str or TensorSpec
            Tensors by name, port or position; or the input that `tensors` are a batch of.
        tensors : sequence of tensors, optional
            Of batch size 1 each, joined along the batch's axis at each run.
        """
        if tensors is None:
            for key, tensor in _pairs(name):
                self.set_tensor(key, tensor)
            return
        with self._machine.idle("set_tensors"):
            self._tensors.set_batch(self._tensors.input_port(name), tensors)

    def get_input_tensor(self, index: int | None = None) -> Tensor:
        """Return an input's tensor; without a position, the only input's."""
        with self._machine.idle("get_input_tensor"):
            return self._tensors.get_input(self._tensors.input_port(index))

    def get_output_tensor(self, index: int | None = None) -> Tensor:
        """Return an output's tensor; without a position, the only output's."""
        with self._machine.idle("get_output_tensor"):
            return self._tensors.output(self._tensors.output_port(index))

    def set_input_tensor(self, *arguments: Any) -> None:
        """Set an input's memory: ``(tensor)`` of the only one, or ``(index, tensor)``."""
        index, tensor = arguments if len(arguments) == 2 else (None, *arguments)
        with self._machine.idle("set_input_tensor"):
            self._tensors.set_input(self._tensors.input_port(index), tensor)

    def set_output_tensor(self, *arguments: Any) -> None:
        """Set an output's memory: ``(tensor)`` of the only one, or ``(index, tensor)``."""
        index, tensor = arguments if len(arguments) == 2 else (None, *arguments)
        with self._machine.idle("set_output_tensor"):
            self._tensors.set_output(self._tensors.output_port(index), tensor)

    def set_input_tensors(self, *arguments: Any) -> None:
        """Set inputs by a dict or list, or one input's batch: ``(index, tensors)``, ``(tensors)``.

        A list of several tensors for a model of one input is its batch.
        """
        only: Any = arguments[0]
        alone = len(arguments) == len(self.model_inputs) == 1
        if alone and isinstance(only, list | tuple):
            arguments = (0, only)
        if len(arguments) == 2:
            self.set_tensors(*arguments)
        else:
            for key, tensor in _pairs(only):
                self.set_input_tensor(key, tensor)

    def set_output_tensors(self, tensors: Mapping[Any, Any] | Sequence[Any]) -> None:
        """Set outputs' memory by a dict or list."""
        for key, tensor in _pairs(tensors):
            self.set_output_tensor(key, tensor)

    def keep_remote(self, name: int | str | TensorSpec | None = None, keep: bool = True) -> None:
        """Have an output stay in the process of the device that makes it, from the next run on.

        It is then a `RemoteTensor`: an input for other requests of the same Core, to be read with
        `to_host`. Each run makes a new one, which is freed once nobody holds it.
        """
        with self._machine.idle("keep_remote"):
            self._tensors.keep_remote(self._tensors.output_port(name), keep)


def check_callback(callback: object) -> None:
    """Raise ArgumentTypeError if `callback` is neither None nor can be called."""
    if callback is not None and not callable(callback):
        raise ArgumentTypeError(f"a callback is a function, got {callback!r}.")


def _pairs(tensors: Mapping[Any, Any] | Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors))
