"""Reading blobs: the header at once, segments mapped and verified where they are asked for."""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from msgspec.msgpack import Decoder

from hetero.devices.errors import BlobError
from hetero.scheduler.formats import blob_format as form
from hetero.scheduler.formats.regular_file import open_regular
from hetero.scheduler.formats.tensor_entries import DTYPES, frozen, shape_of, strings_of
from hetero.scheduler.formats.unpack import unpack

#: Files up to this size are read: one that is mapped ends its readers when another program cuts it.
_READ_NBYTES: Final = 2**24


class ForeignError(BlobError):
    """A cache's entry that another user wrote, or could have."""


def is_own(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's or root's, and no other user may write to it."""
    others = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid in (os.geteuid(), 0) and not stat.S_IMODE(status.st_mode) & others


class BlobFile:
    """A blob that is read: its header at once, its segments mapped, where they are asked for.

    Each segment's checksum is verified when it is first asked for. Arrays are views of the mapping,
    which lives as long as they do.

    `source`: a file, or a blob's bytes, used where they are. A file that is small is read; a large
        one is mapped read-only, and must not be cut while it is in use.
    `of_cache`: whether it is an entry of a cache: no symbolic link, and no other user's.
    Raises BlobError: not a blob, damaged, or of another format version.
    Raises OSError: the file cannot be read.
    """

    def __init__(
        self, source: str | Path | bytes | bytearray | memoryview, *, of_cache: bool = False
    ) -> None:
        self.path = Path(source) if isinstance(source, str | Path) else None
        #: The path with links followed, for others who open the file; None for bytes.
        self.real_path = None if self.path is None else str(self.path.resolve())
        if isinstance(source, str | Path):
            self._where = f"blob {source}"
            with _open(Path(source), not of_cache) as file:
                status = os.fstat(file.fileno())
                if of_cache and not is_own(status):
                    raise ForeignError(f"{self._where}: other users may have written it.")
                self._map = self._read(file, status.st_size)
        else:
            self._where = "blob"
            self._map = memoryview(source).toreadonly().cast("B")
        self.nbytes = self._map.nbytes
        first, rest = bytes(self._map[: form.PREFIX.size]), self._map[form.PREFIX.size :]
        header = bytes(rest[: self._header_nbytes(first)])
        segments, self._document = form.read_header(first, header, self._where)
        #: Names the contents: equal digests, equal blobs.
        self.digest = first[form.SUMMED_NBYTES :].hex()
        self.header_nbytes = len(header)
        self.segments = tuple(self._checked(segments))
        self._verified: set[int] = set()

    def outline(self, document: bytes | None = None) -> Any:
        """Return a document, the header's by default, with `Stowed` for what is in segments."""
        return self._unpack(document, self._stowed)

    def stowed(self, document: bytes) -> set[form.Stowed]:
        """Return what a document has in segments."""
        found: list[form.Stowed | np.ndarray] = []
        self._unpack(document, lambda *extension: found.append(self._stowed(*extension)))
        return {entry for entry in found if isinstance(entry, form.Stowed)}

    def contents(self, document: bytes | None = None) -> Any:
        """Return a document, the header's by default; arrays are read-only views of the blob.

        Raises BlobError: the document, or a segment that it points to, is damaged.
        """
        return self._unpack(document, self._resolved)

    def verify(self) -> None:
        """Check every segment's checksum.

        Raises BlobError, naming the first segment that is damaged.
        """
        for index in range(len(self.segments)):
            self._segment(index)

    def _read(self, file: io.FileIO, nbytes: int) -> memoryview:
        if nbytes > _READ_NBYTES:
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        memory = memoryview(mmap.mmap(-1, nbytes or 1))[:nbytes]  # its segments are aligned
        position = 0
        while part := file.readinto(memory[position:]):
            position += part
        if position < nbytes:
            raise BlobError(f"{self._where}: it was cut while it was read.")
        return memory.toreadonly()

    def _header_nbytes(self, first: bytes) -> int:
        where = self._where
        if len(first) < form.PREFIX.size:
            raise BlobError(f"{where}: {self.nbytes} bytes; no blob is so short.")
        magic, version, zero, header_nbytes, nbytes, _ = form.PREFIX.unpack(first)
        if magic != form.MAGIC:
            raise BlobError(
                f"{where}: not a blob: it starts with {magic!r}, wanted {form.MAGIC!r}."
            )
        if version != form.FORMAT_VERSION:
            raise BlobError(
                f"{where}: format version {version}; this program reads {form.FORMAT_VERSION}. "
                "Compile the model again, or read it with the version that wrote it.",
                version=version,
            )
        if zero or nbytes != self.nbytes:
            raise BlobError(f"{where}: {self.nbytes} bytes, {nbytes} wanted; it is cut or damaged.")
        if header_nbytes > self.nbytes - form.PREFIX.size:
            raise BlobError(f"{where}: header: {header_nbytes} bytes do not fit the file.")
        return int(header_nbytes)

    def _checked(self, segments: Iterable[form.Segment]) -> Iterator[form.Segment]:
        end = form.PREFIX.size + self.header_nbytes
        for index, segment in enumerate(segments):
            offset, nbytes, _ = segment
            if offset < end or offset % form.ALIGNMENT or offset + nbytes > self.nbytes:
                raise BlobError(
                    f"{self._where}: header: segments[{index}]: bytes {offset} to "
                    f"{offset + nbytes} of {self.nbytes} overlap what is before, lie outside, or "
                    "are not aligned."
                )
            yield segment
            end = offset + nbytes

    def _unpack(self, document: bytes | None, hook: Callable[[int, memoryview], Any]) -> Any:
        data = self._document if document is None else document
        where = f"{self._where}: document"
        if not isinstance(data, bytes):
            raise BlobError(f"{where}: {type(data).__name__}, wanted bytes.")
        return unpack(data, Decoder(ext_hook=hook), where)

    def _stowed(self, code: int, entry: memoryview) -> form.Stowed | np.ndarray:
        """Return what an extension stands for: strings, or where it lies."""
        where = f"{self._where}: document"
        if code == form.BYTES and len(entry) == form.BYTES_ENTRY.size:
            (index,) = form.BYTES_ENTRY.unpack(entry)
            return form.Stowed(index, self._length(index), "bytes")
        if code == form.STRINGS:
            return strings_of(entry, where)
        size = len(entry) - form.TENSOR_ENTRY.size
        if code != form.TENSOR or size < 0 or size % 8:
            raise BlobError(f"{where}: unknown extension {code} of {len(entry)} bytes.")
        segment, number = form.TENSOR_ENTRY.unpack_from(entry)
        sizes = struct.unpack_from(f"<{size // 8}Q", entry, form.TENSOR_ENTRY.size)
        shape = shape_of(sizes, where)
        name = form.NAME_OF.get(number)
        if name is None:
            raise BlobError(f"{where}: a tensor of unknown element type {number}.")
        nbytes = math.prod(shape) * DTYPES[name].itemsize
        if nbytes != (0 if segment == -1 else self._length(segment)):
            raise BlobError(f"{where}: a tensor {shape} of {name} that its segment does not fill.")
        return form.Stowed(None if segment == -1 else segment, nbytes, name, shape)

    def _length(self, index: Any) -> int:
        if type(index) is not int or not 0 <= index < len(self.segments):
            raise BlobError(f"{self._where}: document: no segment {index!r}.")
        return self.segments[index].nbytes

    def _resolved(self, code: int, entry: memoryview) -> np.ndarray | bytes:
        stowed = self._stowed(code, entry)
        if not isinstance(stowed, form.Stowed):
            return stowed
        if stowed.dtype == "bytes":
            return bytes(self._segment(stowed.segment or 0))
        if stowed.segment is None:
            return frozen(np.empty(stowed.shape, DTYPES[stowed.dtype]))
        contents = self._segment(stowed.segment)
        return np.frombuffer(contents, DTYPES[stowed.dtype]).reshape(stowed.shape)

    def _segment(self, index: int) -> memoryview:
        segment = self.segments[index]
        contents = self._map[segment.offset : segment.offset + segment.nbytes]
        if index not in self._verified:
            if xxhash.xxh3_128_digest(contents) != segment.checksum:
                raise BlobError(
                    f"{self._where}: segments[{index}]: damaged, its checksum is another."
                )
            self._verified.add(index)
        return contents


def _open(path: Path, follow_links: bool) -> io.FileIO:
    try:
        return open_regular(path, follow_links=follow_links)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise BlobError(f"blob {path}: not a regular file.") from error
        raise
