"""Stamps: what a party says to all others of its node at once, in a file that they map.

A beat for each of them would grow with their number on both sides. A stamp is written once, and
whoever wants to know looks at it.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import Final

from msgspec.msgpack import Decoder, encode

from hetero.devices.errors import ClusterError
from hetero.scheduler.channels.protocol import Row
from hetero.scheduler.formats.unpack import unpack

#: The writer's clock, the checksum of all that follows and its bytes.
_HEAD: Final = struct.Struct("<dII")
#: Its status, packed, and what it says of parties on other nodes.
_SAID: Final = Decoder(tuple[bytes, list[Row]])
_NBYTES: Final = 16 * 1024


class Stamp:
    """A party's own; ClusterError if it finds no room."""

    def __init__(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # Room that is missing later would end the process.
                os.posix_fallocate(descriptor, 0, _NBYTES)
                self._file = mmap.mmap(descriptor, _NBYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ClusterError(
                f"{path} cannot be written: {error}. Make room there, or set TMPDIR to a folder "
                "that has some.",
                cause=str(error),
            ) from error

    def write(self, now_s: float, status: bytes, roll: list[Row]) -> None:
        """Say how the party is now, and others, as far as there is room."""
        said = encode((status, roll))
        if len(said) > _NBYTES - _HEAD.size:
            said = encode((status, []))
        self._file[: _HEAD.size + len(said)] = (
            _HEAD.pack(now_s, _sum(now_s, said), len(said)) + said
        )

    def close(self) -> None:
        """Say nothing more."""
        self._file.close()


class StampReader:
    """Another party's; OSError or ValueError if it cannot be mapped."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            self._file = mmap.mmap(descriptor, _NBYTES, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self._seen_s = 0.0

    def read(self) -> tuple[float, bytes, list[Row]] | None:
        """Return its clock, its status and what it says of others; None: nothing is new.

        Raises BlobError: what it says is no stamp.
        """
        now_s, checksum, nbytes = _HEAD.unpack_from(self._file)
        if now_s == self._seen_s:
            return None
        said = self._file[_HEAD.size : _HEAD.size + nbytes]
        if _sum(now_s, said) != checksum:
            return None  # it is being written
        status, roll = unpack(said, _SAID, "stamp")
        self._seen_s = now_s
        return now_s, status, roll

    def close(self) -> None:
        """Look no more."""
        self._file.close()


def _sum(now_s: float, said: bytes) -> int:
    return zlib.crc32(said, zlib.crc32(struct.pack("<d", now_s)))
