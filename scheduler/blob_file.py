"""The blob container: a msgpack header and raw aligned segments, checksums over all of it.

::

    0   8   magic "HETEROB" and a line feed, which text-mode copies spoil
    8   4   format version, little-endian
    12  4   zero
    16  8   length of the header
    24  8   length of the file
    32  16  zero
    48  16  XXH3-128 of the 48 bytes before and of the header
    64  …   header: msgpack of [segments, document]
    …   …   segments, each aligned to 64 bytes, large ones to a page

``segments`` is bytes: offset and length (8 bytes each) and XXH3-128 of each segment, ascending.
In a document an extension of type 1 is bytes, of type 2 a tensor in a segment, of type 3 a tensor
of strings. A document may hold others as bytes, which are read by themselves. The header's checksum
covers those of the segments, and so names the whole blob.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
import numpy as np
import xxhash

from devices.errors import BlobError
from devices.program import FilePlace
from devices.tensor_spec import DTYPES
from scheduler.msgpack_check import check_msgpack

#: Raised whenever the form changes; other versions are refused by name.
FORMAT_VERSION: Final = 1
MAGIC: Final = b"HETEROB\n"
_PREFIX: Final = struct.Struct("<8sIIQQ16x16s")
_SUMMED: Final = 48
#: A row of the table of segments: offset, length, checksum.
_ROW: Final = struct.Struct("<QQ16s")
_ALIGNMENT: Final = 64
_PAGE: Final = 4096
#: Segments from this size on start on a page.
_LARGE_NBYTES: Final = 65536
#: Bytes values up to this size stay in their document.
_INLINE_NBYTES: Final = 512
_BYTES, _TENSOR, _STRINGS = 1, 2, 3
#: A segment's number.
_BYTES_ENTRY: Final = struct.Struct("<I")
#: A segment's number, -1 for an empty tensor; ONNX's number of the element type; dimensions follow.
_TENSOR_ENTRY: Final = struct.Struct("<iH")
#: numpy's own limit.
_RANK: Final = 64

#: Element types by ONNX's number, and the numbers by name.
_DTYPES: Final = {n: dtype for n, dtype in DTYPES.items() if dtype != np.dtype(object)}
_NUMBERS: Final = {dtype.name: number for number, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of bytes: where it lies, and the XXH3-128 of its contents."""

    offset: int
    nbytes: int
    checksum: bytes


class Inline(bytes):
    """Bytes that stay in their document however long they are, to be read with it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Stowed:
    """What lies in a segment, as a document read without its segments shows it.

    Attributes
    ----------
    segment : int or None
        Which; None for an empty tensor and for strings.
    nbytes : int
        Its length.
    dtype : str
        ``bytes``, ``string``, or the tensor's element type.
    shape : tuple of int
        A tensor's shape.
    """

    segment: int | None
    nbytes: int
    dtype: str
    shape: tuple[int, ...] = ()


class BlobWriter:
    """Collects segments, equal ones once, and writes them behind a header."""

    def __init__(self) -> None:
        self._contents: list[memoryview] = []
        self._checksums: list[bytes] = []
        self._index: dict[tuple[int, bytes], int] = {}

    def document(self, value: Any) -> bytes:
        """Return a document: tensors and long bytes become segments of this blob.

        Parameters
        ----------
        value : object
            None, booleans, integers of 64 bits, floats, strings, bytes, arrays of any ONNX element
            type, and lists and maps (keys strings or integers) of these. Tuples become lists.

        Raises
        ------
        TypeError
            For a value of another kind.
        """
        data: bytes = msgpack.packb(self._tree(value))
        return data

    def write(self, file: BinaryIO, value: Any) -> int:
        """Write the blob whose header is the document of `value`; return its length in bytes."""
        document = self.document(value)
        table: list[Segment] = []
        header = b""
        start = -1
        # The header's length moves the segments, whose offsets the header holds.
        while start < _PREFIX.size + len(header):
            start = _PREFIX.size + len(header)
            end, table = self._table(start)
            rows = b"".join(_ROW.pack(s.offset, s.nbytes, s.checksum) for s in table)
            header = msgpack.packb([rows, document])
        nbytes = max(end, start)
        first = _PREFIX.pack(MAGIC, FORMAT_VERSION, 0, len(header), nbytes, b"")[:_SUMMED]
        file.write(first + _header_checksum(first, header) + header)
        position = _PREFIX.size + len(header)
        for segment, contents in zip(table, self._contents, strict=True):
            file.write(bytes(segment.offset - position))
            file.write(contents)
            position = segment.offset + segment.nbytes
        file.write(bytes(nbytes - position))
        return nbytes

    def _table(self, end: int) -> tuple[int, list[Segment]]:
        table = []
        for contents, checksum in zip(self._contents, self._checksums, strict=True):
            step = _PAGE if contents.nbytes >= _LARGE_NBYTES else _ALIGNMENT
            offset = -(-end // step) * step
            table.append(Segment(offset, contents.nbytes, checksum))
            end = offset + contents.nbytes
        return end, table

    def _add(self, contents: memoryview) -> int:
        checksum = xxhash.xxh3_128_digest(contents)
        index = self._index.setdefault((contents.nbytes, checksum), len(self._contents))
        if index == len(self._contents):
            self._contents.append(contents)
            self._checksums.append(checksum)
        return index

    def _tree(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._tensor(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Inline):
            return bytes(value)
        if isinstance(value, bytes) and len(value) > _INLINE_NBYTES:
            segment = self._add(memoryview(value))
            return msgpack.ExtType(_BYTES, _BYTES_ENTRY.pack(segment))
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if isinstance(value, list | tuple):
            return [self._tree(item) for item in value]
        if isinstance(value, Mapping):
            if wrong := [key for key in value if not isinstance(key, str | int)]:
                raise TypeError(f"a map's keys are strings or integers; got {wrong[0]!r}.")
            return {key: self._tree(item) for key, item in value.items()}
        raise TypeError(f"a {type(value).__name__} cannot be written to a blob.")

    def _tensor(self, array: np.ndarray) -> msgpack.ExtType:
        shape = list(array.shape)
        if array.dtype.kind in "OUS":
            entry = [shape, [_text(item) for item in array.ravel().tolist()]]
            return msgpack.ExtType(_STRINGS, msgpack.packb(entry))
        number = _NUMBERS.get(array.dtype.name)
        if number is None:
            raise TypeError(f"a tensor of dtype {array.dtype} cannot be written: ONNX has none.")
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        segment = -1
        if array.size:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            segment = self._add(flat.data)
        packed = _TENSOR_ENTRY.pack(segment, number) + struct.pack(f"<{len(shape)}Q", *shape)
        return msgpack.ExtType(_TENSOR, packed)


class BlobFile:
    """A blob that is read: its header at once, its segments mapped, where they are asked for.

    Parameters
    ----------
    source : path or buffer
        A file, mapped read-only, or a blob's bytes, used where they are.
    follow_links : bool
        Whether the file may be a symbolic link.

    Raises
    ------
    BlobError
        Not a blob, damaged, or of another format version.
    OSError
        The file cannot be read.

    Notes
    -----
    Each segment's checksum is verified when it is first asked for. Arrays are views of the
    mapping, which lives as long as they do.
    """

    def __init__(
        self, source: str | Path | bytes | bytearray | memoryview, *, follow_links: bool = True
    ) -> None:
        self.path = Path(source) if isinstance(source, str | Path) else None
        self._map: memoryview | None = None
        if isinstance(source, str | Path):
            self._where = f"blob {source}"
            with _open(Path(source), follow_links) as file:
                status = os.fstat(file.fileno())
                self.nbytes = status.st_size
                #: Tells whether the file of that path is still this one.
                self.identity = FilePlace.identify(status)
                first = file.read(_PREFIX.size)
                header = file.read(self._header_nbytes(first))
                # The file may be replaced once it is closed; this is still the one just read.
                self._map = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        else:
            self._where = "blob"
            self.identity = ()
            self._map = memoryview(source).toreadonly().cast("B")
            self.nbytes = self._map.nbytes
            first = bytes(self._map[: _PREFIX.size])
            header = bytes(self._map[_PREFIX.size : _PREFIX.size + self._header_nbytes(first)])
        checksum = _header_checksum(first[:_SUMMED], header)
        if checksum != first[_SUMMED:]:
            raise BlobError(f"{self._where}: header: damaged, its checksum is another.")
        #: Names the contents: equal digests, equal blobs.
        self.digest = checksum.hex()
        self.header_nbytes = len(header)
        self.segments, self._document = self._read_header(header)
        self._verified: set[int] = set()

    def outline(self, document: bytes | None = None) -> Any:
        """Return a document, the header's by default, with `Stowed` for what is in segments."""
        return self._unpack(document, lambda stowed: stowed)

    def contents(self, document: bytes | None = None) -> Any:
        """Return a document, the header's by default; arrays are read-only views of the blob.

        Raises
        ------
        BlobError
            The document, or a segment that it points to, is damaged.
        """
        return self._unpack(document, self._resolve)

    def offset_of(self, array: np.ndarray) -> int:
        """Return where in the blob an array of `contents` begins."""
        assert self._map is not None
        return int(array.ctypes.data - np.frombuffer(self._map, np.uint8).ctypes.data)

    def verify(self) -> None:
        """Check every segment's checksum.

        Raises
        ------
        BlobError
            Naming the first segment that is damaged.
        """
        for index in range(len(self.segments)):
            self._segment(index)

    def _header_nbytes(self, first: bytes) -> int:
        where = self._where
        if len(first) < _PREFIX.size:
            raise BlobError(f"{where}: {self.nbytes} bytes; no blob is so short.")
        magic, version, zero, header_nbytes, nbytes, _ = _PREFIX.unpack(first)
        if magic != MAGIC:
            raise BlobError(f"{where}: not a blob: it starts with {magic!r}, wanted {MAGIC!r}.")
        if version != FORMAT_VERSION:
            raise BlobError(
                f"{where}: format version {version}; this program reads {FORMAT_VERSION}. Compile "
                "the model again, or read it with the version that wrote it.",
                version=version,
            )
        if zero or nbytes != self.nbytes:
            raise BlobError(f"{where}: {self.nbytes} bytes, {nbytes} wanted; it is cut or damaged.")
        if header_nbytes > self.nbytes - _PREFIX.size:
            raise BlobError(f"{where}: header: {header_nbytes} bytes do not fit the file.")
        return int(header_nbytes)

    def _read_header(self, header: bytes) -> tuple[tuple[Segment, ...], bytes]:
        where = f"{self._where}: header"
        check_msgpack(header, where)
        try:
            rows, document = msgpack.unpackb(header)
            if not isinstance(rows, bytes) or len(rows) % _ROW.size:
                raise BlobError(f"{where}: segments: no table.")
        except (TypeError, ValueError, msgpack.UnpackException) as error:
            if isinstance(error, BlobError):
                raise
            raise BlobError(f"{where}: damaged: {error}.") from error
        segments: list[Segment] = []
        end = _PREFIX.size + len(header)
        for offset, nbytes, checksum in _ROW.iter_unpack(rows):
            if offset < end or offset % _ALIGNMENT or offset + nbytes > self.nbytes:
                raise BlobError(
                    f"{where}: segments[{len(segments)}]: bytes {offset} to {offset + nbytes} of "
                    f"{self.nbytes} overlap what is before, lie outside, or are not aligned."
                )
            segments.append(Segment(offset, nbytes, checksum))
            end = offset + nbytes
        if not isinstance(document, bytes):
            raise BlobError(f"{where}: no document.")
        return tuple(segments), document

    def _unpack(self, document: bytes | None, resolve: Any) -> Any:
        data = self._document if document is None else document
        where = f"{self._where}: document"
        if not isinstance(data, bytes):
            raise BlobError(f"{where}: {type(data).__name__}, wanted bytes.")
        check_msgpack(data, where)

        def hook(code: int, entry: bytes) -> Any:
            return resolve(self._stowed(code, entry))

        try:
            return msgpack.unpackb(data, ext_hook=hook, strict_map_key=False)
        except BlobError:
            raise
        except (TypeError, ValueError, OverflowError, msgpack.UnpackException) as error:
            raise BlobError(f"{where}: damaged: {error}.") from error

    def _stowed(self, code: int, entry: bytes) -> Any:
        where = f"{self._where}: document"
        if code == _BYTES and len(entry) == _BYTES_ENTRY.size:
            (index,) = _BYTES_ENTRY.unpack(entry)
            return Stowed(index, self._length(index), "bytes")
        if code == _STRINGS:
            check_msgpack(entry, where)
            sizes, texts = msgpack.unpackb(entry)
            return _strings(_shape(sizes, where), texts, where)
        size = len(entry) - _TENSOR_ENTRY.size
        if code != _TENSOR or size < 0 or size % 8:
            raise BlobError(f"{where}: unknown extension {code} of {len(entry)} bytes.")
        segment, number = _TENSOR_ENTRY.unpack_from(entry)
        shape = _shape(list(struct.unpack_from(f"<{size // 8}Q", entry, _TENSOR_ENTRY.size)), where)
        dtype = _DTYPES.get(number)
        if dtype is None:
            raise BlobError(f"{where}: a tensor of unknown element type {number}.")
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes != (0 if segment == -1 else self._length(segment)):
            raise BlobError(
                f"{where}: a tensor {shape} of {dtype.name} that its segment does not fill."
            )
        return Stowed(None if segment == -1 else segment, nbytes, dtype.name, shape)

    def _length(self, index: Any) -> int:
        if type(index) is not int or not 0 <= index < len(self.segments):
            raise BlobError(f"{self._where}: document: no segment {index!r}.")
        return self.segments[index].nbytes

    def _resolve(self, stowed: Any) -> Any:
        if not isinstance(stowed, Stowed):
            return stowed
        if stowed.dtype == "bytes":
            return bytes(self._segment(stowed.segment or 0))
        if stowed.segment is None:
            empty = np.empty(stowed.shape, _DTYPES[_NUMBERS[stowed.dtype]])
            empty.setflags(write=False)
            return empty
        contents = self._segment(stowed.segment)
        return np.frombuffer(contents, _DTYPES[_NUMBERS[stowed.dtype]]).reshape(stowed.shape)

    def _segment(self, index: int) -> memoryview:
        assert self._map is not None
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
    """Open a regular file; anything else (a pipe would block) is refused."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BlobError(f"blob {path}: not a regular file.")
    return io.FileIO(descriptor)


def _header_checksum(first: bytes, header: bytes) -> bytes:
    state = xxhash.xxh3_128(first)
    state.update(header)
    return state.digest()


def _shape(sizes: Any, where: str) -> tuple[int, ...]:
    if not isinstance(sizes, list) or len(sizes) > _RANK:
        raise BlobError(f"{where}: a tensor of shape {str(sizes)[:80]}.")
    if any(type(size) is not int or not 0 <= size < 2**62 for size in sizes):
        raise BlobError(f"{where}: a tensor of shape {str(sizes)[:80]}.")
    return tuple(sizes)


def _strings(shape: tuple[int, ...], texts: Any, where: str) -> np.ndarray:
    if not isinstance(texts, list) or math.prod(shape) != len(texts):
        raise BlobError(f"{where}: a tensor of strings that do not fill {shape}.")
    if any(not isinstance(text, str | bytes) for text in texts):
        raise BlobError(f"{where}: a tensor of strings that holds something else.")
    array = np.empty(len(texts), object)
    array[:] = texts
    array = array.reshape(shape)
    array.setflags(write=False)
    return array


def _text(item: Any) -> str | bytes:
    if not isinstance(item, str | bytes):
        raise TypeError(f"a tensor of objects holds strings; got {type(item).__name__}.")
    return item


def tensors_of(tree: Any) -> Iterator[Stowed]:
    """Yield everything that a document's outline has in segments."""
    if isinstance(tree, Stowed):
        yield tree
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_of(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from tensors_of(item)
