"""Bisection of a model by its prefixes, to find the first node whose values differ.

Only values that cross the end of a prefix are its outputs, so a device can fuse the nodes of the
prefix as it does in the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from hetero.devices.model.model import Model


class Prefixes:
    """The prefixes of a model's nodes that are models themselves."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def end_positions(self) -> list[int]:
        """Positions of the last nodes of the prefixes whose outputs all have known types."""
        ends: list[int] = []
        alive: set[str] = set()
        for position, node in enumerate(self._model.nodes):
            alive = {v for v in (*alive, *node.writes) if self._last_use[v] > position}
            if alive and all(self._model.spec(value).type for value in alive):
                ends.append(position)
        return ends

    def model(self, last: int) -> Model:
        """Return the nodes up to `last`, with the values that later nodes or outputs need."""
        values = [
            value
            for node in self._model.nodes[: last + 1]
            for value in node.writes
            if self._last_use[value] > last
        ]
        return self._model.extract(range(last + 1), values)

    @cached_property
    def _last_use(self) -> dict[str, int]:
        """Position of the last node that reads each value; past the end for an output."""
        ends = {port.name for port in self._model.outputs}
        consumers = self._model.consumers
        return {
            value: len(self._model.nodes) if value in ends else max(consumers.get(value, (-1,)))
            for node in self._model.nodes
            for value in node.writes
        }


def first_failure(ends: Sequence[int], agrees: Callable[[int], bool]) -> tuple[int, int]:
    """Find an end that fails although the one before it agrees.

    `agrees`: whether the prefix with an end agrees; a prefix past the last end fails.
    Returns: the indices in `ends` of the prefix that agrees (-1 for none) and of the one that
        fails (their number if all agree).
    """
    low, high = -1, len(ends)
    while high - low > 1:
        middle = (low + high) // 2
        if agrees(ends[middle]):
            low = middle
        else:
            high = middle
    return low, high
