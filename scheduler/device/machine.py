"""The device's machine: join a stage's inputs, order the queue, run, send on. Pure.

::

    JOINING ──> READY ──> RUNNING ──> gone, its outputs sent on
       │          │          └──────> DROPPED ──> gone, silently
       └──────────┴──> gone, with its attempt

Of the tasks that are ready the one with the least request number plus stage level runs first, and
of those the one that was ready first: old requests go before new ones, and a request at level k
may overtake at most k earlier ones. A stage runs as many tasks at once as it has streams, the
device as many as its widest stage.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from devices.errors import DeviceError
from devices.request.request import Request
from scheduler import events
from scheduler.channels.messages import Task
from scheduler.events import DeviceEvent, DeviceInstruction

#: Ended attempts remembered, so that what comes late for them starts nothing.
_REMEMBERED: Final = 4096


class TaskState(Enum):
    """Where a task is in its life."""

    JOINING = "joining"
    READY = "ready"
    RUNNING = "running"
    DROPPED = "dropped"
    GONE = "gone"


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
class _Task:
    id: Task
    missing: set[str]
    order: int
    state: TaskState = TaskState.JOINING


class _Ready(NamedTuple):
    #: Request number + level.
    order: int
    arrival: int
    task: _Task


@dataclass(slots=True)
class _Stage:
    opened: events.StageOpened
    num_running: int = 0
    #: Tasks that are ready and wait for one of the stage's streams; may hold gone ones.
    held: list[_Ready] = field(default_factory=list)


class DeviceMachine:
    """Tasks of one device."""

    def __init__(self) -> None:
        #: How many tasks run at once.
        self.num_streams = 1
        self._stages: dict[tuple[str, int], _Stage] = {}
        #: Tasks that are not gone, by attempt.
        self._tasks: dict[Request, dict[Task, _Task]] = {}
        #: A heap; may hold tasks that are gone.
        self._ready: list[_Ready] = []
        self._arrivals = 0
        self._num_running = 0
        self._dropped: OrderedDict[Request, None] = OrderedDict()

    @property
    def num_running(self) -> int:
        """Tasks that run, those whose attempt was dropped included."""
        return self._num_running

    @property
    def num_tasks(self) -> int:
        """Tasks that are not gone."""
        return sum(len(tasks) for tasks in self._tasks.values())

    def handle(self, event: DeviceEvent) -> list[DeviceInstruction]:
        """Take in one event; return what is to be done, in order.

        Raises InvalidTaskError: the event cannot be in the task's state.
        """
        match event:
            case events.StageOpened():
                key = (event.deployment, event.stage)
                # One that is there already has other devices to send to: its tasks go on.
                self._stages.setdefault(key, _Stage(event)).opened = event
                self._count_streams()
                return []
            case events.ValuesArrived():
                done = self._join(event)
            case events.AttemptDropped():
                done = self._drop(event)
            case events.DeploymentClosed():
                done = self._close(event)
            case events.RunEnded():
                done = self._end(event)
            case events.RunFailed():
                done = self._end(event)
        return done + self._run_ready()

    def _step(self, task: _Task, event: DeviceEvent, after: TaskState) -> None:
        if after not in TRANSITIONS.get((task.state, type(event)), ()):
            raise InvalidTaskError(
                f"{task.id}: {type(event).__name__} led from {task.state.value} to {after.value}"
            )
        task.state = after
        if after is _S.GONE:
            attempt = task.id.request
            del self._tasks[attempt][task.id]
            if not self._tasks[attempt]:
                del self._tasks[attempt]

    def _join(self, event: events.ValuesArrived) -> list[DeviceInstruction]:
        attempt = event.task.request
        stage = self._stages.get((event.task.request.deployment, event.task.stage))
        if attempt in self._dropped:
            return [events.Forget(event.task)]
        if stage is None or not set(event.tensors) <= set(stage.opened.inputs):
            error = DeviceError(
                f"{event.task}: {list(event.tensors)} came for a stage that does not take them or "
                "is not loaded here: it was closed, or its device has restarted. Compile the "
                "model again.",
                stage=event.task.stage,
                request_id=event.task.request.id,
                attempt=event.task.request.attempt,
            )
            return [events.ReportFailure(event.task, error), events.Forget(event.task)]
        tasks = self._tasks.setdefault(attempt, {})
        task = tasks.get(event.task)
        if task is None:
            order = event.sequence + stage.opened.level
            task = tasks[event.task] = _Task(event.task, set(stage.opened.inputs), order)
        elif not task.missing.intersection(event.tensors):
            return []
        task.missing.difference_update(event.tensors)
        self._step(task, event, _S.JOINING if task.missing else _S.READY)
        if not task.missing:
            self._arrivals += 1
            heapq.heappush(self._ready, _Ready(task.order, self._arrivals, task))
        return []

    def _run_ready(self) -> list[DeviceInstruction]:
        started: list[DeviceInstruction] = []
        while self._ready and self._num_running < self.num_streams:
            first = heapq.heappop(self._ready)
            task = first.task
            if task.state is not _S.READY:
                continue
            stage = self._stages[task.id.request.deployment, task.id.stage]
            if stage.num_running == stage.opened.num_streams:
                stage.held.append(first)
                continue
            task.state = _S.RUNNING
            stage.num_running += 1
            self._num_running += 1
            started.append(events.Run(task.id))
        return started

    def _count_streams(self) -> None:
        self.num_streams = max((s.opened.num_streams for s in self._stages.values()), default=1)

    def _end(self, event: events.RunEnded | events.RunFailed) -> list[DeviceInstruction]:
        task = self._tasks.get(event.task.request, {}).get(event.task)
        if task is None:
            raise InvalidTaskError(f"{event.task}: {type(event).__name__} of a task that is gone")
        wanted = task.state is _S.RUNNING
        self._step(task, event, _S.GONE)
        self._num_running -= 1
        stage = self._stages.get((event.task.request.deployment, event.task.stage))
        if stage is not None:
            stage.num_running -= 1
            for held in stage.held:
                heapq.heappush(self._ready, held)
            stage.held.clear()
        if not wanted or stage is None:
            return [events.Forget(event.task)]
        if isinstance(event, events.RunFailed):
            return [events.ReportFailure(event.task, event.error), events.Forget(event.task)]
        opened = stage.opened
        done: list[DeviceInstruction] = [
            events.SendOn(event.task, send)
            for send in opened.sends.get(event.task.request.route, ())
        ]
        if opened.outputs or not done:
            done.append(events.Report(event.task))
        return [*done, events.Forget(event.task)]

    def _drop(self, event: events.AttemptDropped) -> list[DeviceInstruction]:
        attempt = event.request
        self._dropped[attempt] = None
        while len(self._dropped) > _REMEMBERED:
            self._dropped.popitem(last=False)
        done: list[DeviceInstruction] = []
        for task in list(self._tasks.get(attempt, {}).values()):
            if task.state is _S.RUNNING:
                done.append(events.Stop(task.id))
            if task.state in (_S.RUNNING, _S.DROPPED):
                self._step(task, event, _S.DROPPED)
            else:
                self._step(task, event, _S.GONE)
                done.append(events.Forget(task.id))
        return done

    def _close(self, event: events.DeploymentClosed) -> list[DeviceInstruction]:
        done: list[DeviceInstruction] = []
        for attempt in [a for a in self._tasks if a.deployment == event.deployment]:
            done += self._drop(events.AttemptDropped(attempt))
        for key in [k for k in self._stages if k[0] == event.deployment]:
            del self._stages[key]
        self._count_streams()
        return done
