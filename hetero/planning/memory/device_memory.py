"""Predicted memory of a device's process, by its parts, and the budgets that bound it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hetero.devices.plugin.memory_traits import MemoryTraits

#: Units of sizes: decimal, as on the command line of Kubernetes, and binary.
_UNITS: Final = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**i for i, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}IB": 1024**i for i, prefix in enumerate("KMGT", 1)},
}


def parse_nbytes(text: str) -> int:
    """Return the bytes of a size such as ``700MB``, ``1.5GiB`` or ``1000000``; else ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS or float(match[1]) <= 0:
        raise ValueError("expected a size such as 700MB, 2GB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def memory_option(nbytes: float) -> str:
    """Return a size of three digits for ``--memory``, rounded up so that it suffices."""
    scale, unit = next(
        ((1000.0**i, f"{prefix}B") for i, prefix in ((4, "T"), (3, "G")) if nbytes >= 1000.0**i),
        (1e6, "MB"),
    )
    digits = max(0, 2 - math.floor(math.log10(max(1.0, nbytes / scale))))
    return f"{math.ceil(nbytes / scale * 10**digits) / 10**digits:g}{unit}"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Predicted memory of a device's process that runs its stages of a model.

    Attributes
    ----------
    device : str
        The device's name.
    budget_nbytes : int or None
        Memory that the process may take; None if unlimited.
    runtime_nbytes : int
        The process without a model, and the libraries that the first model initializes.
    weights_nbytes : int
        Constants, including those that the device computes from others.
    copies_nbytes : int
        Copies of weights in the device's own layout, and the memory of compiled nodes.
    compile_nbytes : int
        Copies of weights that exist only while the model is compiled.
    values_nbytes : int
        Values and workspace at the peak of a run.
    states_nbytes : int
        States that are kept between the runs of other sequences, such as KV caches.
    request_nbytes : int
        Inputs and outputs of each further request in flight.
    requests : int
        Requests in flight.
    compact : bool
        Whether the device keeps no copies of weights, to save memory.
    """

    device: str
    budget_nbytes: int | None
    runtime_nbytes: int = 0
    weights_nbytes: int = 0
    copies_nbytes: int = 0
    compile_nbytes: int = 0
    values_nbytes: int = 0
    states_nbytes: int = 0
    request_nbytes: int = 0
    requests: int = 1
    compact: bool = False

    @property
    def peak_nbytes(self) -> int:
        """The largest memory of the process: while it compiles, or while it runs requests."""
        loaded = self.runtime_nbytes + self.weights_nbytes + self.copies_nbytes
        running = self.values_nbytes + self.states_nbytes
        running += self.request_nbytes * max(0, self.requests - 1)
        return loaded + max(self.compile_nbytes, running)

    @property
    def free_nbytes(self) -> int | None:
        """Rest of the budget, negative if it is exceeded; None if unlimited."""
        return None if self.budget_nbytes is None else self.budget_nbytes - self.peak_nbytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within the budget."""
        return self.free_nbytes is None or self.free_nbytes >= 0

    def to_dict(self) -> dict[str, Any]:
        """Return the parts, the peak and the rest, for JSON."""
        parts = {name: getattr(self, name) for name in self.__slots__}
        return parts | {"peak_nbytes": self.peak_nbytes, "free_nbytes": self.free_nbytes}


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Properties of devices and their load that a prediction of memory reads."""

    #: Device -> traits of its plugin.
    traits: Mapping[str, MemoryTraits]
    #: Device -> bytes that its process may take; absent if unlimited.
    budgets_nbytes: Mapping[str, int]
    #: Sequences that keep states at the same time.
    sequences: int = 1
    #: Requests in flight.
    requests: int = 1
