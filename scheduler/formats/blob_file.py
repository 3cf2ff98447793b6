"""Reader of blobs: header first, segments memory-mapped and verified on first use."""

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
from hetero.devices.file_reader import open_regular
from hetero.scheduler.formats import blob_format as form
from hetero.scheduler.formats.tensor_entries import (
    DTYPES,
    checked_shape,
    read_only,
    unpack_strings,
)
from hetero.scheduler.formats.unpack import unpack

#: Files up to this size are read into memory. A mapped file that another program truncates would
#: end the process.
_READ_NBYTES: Final = 2**24


class ForeignError(BlobError):
    """A cache entry that another user wrote or could have written."""


def is_own(status: os.stat_result) -> bool:
    """Whether only this user and root can write to a file or folder."""
    others = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid in (os.geteuid(), 0) and not stat.S_IMODE(status.st_mode) & others


class BlobFile:
    """A blob open for reading.

    The checksum of a segment is verified on first use. Arrays are views of the mapping, which lives
    as long as they do.

    `source`: a file, or the bytes of a blob, which are not copied. A small file is read; a large
        one is mapped read-only, and must not be truncated while in use.
    `of_cache`: whether it is a cache entry: symbolic links and files of other users are refused.
    Raises BlobError: it is not a blob, damaged, or of another format version.
    Raises OSError: the file cannot be read.
    """

    def __init__(
        self, source: str | Path | bytes | bytearray | memoryview, *, of_cache: bool = False
    ) -> None:
        self.path = Path(source) if isinstance(source, str | Path) else None
        #: The path with links resolved, for other processes; None for bytes.
        self.real_path = None if self.path is None else os.path.realpath(self.path)
        if isinstance(source, str | Path):
            self._where = f"blob {source}"
            with _open(Path(source), not of_cache) as file:
                status = os.fstat(file.fileno())
                if of_cache and not is_own(status):
                    raise ForeignError(
                        f"{self._where}: other users can write to it; expected a file that only "
                        "this user can write to."
                    )
                self._map = self._read(file, status.st_size)
        else:
            self._where = "blob"
            self._map = memoryview(source).toreadonly().cast("B")
        self.nbytes = self._map.nbytes
        first, rest = bytes(self._map[: form.PREFIX.size]), self._map[form.PREFIX.size :]
        header = bytes(rest[: self._header_nbytes(first)])
        segments, self._document = form.read_header(first, header, self._where)
        #: Digest of the contents: equal digests mean equal blobs.
        self.digest = first[form.SUMMED_NBYTES :].hex()
        self.header_nbytes = len(header)
        self.segments = tuple(self._check_segments(segments))
        self._verified: set[int] = set()

    def outline(self, document: bytes | None = None) -> Any:
        """Return a document, by default the header, with a `SegmentReference` for each segment."""
        return self._unpack(document, self._reference)

    def references(self, document: bytes) -> set[form.SegmentReference]:
        """Return the segments that a document refers to."""
        entries: list[form.SegmentReference | np.ndarray] = []
        self._unpack(document, lambda *extension: entries.append(self._reference(*extension)))
        return {entry for entry in entries if isinstance(entry, form.SegmentReference)}

    def contents(self, document: bytes | None = None) -> Any:
        """Return a document, by default the header; arrays are read-only views of the blob.

        Raises BlobError: the document, or a segment that it refers to, is damaged.
        """
        return self._unpack(document, self._resolve)

    def verify(self) -> None:
        """Check the checksum of every segment.

        Raises BlobError: names the first damaged segment.
        """
        for index in range(len(self.segments)):
            self._segment(index)

    def _read(self, file: io.FileIO, nbytes: int) -> memoryview:
        if nbytes > _READ_NBYTES:
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        memory = memoryview(mmap.mmap(-1, nbytes or 1))[
            :nbytes
        ]  # page-aligned, as segments require
        position = 0
        while part := file.readinto(memory[position:]):
            position += part
        if position < nbytes:
            raise BlobError(f"{self._where}: truncated while it was read; try again.")
        return memory.toreadonly()

    def _header_nbytes(self, first: bytes) -> int:
        where = self._where
        if len(first) < form.PREFIX.size:
            raise BlobError(f"{where}: {self.nbytes} bytes; expected at least {form.PREFIX.size}.")
        magic, version, zero, header_nbytes, nbytes, _ = form.PREFIX.unpack(first)
        if magic != form.MAGIC:
            raise BlobError(
                f"{where}: not a blob: it starts with {magic!r}, expected {form.MAGIC!r}. Write "
                "one with `hetero compile -o` or CompiledModel.export_model."
            )
        if version != form.FORMAT_VERSION:
            raise BlobError(
                f"{where}: expected format version {form.FORMAT_VERSION}, got format version "
                f"{version}. Compile the model again, or read it with the version of hetero that "
                "wrote it.",
                version=version,
            )
        if zero or nbytes != self.nbytes:
            raise BlobError(
                f"{where}: {self.nbytes} bytes, expected {nbytes}; truncated or damaged."
            )
        if header_nbytes > self.nbytes - form.PREFIX.size:
            raise BlobError(f"{where}: header: {header_nbytes} bytes do not fit the file.")
        return int(header_nbytes)

    def _check_segments(self, segments: Iterable[form.Segment]) -> Iterator[form.Segment]:
        end = form.PREFIX.size + self.header_nbytes
        for index, segment in enumerate(segments):
            offset, nbytes, _ = segment
            if offset < end or offset % form.ALIGNMENT or offset + nbytes > self.nbytes:
                raise BlobError(
                    f"{self._where}: header: segments[{index}]: bytes {offset} to "
                    f"{offset + nbytes} of {self.nbytes} overlap others, lie outside the file, or "
                    "are not aligned."
                )
            yield segment
            end = offset + nbytes

    def _unpack(self, document: bytes | None, hook: Callable[[int, memoryview], Any]) -> Any:
        data = self._document if document is None else document
        where = f"{self._where}: document"
        if not isinstance(data, bytes):
            raise BlobError(f"{where}: expected bytes, got {type(data).__name__}.")
        return unpack(data, Decoder(ext_hook=hook), where)

    def _reference(self, code: int, entry: memoryview) -> form.SegmentReference | np.ndarray:
        """Return the value of an extension: a tensor of strings, or a reference to a segment."""
        where = f"{self._where}: document"
        if code == form.BYTES and len(entry) == form.BYTES_ENTRY.size:
            (index,) = form.BYTES_ENTRY.unpack(entry)
            return form.SegmentReference(index, self._length(index), "bytes")
        if code == form.STRINGS:
            return unpack_strings(entry, where)
        size = len(entry) - form.TENSOR_ENTRY.size
        if code != form.TENSOR or size < 0 or size % 8:
            raise BlobError(f"{where}: unknown extension {code} of {len(entry)} bytes.")
        segment, number = form.TENSOR_ENTRY.unpack_from(entry)
        sizes = struct.unpack_from(f"<{size // 8}Q", entry, form.TENSOR_ENTRY.size)
        shape = checked_shape(sizes, where)
        name = form.NAME_OF.get(number)
        if name is None:
            raise BlobError(f"{where}: a tensor of unknown element type {number}.")
        nbytes = math.prod(shape) * DTYPES[name].itemsize
        if nbytes != (0 if segment == -1 else self._length(segment)):
            raise BlobError(
                f"{where}: a tensor {shape} of {name} does not have the size of its segment."
            )
        return form.SegmentReference(None if segment == -1 else segment, nbytes, name, shape)

    def _length(self, index: Any) -> int:
        if type(index) is not int or not 0 <= index < len(self.segments):
            raise BlobError(f"{self._where}: document: no segment {index!r}.")
        return self.segments[index].nbytes

    def _resolve(self, code: int, entry: memoryview) -> np.ndarray | bytes:
        reference = self._reference(code, entry)
        if not isinstance(reference, form.SegmentReference):
            return reference
        if reference.dtype == "bytes":
            return bytes(self._segment(reference.segment or 0))
        if reference.segment is None:
            return read_only(np.empty(reference.shape, DTYPES[reference.dtype]))
        contents = self._segment(reference.segment)
        return np.frombuffer(contents, DTYPES[reference.dtype]).reshape(reference.shape)

    def _segment(self, index: int) -> memoryview:
        segment = self.segments[index]
        contents = self._map[segment.offset : segment.offset + segment.nbytes]
        if index not in self._verified:
            if xxhash.xxh3_128_digest(contents) != segment.checksum:
                raise BlobError(
                    f"{self._where}: segments[{index}]: damaged: the checksum does not match."
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
