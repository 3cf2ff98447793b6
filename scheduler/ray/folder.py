"""Temporary folders of local Rays: made for one process, swept once that is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from devices.errors import ClusterError

_PREFIX: Final = "het-"
#: In each folder: whose it is, by process id and the time when that process started.
_OWNER: Final = "owner"
#: Unix socket paths hold 107 bytes; Ray's own part of them takes up to 75.
_LONGEST_FOLDER: Final = 30


def make_folder() -> Path:
    """Make a folder for a Ray of this process, and remove those of processes that are gone.

    Raises ClusterError: there is no folder for temporary files.
    """
    try:
        parent = tempfile.gettempdir()
        parent = parent if len(parent) <= _LONGEST_FOLDER else "/tmp"
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        (folder / _OWNER).write_text(f"{os.getpid()} {_started(os.getpid())}")
    except OSError as error:
        raise ClusterError(
            f"Ray cannot start on this machine: it needs a temporary folder, and {error}. Set "
            "TMPDIR to one that can be written, or run in process: --executor inprocess.",
            cause=str(error),
        ) from error
    _sweep(folder.parent)
    return folder


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):  # not one of ours, or somebody is faster
            number, started = (folder / _OWNER).read_text().split()
            if _started(int(number)) != started:
                shutil.rmtree(folder, ignore_errors=True)


def _started(process: int) -> str:
    """Return when a process started, in the kernel's ticks; empty for one that is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # The 3rd field of the whole line comes first here; the 22nd is the start. Z: only a number.
    return "" if fields[0] == "Z" else fields[19]
