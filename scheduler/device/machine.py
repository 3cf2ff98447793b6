"""The device's machine: join a stage's inputs, order the queue, run, send on. Pure.

::

    JOINING ──> READY ──> RUNNING ──> gone, its outputs sent on
       │          │          └──────> DROPPED ──> gone, silently
       └──────────┴──> gone, with its attempt

`scheduler.device.order` says which of the tasks that are ready runs first. A stage runs as many
tasks at once as it has streams, the device as many as its widest stage. What comes twice, or for
an attempt that was dropped, changes nothing. Where a client has more on the device than it may,
its attempts that came first and still wait end: their clients have long forgotten them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from devices.errors import DeviceError, DeviceLostError, OverloadedError
from devices.request.answer import StageRun
from devices.request.request import Request
from scheduler.device.order import FairQueue, Key
from scheduler.vocabulary import events
from scheduler.vocabulary.events import DeviceEvent, DeviceInstruction
from scheduler.vocabulary.messages import Task

#: Dropped attempts and ended tasks remembered, so that what comes late for them starts nothing.
_REMEMBERED: Final = 4096
#: Of a client that has too much on the device so much is kept.
_KEPT: Final = 3 / 4

T = TypeVar("T")


class TaskState(Enum):
    """Where a task is in its life."""

    JOINING = "joining"
    READY = "ready"
    RUNNING = "running"
    DROPPED = "dropped"
    GONE = "gone"

    __hash__ = object.__hash__  # members are one object each; Enum's own is slow


_S = TaskState
#: Every legal (state, event) and the states that it may lead to.
TRANSITIONS: Final[dict[tuple[TaskState, type], frozenset[TaskState]]] = {
    (_S.JOINING, events.ValuesArrived): frozenset({_S.JOINING, _S.READY}),
    (_S.JOINING, events.AttemptDropped): frozenset({_S.GONE}),
    (_S.READY, events.AttemptDropped): frozenset({_S.GONE}),
    (_S.RUNNING, events.RunEnded): frozenset({_S.GONE}),
    (_S.RUNNING, events.RunFailed): frozenset({_S.GONE}),
    (_S.RUNNING, events.AttemptDropped): frozenset({_S.DROPPED}),
    (_S.DROPPED, events.RunEnded): frozenset({_S.GONE}),
    (_S.DROPPED, events.RunFailed): frozenset({_S.GONE}),
    (_S.DROPPED, events.AttemptDropped): frozenset({_S.DROPPED}),
}


class InvalidTaskError(RuntimeError):
    """An event that cannot be in the task's state: a fault of whoever runs the machine."""


@dataclass(slots=True)
class _Client:
    """What a client has on the device."""

    name: str
    num_tasks: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class _Stage:
    opened: events.StageOpened
    client: _Client
    inputs: frozenset[str]
    num_running: int = 0
    #: Tasks that are ready and wait for one of the stage's streams; may hold gone ones.
    held: list[tuple[Key, _Task]] = field(default_factory=list)


class _Task:
    """A task that has not gone, with what came for it."""

    __slots__ = ("id", "nbytes", "ready_s", "runs", "stage", "state", "tensors")

    def __init__(self, identity: Task, stage: _Stage) -> None:
        self.id = identity
        self.stage = stage
        self.tensors: dict[str, Any] = {}
        self.runs: tuple[StageRun, ...] = ()
        #: When the last of it came.
        self.ready_s = 0.0
        self.nbytes = 0
        self.state = TaskState.JOINING


class DeviceMachine:
    """Tasks of one device.

    `max_tasks`, `max_nbytes`: how many tasks, and how many bytes of values that wait, a client may
        have here; one task may exceed them.
    """

    def __init__(self, *, max_tasks: int = 2**14, max_nbytes: int = 2**32) -> None:
        self._max_tasks = max_tasks
        self._max_nbytes = max_nbytes
        #: How many tasks run at once.
        self.num_streams = 1
        self._stages: dict[tuple[str, int], _Stage] = {}
        self._clients: dict[str, _Client] = {}
        #: Tasks that are not gone, by attempt and stage.
        self._tasks: dict[Request, dict[int, _Task]] = {}
        #: May hold tasks that are gone.
        self._ready = FairQueue[_Task]()
        self._arrivals = 0
        self._num_running = 0
        self._dropped: OrderedDict[Request, None] = OrderedDict()
        self._ended: OrderedDict[Task, None] = OrderedDict()

    @property
    def num_running(self) -> int:
        """Tasks that run, those whose attempt was dropped included."""
        return self._num_running

    @property
    def num_tasks(self) -> int:
        """Tasks that are not gone."""
        return sum(len(tasks) for tasks in self._tasks.values())

    def nbytes_of(self, client: str) -> int:
        """Return the bytes of values that a client's tasks wait with, or ran on after waiting."""
        return self._clients[client].nbytes if client in self._clients else 0

    def is_dropped(self, request: Request) -> bool:
        """Whether an attempt was dropped, lately."""
        return request in self._dropped

    def begin(self, identity: Task, names: Set[str]) -> bool:
        """Count a task as running, where it has all inputs and need not wait; whether it was so.

        It is what its values would lead to in `handle`, at half the cost.
        """
        attempt, number = identity
        stage = self._stages.get((attempt.deployment, number))
        if stage is None or self._ready or not self._is_free(stage) or names != stage.inputs:
            return False
        if attempt in self._dropped or attempt in self._tasks or identity in self._ended:
            return False
        task = _Task(identity, stage)
        self._tasks[attempt] = {number: task}
        stage.client.num_tasks += 1
        self._run(task)
        return True

    def is_running(self, task: Task) -> bool:
        """Whether a task has begun and not ended."""
        found = self._tasks.get(task.request, {}).get(task.stage)
        return found is not None and found.state in (_S.RUNNING, _S.DROPPED)

    def handle(self, event: DeviceEvent) -> list[DeviceInstruction]:
        """Take in one event; return what is to be done, in order.

        Raises InvalidTaskError: the event cannot be in the task's state.
        """
        match event:
            case events.ValuesArrived():
                done = self._join(event)
            case events.RunEnded() | events.RunFailed():
                done = self._end(event)
            case events.AttemptDropped():
                done = self._drop(event)
            case events.StageOpened():
                self._open(event)
                return []
            case events.DeploymentClosed():
                done = self._close(event.deployment)
            case events.ClientGone():
                own = {k[0]: None for k, s in self._stages.items() if s.client.name == event.client}
                done = [order for deployment in own for order in self._close(deployment)]
        if self._ready:
            done += self._run_ready()
        return done

    def _open(self, event: events.StageOpened) -> None:
        stage = self._stages.get((event.deployment, event.stage))
        if stage is None:
            client = self._clients.setdefault(event.client, _Client(event.client))
            stage = _Stage(event, client, frozenset(event.inputs))
            self._stages[event.deployment, event.stage] = stage
        # One that was there already has other devices to send to, and its tasks go on; or its
        # number was given again, to another subgraph.
        stage.opened, stage.inputs = event, frozenset(event.inputs)
        self.num_streams = max(self.num_streams, event.num_streams)

    def _step(self, task: _Task, event: DeviceEvent, after: TaskState) -> None:
        if after not in TRANSITIONS.get((task.state, type(event)), ()):
            raise InvalidTaskError(
                f"{task.id}: {type(event).__name__} led from {task.state.value} to {after.value}"
            )
        task.state = after
        if after is _S.GONE:
            attempt, stage = task.id
            tasks = self._tasks[attempt]
            del tasks[stage]
            if not tasks:
                del self._tasks[attempt]
            client = task.stage.client
            client.num_tasks -= 1
            client.nbytes -= task.nbytes
            _remember(self._ended, task.id)

    def _join(self, event: events.ValuesArrived) -> list[DeviceInstruction]:
        identity, tensors, nbytes, runs, now_s = event
        attempt, number = identity
        stage = self._stages.get((attempt.deployment, number))
        if attempt in self._dropped or identity in self._ended:
            return []
        if stage is None or not tensors.keys() <= stage.inputs:
            return [events.ReportFailure(identity, _misplaced(event, stage))]
        tasks = self._tasks.get(attempt)
        if tasks is None:
            tasks = self._tasks[attempt] = {}
        task = tasks.get(number)
        client = stage.client
        if task is None:
            task = tasks[number] = _Task(identity, stage)
            client.num_tasks += 1
        elif task.state is not _S.JOINING or tensors.keys() <= task.tensors.keys():
            return []
        task.tensors.update(tensors)
        # Two ways here may have begun in one stage.
        joined = {run.stage: run for run in (*task.runs, *runs)}.values() if task.runs else runs
        task.runs = tuple(joined)
        task.ready_s = now_s
        task.nbytes += nbytes
        client.nbytes += nbytes
        done: list[DeviceInstruction] = []
        if len(task.tensors) < len(stage.inputs):
            self._step(task, event, _S.JOINING)
        else:
            self._step(task, event, _S.READY)
            self._arrivals += 1
            if not self._ready and self._is_free(stage):
                done.append(self._run(task))
            else:
                turn = attempt.id + stage.opened.level
                self._ready.push(client.name, Key(turn, -attempt.priority, self._arrivals), task)
        if client.num_tasks > self._max_tasks or client.nbytes > self._max_nbytes:
            done += self._relieve(task)
        return done

    def _relieve(self, newest: _Task) -> list[DeviceInstruction]:
        """End what a client has too much of: what still joins first, and of that the oldest."""
        held = newest.stage.client
        mine = [
            task
            for tasks in self._tasks.values()
            for task in tasks.values()
            if task.stage.client is held
            and task.state in (_S.JOINING, _S.READY)
            and task.id.request != newest.id.request
        ]
        mine.sort(key=lambda t: (t.state is _S.READY, t.id.request.id, t.stage.opened.level))
        done: list[DeviceInstruction] = []
        for task in mine:
            if (
                held.num_tasks <= _KEPT * self._max_tasks
                and held.nbytes <= _KEPT * self._max_nbytes
            ):
                break
            if task.state is _S.GONE:  # with another of its attempt
                continue
            error = OverloadedError(
                f"{task.id}: its client has {held.num_tasks} of {self._max_tasks} tasks and "
                f"{held.nbytes} of {self._max_nbytes} bytes on the device. Send fewer requests at "
                "once.",
                request_id=task.id.request.id,
            )
            done.append(events.ReportFailure(task.id, error))
            done += self._drop(events.AttemptDropped(task.id.request))
        return done

    def _is_free(self, stage: _Stage) -> bool:
        """Whether the device and the stage have a stream for one more task."""
        return self._num_running < self.num_streams and stage.num_running < stage.opened.num_streams

    def _run(self, task: _Task) -> events.Run:
        task.state = _S.RUNNING
        self._ready.ran(task.stage.client.name)
        task.stage.num_running += 1
        self._num_running += 1
        return events.Run(task.id, task.tensors, task.runs, task.ready_s)

    def _run_ready(self) -> list[DeviceInstruction]:
        started: list[DeviceInstruction] = []
        while self._ready and self._num_running < self.num_streams:
            key, task = self._ready.pop()
            if task.state is not _S.READY:
                continue
            if self._is_free(task.stage):
                started.append(self._run(task))
            else:
                task.stage.held.append((key, task))
        return started

    def _end(self, event: events.RunEnded | events.RunFailed) -> list[DeviceInstruction]:
        identity = event.task
        task = self._tasks.get(identity.request, {}).get(identity.stage)
        if task is None:
            raise InvalidTaskError(f"{identity}: {type(event).__name__} of a task that is gone")
        wanted = task.state is _S.RUNNING
        self._step(task, event, _S.GONE)
        self._num_running -= 1
        stage = task.stage
        stage.num_running -= 1
        if stage.held:
            for key, held in stage.held:
                self._ready.push(stage.client.name, key, held)
            stage.held.clear()
        if not wanted:
            return []
        if isinstance(event, events.RunFailed):
            return [events.ReportFailure(identity, event.error)]
        opened = stage.opened
        done: list[DeviceInstruction] = [
            events.SendOn(identity, send) for send in opened.sends.get(identity.request.route, ())
        ]
        if opened.outputs or not done:
            done.append(events.Report(identity))
        return done

    def _drop(self, event: events.AttemptDropped) -> list[DeviceInstruction]:
        attempt = event.request
        _remember(self._dropped, attempt)
        done: list[DeviceInstruction] = []
        for task in list(self._tasks.get(attempt, {}).values()):
            if task.state is _S.RUNNING:
                done.append(events.Stop(task.id))
            if task.state in (_S.RUNNING, _S.DROPPED):
                self._step(task, event, _S.DROPPED)
            else:
                self._step(task, event, _S.GONE)
        return done

    def _close(self, deployment: str) -> list[DeviceInstruction]:
        done: list[DeviceInstruction] = []
        for attempt in [a for a in self._tasks if a.deployment == deployment]:
            done += self._drop(events.AttemptDropped(attempt))
        closed = [k for k in self._stages if k[0] == deployment]
        clients = {self._stages.pop(key).client.name for key in closed}
        for client in clients.difference(s.client.name for s in self._stages.values()):
            self._ready.forget(client)
            del self._clients[client]
        self.num_streams = max((s.opened.num_streams for s in self._stages.values()), default=1)
        return done


def _remember(kept: OrderedDict[T, None], what: T) -> None:
    kept[what] = None
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)


def _misplaced(event: events.ValuesArrived, stage: _Stage | None) -> DeviceError:
    """Return why values cannot be taken in."""
    request, number = event.task
    data = {"stage": number, "request_id": request.id, "attempt": request.attempt}
    if stage is None:
        return DeviceLostError(
            f"{event.task}: its stage is not loaded here: it was closed, or its device has "
            "restarted.",
            device="",
            node="",
            **data,
        )
    return DeviceError(
        f"{event.task}: {list(event.tensors)} came for a stage that takes "
        f"{list(stage.opened.inputs)}. Compile the model again.",
        **data,
    )
