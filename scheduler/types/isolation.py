"""Runs in a process of their own: bounds, results and failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hetero.devices.plugin.program import Value

#: ``refused``: the device does not support the model; ``error``: a run raised; ``crash``: the
#: process ended; ``bound``: a run exceeded its time or memory; ``unavailable``: the worker cannot
#: load the plugin, compile the model, or receive its values.
FailureKind = Literal["refused", "error", "crash", "bound", "unavailable"]


@dataclass(frozen=True, slots=True)
class RunFailure:
    """A run without outputs, with the reason as a sentence."""

    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True)
class RunBounds:
    """Extent of an isolated call: bounds of its time and memory, and the number of its runs."""

    #: Processor time in seconds.
    time_s: float
    #: Additional memory in bytes.
    memory_nbytes: int
    #: Runs of each set of inputs; several have two results for each set. The sets alternate,
    #: because some libraries keep buffers of the last shapes, and end the process only then.
    num_runs: int = 1


#: Outputs by name, or the failure of the run.
RunResult = Mapping[str, Value] | RunFailure
