"""Device loop: connects a device's state machine, its stages and its channel.

Messages from the channel become events of the machine. The loop executes the instructions of the
machine: it passes tasks to threads, forwards outputs, and sends results to the client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hetero.devices.errors import HeteroError, InferenceError
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.plugin.remote_memory import is_remote
from hetero.devices.request.request import REPLAY
from hetero.scheduler.channels.channel import Channel, Receiver, has_lanes
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.device.direct_stage import DirectStage, left_outputs
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.lanes import DeviceLanes, LaneTask
from hetero.scheduler.device.resident_tensors import ResidentTensors
from hetero.scheduler.device.task_queue import DeviceMachine, TaskState
from hetero.scheduler.types.events import DeviceInstruction, StageOpened, Stop, TaskRun
from hetero.scheduler.types.messages import (
    ConcatTensors,
    Dropped,
    Failure,
    FetchTensors,
    FreeTensors,
    Message,
    Outputs,
    StoreTensors,
    Task,
    Values,
)

_log = logging.getLogger(__name__)

#: Creates a message without Python's call overhead: each request needs several.
_new: Final[Callable[..., Any]] = tuple.__new__

#: Number of recently closed deployments whose clients still receive failures of late messages.
_REMEMBERED: Final = 1024
#: Maximum number of stage timings that are forwarded to the next stage, not to the client.
_CARRIED: Final = 8


class DeviceLoop:
    """Loop of one device.

    `start`: receives each task to run; a thread then calls `run` with it, or `give_up`.
    `is_shared`: whether the device may have several clients.
    `now_s`: returns monotonic seconds, by the same clock as the host's.
    """

    def __init__(
        self,
        host: DeviceHost,
        connect: Callable[[Receiver], Channel],
        start: Callable[[DeviceLoop, Any], None],
        *,
        is_shared: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self._now_s = now_s
        self._leaves_outputs = host.leaves_outputs
        self._kept = ResidentTensors(host.descriptor, host.place, is_shared)
        self._machine = DeviceMachine()
        self._start = start
        self._lock = threading.Lock()
        #: Clients of recently closed deployments.
        self._closed: OrderedDict[str, str] = OrderedDict()
        #: The running task of each thread, with its start time.
        self._active_runs: dict[int, tuple[TaskRun, float]] = {}
        self._channel = channel = connect(self.receive)
        self._lanes: DeviceLanes | None = None
        if has_lanes(channel):
            self._lanes = DeviceLanes(
                self._machine,
                host,
                channel,
                self._lock,
                now_s,
                start=partial(start, self),
                receive=self.receive,
                send_failure=self._send_failure,
                typed_error=self._failure,
                follow=self._execute,
            )
            channel.receive_lane = self._lanes.receive
        #: Address of the device.
        self.address = self._channel.address
        #: Sends a message; copies values in the device's memory to the host for other devices.
        self._send = self._send_left if self._leaves_outputs else self._channel.send

    @property
    def num_streams(self) -> int:
        """Maximum number of tasks that run at once."""
        return self._machine.num_streams

    @property
    def num_waiting(self) -> int:
        """Number of tasks that wait for inputs or for a stream."""
        with self._lock:
            return self._machine.num_tasks - self._machine.num_running

    @property
    def num_clients(self) -> int:
        """Number of clients that have stages on the device."""
        with self._lock:
            return len(self._machine.clients)

    def status(self) -> dict[str, float]:
        """Return the numbers of tasks, runs and streams, and the time of an overdue task."""
        now_s = self._now_s()
        overdue_s = 0.0
        for run, begun_s in self._active_runs.copy().values():
            if 0 < run.stage.description.timeout_s < now_s - begun_s:
                overdue_s = max(overdue_s, now_s - begun_s)
        with self._lock:
            tasks, running = self._machine.num_tasks, self._machine.num_running
            stall_allowance_s = self._machine.stall_allowance_s
        return {
            "tasks": tasks,
            "running": running,
            "streams": self._machine.num_streams,
            "kept_nbytes": self._kept.nbytes,
            "overdue_s": overdue_s,
            # A stage may hold the interpreter lock, and so delay heartbeats, up to its time limit.
            "stall_allowance_s": stall_allowance_s,
        }

    def open_stage(self, description: StageOpened) -> None:
        """Accept tasks of a loaded stage; a second call updates its receivers."""
        with self._lock:
            instructions = self._machine.open(description)
            if self._lanes is not None:
                self._lanes.open(description)
        self._execute(instructions)

    def close_deployment(self, deployment: str) -> None:
        """Cancel a deployment's tasks and unload its stages."""
        with self._lock:
            client = self._machine.client_of(deployment)
            instructions = self._machine.close(deployment)
            if self._lanes is not None:
                self._lanes.close(deployment)
            if client is not None:
                self._closed[deployment] = client
            while len(self._closed) > _REMEMBERED:
                forgotten, _ = self._closed.popitem(last=False)
                if self._lanes is not None:
                    self._lanes.forget(forgotten)
        self._execute(instructions)
        self.host.unload(deployment)

    def client_gone(self, client: str) -> None:
        """Remove the deployments and resident tensors of a client."""
        with self._lock:
            deployments = self._machine.deployments_of(client)
        for deployment in deployments:
            self.close_deployment(deployment)
        self._kept.free_all_of(client)

    def receive(self, message: Message) -> None:
        """Process a message from the channel."""
        if type(message) is not Values:
            try:
                self._process_message(message)
            except BaseException as error:
                if not isinstance(error, Exception):  # Ctrl-C
                    self._recover()
                raise
            return
        task, tensors, runs = message
        try:
            with self._lock:
                instructions = self._machine.add_inputs(task, tensors, runs, self._now_s())
            if instructions:
                self._execute(instructions)
        except BaseException as error:  # a bug, or Ctrl-C if the sender is in this process
            self.give_up(task, error)
            if not isinstance(error, Exception):
                self._recover()
                raise
            _log.exception("device=%s: failed to process a message", self.host.descriptor.name)

    def _process_message(self, message: Message) -> None:
        """Process a message other than the inputs of a task."""
        if isinstance(message, Dropped):
            with self._lock:
                instructions = self._machine.drop(message.request)
            if self._lanes is not None:
                self._lanes.drop(message.request)
            self._kept.free_attempt(message.request)
            self._execute(instructions)
        elif isinstance(message, StoreTensors | FetchTensors | ConcatTensors):
            self._kept.answer(message, self._send)
        elif isinstance(message, FreeTensors):
            self._kept.free(message.keys)
        elif isinstance(message, Failure):  # the message was unreadable; see `envelope`
            self._send_failure(message)

    def run(self, due: TaskRun | LaneTask) -> None:
        """Run a task in the calling thread, and forward its outputs."""
        if type(due) is LaneTask:
            assert self._lanes is not None
            self._lanes.run(due)
            return
        assert type(due) is TaskRun
        thread = threading.get_ident()
        failure: HeteroError | None = None
        try:
            self._active_runs[thread] = (due, self._now_s())
            if not self._machine.claim(due):
                del self._active_runs[thread]
                return
            context = due.context = RunContext()  # before the check, so that a drop cancels it
            try:
                if due.state is TaskState.RUNNING:
                    self._run(due, context)
            except Exception as error:
                failure = self._failure(due.task, error)
            del self._active_runs[thread]
            with self._lock:
                instructions = self._machine.end(due, failure)
            # The next tasks start first: the device must not wait while the outputs are sent.
            if len(instructions) > 1 and instructions[0] is due:
                instructions.append(instructions.pop(0))
            self._execute(instructions)
        except BaseException as error:  # Ctrl-C
            self._active_runs.pop(thread, None)
            self.give_up(due.task, error)
            self._recover(due)
            raise

    def _run(self, due: TaskRun, context: RunContext) -> None:
        left = self._outputs_left(due) if self._leaves_outputs else frozenset()
        inputs = list(map(due.tensors.__getitem__, due.stage.description.inputs))
        due.outputs, went = self.host.run_stage(
            *due.task, inputs, context, ready_s=due.ready_s, left=left
        )
        due.runs = (*due.runs, went)
        due.stage.record_run(went.ended_s - went.started_s)

    def direct_stage(self, deployment: str, stage: int) -> DirectStage:
        """Return an open stage for callers' threads."""
        return DirectStage(
            deployment,
            self._machine.stage(deployment, stage),
            self._lock,
            self._machine,
            self.host,
            self._execute,
            self.address,
            self._kept,
        )

    def close(self) -> None:
        """Close the channel and unload every stage."""
        self._channel.close()
        self.host.close()

    def give_up(self, task: Task, error: BaseException) -> None:
        """Fail a task that the calling thread cannot finish, unless another thread runs it."""
        failure = self._failure(task, error)
        with self._lock:
            run = self._machine.find(task)
            if run is None or run.state not in (TaskState.RUNNING, TaskState.DROPPED):
                return
            if any(run is active for active, _ in self._active_runs.copy().values()):
                return
            instructions = self._machine.end(run, failure)
        self._execute(instructions)

    def _recover(self, ended_run: TaskRun | None = None) -> None:
        """Start the tasks whose start Ctrl-C prevented.

        `ended_run`: a run that the calling thread has ended without releasing its stream.
        """
        with self._lock:
            if ended_run is not None and ended_run.state is TaskState.GONE:
                self._machine.release_stream(ended_run.stage, ended_run)
            instructions = self._machine.recover()
        self._execute(instructions)

    def _outputs_left(self, run: TaskRun) -> frozenset[str]:
        """Return the outputs of a run that no receiver needs outside the device."""
        request, stage = run.task.request, run.stage.description
        sends = stage.sends.get(request.route, ())
        if not sends and not request.resident_outputs:
            return frozenset()
        return left_outputs(self.address, sends, stage.outputs, request.resident_outputs)

    def _send_left(self, address: str, message: Message) -> None:
        if not isinstance(message, Values):
            self._channel.send(address, message)
        elif address == self.address:
            self.receive(message._replace(tensors=read_only(message.tensors)))
        else:
            tensors = {
                name: value.to_host() if is_remote(type(value)) else value
                for name, value in message.tensors.items()
            }
            self._channel.send(address, message._replace(tensors=tensors))

    def _execute(self, instructions: Sequence[DeviceInstruction]) -> None:
        for position, instruction in enumerate(instructions):
            try:
                if type(instruction) is TaskRun:
                    if instruction.outputs is None:
                        self._start(self, instruction)
                    else:
                        self._pass_on(instruction)
                elif isinstance(instruction, Failure):
                    self._send_failure(instruction)
                elif isinstance(instruction, Stop) and instruction.run.context is not None:
                    instruction.run.context.cancel()  # without a context, `run` checks it
            except Exception as error:  # report it to the request; the thread continues
                task = (instruction.run if isinstance(instruction, Stop) else instruction).task
                if type(instruction) is TaskRun and instruction.outputs is None:
                    self.give_up(task, error)
                else:
                    self._send_failure(Failure(task, self._failure(task, error)))
            except BaseException:  # Ctrl-C: other requests' tasks continue
                self._execute(instructions[position + 1 :])
                raise

    def _pass_on(self, run: TaskRun) -> None:
        """Send the outputs of a run to the stages that read them, and results to the client."""
        if self._lanes is not None and self._lanes.forward(run):
            return
        task = run.task
        request = task.request
        description, outputs, runs = run.stage.description, run.outputs, run.runs
        assert outputs is not None
        sends = description.sends.get(request.route, ())
        if request.restore_s:  # first: the client may free the tensors soon after sending
            self._kept.keep_sent(description.client, task, self._outputs_to_devices(run, outputs))
        answered, reported_runs = outputs if request.route != REPLAY else {}, runs
        if len(description.outputs) < len(answered):
            answered = {name: outputs[name] for name in description.outputs}
        if request.resident_outputs and (
            resident := self._kept.keep_outputs(description.client, task, outputs)
        ):
            stay = {*request.resident_outputs}.difference(request.resident_copies)
            answered = {name: value for name, value in answered.items() if name not in stay}
            reported_runs = (*runs[:-1], runs[-1]._replace(resident=resident))
            if not answered:  # later stages report these timings to the client
                runs = reported_runs
        if len(runs) > _CARRIED and sends:
            self._channel.send(description.client, Outputs(task, {}, runs))
            runs = ()
        for address, stage, names, _ in sends:
            tensors = outputs
            if len(names) < len(outputs):
                tensors = {name: outputs[name] for name in names}
            values = _new(Values, (_new(Task, (request, stage)), tensors, runs))
            self._send(address, values)
        if request.resident_outputs:
            for message in self._kept.take_awaited(task):  # first: other devices wait for it
                self._kept.answer(message, self._send)
        if answered or not sends:
            self._channel.send(description.client, _new(Outputs, (task, answered, reported_runs)))
        if request.has_resident_tensors and self._machine.is_dropped(request):
            self._kept.free_attempt(request)  # it was dropped meanwhile

    def _outputs_to_devices(self, run: TaskRun, outputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return the outputs sent to other devices; for a replay, those that any route sends."""
        description, route = run.stage.description, run.task.request.route
        every = (
            description.sends.values() if route == REPLAY else (description.sends.get(route, ()),)
        )
        return {
            name: outputs[name]
            for sends in every
            for address, _, names, _ in sends
            if route == REPLAY or address != self.address
            for name in names
        }

    def _send_failure(self, failure: Failure) -> None:
        """Send a failure to the task's client, if the deployment is known."""
        deployment = failure.task.request.deployment
        client = self._machine.client_of(deployment) or self._closed.get(deployment)
        if client is not None:
            self._channel.send(client, failure)

    def _failure(self, task: Task, error: BaseException) -> HeteroError:
        """Return the error to report; untyped exceptions become InferenceError."""
        if isinstance(error, HeteroError):
            return error.with_traceback(None)  # its traceback refers to the inputs
        name = self.host.descriptor.name
        return InferenceError(
            f"stage {task.stage} on device {name}, request {task.request.id}, attempt "
            f"{task.request.attempt}: {type(error).__name__}: {error}",
            stage=task.stage,
            device=name,
            cause=repr(error),
        )
