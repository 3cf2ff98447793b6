"""Conversion of a vendor runtime's errors: short reasons, and typed errors of runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hetero.devices.errors import DeviceError, DeviceMemoryError, HeteroError, InferenceError

_LONGEST_REASON = 300
_LONGEST_MESSAGE = 500


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
        kind = DeviceMemoryError if self._is_memory_error(error) else InferenceError
        return kind(f"{summary}: {' '.join(str(error).split())}")

    def compile_error(self, summary: str, error: Exception, device: str) -> HeteroError:
        """Return the typed error of a failed compilation: DeviceMemoryError or DeviceError."""
        kind = DeviceMemoryError if self._is_memory_error(error) else DeviceError
        return kind(f"{summary}: {' '.join(str(error).split())[:_LONGEST_MESSAGE]}", device=device)

    def _is_memory_error(self, error: Exception) -> bool:
        return isinstance(error, MemoryError) or bool(self.out_of_memory.search(str(error)))
