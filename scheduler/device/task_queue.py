"""State machine of a device: collects inputs, orders and starts tasks, forwards outputs. No I/O.

::

    JOINING ──> READY ──> RUNNING ──> gone, its outputs passed on
       │          │          └──────> DROPPED ──> gone, silently
       └──────────┴──> gone, with its attempt

`hetero.scheduler.device.fair_queue` orders the ready tasks. A stage runs at most as many tasks at
once as it has streams; a device as many as its widest stage. Duplicate messages and messages for
dropped attempts have no effect. If a client exceeds its quota, its oldest waiting attempts fail,
because the client has most likely abandoned them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Final, Protocol

from hetero.devices.errors import DeviceError, DeviceLostError, OverloadedError
from hetero.devices.plugin.program import nbytes_of
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.device.fair_queue import ClientQueue, FairQueue, Key
from hetero.scheduler.types import events
from hetero.scheduler.types.events import DeviceInstruction, TaskRun
from hetero.scheduler.types.messages import Failure, Task

#: Number of dropped attempts, and of ended tasks, that a deployment remembers, so that late
#: messages do not start them again.
_REMEMBERED: Final = 4096
#: Number of closed deployments whose dropped attempts are remembered.
_REMEMBERED_DEPLOYMENTS: Final = 64
#: Fraction of its quota that a client retains after exceeding it.
_KEPT: Final = 3 / 4


#: Creates a named tuple without Python's call overhead.
_new: Final[Callable[..., Any]] = tuple.__new__


class TaskState(Enum):
    """State of a task."""

    JOINING = "joining"
    READY = "ready"
    RUNNING = "running"
    DROPPED = "dropped"
    GONE = "gone"

    __hash__ = object.__hash__  # members are one object each; Enum's own is slow


_S = TaskState


class InvalidTaskError(RuntimeError):
    """Event that is illegal in the task's state: a bug in the code that drives the machine."""


@dataclass(slots=True, eq=False)
class _Client(ClientQueue[TaskRun]):
    """Usage of a client: its tasks, and the bytes of their queued values."""

    name: str = ""
    num_tasks: int = 0
    nbytes: int = 0


class _Deployment:
    """Stages and tasks of a deployment; attempts are identified by request id and number."""

    __slots__ = ("client", "dropped", "ended", "stages", "tasks")

    def __init__(self, client: _Client) -> None:
        self.client = client
        self.stages: dict[int, OpenStage] = {}
        #: Live tasks, by attempt and stage.
        self.tasks: dict[tuple[int, int], dict[int, TaskRun]] = {}
        self.dropped: OrderedDict[tuple[int, int], None] = OrderedDict()
        #: Tasks that have ended, or run without a record.
        self.ended: OrderedDict[tuple[tuple[int, int], int], None] = OrderedDict()


class OpenStage:
    """Loaded stage that accepts tasks, with the data that its tasks share."""

    __slots__ = (
        "awaiting_stream",
        "deployment",
        "description",
        "ewma_s",
        "inputs",
        "num_running",
        "num_streams",
    )

    def __init__(self, description: events.StageOpened, deployment: _Deployment) -> None:
        self.deployment = deployment
        self.num_running = 0
        #: Ready tasks that wait for a stream of the stage; may include ended ones.
        self.awaiting_stream: list[tuple[Key, TaskRun]] = []
        #: Moving average of the run time; infinite before the first run.
        self.ewma_s = inf
        self.open(description)

    def record_run(self, run_s: float) -> None:
        """Update the average run time."""
        ewma_s = self.ewma_s
        self.ewma_s = run_s if ewma_s == inf else ewma_s + (run_s - ewma_s) / 4

    def open(self, description: events.StageOpened) -> None:
        """Replace the description of the stage."""
        self.description = description
        self.inputs = frozenset(description.inputs)
        #: Maximum number of its tasks that run at once.
        self.num_streams = description.num_streams


class DirectTask(Protocol):
    """Task that the machine counts; direct tasks have no other record."""

    #: The stage whose stream it occupies.
    entered: Any


class DeviceMachine:
    """State machine of the tasks of one device.

    `max_tasks`, `max_nbytes`: quota of a client in tasks and in bytes of queued values; a single
        task may exceed it.
    """

    def __init__(self, *, max_tasks: int = 2**14, max_nbytes: int = 2**32) -> None:
        self._max_tasks = max_tasks
        self._max_nbytes = max_nbytes
        #: Maximum number of tasks that run at once.
        self.num_streams = 1
        self._deployments: dict[str, _Deployment] = {}
        self._clients: dict[str, _Client] = {}
        #: Dropped attempts of closed deployments. A device that could not reach a client closes its
        #: deployments, and the client opens them again; then late inputs still have no effect.
        self._dropped_before_close: OrderedDict[str, OrderedDict[tuple[int, int], None]] = (
            OrderedDict()
        )
        #: Ready tasks; may include ended ones.
        self._ready = FairQueue[TaskRun]()
        self._arrivals = 0
        #: Number of running tasks, including those of dropped attempts.
        self.num_running = 0
        #: Running tasks that no thread has claimed yet, by identity.
        self._unclaimed: dict[int, TaskRun] = {}

    @property
    def num_tasks(self) -> int:
        """Number of live tasks."""
        return sum(client.num_tasks for client in self._clients.values())

    @property
    def stall_allowance_s(self) -> float:
        """Minimum of the stages' time limits in seconds."""
        stages = (stage for d in self._deployments.values() for stage in d.stages.values())
        limits = (stage.description.timeout_s for stage in stages)
        return min((limit_s for limit_s in limits if limit_s > 0), default=math.inf)

    @property
    def clients(self) -> Set[str]:
        """Names of the clients that have stages on the device."""
        return self._clients.keys()

    def client_of(self, deployment: str) -> str | None:
        """Return the client of a deployment; None if it has no stages on the device."""
        entry = self._deployments.get(deployment)
        return None if entry is None else entry.client.name

    def deployments_of(self, client: str) -> list[str]:
        """Return the deployments of a client that have stages on the device."""
        return [key for key, d in self._deployments.items() if d.client.name == client]

    def stage(self, deployment: str, stage: int) -> OpenStage:
        """Return an open stage."""
        return self._deployments[deployment].stages[stage]

    def find(self, task: Task) -> TaskRun | None:
        """Return a live task, or None."""
        request, number = task
        deployment = self._deployments.get(request.deployment)
        if deployment is None:
            return None
        return deployment.tasks.get((request.id, request.attempt), {}).get(number)

    def is_dropped(self, request: Request) -> bool:
        """Return whether an attempt was dropped recently."""
        deployment = self._deployments.get(request.deployment)
        return deployment is None or (request.id, request.attempt) in deployment.dropped

    def add_inputs(
        self, task: Task, tensors: Mapping[str, Any], runs: tuple[StageTiming, ...], now_s: float
    ) -> list[DeviceInstruction]:
        """Add inputs of a task, and timings of earlier stages; return the instructions.

        A stage without inputs is started by an empty mapping. Duplicate inputs have no effect.
        """
        request, number = task
        deployment = self._deployments.get(request.deployment)
        if deployment is None:
            return [Failure(task, _misplaced_tensors_error(task, tensors, None))]
        attempt = (request.id, request.attempt)
        if attempt in deployment.dropped or (attempt, number) in deployment.ended:
            return []
        stage = deployment.stages.get(number)
        if stage is None or not tensors.keys() <= stage.inputs:
            return [Failure(task, _misplaced_tensors_error(task, tensors, stage))]
        tasks, client = deployment.tasks.get(attempt), deployment.client
        run = None if tasks is None else tasks.get(number)
        if run is None:
            run = TaskRun(task, tensors, runs, now_s, stage, _S.JOINING)
            # No call between these lines: Ctrl-C comes before or after them.
            if tasks is None:
                deployment.tasks[attempt] = {number: run}
            else:
                tasks[number] = run
            client.num_tasks += 1
        elif run.state is not _S.JOINING or tensors.keys() <= run.tensors.keys():
            return []
        else:
            run.tensors = {**run.tensors, **tensors}
            # Two paths to this stage may have an earlier stage in common.
            run.runs = tuple({run.stage: run for run in (*run.runs, *runs)}.values())
            run.ready_s = now_s
        is_whole = len(run.tensors) == len(stage.inputs)
        if is_whole and self.enter(stage, run):
            run.state = _S.RUNNING
            self._unclaimed[id(run)] = run
            return [run]
        nbytes = nbytes_of(tensors)
        run.nbytes += nbytes
        client.nbytes += nbytes
        if is_whole:
            run.state = _S.READY
            self._arrivals += 1
            turn = request.id + stage.description.level
            self._ready.push(client, _new(Key, (turn, -request.priority, self._arrivals)), run)
        done: list[DeviceInstruction] = []
        if client.num_tasks > self._max_tasks or client.nbytes > self._max_nbytes:
            done += self._fail_excess(run)
        if self._ready.waiting and self.num_running < self.num_streams:
            done += self._run_ready()
        return done

    def claim(self, run: TaskRun) -> bool:
        """Return whether the calling thread has to run a task; thread-safe.

        If not, the task has ended, or another thread runs it.
        """
        return self._unclaimed.pop(id(run), None) is not None

    def recover(self) -> list[DeviceInstruction]:
        """Return the start instructions that Ctrl-C may have prevented; tasks may repeat."""
        for deployment in self._deployments.values():
            if deployment.client.waiting:  # `push` or `remove_first` was interrupted
                self._ready.waiting[deployment.client] = None
            for stage in deployment.stages.values():
                self._start_next(stage)
        return list(self._unclaimed.values())

    def end(self, run: TaskRun, error: BaseException | None = None) -> list[DeviceInstruction]:
        """End a run that returned or raised; return the instructions, in order.

        Raises InvalidTaskError: the task is not running.
        """
        is_wanted = run.state is _S.RUNNING
        if not is_wanted and run.state is not _S.DROPPED:
            raise InvalidTaskError(f"{run.task}: ended while it is {run.state.value}")
        self._remove_task(run)
        done: list[DeviceInstruction] = []
        if is_wanted:
            done.append(run if error is None else Failure(run.task, error))
        return done + self.release_stream(run.stage, run)

    def enter(self, stage: OpenStage, run: DirectTask) -> bool:
        """Allocate a stream of a stage, if a task could start at once; released by `leave`.

        `run.entered` stays correct even if Ctrl-C interrupts.
        """
        if (
            self._ready.waiting
            or self.num_running >= self.num_streams
            or stage.num_running >= stage.num_streams
        ):
            return False
        if len(self._clients) > 1:  # a single client competes with none
            self._ready.count_turn(stage.deployment.client)
        stage.num_running += 1
        self.num_running += 1
        run.entered = stage
        return True

    def release_stream(self, stage: OpenStage, run: DirectTask) -> list[DeviceInstruction]:
        """Release a stream; return the instructions. Idempotent."""
        if run.entered is not None:
            self.num_running -= 1
            stage.num_running -= 1
            run.entered = None
        return self._start_next(stage) if stage.awaiting_stream or self._ready.waiting else []

    def begin_direct(
        self, stage: OpenStage, attempt: tuple[int, int], task: DirectTask
    ) -> bool | None:
        """Start a task with all inputs without a record; see `end_direct`.

        Returns False if it needs a record, because no stream is free or some of its inputs have
        arrived before, and None if it is obsolete: it has arrived before, or its attempt was
        dropped.
        """
        deployment, number = stage.deployment, stage.description.stage
        if (attempt, number) in deployment.ended or attempt in deployment.dropped:
            return None
        if deployment.tasks and number in deployment.tasks.get(attempt, ()):
            return False
        if not self.enter(stage, task):
            return False
        self._remember(deployment, attempt, number)
        deployment.client.num_tasks += 1
        return True

    def end_direct(self, stage: OpenStage, task: DirectTask) -> list[DeviceInstruction]:
        """End a task without a record; return the instructions."""
        stage.deployment.client.num_tasks -= 1
        return self.release_stream(stage, task)

    def misplaced_failure(self, task: Task) -> Failure:
        """Return the failure of a task whose stage is not on the device."""
        return Failure(task, _misplaced_tensors_error(task, {}, None))

    def _remember(self, deployment: _Deployment, attempt: tuple[int, int], stage: int) -> None:
        deployment.ended[attempt, stage] = None
        if len(deployment.ended) > _REMEMBERED:
            deployment.ended.popitem(last=False)

    def _start_next(self, stage: OpenStage) -> list[DeviceInstruction]:
        """Return the instructions that follow from a free stream of a stage."""
        if stage.awaiting_stream:
            for key, run in stage.awaiting_stream:
                self._ready.push(stage.deployment.client, key, run)
            stage.awaiting_stream.clear()
        return self._run_ready() if self._ready.waiting else []

    def open(self, description: events.StageOpened) -> list[DeviceInstruction]:
        """Add or update a loaded stage; return the instructions."""
        deployment = self._deployments.get(description.deployment)
        if deployment is None:
            client = self._clients.setdefault(description.client, _Client(name=description.client))
            deployment = self._deployments[description.deployment] = _Deployment(client)
            if dropped := self._dropped_before_close.pop(description.deployment, None):
                deployment.dropped = dropped
        stage = deployment.stages.get(description.stage)
        if stage is None:
            deployment.stages[description.stage] = OpenStage(description, deployment)
        elif description.number >= stage.description.number:
            # Either its receivers changed, and its tasks continue; or its number was reused for
            # another subgraph.
            stage.open(description)
        self.num_streams = max(self.num_streams, description.num_streams)
        return self._run_ready()  # other stages' tasks may use the new streams, too

    def drop(self, request: Request) -> list[DeviceInstruction]:
        """Cancel an attempt; return the instructions."""
        return self._drop(request) + self._run_ready()

    def close(self, key: str) -> list[DeviceInstruction]:
        """Remove a deployment and cancel its tasks; return the instructions."""
        deployment = self._deployments.get(key)
        if deployment is None:
            return []
        done: list[DeviceInstruction] = []
        for tasks in list(deployment.tasks.values()):
            done += self._drop(next(iter(tasks.values())).task.request)
        del self._deployments[key]
        self._dropped_before_close[key] = deployment.dropped
        if len(self._dropped_before_close) > _REMEMBERED_DEPLOYMENTS:
            self._dropped_before_close.popitem(last=False)
        if not self.deployments_of(deployment.client.name):
            self._ready.forget(deployment.client)
            del self._clients[deployment.client.name]
        stages = (stage for d in self._deployments.values() for stage in d.stages.values())
        self.num_streams = max((stage.description.num_streams for stage in stages), default=1)
        return done + self._run_ready()

    def _remove_task(self, run: TaskRun) -> None:
        """Remove a task, and remember that it has ended."""
        self._unclaimed.pop(id(run), None)
        run.state = _S.GONE
        request, number = run.task
        deployment, attempt = run.stage.deployment, (request.id, request.attempt)
        tasks = deployment.tasks[attempt]
        del tasks[number]
        if not tasks:
            del deployment.tasks[attempt]
        deployment.client.num_tasks -= 1
        deployment.client.nbytes -= run.nbytes
        self._remember(deployment, attempt, number)

    def _fail_excess(self, newest: TaskRun) -> list[DeviceInstruction]:
        """Fail the excess tasks of a client: first those that wait for inputs, oldest first."""
        client = newest.stage.deployment.client
        mine = [
            run
            for deployment in self._deployments.values()
            if deployment.client is client
            for tasks in deployment.tasks.values()
            for run in tasks.values()
            if run.state in (_S.JOINING, _S.READY) and run.task.request != newest.task.request
        ]
        mine.sort(key=lambda r: (r.state is _S.READY, r.task.request.id, r.stage.description.level))
        done: list[DeviceInstruction] = []
        for run in mine:
            if (
                client.num_tasks <= _KEPT * self._max_tasks
                and client.nbytes <= _KEPT * self._max_nbytes
            ):
                break
            if run.state is _S.GONE:  # dropped with another task of its attempt
                continue
            error = OverloadedError(
                f"{run.task}: its client has {client.num_tasks} of {self._max_tasks} tasks and "
                f"{client.nbytes} of {self._max_nbytes} bytes on the device. Send fewer requests "
                "at once.",
                request_id=run.task.request.id,
            )
            done.append(Failure(run.task, error))
            done += self._drop(run.task.request)
        return done

    def _run(self, run: TaskRun) -> None:
        if len(self._clients) > 1:
            self._ready.count_turn(run.stage.deployment.client)
        number = id(run)
        # No call between these lines: Ctrl-C comes before or after them.
        run.state, run.entered = _S.RUNNING, run.stage
        run.stage.num_running += 1
        self.num_running += 1
        self._unclaimed[number] = run

    def _run_ready(self) -> list[DeviceInstruction]:
        instructions: list[DeviceInstruction] = []
        while self._ready.waiting and self.num_running < self.num_streams:
            client, key, run = self._ready.peek()
            # The queue loses a task last: if Ctrl-C interrupts, `recover` finds every task.
            if run.state is _S.READY:
                if run.stage.num_running < run.stage.num_streams:
                    self._run(run)
                    instructions.append(run)
                else:
                    run.stage.awaiting_stream.append((key, run))
            self._ready.remove_first(client)
        return instructions

    def _drop(self, request: Request) -> list[DeviceInstruction]:
        deployment = self._deployments.get(request.deployment)
        attempt = (request.id, request.attempt)
        if deployment is None:
            dropped = self._dropped_before_close.get(request.deployment, OrderedDict())
        else:
            dropped = deployment.dropped
        dropped[attempt] = None
        if len(dropped) > _REMEMBERED:
            dropped.popitem(last=False)
        if deployment is None:
            return []
        done: list[DeviceInstruction] = []
        for run in list(deployment.tasks.get(attempt, {}).values()):
            if run.state is _S.RUNNING:
                done.append(events.Stop(run))
            if run.state in (_S.RUNNING, _S.DROPPED):
                run.state = _S.DROPPED
            else:
                self._remove_task(run)
                if run.entered is not None:  # Ctrl-C interrupted its start
                    done += self.release_stream(run.stage, run)
        return done


def _misplaced_tensors_error(
    task: Task, tensors: Mapping[str, Any], stage: OpenStage | None
) -> DeviceError:
    """Return the error of values that no open stage accepts."""
    request, number = task
    data = {"stage": number, "request_id": request.id, "attempt": request.attempt}
    if stage is None:
        return DeviceLostError(
            f"{task}: its stage is not loaded here: it was closed, or its device has restarted.",
            device="",
            node="",
            **data,
        )
    return DeviceError(
        f"{task}: {list(tensors)} came for a stage that takes "
        f"{list(stage.description.inputs)}. Compile the model again.",
        **data,
    )
