"""Files whose names say which process owns them, so that others may remove those of dead ones."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import weakref
from pathlib import Path
from typing import NamedTuple


def process_start(process: int) -> str:
    """Return when a process started, in the kernel's ticks; empty for one that is gone.

    Raises OSError: it cannot be asked, as where this process has too many files open.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The 3rd field of the whole line comes first here; the 22nd is the start. Z: only a number.
    return "" if fields[0] == "Z" else fields[19]


class Process(NamedTuple):
    """A process, by its number and `process_start`."""

    number: int
    started: str

    @property
    def is_gone(self) -> bool:
        """Whether it has ended; asked on its own node only."""
        try:
            return process_start(self.number) != self.started
        except OSError:  # nobody knows
            return False

    @property
    def is_stopped(self) -> bool:
        """Whether it is there and stopped, by a signal or a debugger."""
        try:
            state = Path(f"/proc/{self.number}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state in "Tt" and not self.is_gone


def is_private(folder: Path) -> bool:
    """Whether a path is a folder, and no link, that nobody but this user can open."""
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not status.st_mode & 0o077


def owned_name(what: str) -> str:
    """Return a name for a file of this process: ``<name space>-<process>-<start>-<what>``.

    Process numbers say nothing outside their name space, so it is in the name.
    """
    process = os.getpid()
    return f"{_name_space()}-{process}-{process_start(process)}-{what}"


def sweep(folder: Path, prefix: str = "") -> None:
    """Remove the files ``<prefix><owned name>`` of processes that are gone."""
    for path in folder.glob(f"{prefix}{_name_space()}-*-*-*"):
        with contextlib.suppress(OSError, ValueError):  # not one of ours, or somebody is faster
            _, process, started, _ = path.name.removeprefix(prefix).split("-", 3)
            if process_start(int(process)) != started:
                path.unlink()


def remove_with(owner: object, folder: Path, pattern: str) -> weakref.finalize[..., object]:
    """Have files removed when their owner is garbage or the process ends, not when a fork does.

    Returns what does it before, and then only once.
    """
    return weakref.finalize(owner, _remove, os.getpid(), folder, pattern)


def _remove(process: int, folder: Path, pattern: str) -> None:
    if os.getpid() == process:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


@functools.cache
def _name_space() -> str:
    return f"{Path('/proc/self/ns/pid').stat().st_ino:x}"
