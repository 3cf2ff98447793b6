"""Response to a request: its outputs, and the timings of its stages."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.deprecation import deprecated_alias, warn_renamed
from hetero.devices.model.element_type import element_type_name
from hetero.devices.plugin.program import Value

#: Element type and shape of resident outputs, and their positions among the outputs of a stage.
ResidentOutputs = tuple[str, tuple[int, ...], tuple[int, ...]]
_type_name: Final = cache(element_type_name)


def group_outputs(outputs: Iterable[tuple[int, Value]]) -> tuple[ResidentOutputs, ...]:
    """Return resident outputs, each with its position, grouped by element type and shape."""
    positions_of: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    positions: list[int] = []
    dtype: np.dtype | None = None
    shape: tuple[int, ...] | None = None
    for position, value in outputs:
        if value.shape is not shape or value.dtype is not dtype:  # states often share both
            dtype, shape = value.dtype, value.shape
            positions = positions_of.setdefault((_type_name(dtype), shape), [])
        positions.append(position)
    return tuple(
        (name, shape, tuple(positions)) for (name, shape), positions in positions_of.items()
    )


class StageTiming(NamedTuple):
    """Timing of one stage in one request; a stage is a subgraph or complete model on a device.

    Attributes
    ----------
    stage : int
        Index of the stage in the plan; 0 for a model on one device.
    device : str
        The device that ran the stage.
    queued_s : float
        Seconds from the arrival of the last input to the start; 0 if the executor does not measure
        it.
    started_s, ended_s : float
        Start and end by the caller's monotonic clock, or by the device's clock as long as the
        difference between the clocks of two nodes is unknown.
    upload_s, infer_s, download_s : float
        Seconds for the transfer of inputs, the run, and the transfer of outputs.
    node_times_s : mapping of str to float
        Executed node -> seconds; empty without profiling.
    output_nbytes : int
        Size of the outputs in bytes.
    resident : tuple of (str, tuple of int, tuple of int)
        Outputs that stay on the device: element type, shape, and positions among the stage's
        outputs.
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
    resident: tuple[ResidentOutputs, ...] = ()

    @property
    def kept(self) -> tuple[ResidentOutputs, ...]:
        """Deprecated alias of `resident`."""
        warn_renamed("kept", "resident", stacklevel=2)
        return self.resident

    @property
    def run_s(self) -> float:
        """Seconds from start to end."""
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class Response:
    """Response to a request.

    Attributes
    ----------
    outputs : mapping of str to value
        Output name -> value; arrays may be read-only.
    stage_timings : tuple of StageTiming
        Timings in stage order.
    """

    outputs: Mapping[str, Value]
    stage_timings: tuple[StageTiming, ...]

    stage_runs = deprecated_alias("stage_runs", "stage_timings")


class RequestTimes(NamedTuple):
    """Breakdown of the time of one run of a request.

    Attributes
    ----------
    preprocess_s : float
        Seconds for checks and conversions of the inputs.
    admission_s : float
        Seconds in the queue before admission.
    in_flight_s : float
        Seconds from admission to the response or the error.
    postprocess_s : float
        Seconds for copying the outputs into the request's tensors; 0 before the first access to
        the results.
    stages : tuple of StageTiming
        Timings in stage order; empty for a failed run.
    """

    preprocess_s: float
    admission_s: float
    in_flight_s: float
    postprocess_s: float
    stages: tuple[StageTiming, ...]


class NodeTimes:
    """Average seconds of executed nodes; thread-safe."""

    def __init__(self) -> None:
        #: Executed node -> (total seconds, number of runs).
        self._sums: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def add(self, times_s: Mapping[str, float]) -> None:
        """Add the node times of one run."""
        with self._lock:
            for name, seconds in times_s.items():
                total, runs = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + seconds, runs + 1

    def averages_s(self) -> dict[str, float]:
        """Return the average seconds of each executed node."""
        with self._lock:
            return {name: total / runs for name, (total, runs) in self._sums.items()}
