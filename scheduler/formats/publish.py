"""Publishing a file: it appears whole under its name, or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

#: Ends the names of files that are being written.
TEMPORARY_SUFFIX: Final = ".tmp"


def publish(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside `path` and rename it.

    A link of that name is replaced, not followed; what is no regular file is left. The temporary
    file is locked as long as it is written, so that others can tell one whose writer was killed.

    `path`: the file; its folder is there.
    Raises OSError: it cannot be written, under the file's own name; nothing is left.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "what is there is no regular file", str(path))
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(temporary, flags, 0o644)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            with contextlib.suppress(OSError):  # where there are no locks, age must tell
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, 0o644)
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
