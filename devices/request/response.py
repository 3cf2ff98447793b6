"""The answer to a request: its outputs, and how each stage of it went."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hetero.devices.deprecation import deprecated_alias
from hetero.devices.plugin.program import Value

#: Element type and shape of outputs that a device keeps, and their positions among a stage's.
ResidentOutputs = tuple[str, tuple[int, ...], tuple[int, ...]]


class StageTiming(NamedTuple):
    """How one stage of one request went: a subgraph on its device, or a whole model on one.

    Attributes
    ----------
    stage : int
        Its index in the plan; 0 for a model on one device.
    device : str
        Who ran it.
    queued_s : float
        Seconds from its last input's arrival to its start; 0 where the executor cannot tell.
    started_s, ended_s : float
        When it ran, by the caller's monotonic clock; by the device's own where the difference of
        two nodes' clocks is not known yet.
    upload_s, infer_s, download_s : float
        Seconds that the device took to get its inputs, run and give its outputs.
    node_times_s : mapping of str to float
        Seconds by executed node; empty unless profiled.
    output_nbytes : int
        Bytes of what it gave.
    kept : tuple of (str, tuple of int, tuple of int)
        What its device keeps of that: element type, shape, and positions among the stage's outputs.
    """

    stage: int
    device: str
    queued_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    upload_s: float = 0.0
    infer_s: float = 0.0
    download_s: float = 0.0
    node_times_s: Mapping[str, float] = {}
    output_nbytes: int = 0
    kept: tuple[ResidentOutputs, ...] = ()

    @property
    def run_s(self) -> float:
        """Seconds from start to end."""
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request.

    Attributes
    ----------
    outputs : mapping of str to value
        By output name; arrays may be read-only.
    stage_timings : tuple of StageTiming
        In stage order.
    """

    outputs: Mapping[str, Value]
    stage_timings: tuple[StageTiming, ...]

    stage_runs = deprecated_alias("stage_runs", "stage_timings")


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Where the time of a request's run went.

    Attributes
    ----------
    preprocess_s : float
        Seconds that its inputs were checked and converted.
    admission_s : float
        Seconds that it waited until there was room for it.
    in_flight_s : float
        Seconds from then to its answer, or its failure.
    postprocess_s : float
        Seconds that its outputs were taken over into its tensors; 0 until someone asks for them.
    stages : tuple of StageTiming
        How each stage went, in stage order; empty for a run that failed.
    """

    preprocess_s: float
    admission_s: float
    in_flight_s: float
    postprocess_s: float
    stages: tuple[StageTiming, ...]


class NodeTimes:
    """Seconds by executed node, averaged; runs may be added from any thread."""

    def __init__(self) -> None:
        #: Executed node -> (seconds in all, runs).
        self._sums: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def add(self, times_s: Mapping[str, float]) -> None:
        """Add one run's times."""
        with self._lock:
            for name, seconds in times_s.items():
                total, runs = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + seconds, runs + 1

    def averages_s(self) -> dict[str, float]:
        """Return the average of each node that ran."""
        with self._lock:
            return {name: total / runs for name, (total, runs) in self._sums.items()}
