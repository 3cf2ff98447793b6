"""A signal that is given once, for those who wait: an event at a tenth of its cost."""

from __future__ import annotations

from threading import Lock
from typing import Final

#: Seconds after which a wait without end is begun again: Python does not notice a Ctrl-C that comes
#: in the moment between its last look and the wait.
WAIT_SLICE_S: Final = 0.5


class OneShotEvent:
    """Not set until `set` is called; again changes nothing."""

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._gate = Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Let all go on that wait for it."""
        if not self._is_set:
            self._is_set = True
            self._gate.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait at most so long, None: as long as it takes; return whether it is set."""
        if timeout_s is None:
            while not self._is_set:
                self.wait(WAIT_SLICE_S)
        elif not self._is_set and self._gate.acquire(timeout=timeout_s):
            self._gate.release()
        return self._is_set
