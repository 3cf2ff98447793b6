"""Shared memory that clients on this machine have registered, so that no tensor is sent.

It is read and written like a file, not mapped: a client that makes its memory smaller would end
the process that has it mapped.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hetero.apps.serve.errors import refused

#: Where POSIX shared memory is on Linux.
_FOLDER: Final = Path("/dev/shm")


@dataclass(frozen=True)
class _Region:
    key: str
    offset: int
    nbytes: int
    file: int


class Regions:
    """Regions by name.

    `allowed`: whether clients may register any: whoever may, reads this user's shared memory.
    """

    def __init__(self, *, allowed: bool) -> None:
        self.allowed: Final = allowed
        self._regions: dict[str, _Region] = {}

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Take in a region: bytes of the shared memory object `key`."""
        self._require_allowed()
        if name in self._regions:
            raise refused(f"a region {name!r} is registered already; unregister it first.")
        called = key.removeprefix("/") if isinstance(key, str) else ""
        if not called or "/" in called or called in (".", ".."):
            raise refused(f"region {name!r}: key {key!r}; wanted the name of a shared memory.")
        if type(offset) is not int or type(nbytes) is not int or offset < 0 or nbytes <= 0:
            raise refused(f"region {name!r}: offset {offset!r}, byte_size {nbytes!r}.")
        try:
            file = os.open(_FOLDER / called, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise refused(f"region {name!r}: cannot open shared memory {key!r}: {error}") from error
        status = os.fstat(file)
        fits = stat.S_ISREG(status.st_mode) and offset + nbytes <= status.st_size
        if not fits or status.st_uid != os.getuid():
            os.close(file)
            raise refused(
                f"region {name!r}: shared memory {key!r} has {status.st_size} bytes, of user "
                f"{status.st_uid}; wanted {offset + nbytes}, of the server's own user."
            )
        self._regions[name] = _Region(key, offset, nbytes, file)

    def unregister(self, name: str = "") -> None:
        """Forget a region; all of them, where none is named."""
        self._require_allowed()
        for known in [name] if name else [*self._regions]:
            if region := self._regions.pop(known, None):
                os.close(region.file)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return the regions, or the one of a name."""
        self._require_allowed()
        names = [name] if name else [*self._regions]
        return [
            {"name": n, "key": r.key, "offset": r.offset, "byte_size": r.nbytes}
            for n, r in ((n, self._region(n)) for n in names)
        ]

    def read(self, name: str, nbytes: int, offset: int) -> bytes:
        """Return bytes of a region."""
        region = self._region(name, nbytes, offset)
        data = os.pread(region.file, nbytes, region.offset + offset)
        if len(data) != nbytes:
            raise refused(f"region {name!r} has become smaller.")
        return data

    def write(self, name: str, nbytes: int, offset: int, data: bytes | memoryview) -> None:
        """Write an output to its place in a region, which has to have room for it."""
        if len(data) > nbytes:
            raise refused(f"region {name!r}: the output has {len(data)} bytes, its place {nbytes}.")
        region = self._region(name, nbytes, offset)
        os.pwrite(region.file, data, region.offset + offset)

    def _region(self, name: str, nbytes: int = 0, offset: int = 0) -> _Region:
        """Return a region that has these bytes."""
        self._require_allowed()
        if (region := self._regions.get(name)) is None:
            raise refused(f"no region {name!r} is registered.")
        if offset + nbytes > region.nbytes:
            raise refused(
                f"region {name!r} has {region.nbytes} bytes; bytes {offset} to "
                f"{offset + nbytes} were asked for."
            )
        return region

    def _require_allowed(self) -> None:
        if not self.allowed:
            raise refused("shared memory is off here; start with --shared-memory.", 501)
