"""Shared memory that clients on this machine have registered, so that no tensor is sent.

It is read and written like a file, not mapped: a client that makes its memory smaller would end
the process that has it mapped.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from hetero.serve.errors import refused

#: Where POSIX shared memory is on Linux.
_FOLDER: Final = Path("/dev/shm")


class Place(NamedTuple):
    """Where a tensor is in a client's memory: a region, and the bytes in it."""

    region: str
    nbytes: int
    offset: int = 0


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

    def read(self, place: Place) -> bytes:
        """Return the bytes of a place."""
        region, offset = self._at(place)
        data = os.pread(region.file, place.nbytes, offset)
        if len(data) != place.nbytes:
            raise refused(f"region {place.region!r} has become smaller.")
        return data

    def write(self, place: Place, data: bytes | memoryview) -> None:
        """Write bytes to a place, which has to have room for them."""
        if len(data) > place.nbytes:
            raise refused(
                f"region {place.region!r}: the output has {len(data)} bytes, its place "
                f"{place.nbytes}."
            )
        region, offset = self._at(place)
        os.pwrite(region.file, data, offset)

    def _at(self, place: Place) -> tuple[_Region, int]:
        self._require_allowed()
        region = self._region(place.region)
        if place.offset + place.nbytes > region.nbytes:
            raise refused(
                f"region {place.region!r} has {region.nbytes} bytes; bytes {place.offset} to "
                f"{place.offset + place.nbytes} were asked for."
            )
        return region, region.offset + place.offset

    def _region(self, name: str) -> _Region:
        if (region := self._regions.get(name)) is None:
            raise refused(f"no region {name!r} is registered.")
        return region

    def _require_allowed(self) -> None:
        if not self.allowed:
            raise refused("shared memory is off here; start with --shared-memory.", 501)
