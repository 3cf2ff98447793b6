"""Random parts of a history: faults, deployments, calls and the work of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.devices.errors import InferenceError
from hetero.devices.request.request import Request
from hetero.scheduler.simulation.device import Workload
from hetero.scheduler.types.limits import Batching, Limits
from hetero.scheduler.types.placement import Placement, Route
from hetero.scheduler.types.plan import Stage
from tests.simulation import models
from tests.simulation.supervised_client import SupervisedClient

if TYPE_CHECKING:
    from tests.simulation.history import History


#: Kinds of faults that cause rare events together.
_COMBINATIONS = (
    # Late failures of attempts whose device was only suspected, and failures without a device.
    ("raises", "stop_s", "late", "loss"),
    # Devices that restart at once, with lost and repeated calls to load and open their stages.
    ("crash_s", "call", "failed_start"),
    # Messages of attempts that were dropped.
    ("double", "late", "cancel", "hurry"),
    # Programs that end only if they are cancelled.
    ("hang", "cancel", "hurry"),
    # Deployments that close while others use their devices.
    ("close", "cancel", "stop_s"),
    # Devices that free a client's tensors, and tensors of devices that are lost.
    ("stop_s", "cut_s", "crash_s"),
)


@dataclass
class Faults:
    """Rates of the kinds of faults; 0 means never."""

    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    late_s: float = 0.0
    #: Mean seconds between two faults of a kind.
    crash_s: float = 0.0
    stop_s: float = 0.0
    cut_s: float = 0.0
    client_stop_s: float = 0.0
    #: Probability that a client ends in a history.
    client_crash: float = 0.0
    slow_start: float = 0.0
    failed_start: float = 0.0
    #: Share of the calls to devices that fail or repeat.
    call: float = 0.0
    #: Shares of the requests.
    raises: float = 0.0
    poison: float = 0.0
    hang: float = 0.0
    cancel: float = 0.0
    hurry: float = 0.0
    close: float = 0.0
    #: Mean number of lines after which a thread is preempted; 0: never.
    lines: int = 0
    #: Whether notices of dropped attempts are lost like other messages.
    loses_drops: bool = False

    @classmethod
    def from_random(cls, random: Random) -> Faults:
        """Draw the kinds of faults and their rates."""
        if random.random() < 0.1:
            return cls()
        rates = {
            "loss": random.choice((0.002, 0.02, 0.1)),
            "double": random.choice((0.01, 0.1)),
            "late": random.choice((0.05, 0.3)),
            "crash_s": random.choice((0.3, 2.0)),
            "stop_s": random.choice((0.5, 3.0)),
            "cut_s": random.choice((0.5, 3.0)),
            "client_stop_s": random.choice((1.0, 5.0)),
            "client_crash": 0.5,
            "slow_start": random.choice((0.2, 0.8)),
            "failed_start": random.choice((0.2, 0.6)),
            "call": random.choice((0.1, 0.5)),
            "raises": random.choice((0.02, 0.2)),
            "poison": 0.02,
            "hang": 0.02,
            "cancel": random.choice((0.05, 0.3)),
            "hurry": random.choice((0.05, 0.3)),
            "close": 0.3,
        }
        kinds = {name for name in rates if random.random() < 0.2}
        if random.random() < 0.6:
            kinds.update(random.choice(_COMBINATIONS))
        on = {name: rate for name, rate in rates.items() if name in kinds}
        lines = random.choice((0, 0, 30, 100, 400, 2000))
        late_s = random.choice((0.001, 0.02, 0.3))
        return cls(**on, late_s=late_s, lines=lines, loses_drops=random.random() < 0.3)

    def words(self) -> str:
        """Return the nonzero rates as text."""
        kinds = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ", ".join(f"{name}={value}" for name, value in kinds if value) or "none"


#: Probability that a call is the last one of a burst, and mean pause between bursts in seconds.
_BURST_END = 0.2
_PAUSE_S = 0.3


@dataclass
class Call:
    """A request that a caller made."""

    number: int
    model: Model
    inputs: dict[str, Any]
    expected: dict[str, np.ndarray]
    request: Request
    start_s: float
    #: Fault of the request: raises, poison, hang or none.
    mark: str = ""
    is_cancelled: bool = False
    results: list[Any] = field(default_factory=list)
    end_s: float = 0.0
    request_id: int = 0
    story: Any = None
    remaining: Any = None


class Model:
    """A deployment with random limits, placement and rate of calls."""

    def __init__(self, history: History, client: SupervisedClient) -> None:
        random = history.random
        self.client = client
        # If a client has two models with states, each reads the other's states on other devices.
        others = [m for m in history.models if m.client is client and m.has_state]
        self.has_state: bool = random.random() < (0.95 if others else 0.33)
        shapes = [s for s in models.SHAPES if s.startswith("state") == self.has_state]
        self.shape = random.choice(shapes)
        self.width = random.choice((1, 1, 1, 2500))
        used = {name for other in others for name in other.placement.devices}
        names = [n for n in history.names if n not in used] if self.has_state else []
        self.width = others[0].width if names and others else self.width
        self.placement: Placement = models.placement(
            random, self.shape, names or history.names, self.width
        )
        limits = Limits(
            requests=random.choice((1, 2, 3, 8, 32)),
            nbytes=random.choice((2**30, 16 * 8 * self.width, 4 * 8 * self.width)),
            waiting=random.choice((1024, 1024, 2)),
            timeout_s=600.0,
            admission_timeout_s=random.choice((600.0, 600.0, 2.0)),
            attempts=random.choice((5, 5, 5, 2)),
            in_order=random.random() < 0.2,
            stage_timeout_s=1.5 if history.faults.hang else 0.0,
        )
        self.batching: Batching | None = None
        if not self.has_state and random.random() < 0.3:
            busy = random.choice((1, 2))
            self.batching = Batching(
                random.choice((2, 4, 8)),
                random.choice((0.0, 0.005, 0.05)),
                busy,
                busy + random.choice((0, 2)),
            )
        self.limits = replace(limits, batching=self.batching)
        self.mean_s = random.choice((0.0, 0.0005, 0.005, 0.05))
        #: Whether calls come in bursts, so that they continue while faults occur.
        self.is_bursty = random.random() < 0.5
        self.deployment = client.deploy(self.placement, self.limits)
        self.runner: Any = self.deployment._runner
        #: The expected value and the tensor of the last result's state.
        self.last_state: Any = None
        self.is_closed = False
        self.records: dict[int, Any] = {}
        self.delivered: list[int] = []

    @property
    def routes(self) -> Sequence[Route]:
        return self.placement.routes

    def next_call_delay_s(self, random: Random) -> float:
        """Return the time until the next call, in seconds."""
        if self.is_bursty and random.random() < _BURST_END:
            return random.expovariate(1 / _PAUSE_S)
        return random.expovariate(1 / self.mean_s) if self.mean_s else 0.0


class SimulatedWork(Workload):
    """Workload of the stages of a history: durations, faults and outputs."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._usual_s = {name: history.random.choice((0.001, 0.01)) for name in history.names}

    def run_s(self, device: str, stage: Stage, inputs: Sequence[Any]) -> float:
        history = self._history
        numbers = _call_numbers(stage, inputs)
        mark = "" if history.are_faults_over else history.marks.get(numbers[0] if numbers else 0)
        if mark == "poison":
            history.simulator.after(0.0, history.cluster.crash, device)
            return 0.001
        if mark == "hang":
            return 1e6
        return self._usual_s[device] * (0.5 + history.random.random())

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        if numbers := _call_numbers(stage, inputs):
            self._history.invariants.check_rows(numbers)
            if any(self._history.marks.get(n) == "raises" for n in numbers):
                raise InferenceError("fault of the history: this request raises")
        return [models.stage_output(name, inputs) for name in stage.outputs]

    def num_streams(self, device: str, stage: Stage) -> int:
        return self._history.streams[device, stage.index % 4]


def _call_numbers(stage: Stage, inputs: Sequence[Any]) -> list[int]:
    """Return the numbers of the calls whose rows a stage receives; empty if it does not read x."""
    if "x" not in stage.inputs:
        return []
    return [int(number) for number in np.asarray(inputs[stage.inputs.index("x")])[:, 0]]
