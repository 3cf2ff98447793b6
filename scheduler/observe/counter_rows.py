"""A counter with its values, independent of the metrics library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CounterRows(NamedTuple):
    """A counter of Prometheus: its name, description, labels, and a value per tuple of labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], int]
