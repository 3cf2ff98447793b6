"""When requests come: Poisson, with Gamma's bursts, or as a file says; and how they are joined."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from hetero.devices.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests come.

    `text`: as they were asked for.
    `rate_per_s`: how many a second, on average.
    `variation`: standard deviation of the time between two by its mean: 1 for Poisson.
    `gaps_s`: as recorded; repeated where more are wanted. Empty: drawn.
    """

    text: str
    rate_per_s: float
    variation: float = 1.0
    gaps_s: tuple[float, ...] = ()

    def times_s(self, count: int, random: Random) -> Iterator[float]:
        """Return when so many requests come."""
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
    kind, colon, told = text.partition(":")
    if not colon or kind not in ("poisson", "gamma"):
        return _read_file(Path(text))
    found = re.fullmatch(r"([0-9.eE+]+)/s(?::([0-9.eE+]+))?", told)
    numbers = (0.0, 0.0)
    with suppress(ValueError):
        numbers = (float(found[1]), float(found[2] or 1.0)) if found else numbers
    if min(numbers) <= 0 or (kind == "poisson" and found and found[2]):
        raise ArgumentError(
            f"arrivals {text!r}: wanted a positive rate, as poisson:200/s, and for gamma a "
            "positive variation, as gamma:200/s:2."
        )
    return Arrivals(text, *numbers)


def _read_file(path: Path) -> Arrivals:
    try:
        times = [float(line) for line in path.read_text().split()]
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"arrivals {str(path)!r} cannot be read: {error}. Give poisson:RATE/s, "
            "gamma:RATE/s:VARIATION, or a file with the time of each request in seconds."
        ) from error
    gaps = [later - earlier for earlier, later in pairwise(times)]
    if not gaps or min(gaps) < 0 or not sum(gaps):
        raise ArgumentError(
            f"arrivals {str(path)!r}: wanted two times or more, in seconds, that ascend."
        )
    return Arrivals(str(path), len(gaps) / sum(gaps), gaps_s=tuple(gaps))


@dataclass(frozen=True, slots=True)
class Batches:
    """How requests are joined.

    `size`: rows of a batch at most; 1: none are joined.
    `time`: how long a full batch runs, by the time of one row; in between it grows with each row.
    """

    size: int = 1
    time: float = 1.0

    def factor(self, rows: int) -> float:
        """Return how long so many rows take, by the time of one."""
        return 1.0 + (self.time - 1.0) * (rows - 1) / max(1, self.size - 1)


def read_batches(text: str) -> Batches:
    """Read ``8`` (eight rows take eight times as long as one), or ``8:1.6``."""
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
