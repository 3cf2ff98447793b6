"""Requests that are joined in a simulated fleet, and how long a run of several rows takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from devices.errors import ArgumentError

#: Seconds that a row waits for others at most, where nothing else is said: AUTO_BATCH_TIMEOUT's.
_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Batches:
    """How requests are joined.

    Attributes
    ----------
    size : int
        Rows of a batch at most; 1: none are joined.
    time : float
        How long a full batch runs, by the time of one row; in between it grows with each row.
    timeout_s : float
        Seconds that a request waits for others at most.
    """

    size: int = 1
    time: float = 1.0
    timeout_s: float = _TIMEOUT_S

    def factor(self, rows: int) -> float:
        """Return how long so many rows take, by the time of one."""
        return 1.0 + (self.time - 1.0) * (rows - 1) / max(1, self.size - 1)


def read_batches(text: str) -> Batches:
    """Read ``8`` (eight rows take eight times as long as one), or ``8:1.6``.

    Raises ArgumentError: it is neither, or less than a row's time.
    """
    found = re.fullmatch(r"([0-9]+)(?::([0-9.]+))?", text)
    try:
        size = int(found[1]) if found else 0
        time = float(found[2] or size) if found else 0.0
    except ValueError:
        size = 0
    if size < 1 or time < 1.0:
        raise ArgumentError(
            f"batch {text!r}: wanted ROWS or ROWS:TIME, as 8:1.6, where eight rows at once take "
            "1.6 times as long as one; both are 1 or more."
        )
    return Batches(size, time)
