"""Shared memory that clients on this machine have registered for their tensors.

It is read and written like a file, never mapped: a client that shrinks memory which the server has
mapped would crash the server.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from hetero.apps.serve.errors import protocol_error

#: Folder of POSIX shared memory on Linux.
_FOLDER: Final = Path("/dev/shm")
#: Prefix of the files through which hetero's own devices exchange tensors.
_OWN_PREFIX: Final = "hetero-"
#: Regions that may be registered at the same time.
MAX_REGIONS: Final = 1024
#: Bytes that Linux reads or writes at once, at most.
_MAX_IO_NBYTES: Final = 0x7FFFF000


class Location(NamedTuple):
    """A range of bytes in a region."""

    region: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class _Region:
    key: str
    offset: int
    nbytes: int


class SharedMemoryRegions:
    """Registered regions by name.

    `is_allowed`: whether clients may register any. A client that may do so reads and writes all
    shared memory of the server's user, except hetero's own.
    `max_nbytes`: bytes that a tensor may have.
    """

    def __init__(self, *, is_allowed: bool, max_nbytes: int) -> None:
        self.is_allowed: Final = is_allowed
        self._max_nbytes = max_nbytes
        self._regions: dict[str, _Region] = {}

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Register bytes of the shared memory object `key`."""
        self.require_allowed()
        if name in self._regions:
            raise protocol_error(f"region {name!r} is registered already; unregister it first.")
        if len(self._regions) >= MAX_REGIONS:
            raise protocol_error(
                f"region {name!r}: {MAX_REGIONS} regions are registered already; unregister one."
            )
        file_name = key.removeprefix("/") if isinstance(key, str) else ""
        if not file_name or "/" in file_name or file_name in (".", ".."):
            raise protocol_error(
                f"region {name!r}: key {key!r}, expected the name of a shared memory object."
            )
        if file_name.startswith(_OWN_PREFIX):
            raise protocol_error(f"region {name!r}: shared memory {key!r} is the server's own.")
        if type(offset) is not int or type(nbytes) is not int or offset < 0 or nbytes <= 0:
            raise protocol_error(
                f"region {name!r}: offset {offset!r}, byte_size {nbytes!r}; expected an integer "
                "from 0 and one above 0."
            )
        region = _Region(file_name, offset, nbytes)
        with _open(name, region):
            self._regions[name] = region

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them."""
        self.require_allowed()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return all regions, or the named one."""
        self.require_allowed()
        regions = {name: self._find(name)} if name else self._regions
        return [
            {"name": name, "key": region.key, "offset": region.offset, "byte_size": region.nbytes}
            for name, region in regions.items()
        ]

    def read(self, location: Location) -> memoryview:
        """Return a copy of the bytes of a location."""
        region = self._find_range(location)
        at = region.offset + location.offset
        data = left = np.empty(location.nbytes, np.uint8).data
        with _open(location.region, region) as file:
            while left:
                if not (nbytes := os.preadv(file, [left[:_MAX_IO_NBYTES]], at)):
                    raise protocol_error(f"region {location.region!r} has become smaller.")
                left, at = left[nbytes:], at + nbytes
        return data

    def write(self, location: Location, data: bytes | memoryview) -> None:
        """Write an output to a location, all of it or ProtocolError."""
        name, view = location.region, memoryview(data)
        if len(view) > location.nbytes:
            raise protocol_error(
                f"region {name!r}: the output has {len(view)} bytes, its location "
                f"{location.nbytes}."
            )
        region = self._find_range(location)
        at = region.offset + location.offset
        with _open(name, region) as file:
            while view:
                try:
                    nbytes = os.pwrite(file, view[:_MAX_IO_NBYTES], at)
                except OSError as error:
                    raise protocol_error(
                        f"region {name!r}: the output cannot be written: {error}.", 503
                    ) from error
                view, at = view[nbytes:], at + nbytes

    def _find_range(self, location: Location) -> _Region:
        """Return the region of a location if it has these bytes, and they are not too many."""
        region = self._find(location.region)
        if location.nbytes > self._max_nbytes:
            raise protocol_error(
                f"region {location.region!r}: {location.nbytes} bytes, expected at most "
                f"{self._max_nbytes} for a tensor.",
                413,
            )
        if location.offset + location.nbytes > region.nbytes:
            raise protocol_error(
                f"region {location.region!r} has {region.nbytes} bytes; the request uses bytes "
                f"{location.offset} to {location.offset + location.nbytes}."
            )
        return region

    def _find(self, name: str) -> _Region:
        self.require_allowed()
        if (region := self._regions.get(name)) is None:
            raise protocol_error(f"no region {name!r} is registered.")
        return region

    def require_allowed(self) -> None:
        """Raise ProtocolError if clients may not register regions."""
        if not self.is_allowed:
            raise protocol_error("shared memory is off; start with --shared-memory.", 501)


@contextmanager
def _open(name: str, region: _Region) -> Iterator[int]:
    """Open a region's file, which has to have all its bytes; files are not kept open."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(_FOLDER / region.key, flags)
    except (OSError, ValueError) as error:
        raise protocol_error(
            f"region {name!r}: cannot open shared memory {region.key!r}: {error}"
        ) from error
    try:
        status = os.fstat(file)
        fits = stat.S_ISREG(status.st_mode) and region.offset + region.nbytes <= status.st_size
        if not fits or status.st_uid != os.getuid():
            raise protocol_error(
                f"region {name!r}: shared memory {region.key!r} has {status.st_size} bytes and "
                f"user {status.st_uid}; expected {region.offset + region.nbytes} bytes and the "
                "server's own user."
            )
        yield file
    finally:
        os.close(file)
