"""Arrival processes (Poisson, gamma, recorded) and dynamic batching of simulated requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

from hetero.devices.errors import ArgumentError
from hetero.devices.file_reader import FileReader

_READER: Final = FileReader(
    "arrivals",
    ArgumentError,
    "Pass poisson:RATE/s, gamma:RATE/s:VARIATION, or a file with the time of each request in "
    "seconds.",
    max_nbytes=2**26,
)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process.

    `text`: the process as the user wrote it.
    `rate_per_s`: mean number of requests per second.
    `variation`: coefficient of variation of the gaps between requests; 1 for Poisson.
    `gaps_s`: recorded gaps, repeated if more are needed; empty if gaps are drawn.
    """

    text: str
    rate_per_s: float
    variation: float = 1.0
    gaps_s: tuple[float, ...] = ()

    def times_s(self, count: int, random: Random) -> Iterator[float]:
        """Yield the arrival times of `count` requests."""
        shape = 1 / self.variation**2
        now_s = 0.0
        for number in range(count):
            if self.gaps_s:
                now_s += self.gaps_s[number % len(self.gaps_s)]
            else:
                now_s += random.gammavariate(shape, 1 / (shape * self.rate_per_s))
            yield now_s


def read_arrivals(text: str) -> Arrivals:
    """Read ``poisson:200/s``, ``gamma:200/s:2`` (its variation), or a file of times in seconds."""
    kind, colon, parameters = text.partition(":")
    if re.fullmatch(r"[0-9.eE+]+(/s)?", text) and not Path(text).exists():
        rate = text.removesuffix("/s")
        raise ArgumentError(
            f"arrivals {text!r}: expected an arrival process; did you mean poisson:{rate}/s?"
        )
    if not colon or kind not in ("poisson", "gamma"):
        return _read_file(Path(text))
    match = re.fullmatch(r"([0-9.eE+]+)/s(?::([0-9.eE+]+))?", parameters)
    numbers = (0.0, 0.0)
    with suppress(ValueError):
        numbers = (float(match[1]), float(match[2] or 1.0)) if match else numbers
    if min(numbers) <= 0 or (kind == "poisson" and match and match[2]):
        raise ArgumentError(
            f"arrivals {text!r}: expected a positive rate, for example poisson:200/s, and for "
            "gamma a positive coefficient of variation, for example gamma:200/s:2."
        )
    return Arrivals(text, *numbers)


def _read_file(path: Path) -> Arrivals:
    texts = _READER.read_text(path).split()
    try:
        times = [float(text) for text in texts]
    except ValueError as error:
        raise _READER.problem(path, f"cannot be read: {error}") from error
    gaps = [later - earlier for earlier, later in pairwise(times)]
    if not gaps or min(gaps) < 0 or not sum(gaps):
        raise ArgumentError(
            f"arrivals {str(path)!r}: expected at least two ascending times in seconds."
        )
    return Arrivals(str(path), len(gaps) / sum(gaps), gaps_s=tuple(gaps))


@dataclass(frozen=True, slots=True)
class Batches:
    """Dynamic batching of requests.

    `size`: maximum rows of a batch; 1 for no batching.
    `time`: run time of a full batch relative to one row; smaller batches are interpolated.
    """

    size: int = 1
    time: float = 1.0

    def factor(self, rows: int) -> float:
        """Return the run time of a batch relative to one row."""
        return 1.0 + (self.time - 1.0) * (rows - 1) / max(1, self.size - 1)


def read_batches(text: str) -> Batches:
    """Read ``8`` (eight rows take eight times as long as one), or ``8:1.6``."""
    match = re.fullmatch(r"([0-9]+)(?::([0-9.]+))?", text)
    try:
        size = int(match[1]) if match else 0
        time = float(match[2] or size) if match else 0.0
    except ValueError:
        size = 0
    if size < 1 or time < 1.0:
        raise ArgumentError(
            f"batch {text!r}: expected ROWS or ROWS:TIME, both at least 1. For example, 8:1.6 "
            "means that eight rows take 1.6 times as long as one."
        )
    return Batches(size, time)
