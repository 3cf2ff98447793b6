"""Memory of a process, as the kernel reports it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

#: Fields of ``/proc/PID/status``: resident memory at its peak, and now.
_PEAK: Final = "VmHWM"
_RESIDENT: Final = "VmRSS"


class MemoryUse(NamedTuple):
    """Resident memory of a device's process in bytes."""

    #: Before the process loaded a model.
    base_nbytes: int
    #: Now, and the largest value since the process began.
    resident_nbytes: int
    peak_nbytes: int


def resident_memory(pid: int | str = "self") -> tuple[int, int] | None:
    """Return the present and the largest resident memory of a process; None if unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if _PEAK not in fields or _RESIDENT not in fields:
        return None
    return _nbytes(fields[_RESIDENT]), _nbytes(fields[_PEAK])


def _nbytes(field: str) -> int:
    """Return the bytes of a field such as ``  1234 kB``."""
    return int(field.split()[0]) * 1024
