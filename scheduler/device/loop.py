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
from dataclasses import dataclass
from math import inf
from typing import Final

from devices.errors import HeteroError, InferenceError
from devices.plugin.program import Value
from devices.plugin.remote import RemoteTensor
from devices.plugin.values import nbytes_of
from devices.request.answer import StageRun
from devices.request.request import Request
from scheduler.channels.channel import Channel, Receiver
from scheduler.channels.memory import read_only
from scheduler.device.host import DeviceHost
from scheduler.device.kept import KeptTensors
from scheduler.device.machine import DeviceMachine
from scheduler.vocabulary import events
from scheduler.vocabulary.events import DeviceEvent, DeviceInstruction, Run, StageOpened
from scheduler.vocabulary.messages import (
    Dropped,
    Failure,
    Free,
    Give,
    Keep,
    Message,
    Outputs,
    Task,
    Values,
)

_log = logging.getLogger(__name__)

#: Deployments that were closed lately, whose clients are told of what comes late for them.
_REMEMBERED: Final = 1024
#: Runs that are carried on to the next stage at most; the client hears of so many at once.
_CARRIED: Final = 8


@dataclass(slots=True)
class Ended:
    """What a task gave by name, and how it and the stages before it went."""

    outputs: Mapping[str, Value]
    runs: tuple[StageRun, ...]


class DeviceLoop:
    """One device at work.

    `connect`: returns the device's channel, given what receives.
    `start`: takes each run that is due; some thread then calls `run` with it.
    """

    def __init__(
        self,
        host: DeviceHost,
        connect: Callable[[Receiver], Channel],
        start: Callable[[DeviceLoop, Run], None],
    ) -> None:
        self.host = host
        self._leaves_outputs = host.leaves_outputs
        self._kept = KeptTensors(host.descriptor, host.place)
        self._machine = DeviceMachine()
        self._start = start
        self._lock = threading.Lock()
        #: Stages that are open, by deployment and number.
        self._stages: dict[tuple[str, int], StageOpened] = {}
        #: Clients of deployments that were closed lately.
        self._closed: OrderedDict[str, str] = OrderedDict()
        #: About how long a run of each stage takes, the last ones counting most.
        self._usual_s: dict[tuple[str, int], float] = {}
        #: Tasks that ended before they were run.
        self._given_up: set[Task] = set()
        #: What each thread runs, and since when.
        self._begun: dict[int, tuple[Task, float]] = {}
        self._channel = connect(self.receive)

    @property
    def address(self) -> str:
        """Where others reach the device."""
        return self._channel.address

    @property
    def num_streams(self) -> int:
        """How many tasks run at once."""
        return self._machine.num_streams

    @property
    def is_empty(self) -> bool:
        """Whether no task is held, nor anything of one."""
        return not self._machine.num_tasks

    @property
    def num_clients(self) -> int:
        """How many clients have stages here."""
        with self._lock:
            return len({stage.client for stage in self._stages.values()})

    def status(self) -> dict[str, float]:
        """Return how many tasks are held, run and may run, and how long one has that is overdue."""
        now_s = time.monotonic()
        overdue_s = 0.0
        for task, begun_s in self._begun.copy().values():
            stage = self._stages.get((task.request.deployment, task.stage))
            if stage is not None and 0 < stage.timeout_s < now_s - begun_s:
                overdue_s = max(overdue_s, now_s - begun_s)
        with self._lock:
            tasks, running = self._machine.num_tasks, self._machine.num_running
        return {
            "tasks": tasks,
            "running": running,
            "streams": self._machine.num_streams,
            "kept_nbytes": self._kept.nbytes,
            "overdue_s": overdue_s,
        }

    def usual_s(self, task: Task) -> float:
        """Return about how long a task takes; one whose like has not run yet may take any time."""
        return self._usual_s.get((task.request.deployment, task.stage), inf)

    def open_stage(self, opened: StageOpened) -> None:
        """Take tasks of a loaded stage; again to change where its outputs go."""
        with self._lock:
            self._stages[opened.deployment, opened.stage] = opened
            self._machine.handle(opened)

    def close_deployment(self, deployment: str) -> None:
        """Drop a deployment's tasks and let go of its stages."""
        with self._lock:
            instructions = self._machine.handle(events.DeploymentClosed(deployment))
        self._follow(instructions)
        with self._lock:
            for key in [key for key in self._stages if key[0] == deployment]:
                self._closed[deployment] = self._stages.pop(key).client
                self._usual_s.pop(key, None)
            while len(self._closed) > _REMEMBERED:
                self._closed.popitem(last=False)
        self.host.unload(deployment)

    def client_gone(self, client: str) -> None:
        """Let go of all that a client has here."""
        with self._lock:
            keys = {key[0] for key, stage in self._stages.items() if stage.client == client}
        for deployment in keys:
            self.close_deployment(deployment)
        self._kept.free_all_of(client)

    def receive(self, message: Message) -> None:
        """Take in what comes by the channel."""
        event: DeviceEvent
        match message:
            case Values(task, tensors, runs):
                if self._take(task, tensors, runs):
                    return
                event = events.ValuesArrived(
                    task, tensors, nbytes_of(tensors), runs, time.monotonic()
                )
            case Dropped(request):
                event = events.AttemptDropped(request)
            case Keep() | Give():
                self._kept.answer(message, self._send)
                return
            case Free(keys):
                self._kept.free(keys)
                return
            case _:  # nothing else is sent to devices
                return
        try:
            with self._lock:
                instructions = self._machine.handle(event)
            if isinstance(event, events.AttemptDropped):
                self._kept.free_attempt(event.request)
            self._follow(instructions)
        except Exception as error:  # a fault of ours: the request hears of it, threads live on
            _log.exception("device=%s: a message could not be taken in", self.host.descriptor.name)
            if isinstance(event, events.ValuesArrived):
                self._tell(event.task, Failure(event.task, self._failure(event.task, error)))
        except BaseException as error:  # Ctrl-C, in the thread of who sent it in this process
            if isinstance(event, events.ValuesArrived):
                self._given_up.add(event.task)  # it may have been handed to a thread
                self.give_up(event.task, error)
            raise

    def _take(self, task: Task, tensors: Mapping[str, Value], runs: tuple[StageRun, ...]) -> bool:
        """Have a task run, if it is complete and need not wait; whether it was so."""
        try:
            with self._lock:
                if not self._machine.begin(task, tensors.keys()):
                    return False
            self._start(self, Run(task, tensors, runs, time.monotonic()))
        except BaseException as error:  # Ctrl-C, in the thread of who sent it in this process
            self._given_up.add(task)  # it may have been handed to a thread
            self.give_up(task, error)
            raise
        return True

    def run(self, due: Run) -> None:
        """Run a task that is due, in the calling thread, and send on what it gives."""
        if self._given_up and due.task in self._given_up:
            self._given_up.discard(due.task)
            return
        try:
            instructions, ended = self._run_through(due)
            self._follow(instructions, ended)
        except BaseException as error:
            self.give_up(due.task, error)
            raise

    def run_at_once(
        self, task: Task, tensors: Mapping[str, Value], deliver: Callable[[Ended], None]
    ) -> bool:
        """Run a task in the calling thread, its client's, if it need not wait for others.

        `tensors`: read-only, all that it takes.
        `deliver`: takes what it gave, which the client is not sent; of a failure it is told.
        Returns: whether it ran.
        """
        try:
            with self._lock:
                if not self._machine.begin(task, tensors.keys()):
                    return False
            due = Run(task, tensors, (), time.monotonic())
            instructions, ended = self._run_through(due)
            for instruction in instructions:
                if ended is not None and isinstance(instruction, events.Report):
                    deliver(ended)
                else:
                    self._follow((instruction,), ended)
        except BaseException as error:
            self.give_up(task, error)
            raise
        return True

    def give_up(self, task: Task, error: BaseException) -> None:
        """End a task that the calling thread does not run to its end, as Ctrl-C came."""
        self._begun.pop(threading.get_ident(), None)
        with self._lock:
            runs = any(task == begun for begun, _ in self._begun.copy().values())
            if runs or not self._machine.is_running(task):
                return
            failed = events.RunFailed(task, self._failure(task, error))
            instructions = self._machine.handle(failed)
        self._follow(instructions)

    def close(self) -> None:
        """Let go of every stage and take nothing more."""
        self._channel.close()
        self.host.close()

    def _run_through(self, due: Run) -> tuple[Sequence[DeviceInstruction], Ended | None]:
        """Run a task to its end; return what is to be done then, and what it gave."""
        task, thread = due.task, threading.get_ident()
        event: DeviceEvent
        self._begun[thread] = (task, time.monotonic())
        try:
            ended: Ended | None = self._run(due)
            event = events.RunEnded(task)
        except Exception as error:
            ended, event = None, events.RunFailed(task, self._failure(task, error))
        self._begun.pop(thread, None)
        with self._lock:
            return self._machine.handle(event), ended

    def _run(self, due: Run) -> Ended:
        (request, number), tensors, runs, ready_s = due
        key = request.deployment, number
        stage = self._stages[key]
        inputs = [tensors[name] for name in stage.inputs]
        left = self._left(request, stage) if self._leaves_outputs else ()
        outputs, run = self.host.run_stage(request, number, inputs, ready_s=ready_s, left=left)
        took_s = run.ended_s - run.started_s
        usual_s = self._usual_s.get(key, took_s)
        if key in self._stages:
            self._usual_s[key] = usual_s + (took_s - usual_s) / 4
        return Ended(outputs, (*runs, run))

    def _left(self, request: Request, stage: StageOpened) -> set[str]:
        """Return the outputs of a stage that nobody wants outside the device."""
        sends = stage.sends.get(request.route, ())
        inside = {name for s in sends if s.address == self.address for name in s.tensors}
        outside = {name for s in sends if s.address != self.address for name in s.tensors}
        outside.update(name for name in stage.outputs if name not in request.keep)
        return {*inside, *request.keep} - outside

    def _send(self, address: str, message: Message) -> None:
        """Send a message; values in the device's memory are copied to the host for others."""
        if not self._leaves_outputs or not isinstance(message, Values):
            self._channel.send(address, message)
        elif address == self.address:
            self.receive(message._replace(tensors=read_only(message.tensors)))
        else:
            tensors = {
                name: value.to_host() if isinstance(value, RemoteTensor) else value
                for name, value in message.tensors.items()
            }
            self._channel.send(address, message._replace(tensors=tensors))

    def _follow(
        self, instructions: Sequence[DeviceInstruction], ended: Ended | None = None
    ) -> None:
        for position, instruction in enumerate(instructions):
            task = instruction.task
            try:
                self._do(instruction, task, ended)
            except Exception as error:  # whatever it is: the request hears of it, threads live on
                self._tell(task, Failure(task, self._failure(task, error)))
            except BaseException:  # Ctrl-C: the others' tasks go on
                self._follow(instructions[position + 1 :], ended)
                raise

    def _do(self, instruction: DeviceInstruction, task: Task, ended: Ended | None) -> None:
        match instruction:
            case events.Run():
                self._start(self, instruction)
            case events.SendOn(_, send) if ended:
                if len(ended.runs) > _CARRIED:
                    self._tell(task, Outputs(task, {}, ended.runs))
                    ended.runs = ()
                tensors = {name: ended.outputs[name] for name in send.tensors}
                target = Task(task.request, send.stage)
                self._send(send.address, Values(target, tensors, ended.runs))
            case events.Report() if ended:
                stage = self._stages[task.request.deployment, task.stage]
                tensors = {name: ended.outputs[name] for name in stage.outputs}
                if task.request.keep:
                    tensors = self._kept.keep_outputs(stage.client, task.request, tensors)
                    if self._machine.is_dropped(task.request):  # in the meantime
                        self._kept.free_attempt(task.request)
                self._tell(task, Outputs(task, tensors, ended.runs))
            case events.ReportFailure(_, error):
                self._tell(task, Failure(task, error))
            case events.Stop():
                self.host.cancel(task.request)

    def _tell(self, task: Task, message: Message) -> None:
        """Send the task's client a message; nobody knows that of a deployment that never was."""
        deployment = task.request.deployment
        stage = self._stages.get((deployment, task.stage))
        client = self._closed.get(deployment) if stage is None else stage.client
        if client is not None:
            self._channel.send(client, message)

    def _failure(self, task: Task, error: BaseException) -> HeteroError:
        """Return what a request is told; an untyped error is a fault of a plugin's, or ours."""
        if isinstance(error, HeteroError):
            return error
        name = self.host.descriptor.name
        return InferenceError(
            f"stage {task.stage} on device {name}, request {task.request.id}, attempt "
            f"{task.request.attempt}: {type(error).__name__}: {error}",
            stage=task.stage,
            device=name,
            cause=repr(error),
        )
