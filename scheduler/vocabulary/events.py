"""Events and instructions of the two machines: what they receive, and what they ask for.

Both machines are pure: time comes in events, and what values are is nothing to them. Events
and instructions are small records, so that a test is a list of the one and a list of the other;
frozen where they are few, as to make a frozen one takes three times as long.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hetero.devices.errors import ClusterError
from hetero.devices.plugin.program import RunContext
from hetero.devices.request.response import StageTiming
from hetero.scheduler.vocabulary.messages import Failure, Task
from hetero.scheduler.vocabulary.placement import Route

# What the client's machine receives.


@dataclass(slots=True)
class Submitted:
    """A caller wants an answer by `deadline_s`; `nbytes` is the size of what it brings.

    Where `waits` is False, it is refused rather than made to wait for room; where it is None, only
    while devices are away. Of those that wait, the ones of greater `priority` are admitted first.
    It goes by the devices that are `near`, as they keep some of its inputs, where a route does. Its
    story names the `trace` that it is of.
    Where requests are joined, its `rows` can be with those of its `group`; of none: with no others.
    """

    now_s: float
    request_id: int
    nbytes: int
    deadline_s: float
    waits: bool | None = True
    priority: int = 0
    near: frozenset[str] = frozenset()
    trace: str = ""
    group: Hashable = None
    rows: int = 0


@dataclass(slots=True)
class Adopted:
    """A request whose program ran on its caller's thread goes on as an attempt.

    `outputs`, `runs`: what has come of it so far.
    """

    now_s: float
    request_id: int
    outputs: Mapping[str, Any]
    runs: Sequence[StageTiming] = ()


@dataclass(slots=True)
class PartArrived:
    """Outputs of the model that an attempt's stages made, by name, and how stages went.

    The last part makes the answer whole. `nbytes` is what the stages made of a request that was
    joined with others, of whom their runs tell as well.
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
class CancelAsked:
    """A caller no longer wants the answer."""

    now_s: float
    request_id: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is `now_s`; what was to happen before is due."""

    now_s: float


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device is away, with all that was sent to it; it may return.

    `on_the_way`: messages alone were lost, and the device is well.
    `may_live`: it is not heard, and may go on all the same; `DeviceEnded` says if it does not.
    """

    now_s: float
    device: str
    node: str
    cause: str
    on_the_way: bool = False
    may_live: bool = False


@dataclass(frozen=True, slots=True)
class DeviceEnded:
    """The process of a device that was not heard has ended, or is being ended."""

    now_s: float
    device: str


@dataclass(frozen=True, slots=True)
class DeviceRemoved:
    """A device is away for good: nobody need wait for it."""

    now_s: float
    device: str
    node: str
    cause: str


@dataclass(frozen=True, slots=True)
class ClusterLost:
    """Every device is gone, and whatever else the cluster had."""

    now_s: float
    error: ClusterError


@dataclass(frozen=True, slots=True)
class DeviceReturned:
    """A lost device is back, its stages loaded.

    `is_steady`: whether it can be relied on; else `DeviceSteady` says when.
    """

    now_s: float
    device: str
    is_steady: bool = True


@dataclass(frozen=True, slots=True)
class DeviceSteady:
    """A device that came back has been heard for long enough to be relied on."""

    now_s: float
    device: str


@dataclass(frozen=True, slots=True)
class RoutesAdded:
    """There are more routes, numbered after those that were there; their stages are loaded."""

    now_s: float
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """No more requests; those in flight are cancelled."""

    now_s: float


ClientEvent = (
    Submitted
    | Adopted
    | PartArrived
    | AttemptFailed
    | CancelAsked
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

# What the client's machine asks for.


@dataclass(slots=True)
class Admitted:
    """Have the caller go on: its request waits for others to be joined with."""

    request_id: int


@dataclass(slots=True)
class StartAttempt:
    """Send the request's inputs to the route's stages that take them, as this attempt.

    It may be one of several requests, the first among them, whose rows go together.
    """

    request_id: int
    attempt: int
    route: int = 0
    joined: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DropAttempt:
    """Stop the attempt where it runs and forget it where it waits.

    Of one of several requests any of them is named.
    """

    request_id: int
    attempt: int
    route: int = 0


@dataclass(slots=True)
class Deliver:
    """Give the caller what its stages made of the model's outputs, and how they went, in order."""

    request_id: int
    outputs: Mapping[str, Any]
    runs: tuple[StageTiming, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """Give the caller its error."""

    request_id: int
    error: BaseException


ClientInstruction = Admitted | StartAttempt | DropAttempt | Deliver | Fail


class Send(NamedTuple):
    """Where outputs go: a stage, on the device at an address."""

    address: str
    stage: int
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageOpened:
    """What a device is to know of a stage that is loaded there."""

    deployment: str
    stage: int
    #: What must be there before it runs.
    inputs: tuple[str, ...]
    #: The most stages on a path before it.
    level: int
    #: Route -> where its outputs go, one entry for each consumer.
    sends: Mapping[int, tuple[Send, ...]] = field(default_factory=dict)
    #: Its outputs that are the model's.
    outputs: tuple[str, ...] = ()
    #: How many of its tasks may run at once.
    num_streams: int = 1
    #: The client's address.
    client: str = ""
    #: Seconds that it may run; 0: any.
    timeout_s: float = 0.0
    #: Ascends with what a deployment says of its stages: what is older comes too late.
    number: int = 0


# What a device's machine asks for.


@dataclass(slots=True)
class Run:
    """Run the task on its inputs, which are all there since `ready_s`; then tell of this object.

    Once it has ended: send what it gave to the stages that take it, and to the client.

    `runs`: how the stages before went.
    `stage`, `state`, `nbytes`: the machine's own.
    `context`, `outputs`: of the run, and what it gave, by name; set by whoever runs it.
    """

    task: Task
    tensors: Mapping[str, Any]
    runs: tuple[StageTiming, ...] = ()
    ready_s: float = 0.0
    stage: Any = field(default=None, compare=False, repr=False)
    state: Any = field(default=None, compare=False)
    nbytes: int = field(default=0, compare=False)
    context: RunContext | None = field(default=None, compare=False, repr=False)
    outputs: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


class Stop(NamedTuple):
    """Ask a task that runs, or is about to, to stop at its next node."""

    run: Run


#: A failure is sent to the task's client.
DeviceInstruction = Run | Failure | Stop
