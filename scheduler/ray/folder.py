"""Temporary folders of local Rays: made for one process, swept once that is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from devices.errors import ClusterError
from scheduler.processes.owned_files import process_start

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
        Path.cwd()  # which its processes start in
        parent = tempfile.gettempdir()
        parent = parent if len(parent) <= _LONGEST_FOLDER else "/tmp"
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        (folder / _OWNER).write_text(f"{os.getpid()} {process_start(os.getpid())}")
    except OSError as error:
        raise ClusterError(
            f"Ray cannot start on this machine: it needs a working directory and a temporary "
            f"one: {error}. Change into one that is there, set TMPDIR to one that can be written, "
            "or run in process: --executor inprocess.",
            cause=str(error),
        ) from error
    _sweep(folder.parent)
    return folder


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):  # not one of ours, or somebody is faster
            number, started = (folder / _OWNER).read_text().split()
            if process_start(int(number)) != started:
                shutil.rmtree(folder, ignore_errors=True)
