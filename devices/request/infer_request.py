"""`InferRequest`: the user's interface to a request, with the names of OpenVINO's Python API."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from hetero.devices.errors import ArgumentError, ArgumentTypeError, TensorTypeError
from hetero.devices.model.property_getter import getter
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.request import check_priority
from hetero.devices.request.response import RequestTimes
from hetero.devices.request.results import ProfilingInfo, Results
from hetero.devices.request.run import profile_rows
from hetero.devices.request.state_machine import RequestStateMachine, State
from hetero.devices.request.story import format_story
from hetero.devices.request.target import RequestTarget
from hetero.devices.request.tensor import Tensor
from hetero.devices.request.variable_states import VariableState


class InferRequest:
    """Runs a model, synchronously or asynchronously, one run at a time.

    Parameters
    ----------
    target : RequestTarget
        The target that runs the model.
    compiled_model : CompiledModel, optional
        The compiled model that created the request.
    """

    def __init__(self, target: RequestTarget, compiled_model: Any = None) -> None:
        self._target = target
        self._compiled_model = compiled_model
        self._machine = RequestStateMachine(target)
        self._tensors = self._machine.tensors

    def __repr__(self) -> str:
        ports = ", ".join(f"{port.name!r} {port}" for port in self.model_inputs)
        return f"<InferRequest {self.state.name.lower()}: takes {ports or 'nothing'}>"

    # Runs.

    def infer(
        self,
        inputs: Any = None,
        share_inputs: bool = False,
        share_outputs: bool = False,
        *,
        decode_strings: bool = True,
        timeout_s: float | None = None,
    ) -> Results:
        """Run and return the outputs, without a call of the callback.

        Parameters
        ----------
        inputs : dict, sequence, array or None
            Inputs by name, position or port; a list of inputs; the only input; or None for the
            current tensors.
        share_inputs : bool
            Whether the request may use the arrays without a copy.
        share_outputs : bool
            Whether results may share memory with the request's tensors; otherwise they are copies.
        decode_strings : bool
            Whether to return text as str; otherwise as UTF-8 bytes.
        timeout_s : float, optional
            Seconds until the deadline.

        Raises
        ------
        TensorNameError, TensorTypeError, TensorShapeError
            An input does not fit its port.
        RequestBusyError, RequestCancelledError, DeadlineError, InferenceError
            The run could not start or did not succeed.
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
        """Start a run; call `wait`, or set a callback, to get its results.

        Parameters
        ----------
        inputs : dict, sequence, array or None
            See `infer`. Invalid inputs raise here. The arrays are copied, unless `share_inputs`.
        userdata : object, optional
            Argument of the callback for this run.
        share_inputs : bool
            Whether the run may use the arrays without a copy; do not modify them until it ends.
        timeout_s : float, optional
            See `infer`.
        """
        self._machine.start(inputs, userdata, share_inputs, timeout_s, call_back=True)

    @property
    def feedback(self) -> Mapping[str, str]:
        """Input name -> output of the previous run that it reads, in runs of `start_next`."""
        return self._machine.feedback

    @feedback.setter
    def feedback(self, value: Mapping[str, str]) -> None:
        tensors = self._tensors
        pairs = [(tensors.input_port(i), tensors.output_port(o)) for i, o in value.items()]
        for port, output in pairs:
            if port.type != output.type:
                raise TensorTypeError(
                    f"feedback: expected an input and an output of one type, got input "
                    f"{port.name!r} ({port}) and output {output.name!r} ({output}).",
                    port=port.name,
                )
        with self._machine.hold_idle("feedback"):
            self._machine.feedback = {port.name: output.name for port, output in pairs}

    def start_next(self, inputs: Mapping[str, Any]) -> bool:
        """Submit the next run while the current run is in flight.

        Devices start the next run as soon as the current one has ended, without waiting for this
        process. The next run reads the states of the current run, and its outputs according to
        `feedback`, directly from the devices.

        The next call of `infer` or `start_async` then returns this run, and ignores its own inputs.
        If the current run fails or is retried, or if states are set in the meantime, the submitted
        run is cancelled and that call starts its own run.

        Parameters
        ----------
        inputs : mapping of str to array
            All inputs without feedback, by name; do not modify the arrays until the run ends.

        Returns
        -------
        bool
            Whether the run was submitted. This requires a run in flight of `start_async`, a model
            with states, and admission of one more run.
        """
        return self._machine.start_next(inputs)

    def wait(self) -> None:
        """Wait until the run, its callback and all runs that the callback started have ended.

        Raises
        ------
        RequestCancelledError
            The run was cancelled.
        DeadlineError
            The run exceeded its `timeout_s`.
        HeteroError, or an exception of the callback
            The run or its callback failed.
        """
        self._machine.wait()

    def wait_for(self, timeout: float) -> bool:
        """Wait up to `timeout` milliseconds; return whether the request is idle.

        Raises
        ------
        ArgumentError
            `timeout` is negative.
        """
        if timeout < 0:
            raise ArgumentError(f"wait_for: expected 0 or more milliseconds, got {timeout!r}.")
        return self._machine.wait_for(timeout / 1000)

    def future(self) -> Future[Results]:
        """Return a future of the last run's results.

        The future is done when the run and its callback have ended. Cancelling the future cancels
        the run. With asyncio, use ``await request`` to get the results.

        Raises
        ------
        RequestNotStartedError
            The request has never run.
        """
        return self._machine.future_of(self._machine.started_run("future"))

    def __await__(self) -> Generator[Any, None, Results]:
        import asyncio  # imported here, because most programs do not need it

        return asyncio.wrap_future(self.future()).__await__()

    def cancel(self) -> None:
        """Cancel the current run; no effect on an idle request."""
        self._machine.cancel()

    @property
    def state(self) -> State:
        """The state: idle, busy, or cancelled (stopping)."""
        return self._machine.state

    @property
    def priority(self) -> int:
        """Priority of runs: among requests that wait for admission, the greatest starts first.

        The default is 0. A run has the priority at its start. Devices also respect priorities, but
        only among requests of the same client, so that other clients get their share.
        """
        return self._machine.priority

    @priority.setter
    def priority(self, value: int) -> None:
        self._machine.priority = check_priority(value)

    @property
    def restore_s(self) -> float:
        """Maximum seconds that a run may spend on the recomputation of lost states.

        A device that fails loses its states. Other devices then recompute them by replaying the
        stages of all runs since the initial state. If the replay exceeds this limit, or its inputs
        are no longer available, the run raises TensorLostError. By default there is no limit. At 0,
        devices store nothing for a replay.
        """
        return self._machine.restore_s

    @restore_s.setter
    def restore_s(self, value: float) -> None:
        if not isinstance(value, int | float | np.number) or not value >= 0:
            raise ArgumentTypeError(
                f"restore_s: expected a number of seconds of at least 0, got {value!r}."
            )
        self._machine.restore_s = float(value)

    def set_callback(self, callback: Callable[[Any], object] | None, userdata: Any = None) -> None:
        """Set the callback of `start_async`, which is called with `userdata` in another thread.

        It is called once after each run, before `wait` returns, also if the run failed: `results`
        then raises the error. The callback may start the request again. `wait` raises any exception
        of the callback, including ``SystemExit`` and ``KeyboardInterrupt``.
        """
        check_callback(callback)
        self._machine.set_callback(callback, userdata)

    @property
    def userdata(self) -> Any:
        """The argument of the callback."""
        run = self._machine.run
        return self._machine.userdata if run is None or run.userdata is None else run.userdata

    # Results.

    @property
    def results(self) -> Results:
        """The last run's outputs; raises the run's error.

        Raises
        ------
        RequestBusyError
            The request is running.
        RequestNotStartedError
            The request has never run.
        """
        return self._machine.collect(self._machine.ended_run("results"), True)

    @property
    def latency(self) -> float:
        """Milliseconds of the last finished run; 0 before the first."""
        return self._machine.latency_s * 1000

    @property
    def times(self) -> RequestTimes:
        """Breakdown of the last run's time into admission, stages and other parts, in seconds.

        Raises
        ------
        RequestBusyError, RequestNotStartedError
            The request is running, or has never run.
        """
        return self._machine.ended_run("times").times

    @property
    def profiling_info(self) -> list[ProfilingInfo]:
        """Profile of the last run by stage and executed node.

        Without PERF_COUNT every status is NOT_RUN.
        """
        with self._machine.hold_idle("profiling_info"):
            run = self._machine.run
        has_profile = self._target.profiles and run is not None and run.error is None
        return profile_rows(run if has_profile else None, self._target)

    get_profiling_info = getter(profiling_info)

    @property
    def request_id(self) -> int | None:
        """The last run's number in errors, traces and `CompiledModel.story`."""
        return None if self._machine.run is None else self._machine.run.request_id

    def get_compiled_model(self) -> Any:
        """Return the compiled model that created the request."""
        return self._compiled_model

    def story(self) -> tuple[str, ...]:
        """Return the history of the last run, one line per event.

        A line has the milliseconds since submission, the attempt, and the event: admission, start,
        replay, response, failure, or the execution of a stage. The history is empty before the
        first run is admitted, and after many later requests have ended.
        """
        run = self._machine.run
        return () if run is None else format_story(run.story(), run.stage_timings)

    # States.

    def query_state(self) -> tuple[VariableState, ...]:
        """Return the request's state variables; empty if the model declares none.

        Each request has its own values. A successful run changes them; a run that fails or is
        cancelled does not.
        """
        machine = self._machine
        with machine.hold_idle("query_state"):
            states = machine.states
            return tuple(VariableState(v, states, machine.hold_idle) for v in states.variables)

    def reset_state(self) -> None:
        """Reset all state variables to their initial state."""
        with self._machine.hold_idle("reset_state"):
            for variable in self._machine.states.variables:
                self._machine.states.reset(variable)

    def join_states(
        self, parts: Sequence[tuple[InferRequest, Sequence[int]]], layouts: Mapping[str, RowLayout]
    ) -> None:
        """Set the states to a batch of rows from the states of other requests of the same model.

        The devices that store the states assemble the batch.

        Parameters
        ----------
        parts : sequence of (InferRequest, sequence of int)
            Requests that have run, and the rows to use of each.
        layouts : mapping of str to RowLayout
            Name of a variable -> layout of its rows.

        Raises
        ------
        TensorLostError, DeviceLostError
            A device failed and lost its states.
        DeviceMemoryError
            A device has too little memory.
        """
        with self._machine.hold_idle("join_states"):
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
        """Tensors of all inputs."""
        return [self.get_tensor(port) for port in self.model_inputs]

    @property
    def output_tensors(self) -> list[Tensor]:
        """Tensors of all outputs."""
        return [self.get_tensor(port) for port in self.model_outputs]

    def get_tensor(self, name: str | TensorSpec) -> Tensor:
        """Return the tensor of an input or output; runs do not replace the object."""
        with self._machine.hold_idle("get_tensor"):
            return self._tensors.get(name)

    def set_tensor(self, name: str | TensorSpec, tensor: Any) -> None:
        """Set the memory of an input or output for later runs.

        The tensor is not copied; do not modify an input during a run.

        Raises
        ------
        TensorNameError, TensorTypeError, TensorShapeError
            The tensor does not fit; shared memory is never converted.
        """
        with self._machine.hold_idle("set_tensor"):
            self._tensors.set(name, tensor)

    def set_tensors(self, name: Any, tensors: Sequence[Any] | None = None) -> None:
        """Set several tensors, or one input as a batch of tensors.

        Parameters
        ----------
        name : mapping, or str or TensorSpec
            Tensors by name, port or position; or the input to set as a batch.
        tensors : sequence of tensors, optional
            Items of the batch, of batch size 1 each. Runs concatenate them along the batch axis.
        """
        if tensors is None:
            for key, tensor in _pairs(name):
                self.set_tensor(key, tensor)
            return
        with self._machine.hold_idle("set_tensors"):
            self._tensors.set_batch(self._tensors.input_port(name), tensors)

    def get_input_tensor(self, index: int | None = None) -> Tensor:
        """Return an input's tensor; without an index, that of the only input."""
        with self._machine.hold_idle("get_input_tensor"):
            return self._tensors.get_input(self._tensors.input_port(index))

    def get_output_tensor(self, index: int | None = None) -> Tensor:
        """Return an output's tensor; without an index, that of the only output."""
        with self._machine.hold_idle("get_output_tensor"):
            return self._tensors.output(self._tensors.output_port(index))

    def set_input_tensor(self, *arguments: Any) -> None:
        """Set an input's memory: ``(tensor)`` for the only input, or ``(index, tensor)``."""
        index, tensor = arguments if len(arguments) == 2 else (None, *arguments)
        with self._machine.hold_idle("set_input_tensor"):
            self._tensors.set_input(self._tensors.input_port(index), tensor)

    def set_output_tensor(self, *arguments: Any) -> None:
        """Set an output's memory: ``(tensor)`` for the only output, or ``(index, tensor)``."""
        index, tensor = arguments if len(arguments) == 2 else (None, *arguments)
        with self._machine.hold_idle("set_output_tensor"):
            self._tensors.set_output(self._tensors.output_port(index), tensor)

    def set_input_tensors(self, *arguments: Any) -> None:
        """Set inputs from a dict or list, or one input as a batch: ``(index, tensors)``.

        A list of tensors for a model with one input is a batch.
        """
        first: Any = arguments[0]
        is_single = len(arguments) == len(self.model_inputs) == 1
        if is_single and isinstance(first, list | tuple):
            arguments = (0, first)
        if len(arguments) == 2:
            self.set_tensors(*arguments)
        else:
            for key, tensor in _pairs(first):
                self.set_input_tensor(key, tensor)

    def set_output_tensors(self, tensors: Mapping[Any, Any] | Sequence[Any]) -> None:
        """Set the memory of outputs from a dict or list."""
        for key, tensor in _pairs(tensors):
            self.set_output_tensor(key, tensor)

    def keep_remote(self, name: int | str | TensorSpec | None = None, keep: bool = True) -> None:
        """Keep an output in the memory of its device, from the next run on.

        The output is then a `RemoteTensor`: other requests of the same Core accept it as an input,
        and `to_host` copies it to the host. Each run creates a new tensor. The device frees it when
        no reference remains.
        """
        with self._machine.hold_idle("keep_remote"):
            self._tensors.keep_remote(self._tensors.output_port(name), keep)


def check_callback(callback: object) -> None:
    """Raise ArgumentTypeError if `callback` is neither None nor callable."""
    if callback is not None and not callable(callback):
        raise ArgumentTypeError(f"expected a function as callback, got {callback!r}.")


def _pairs(tensors: Mapping[Any, Any] | Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors))
