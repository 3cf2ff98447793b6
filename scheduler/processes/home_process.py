"""The process that an executor or a deployment lives in: a fork has none of its threads."""

from __future__ import annotations

import os

from hetero.devices.errors import UnsupportedOperationError


class HomeProcess:
    """The process that this object was made in."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, not a fork of it."""
        return os.getpid() == self._id

    def require(self, what: str) -> None:
        """Raise in a fork.

        Raises UnsupportedOperationError, naming both processes and what to do.
        """
        if os.getpid() != self._id:
            raise UnsupportedOperationError(
                f"{what}: made in process {self._id}, of which this one, {os.getpid()}, is a fork; "
                "devices do not live on in it. Make a Core and compile the model here, or start "
                "processes with multiprocessing's 'spawn'."
            )
