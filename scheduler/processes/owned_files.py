"""Files with the owning process in their name, so that others can remove those of dead owners."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import weakref
from pathlib import Path
from typing import NamedTuple


def process_start(process: int) -> str:
    """Return the start time of a process in clock ticks; an empty string if it has ended.

    Raises OSError: it cannot be read, for example because too many files are open.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # These are the fields from the 3rd, the state, on; the 22nd is the start time. Z is a zombie.
    return "" if fields[0] == "Z" else fields[19]


class Process(NamedTuple):
    """A process, identified by its id and start time."""

    number: int
    start: str

    @property
    def is_gone(self) -> bool:
        """Whether it has ended; only valid on its own node."""
        try:
            return process_start(self.number) != self.start
        except OSError:  # unknown
            return False

    @property
    def is_stopped(self) -> bool:
        """Whether it exists and is stopped, by a signal or a debugger."""
        try:
            state = Path(f"/proc/{self.number}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state in "Tt" and not self.is_gone


def is_private(folder: Path) -> bool:
    """Whether a path is a folder, not a link, that only this user can open."""
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not status.st_mode & 0o077


def owned_name(suffix: str) -> str:
    """Return a name for a file of this process: ``<namespace>-<process>-<start>-<suffix>``.

    Process ids are only valid within their PID namespace.
    """
    process = os.getpid()
    return f"{_pid_namespace()}-{process}-{process_start(process)}-{suffix}"


def sweep(folder: Path, prefix: str = "") -> None:
    """Remove the files ``<prefix><owned name>`` of processes that have ended."""
    for path in folder.glob(f"{prefix}{_pid_namespace()}-*-*-*"):
        with contextlib.suppress(
            OSError, ValueError
        ):  # another name, or removed by another process
            _, process, start, _ = path.name.removeprefix(prefix).split("-", 3)
            if process_start(int(process)) != start:
                path.unlink()


def remove_with(owner: object, folder: Path, pattern: str) -> weakref.finalize[..., object]:
    """Remove files when their owner is collected or the process ends, but not when a fork ends.

    Returns a finalizer, which may be called earlier and acts once.
    """
    return weakref.finalize(owner, _remove, os.getpid(), folder, pattern)


def _remove(process: int, folder: Path, pattern: str) -> None:
    if os.getpid() == process:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


@functools.cache
def _pid_namespace() -> str:
    return f"{Path('/proc/self/ns/pid').stat().st_ino:x}"
