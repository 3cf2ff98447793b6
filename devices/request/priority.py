"""A request's priority among those that wait."""

from __future__ import annotations

import numpy as np

from devices.errors import ArgumentTypeError


class Prioritised:
    """Part of `InferRequest`."""

    _priority = 0

    @property
    def priority(self) -> int:
        """Which of a compiled model's requests that wait to be admitted go first: the greatest.

        0 until it is set; a run has the priority of its start. On a device it decides only between
        those whose turn is the same: other clients of the device get theirs all the same.
        """
        return self._priority

    @priority.setter
    def priority(self, value: int) -> None:
        if not isinstance(value, int | np.integer):
            raise ArgumentTypeError(f"priority={value!r}: wanted a whole number.")
        self._priority = int(value)
