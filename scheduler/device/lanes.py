"""Lanes of a device: tasks that arrive and leave as packed messages.

A task whose stage is free runs without a record: the state machine counts it and remembers its
identity. Every other task continues as a `Values` message.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hetero.devices.errors import BlobError
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels.channel import LaneChannel
from hetero.scheduler.channels.lane import (
    MAX_TIMINGS,
    TO_CLIENT,
    TO_STAGE,
    LaneHead,
    input_mask,
    lane_key,
    masked_names,
    pack_timing,
    read_head,
    read_tensors,
    read_timings,
    release_tensors,
    slice_timings,
)
from hetero.scheduler.channels.shared_memory import SlotError
from hetero.scheduler.device.direct_stage import left_outputs
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.task_queue import DeviceMachine, OpenStage
from hetero.scheduler.types.events import DeviceInstruction, StageOpened, TaskRun
from hetero.scheduler.types.messages import Failure, Outputs, Task, Values

_log = logging.getLogger(__name__)

#: Creates a named tuple without the call of a Python function: each message needs one.
_new: Final[Callable[..., Any]] = tuple.__new__


class _Consumer(NamedTuple):
    """Stage that reads outputs of another one.

    `inputs`, `mask`: the inputs that it receives.
    `positions`: their positions among the outputs of the other stage.
    """

    address: str
    stage: int
    inputs: tuple[str, ...]
    mask: int
    positions: tuple[int, ...]


class _Lane:
    """Stage whose tasks arrive as packed messages.

    `is_plain`: whether its tasks may run without a record.
    """

    def __init__(self, stage: OpenStage, outputs: Sequence[str], *, is_plain: bool) -> None:
        description = stage.description
        self.stage = stage
        self.description = description
        self.key = lane_key(description.deployment)
        self.outputs = tuple(outputs)
        self.is_plain = is_plain
        #: Mask of all inputs, and their number.
        self.num_inputs = len(description.inputs)
        self.mask = (1 << self.num_inputs) - 1
        position_of = {name: position for position, name in enumerate(outputs)}
        #: Consumers by route.
        self.consumers: Mapping[int, tuple[_Consumer, ...]] = {
            route: tuple(
                _Consumer(
                    send.address,
                    send.stage,
                    send.tensors,
                    input_mask(send.positions),
                    tuple(position_of[name] for name in send.tensors),
                )
                for send in sends
            )
            for route, sends in description.sends.items()
        }
        #: Positions of the model's outputs.
        self.results = tuple(position_of[name] for name in description.outputs)


class LaneTask:
    """Task of a packed message that occupies a stream of its stage.

    `attempt`: request id and number of the attempt.
    `timings`: packed timings of the earlier stages.
    """

    __slots__ = ("attempt", "context", "entered", "head", "inputs", "lane", "ready_s", "timings")

    def __init__(
        self,
        lane: _Lane,
        head: LaneHead,
        attempt: tuple[int, int],
        inputs: Sequence[Value],
        timings: bytes,
        ready_s: float,
    ) -> None:
        self.lane = lane
        self.head = head
        self.attempt = attempt
        self.inputs = inputs
        self.timings = timings
        self.ready_s = ready_s
        self.entered: Any = None
        self.context: RunContext | None = None

    @property
    def stage(self) -> OpenStage:
        """Stage of the task."""
        return self.lane.stage

    @property
    def task(self) -> Task:
        """Identity of the task in other messages."""
        return _task_of(self.lane.description.deployment, self.head)

    @property
    def tensors(self) -> dict[str, Value]:
        """Inputs by name."""
        return dict(zip(self.lane.description.inputs, self.inputs, strict=True))


class DeviceLanes:
    """Lanes of the stages on a device.

    `lock`: guards the state machine.
    `start`: makes a thread call `run` with a task.
    `receive`: processes a task that continues as a `Values` message.
    `send_failure`: sends a failure to the task's client.
    `typed_error`: converts the error of a task.
    `follow`: executes instructions of the state machine.
    """

    def __init__(
        self,
        machine: DeviceMachine,
        host: DeviceHost,
        channel: LaneChannel,
        lock: threading.Lock,
        now_s: Callable[[], float],
        *,
        start: Callable[[LaneTask], None],
        receive: Callable[[Values], None],
        send_failure: Callable[[Failure], None],
        typed_error: Callable[[Task, BaseException], BaseException],
        follow: Callable[[Sequence[DeviceInstruction]], None],
    ) -> None:
        self._machine = machine
        self._host = host
        self._channel = channel
        self._lock = lock
        self._now_s = now_s
        self._start = start
        self._receive = receive
        self._send_failure = send_failure
        self._typed_error = typed_error
        self._follow = follow
        self._lanes: dict[tuple[int, int], _Lane] = {}
        #: Keys of deployments that have, or recently had, stages on the device.
        self._deployments: dict[int, str] = {}
        #: Running tasks by `id`.
        self._running: dict[int, LaneTask] = {}

    def open(self, description: StageOpened) -> None:
        """Accept tasks of a stage, or update its consumers; the caller holds the lock."""
        stage = self._machine.stage(description.deployment, description.stage)
        compiled = self._host.compiled(description.deployment, description.stage)
        if (
            compiled is None or stage.description is not description
        ):  # a newer description has arrived
            return
        is_plain = not (compiled.profiles or description.timeout_s)
        if self._host.leaves_outputs:  # outputs for a stage of the same device stay in its memory
            here, outputs = self._channel.address, description.outputs
            sends = description.sends.values()
            is_plain = is_plain and not any(left_outputs(here, s, outputs, ()) for s in sends)
        lane = _Lane(stage, compiled.output_names, is_plain=is_plain)
        self._lanes[lane.key, description.stage] = lane
        self._deployments[lane.key] = description.deployment

    def close(self, deployment: str) -> None:
        """Stop accepting tasks of a deployment; the caller holds the lock."""
        key = lane_key(deployment)
        for stage in [stage for of, stage in self._lanes if of == key]:
            del self._lanes[key, stage]

    def forget(self, deployment: str) -> None:
        """Forget a closed deployment; the caller holds the lock."""
        self._deployments.pop(lane_key(deployment), None)

    def receive(self, data: bytes, start: int) -> None:
        """Process a packed message.

        Raises BlobError: its head is damaged.
        Raises SlotError: a tensor in shared memory is lost.
        """
        head = read_head(data, start)
        kind, num_tensors, num_timings, key, request_id, number, stage, route, mask, _ = head
        lane = self._lanes.get((key, stage))
        if lane is None or kind != TO_STAGE:
            release_tensors(data, head, self._channel.stored_tensor)
            self._reject(head)
            return
        description = lane.description
        try:
            inputs = read_tensors(data, head, self._channel.stored_tensor)
            is_whole = mask == lane.mask and num_tensors == lane.num_inputs
            if not is_whole or num_timings > MAX_TIMINGS:
                _check_head(head, lane)
        except SlotError:  # the message is lost
            raise
        except BlobError as error:
            self._send_failure(Failure(_task_of(description.deployment, head), error))
            return
        attempt = (request_id, number)
        timings = slice_timings(data, head)
        task = LaneTask(lane, head, attempt, inputs, timings, self._now_s())
        if is_whole and lane.is_plain and route in lane.consumers:
            with self._lock:
                is_started = self._machine.begin_direct(lane.stage, attempt, task)
            if is_started is None:  # it is obsolete
                return
            if is_started:
                self._start(task)
                return
        names = masked_names(description.inputs, mask)
        tensors = dict(zip(names, inputs, strict=True))
        self._receive(Values(task.task, tensors, read_timings(timings)))

    def _reject(self, head: LaneHead) -> None:
        """Send a failure for a stage that is not open, if the deployment is known."""
        deployment = self._deployments.get(head.deployment)
        if deployment is None or head.kind != TO_STAGE:
            _log.warning("dropped a packed message of an unknown deployment")
            return
        self._send_failure(self._machine.misplaced_failure(_task_of(deployment, head)))

    def drop(self, request: Request) -> None:
        """Cancel the running tasks of an attempt."""
        attempt = (request.id, request.attempt)
        for task in list(self._running.values()):
            is_same = task.attempt == attempt
            if is_same and task.lane.description.deployment == request.deployment and task.context:
                task.context.cancel()

    def run(self, task: LaneTask) -> None:
        """Run a task in the calling thread and forward its outputs."""
        lane, attempt = task.lane, task.attempt
        stage = lane.stage
        dropped = stage.deployment.dropped
        outputs: Sequence[Value] = ()
        timing: StageTiming | None = None
        failure: Exception | None = None
        context = task.context = RunContext()  # before the check, so that a drop cancels it
        self._running[id(task)] = task
        try:
            if attempt not in dropped:
                _, outputs, timing = self._host.execute(
                    lane.description.deployment,
                    lane.description.stage,
                    task.inputs,
                    context,
                    ready_s=task.ready_s,
                )
        except Exception as error:
            failure = error
        finally:
            del self._running[id(task)]
            with self._lock:
                instructions = self._machine.end_direct(stage, task)
            if instructions:  # first: the device must not wait while the outputs are sent
                self._follow(instructions)
        try:
            if attempt in dropped:
                return
            if failure is not None:
                failed_task = task.task
                stage_error = self._host.convert_error(
                    failure, failed_task.stage, failed_task.request
                )
                self._send_failure(
                    Failure(failed_task, self._typed_error(failed_task, stage_error))
                )
            elif timing is not None:
                self._forward(lane, task.head, outputs, task.timings, timing)
        except Exception as error:  # report it to the request; the thread continues
            self._send_failure(Failure(task.task, self._typed_error(task.task, error)))

    def forward(self, run: TaskRun) -> bool:
        """Forward the outputs of a task with a record; return False if it needs messages."""
        request, stage = run.task
        lane = self._lanes.get((lane_key(request.deployment), stage))
        if lane is None or not lane.is_plain or request.route not in lane.consumers:
            return False
        outputs, (*before, timing) = run.outputs, run.runs
        if outputs is None or not request.is_plain or len(before) > MAX_TIMINGS:
            return False
        if any(one.node_times_s or one.resident for one in run.runs):
            return False
        head = LaneHead(
            TO_STAGE, 0, 0, lane.key, request.id, request.attempt, stage, request.route, 0, 0
        )
        timings = b"".join(map(pack_timing, before))
        self._forward(lane, head, [outputs[name] for name in lane.outputs], timings, timing)
        return True

    def _forward(
        self,
        lane: _Lane,
        head: LaneHead,
        outputs: Sequence[Value],
        earlier: bytes,
        timing: StageTiming,
    ) -> None:
        """Send outputs to their consumers, and the model's outputs to the client."""
        _, _, _, deployment, request_id, attempt, _, route, _, _ = head
        consumers = lane.consumers[route]
        packed = pack_timing(timing)
        timings = earlier + packed
        if consumers and len(timings) > MAX_TIMINGS * len(packed):
            self._send_result(lane, head, (), timings)
            timings = b""
        for address, stage, names, mask, positions in consumers:
            tensors = [*map(outputs.__getitem__, positions)]
            fields = (TO_STAGE, 0, 0, deployment, request_id, attempt, stage, route, mask, 0)
            to_stage: LaneHead = _new(LaneHead, fields)
            if not (mask and self._channel.send_lane(address, to_stage, timings, tensors)):
                task = _task_of(lane.description.deployment, to_stage)
                values = dict(zip(names, tensors, strict=True))
                self._channel.send(address, Values(task, values, read_timings(timings)))
        if lane.results or not consumers:
            results = [*map(outputs.__getitem__, lane.results)]
            self._send_result(lane, head, results, timings)

    def _send_result(
        self, lane: _Lane, head: LaneHead, results: Sequence[Value], timings: bytes
    ) -> None:
        """Send outputs of the model, all or none, to the client."""
        client = lane.description.client
        _, _, _, deployment, request_id, attempt, stage, route, _, _ = head
        fields = (TO_CLIENT, 0, 0, deployment, request_id, attempt, stage, route, 0, 0)
        to_client: LaneHead = _new(LaneHead, fields)
        if not self._channel.send_lane(client, to_client, timings, results):
            task = _task_of(lane.description.deployment, head)
            names = lane.description.outputs if results else ()
            values = dict(zip(names, results, strict=True))
            self._channel.send(client, Outputs(task, values, read_timings(timings)))


def _check_head(head: LaneHead, lane: _Lane) -> None:
    """Check the numbers of a message.

    Raises BlobError: there are too many timings, or the tensors do not match the input mask.
    """
    if head.num_timings > MAX_TIMINGS:
        raise BlobError(
            f"packed message with {head.num_timings} timings; expected at most {MAX_TIMINGS}."
        )
    mask = head.input_mask
    if head.num_tensors != mask.bit_count() or mask & ~lane.mask:
        raise BlobError(
            f"packed message with {head.num_tensors} tensors and the input mask {mask:#b} for "
            f"stage {head.stage}; expected one tensor for each bit, and inputs below "
            f"{lane.num_inputs}."
        )


def _task_of(deployment: str, head: LaneHead) -> Task:
    """Return the task of a packed message."""
    request = Request(
        deployment=deployment, id=head.request_id, attempt=head.attempt, route=head.route
    )
    return Task(request, head.stage)
