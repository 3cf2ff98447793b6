"""Events and instructions of the client's and the device's state machine.

Both state machines are pure: time is part of each event, and tensor values are opaque. Events and
instructions are small records, so that a test is a list of events and a list of instructions.
Frequent ones are not frozen, because creating a frozen dataclass takes three times as long.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hetero.devices.errors import ClusterError
from hetero.devices.plugin.program import RunContext
from hetero.devices.request.response import StageTiming
from hetero.scheduler.types.messages import Failure, Task
from hetero.scheduler.types.placement import Route

# Events of the client's state machine.


@dataclass(slots=True)
class Submitted:
    """A caller submitted a request.

    `nbytes`: size of its inputs.
    `deadline_s`: time at which it expires.
    `waits`: whether it may wait for admission; None waits only while devices are missing.
    `priority`: waiting requests of higher priority are admitted first.
    `preferred_devices`: devices that hold some of its inputs; routes through them are preferred.
    `trace`: trace that its history names.
    `group`, `rows`: dynamic batching joins rows of requests of the same group; None is never
        batched.
    """

    now_s: float
    request_id: int
    nbytes: int
    deadline_s: float
    waits: bool | None = True
    priority: int = 0
    preferred_devices: frozenset[str] = frozenset()
    trace: str = ""
    group: Hashable = None
    rows: int = 0


@dataclass(slots=True)
class Adopted:
    """The state machine takes over a request whose program ran on the caller's thread.

    `outputs`, `runs`: results and stage timings so far.
    """

    now_s: float
    request_id: int
    outputs: Mapping[str, Any]
    runs: Sequence[StageTiming] = ()


@dataclass(slots=True)
class PartArrived:
    """Stages of an attempt returned outputs of the model, by name, with their timings.

    The last part completes the result. `nbytes` is the size of the stage outputs of one request of
    a batch, because the timings cover the whole batch.
    """

    now_s: float
    request_id: int
    attempt: int
    outputs: Mapping[str, Any]
    runs: Sequence[StageTiming] = ()
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A stage of an attempt raised, or the attempt could not start."""

    now_s: float
    request_id: int
    attempt: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A caller cancelled its request."""

    now_s: float
    request_id: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time advanced to `now_s`; everything due before happens now."""

    now_s: float


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device failed, and all tasks that were sent to it; it may return.

    `on_the_way`: only messages were lost; the device is alive.
    `may_live`: the device misses heartbeats and may still run; `DeviceEnded` reports its end.
    """

    now_s: float
    device: str
    node: str
    cause: str
    on_the_way: bool = False
    may_live: bool = False


@dataclass(frozen=True, slots=True)
class DeviceEnded:
    """The process of a device that missed heartbeats has ended, or is being ended."""

    now_s: float
    device: str


@dataclass(frozen=True, slots=True)
class DeviceRemoved:
    """A device will not return."""

    now_s: float
    device: str
    node: str
    cause: str


@dataclass(frozen=True, slots=True)
class ClusterLost:
    """The cluster failed, with all devices."""

    now_s: float
    error: ClusterError


@dataclass(frozen=True, slots=True)
class DeviceReturned:
    """A lost device returned and has loaded its stages.

    `is_steady`: whether it is used without restriction; otherwise `DeviceSteady` follows.
    """

    now_s: float
    device: str
    is_steady: bool = True


@dataclass(frozen=True, slots=True)
class DeviceSteady:
    """A device that returned has been alive long enough to be used without restriction."""

    now_s: float
    device: str


@dataclass(frozen=True, slots=True)
class RoutesAdded:
    """New routes are available, numbered after the existing ones; their stages are loaded."""

    now_s: float
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The deployment was closed; requests in flight are cancelled."""

    now_s: float


ClientEvent = (
    Submitted
    | Adopted
    | PartArrived
    | AttemptFailed
    | CancelRequested
    | TimePassed
    | DeviceLost
    | DeviceEnded
    | DeviceRemoved
    | ClusterLost
    | DeviceReturned
    | DeviceSteady
    | RoutesAdded
    | Closed
)

# Instructions of the client's state machine.


@dataclass(slots=True)
class Admitted:
    """Let the caller continue: its request waits for its batch to fill."""

    request_id: int


@dataclass(slots=True)
class StartAttempt:
    """Send the inputs of a request to the first stages of a route, as this attempt.

    `joined`: requests of the same batch, if it has several; this request is the first.
    """

    request_id: int
    attempt: int
    route: int = 0
    joined: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DropAttempt:
    """Cancel an attempt on all devices. For a batch, any of its requests is named."""

    request_id: int
    attempt: int
    route: int = 0


@dataclass(slots=True)
class Deliver:
    """Return the outputs to the caller, with the stage timings in order."""

    request_id: int
    outputs: Mapping[str, Any]
    runs: tuple[StageTiming, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise an error at the caller."""

    request_id: int
    error: BaseException


ClientInstruction = Admitted | StartAttempt | DropAttempt | Deliver | Fail


class Send(NamedTuple):
    """Destination of outputs: a stage on the device at an address."""

    address: str
    stage: int
    tensors: tuple[str, ...]
    #: Positions of the tensors among the stage's inputs; empty if they are sent by name only.
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StageOpened:
    """Description of a loaded stage, for its device."""

    deployment: str
    stage: int
    #: Tensors that it needs to run.
    inputs: tuple[str, ...]
    #: Length of the longest path of stages before it.
    level: int
    #: Route -> destinations of its outputs, one for each consumer.
    sends: Mapping[int, tuple[Send, ...]] = field(default_factory=dict)
    #: Its outputs that are outputs of the model.
    outputs: tuple[str, ...] = ()
    #: Maximum number of its tasks that run at once.
    num_streams: int = 1
    #: Address of the client.
    client: str = ""
    #: Time limit of a run in seconds; 0 for none.
    timeout_s: float = 0.0
    #: Sequence number of the deployment's descriptions; older ones are ignored.
    number: int = 0


# Instructions of the device's state machine.


@dataclass(slots=True)
class TaskRun:
    """Run a task; at its end, send its outputs to the next stages and to the client.

    `tensors`: inputs by name, complete since `ready_s`.
    `runs`: timings of earlier stages.
    `stage`, `state`, `nbytes`, `entered`: private to the state machine.
    `context`, `outputs`: context and outputs of the run; set by the caller that runs it.
    """

    task: Task
    tensors: Mapping[str, Any]
    runs: tuple[StageTiming, ...] = ()
    ready_s: float = 0.0
    stage: Any = field(default=None, compare=False, repr=False)
    state: Any = field(default=None, compare=False)
    nbytes: int = field(default=0, compare=False)
    entered: Any = field(default=None, compare=False, repr=False)
    context: RunContext | None = field(default=None, compare=False, repr=False)
    outputs: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


class Stop(NamedTuple):
    """Stop a running task before its next node."""

    run: TaskRun


#: A failure is sent to the client of the task.
DeviceInstruction = TaskRun | Failure | Stop
