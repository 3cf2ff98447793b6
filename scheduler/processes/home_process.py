"""Detection of forks: executors and deployments work only in the process that made them."""

from __future__ import annotations

import os
import weakref

from hetero.devices.errors import UnsupportedOperationError


class HomeProcess:
    """The process in which this object was made.

    `is_current`: whether this is that process, and not a fork of it.
    """

    def __init__(self) -> None:
        self._id = os.getpid()
        self.is_current = True
        _HOMES.add(self)

    def require(self, subject: str) -> None:
        """Raise UnsupportedOperationError in a fork.

        `subject`: the object that was used, for the message.
        """
        if not self.is_current:
            raise UnsupportedOperationError(
                f"{subject}: made in process {self._id}, and used in its fork {os.getpid()}, which "
                "has none of its threads. Make a Core and compile the model in this process, or "
                "start processes with the multiprocessing method 'spawn'."
            )


#: All objects of this process: a hook is faster than a system call for each request.
_HOMES: weakref.WeakSet[HomeProcess] = weakref.WeakSet()


def _leave_home() -> None:
    for home in _HOMES:
        home.is_current = False


os.register_at_fork(after_in_child=_leave_home)
