"""The count of bytes in flight that the deployments of an executor share."""

from __future__ import annotations

import threading


class BytesInFlight:
    """A count of the bytes in flight, for all machines that share it."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        """Count `nbytes` more, or less."""
        with self._lock:
            self.nbytes += nbytes
