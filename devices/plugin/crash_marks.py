"""Marks of plugins that this process loads, so that a crash names its plugin to later processes.

A mark is a locked file. The kernel releases the lock when the process ends: a mark without a lock
belongs to a process that ended while it loaded the plugin or listed its devices. The next process
then tries the plugin in a worker process first. Marks of killed processes thus cost one trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import xxhash

from hetero.devices.errors import PluginLoadError
from hetero.devices.model.worker_process import WorkerFailure, WorkerProcess

#: The function that loads a plugin in the worker; its module imports this one.
_TRIAL: Final = "hetero.devices.plugin.trial:list_devices"
#: Limits of a trial: more than any backend reserves, and a minute of processor time.
_MEMORY_NBYTES: Final = 2**46
_TIME_S: Final = 60.0


@contextlib.contextmanager
def marked(source: str) -> Iterator[None]:
    """Mark the plugin at `source` while the block runs; an empty `source` has no mark.

    Raises PluginLoadError: an earlier process ended in such a block, and so does a worker process.
    """
    folder = _folder() if source else None
    if folder is None:
        yield
        return
    prefix = f"{xxhash.xxh64_hexdigest(source.encode())}-"
    if stale_marks := [path for path in folder.glob(f"{prefix}*") if not _is_locked(path)]:
        _try_in_worker(source)
        for path in stale_marks:
            path.unlink(missing_ok=True)
    try:
        descriptor, name = tempfile.mkstemp(prefix=prefix, dir=folder)
    except OSError:  # another process removed the empty folder, or the disk is full
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # marks of other processes are in it
            folder.rmdir()


def _folder() -> Path | None:
    """Return the folder of the marks; None if it is not private to the user."""
    folder = Path(tempfile.gettempdir()) / f"hetero-plugins-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return folder if is_own and not status.st_mode & 0o077 else None


def _is_locked(mark: Path) -> bool:
    """Return whether the process of a mark is running."""
    try:
        descriptor = os.open(mark, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # removed in the meantime
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _try_in_worker(source: str) -> None:
    """Load a plugin and list its devices in a worker process; PluginLoadError if that ends."""
    worker = WorkerProcess(_TRIAL, sys.path)
    try:
        response = worker.call(source.encode(), memory_nbytes=_MEMORY_NBYTES, time_s=_TIME_S)
    finally:
        worker.stop()
    if isinstance(response, WorkerFailure):
        raise PluginLoadError(
            f"plugin {source} cannot list its devices: {response.reason}. Update or uninstall the "
            "package that contains it."
        )
