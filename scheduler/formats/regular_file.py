"""Bounded reads of regular files, for paths that users name."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_regular(path: Path, *, follow_links: bool = True) -> io.FileIO:
    """Open a regular file for reading; a pipe would block, a device might never end.

    Raises OSError: it cannot be opened, or is not a regular file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return io.FileIO(descriptor)


def read_regular(path: Path, max_nbytes: int = 2**28) -> bytes:
    """Return the contents of a file.

    Raises OSError: it cannot be read, is not a regular file, or is larger than `max_nbytes`.
    """
    with open_regular(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > max_nbytes:
            raise OSError(errno.EFBIG, f"{nbytes} bytes; expected at most {max_nbytes}", str(path))
        return file.read(max_nbytes)
