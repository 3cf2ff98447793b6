"""A signal that is given once, for those who wait: an event at a tenth of its cost."""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

#: Seconds after which a wait without end is begun again: Python does not notice a Ctrl-C that comes
#: in the moment between its last look and the wait.
WAIT_SLICE_S: Final = 0.5
#: Held while a gate is made: there is one for all who wait.
_MAKING: Final = Lock()


class OneShotEvent:
    """Not set until `set` is called; again changes nothing."""

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        #: Locked until it is set; made by the first who waits.
        self._gate: Any = None

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Let all go on that wait for it."""
        if not self._is_set:
            self._is_set = True
            if self._gate is not None:
                self._gate.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait at most so long, None: as long as it takes; return whether it is set."""
        if timeout_s is None:
            while not self._is_set:
                self.wait(WAIT_SLICE_S)
        elif not self._is_set:
            gate = self._gate
            if gate is None:
                gate = self._make_gate()
            # Whoever sets it looks for a gate after that, and whoever makes one looks before.
            if not self._is_set and gate.acquire(timeout=timeout_s):
                gate.release()
        return self._is_set

    def _make_gate(self) -> Any:
        with _MAKING:
            if self._gate is None:
                gate = Lock()
                gate.acquire()
                self._gate = gate
            return self._gate
