"""Writer of blobs: tensors become segments; equal tensors are stored once."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import xxhash
from msgspec.msgpack import Ext, encode

from hetero.scheduler.formats import blob_format as form
from hetero.scheduler.formats.tensor_entries import pack_strings, raw_bytes


class BlobWriter:
    """Collects the segments of documents, and writes them after a header."""

    def __init__(self) -> None:
        self.contents: list[memoryview] = []
        #: Length and checksum -> number of the segment.
        self._index: dict[tuple[int, bytes], int] = {}

    def document(self, value: Any) -> bytes:
        """Encode a document; tensors and long bytes become segments of this blob.

        `value`: None, booleans, 64-bit integers, floats, strings, bytes, arrays of any ONNX
            element type, and lists and maps (keys strings or integers) of these. Tuples become
            lists.
        Raises TypeError: a value of another type.
        """
        return encode(self._tree(value))

    def write(self, file: BinaryIO, value: Any) -> int:
        """Write a blob whose header is the document of `value`; return its length in bytes."""
        beginning, table, nbytes = self.layout(value)
        file.write(beginning)
        position = len(beginning)
        for segment, contents in zip(table, self.contents, strict=True):
            file.write(bytes(segment.offset - position))
            file.write(contents)
            position = segment.offset + segment.nbytes
        file.write(bytes(nbytes - position))
        return nbytes

    def layout(self, value: Any) -> tuple[bytes, list[form.Segment], int]:
        """Return prefix and header, the segment table, and the length of the blob."""
        document = self.document(value)
        rows = bytes(len(self.contents) * form.SEGMENT_ROW.size)  # the table has this length
        nbytes, table = self._table(form.PREFIX.size + len(encode([rows, document])))
        rows = b"".join(form.SEGMENT_ROW.pack(*segment) for segment in table)
        header = encode([rows, document])
        first = form.PREFIX.pack(form.MAGIC, form.FORMAT_VERSION, 0, len(header), nbytes, b"")[
            : form.SUMMED_NBYTES
        ]
        return first + form.header_checksum(first, header) + header, table, nbytes

    def _table(self, end: int) -> tuple[int, list[form.Segment]]:
        table = []
        for nbytes, checksum in self._index:
            step = form.PAGE if nbytes >= form.LARGE_NBYTES else form.ALIGNMENT
            offset = -(-end // step) * step
            table.append(form.Segment(offset, nbytes, checksum))
            end = offset + nbytes
        return end, table

    def _add(self, contents: memoryview) -> int:
        key = contents.nbytes, xxhash.xxh3_128_digest(contents)
        if key not in self._index:
            self._index[key] = len(self.contents)
            self.contents.append(contents)
        return self._index[key]

    def _tree(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._tensor(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, form.Inline):
            return bytes(value)
        if isinstance(value, bytes) and len(value) > form.INLINE_NBYTES:
            segment = self._add(memoryview(value))
            return Ext(form.BYTES, form.BYTES_ENTRY.pack(segment))
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if isinstance(value, list | tuple):
            return [self._tree(item) for item in value]
        if isinstance(value, Mapping):
            if invalid := [key for key in value if not isinstance(key, str | int)]:
                raise TypeError(f"expected map keys of str or int, got {invalid[0]!r}.")
            return {key: self._tree(item) for key, item in value.items()}
        raise TypeError(f"a {type(value).__name__} cannot be written to a blob.")

    def _tensor(self, array: np.ndarray) -> Ext:
        if array.dtype.kind in "OUS":
            return Ext(form.STRINGS, pack_strings(array))
        number = form.NUMBER_OF.get(array.dtype.name)
        if number is None:
            raise TypeError(f"a tensor of dtype {array.dtype} cannot be written: not an ONNX type.")
        segment = -1
        if array.size:
            segment = self._add(raw_bytes(array))
        packed = form.TENSOR_ENTRY.pack(segment, number) + struct.pack(
            f"<{array.ndim}Q", *array.shape
        )
        return Ext(form.TENSOR, packed)
