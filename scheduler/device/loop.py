"""The device loop: a device's machine, its stages and its channel, wherever the device is.

What comes by the channel goes into the machine, and what the machine says is done: tasks are
given to threads that run them, outputs are sent on, and the client hears of what it waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hetero.devices.errors import HeteroError, InferenceError
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.plugin.remote_memory import RemoteTensor
from hetero.devices.request.request import REPLAY
from hetero.scheduler.channels.channel import Channel, Receiver
from hetero.scheduler.channels.memory import read_only
from hetero.scheduler.device.direct_stage import DirectStage, left_outputs
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.kept import KeptTensors
from hetero.scheduler.device.machine import DeviceMachine, TaskState
from hetero.scheduler.vocabulary.events import DeviceInstruction, Run, StageOpened, Stop
from hetero.scheduler.vocabulary.messages import (
    Dropped,
    Failure,
    Free,
    Give,
    Join,
    Keep,
    Message,
    Outputs,
    Task,
    Values,
)

_log = logging.getLogger(__name__)

#: Makes a message without a call of Python's: there are several for each request.
_new: Final[Callable[..., Any]] = tuple.__new__

#: Deployments that were closed lately, whose clients are told of what comes late for them.
_REMEMBERED: Final = 1024
#: Runs that are carried on to the next stage at most; the client hears of so many at once.
_CARRIED: Final = 8


class DeviceLoop:
    """One device at work.

    `start`: takes each run that is due; some thread then calls `run` with it, or `give_up`.
    `is_shared`: whether there may be several clients.
    `now_s`: returns monotonic seconds, as its host's does.
    """

    def __init__(
        self,
        host: DeviceHost,
        connect: Callable[[Receiver], Channel],
        start: Callable[[DeviceLoop, Run], None],
        *,
        is_shared: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self._now_s = now_s
        self._leaves_outputs = host.leaves_outputs
        self._kept = KeptTensors(host.descriptor, host.place, is_shared)
        self._machine = DeviceMachine()
        self._start = start
        self._lock = threading.Lock()
        #: Clients of deployments that were closed lately.
        self._closed: OrderedDict[str, str] = OrderedDict()
        #: What each thread runs, and since when.
        self._begun: dict[int, tuple[Run, float]] = {}
        self._channel = connect(self.receive)
        #: Where others reach the device.
        self.address = self._channel.address
        #: Sends a message; values in the device's memory are copied to the host for others.
        self._send = self._send_left if self._leaves_outputs else self._channel.send

    @property
    def num_streams(self) -> int:
        """How many tasks run at once."""
        return self._machine.num_streams

    @property
    def num_clients(self) -> int:
        """How many clients have stages here."""
        with self._lock:
            return len(self._machine.clients)

    def status(self) -> dict[str, float]:
        """Return how many tasks are held, run and may run, and how long one has that is overdue."""
        now_s = self._now_s()
        overdue_s = 0.0
        for run, begun_s in self._begun.copy().values():
            if 0 < run.stage.opened.timeout_s < now_s - begun_s:
                overdue_s = max(overdue_s, now_s - begun_s)
        with self._lock:
            tasks, running = self._machine.num_tasks, self._machine.num_running
            patience_s = self._machine.patience_s
        return {
            "tasks": tasks,
            "running": running,
            "streams": self._machine.num_streams,
            "kept_nbytes": self._kept.nbytes,
            "overdue_s": overdue_s,
            # A stage may keep the interpreter, and with it the beats, for as long as it may run.
            "patience_s": patience_s,
        }

    def open_stage(self, opened: StageOpened) -> None:
        """Take tasks of a loaded stage; again to change where its outputs go."""
        with self._lock:
            instructions = self._machine.open(opened)
        self._follow(instructions)

    def close_deployment(self, deployment: str) -> None:
        """Drop a deployment's tasks and let go of its stages."""
        with self._lock:
            client = self._machine.client_of(deployment)
            instructions = self._machine.close(deployment)
            if client is not None:
                self._closed[deployment] = client
            while len(self._closed) > _REMEMBERED:
                self._closed.popitem(last=False)
        self._follow(instructions)
        self.host.unload(deployment)

    def client_gone(self, client: str) -> None:
        """Let go of all that a client has here."""
        with self._lock:
            deployments = self._machine.deployments_of(client)
        for deployment in deployments:
            self.close_deployment(deployment)
        self._kept.free_all_of(client)

    def receive(self, message: Message) -> None:
        """Take in what comes by the channel."""
        if type(message) is not Values:
            self._heed(message)
            return
        task, tensors, runs = message
        try:
            with self._lock:
                instructions = self._machine.arrived(task, tensors, runs, self._now_s())
            self._follow(instructions)
        except BaseException as error:  # a fault of ours; Ctrl-C, where its sender is this process
            self.give_up(task, error)
            if not isinstance(error, Exception):
                raise
            _log.exception("device=%s: a message could not be taken in", self.host.descriptor.name)

    def _heed(self, message: Message) -> None:
        """Do what a message asks for that brings no inputs of a task."""
        if isinstance(message, Dropped):
            with self._lock:
                instructions = self._machine.drop(message.request)
            self._kept.free_attempt(message.request)
            self._follow(instructions)
        elif isinstance(message, Keep | Give | Join):
            self._kept.answer(message, self._send)
        elif isinstance(message, Free):
            self._kept.free(message.keys)

    def run(self, due: Run) -> None:
        """Run a task that is due, in the calling thread, and pass on what it gives."""
        thread = threading.get_ident()
        failure: HeteroError | None = None
        try:
            self._begun[thread] = (due, self._now_s())
            if due.state is TaskState.GONE:  # it was given up
                del self._begun[thread]
                return
            context = due.context = RunContext()  # before it is looked whether it was dropped
            try:
                if due.state is TaskState.RUNNING:
                    self._run(due, context)
            except Exception as error:
                failure = self._failure(due.task, error)
            del self._begun[thread]
            with self._lock:
                instructions = self._machine.end(due, failure)
            self._follow(instructions)
        except BaseException as error:  # Ctrl-C
            self._begun.pop(thread, None)
            self.give_up(due.task, error)
            raise

    def _run(self, due: Run, context: RunContext) -> None:
        left = self._left(due) if self._leaves_outputs else frozenset()
        inputs = list(map(due.tensors.__getitem__, due.stage.opened.inputs))
        due.outputs, went = self.host.run_stage(
            *due.task, inputs, context, ready_s=due.ready_s, left=left
        )
        due.runs = (*due.runs, went)
        due.stage.learn(went.ended_s - went.started_s)

    def direct_stage(self, deployment: str, stage: int) -> DirectStage:
        """Return a stage that has been opened, as a caller's thread runs it."""
        return DirectStage(
            deployment,
            self._machine.stage(deployment, stage),
            self._lock,
            self._machine,
            self.host,
            self._follow,
            self.address,
        )

    def close(self) -> None:
        """Let go of every stage and take nothing more."""
        self._channel.close()
        self.host.close()

    def give_up(self, task: Task, error: BaseException) -> None:
        """End a task that the calling thread does not run to its end, unless another runs it."""
        failure = self._failure(task, error)
        with self._lock:
            run = self._machine.find(task)
            if run is None or run.state not in (TaskState.RUNNING, TaskState.DROPPED):
                return
            if any(run is begun for begun, _ in self._begun.copy().values()):
                return
            instructions = self._machine.end(run, failure)
        self._follow(instructions)

    def _left(self, run: Run) -> frozenset[str]:
        """Return the outputs of a run that nobody wants outside the device."""
        request, opened = run.task.request, run.stage.opened
        sends = opened.sends.get(request.route, ())
        return left_outputs(self.address, sends, opened.outputs, request.resident_outputs)

    def _send_left(self, address: str, message: Message) -> None:
        if not isinstance(message, Values):
            self._channel.send(address, message)
        elif address == self.address:
            self.receive(message._replace(tensors=read_only(message.tensors)))
        else:
            tensors = {
                name: value.to_host() if isinstance(value, RemoteTensor) else value
                for name, value in message.tensors.items()
            }
            self._channel.send(address, message._replace(tensors=tensors))

    def _follow(self, instructions: Sequence[DeviceInstruction]) -> None:
        for position, instruction in enumerate(instructions):
            try:
                if type(instruction) is Run:
                    if instruction.outputs is None:
                        self._start(self, instruction)
                    else:
                        self._pass_on(instruction)
                elif isinstance(instruction, Failure):
                    self._tell(instruction)
                elif isinstance(instruction, Stop) and instruction.run.context is not None:
                    instruction.run.context.cancel()  # else it looks itself before it begins
            except Exception as error:  # whatever it is: the request hears of it, threads live on
                task = (instruction.run if isinstance(instruction, Stop) else instruction).task
                if type(instruction) is Run and instruction.outputs is None:
                    self.give_up(task, error)
                else:
                    self._tell(Failure(task, self._failure(task, error)))
            except BaseException:  # Ctrl-C: the others' tasks go on
                self._follow(instructions[position + 1 :])
                raise

    def _pass_on(self, run: Run) -> None:
        """Send what a run gave to the stages that take it, and to the client if that is to hear."""
        task = run.task
        request = task.request
        opened, outputs, runs = run.stage.opened, run.outputs, run.runs
        assert outputs is not None
        sends = opened.sends.get(request.route, ())
        if request.restore_s:  # first: once it is sent, its client may soon say that it is freed
            self._kept.keep_sent(opened.client, task, self._sent(run, outputs))
        answered, told = outputs if request.route != REPLAY else {}, runs
        if len(opened.outputs) < len(answered):
            answered = {name: outputs[name] for name in opened.outputs}
        if request.resident_outputs and (
            kept := self._kept.keep_outputs(opened.client, task, outputs)
        ):
            stay = {*request.resident_outputs}.difference(request.resident_copies)
            answered = {name: value for name, value in answered.items() if name not in stay}
            told = (*runs[:-1], runs[-1]._replace(resident=kept))
            if not answered:  # its client hears of it from the stages after this
                runs = told
        if len(runs) > _CARRIED and sends:
            self._channel.send(opened.client, Outputs(task, {}, runs))
            runs = ()
        for address, stage, names in sends:
            tensors = outputs
            if len(names) < len(outputs):
                tensors = {name: outputs[name] for name in names}
            values = _new(Values, (_new(Task, (request, stage)), tensors, runs))
            self._send(address, values)
        if request.resident_outputs:
            for message in self._kept.take_awaited(task):  # first: that is work for devices
                self._kept.answer(message, self._send)
        if answered or not sends:
            self._channel.send(opened.client, _new(Outputs, (task, answered, told)))
        if request.has_resident_tensors and self._machine.is_dropped(request):
            self._kept.free_attempt(request)  # it was in the meantime

    def _sent(self, run: Run, outputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return what a run sends to other devices; of one again, what any route takes of it."""
        opened, route = run.stage.opened, run.task.request.route
        every = opened.sends.values() if route == REPLAY else (opened.sends.get(route, ()),)
        return {
            name: outputs[name]
            for sends in every
            for address, _, names in sends
            if route == REPLAY or address != self.address
            for name in names
        }

    def _tell(self, failure: Failure) -> None:
        """Send the task's client a failure; nobody knows that of a deployment that never was."""
        deployment = failure.task.request.deployment
        client = self._machine.client_of(deployment) or self._closed.get(deployment)
        if client is not None:
            self._channel.send(client, failure)

    def _failure(self, task: Task, error: BaseException) -> HeteroError:
        """Return what a request is told; an untyped error is a fault of a plugin's, or ours."""
        if isinstance(error, HeteroError):
            return error.with_traceback(None)  # it says all; where from leads to the inputs
        name = self.host.descriptor.name
        return InferenceError(
            f"stage {task.stage} on device {name}, request {task.request.id}, attempt "
            f"{task.request.attempt}: {type(error).__name__}: {error}",
            stage=task.stage,
            device=name,
            cause=repr(error),
        )
