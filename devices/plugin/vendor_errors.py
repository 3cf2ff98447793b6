"""Conversion of a vendor runtime's errors: short reasons, and typed errors of runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hetero.devices.errors import DeviceMemoryError, InferenceError

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class VendorErrors:
    """The patterns that classify and shorten the error messages of one runtime."""

    #: Messages of allocations that fail.
    out_of_memory: re.Pattern[str]
    #: Parts of a message that users cannot act on: error codes, source locations, advice to the
    #: runtime's developers.
    internals: re.Pattern[str]

    def reason(self, error: Exception) -> str:
        """Return an error's message on one line, without the runtime's internals."""
        lines = [self.internals.sub("", line.strip()) for line in str(error).splitlines()]
        return " ".join(" ".join(lines).split())[:_LONGEST_REASON] or type(error).__name__

    def run_error(self, summary: str, error: Exception) -> InferenceError:
        """Return the typed error of a failed run: DeviceMemoryError if an allocation failed.

        `summary` precedes the runtime's own message.
        """
        message = " ".join(str(error).split())
        kind = DeviceMemoryError if self.out_of_memory.search(message) else InferenceError
        return kind(f"{summary}: {message}")
