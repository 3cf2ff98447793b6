"""Atomic writes: a file appears complete under its name, or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

#: Suffix of files that are being written.
TEMPORARY_SUFFIX: Final = ".tmp"


def publish(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file in the folder of `path` and rename it.

    A symbolic link of that name is replaced, not followed; anything else that is not a regular file
    is an error. The temporary file is locked while it is written, so that others recognise files
    whose writer was killed.

    `path`: the file; its folder exists.
    Raises OSError: the file cannot be written; no temporary file is left.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file", str(path))
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(temporary, flags, 0o644)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            with contextlib.suppress(OSError):  # without locks, the age of the file decides
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write(file)
            file.flush()
            os.fsync(descriptor)
            temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
