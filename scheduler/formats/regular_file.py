"""Files that a user names: regular ones of a bounded size, so that none stalls or fills memory."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_regular(path: Path, *, follow_links: bool = True) -> io.FileIO:
    """Open a regular file for reading; a pipe would block, a device might never end.

    Raises OSError: it cannot be opened, or is something else.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return io.FileIO(descriptor)


def read_regular(path: Path, most_nbytes: int = 2**28) -> bytes:
    """Return a file's contents.

    Raises OSError: it cannot be read, is no regular file, or is longer than `most_nbytes`.
    """
    with open_regular(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most_nbytes:
            what = f"{nbytes} bytes, more than the {most_nbytes} that are read"
            raise OSError(errno.EFBIG, what, str(path))
        return file.read(most_nbytes)
