"""Detection of forks: executors and deployments work only in the process that made them."""

from __future__ import annotations

import os

from hetero.devices.errors import UnsupportedOperationError


class HomeProcess:
    """The process in which this object was made."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this is that process, and not a fork of it."""
        return os.getpid() == self._id

    def require(self, subject: str) -> None:
        """Raise UnsupportedOperationError in a fork.

        `subject`: the object that was used, for the message.
        """
        if os.getpid() != self._id:
            raise UnsupportedOperationError(
                f"{subject}: made in process {self._id}, and used in its fork {os.getpid()}, which "
                "has none of its threads. Make a Core and compile the model in this process, or "
                "start processes with the multiprocessing method 'spawn'."
            )
