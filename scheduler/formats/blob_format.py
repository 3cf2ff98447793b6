"""Format of blobs: a msgpack header, raw aligned segments, and checksums over everything.

::

    0   8   magic "HETEROB" and a line feed, which text-mode copies change
    8   4   format version, little-endian
    12  4   zero
    16  8   length of the header
    24  8   length of the file
    32  16  zero
    48  16  XXH3-128 of the first 48 bytes and of the header
    64  …   header: msgpack of [segments, document]
    …   …   segments, each aligned to 64 bytes, large ones to a page

``segments`` is bytes: offset and length (8 bytes each) and XXH3-128 of each segment, ascending.
In a document, an extension of type 1 is bytes, of type 2 a tensor in a segment, of type 3 a tensor
of strings. A document may contain other documents as bytes, which are decoded separately. The
checksum of the header covers those of the segments, and so identifies the whole blob.

Alternatives measured: safetensors has no checksums and no strings; msgpack alone cannot be mapped
without a copy of every tensor.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import xxhash
from msgspec.msgpack import Decoder

from hetero.devices.errors import BlobError
from hetero.devices.model.element_type import DTYPES
from hetero.scheduler.formats.unpack import unpack

#: Incremented with each change of the format; other versions are refused.
FORMAT_VERSION: Final = 1
MAGIC: Final = b"HETEROB\n"
#: Magic, version, zero, lengths of the header and of the file, zeros, checksum.
PREFIX: Final = struct.Struct("<8sIIQQ16x16s")
#: Bytes of the prefix that the checksum covers.
SUMMED_NBYTES: Final = 48
#: A row of the table of segments: offset, length, checksum.
SEGMENT_ROW: Final = struct.Struct("<QQ16s")
#: Alignment of segments, and of large segments.
ALIGNMENT: Final = 64
PAGE: Final = 4096
#: Minimum size of segments that are aligned to a page.
LARGE_NBYTES: Final = 65536
#: Maximum size of bytes values that stay in their document.
INLINE_NBYTES: Final = 512
#: Types of msgpack's extensions.
BYTES, TENSOR, STRINGS = 1, 2, 3
#: A segment's number.
BYTES_ENTRY: Final = struct.Struct("<I")
#: Segment number, -1 for an empty tensor; ONNX's number of the element type; then dimensions.
TENSOR_ENTRY: Final = struct.Struct("<iH")

#: Segments and document.
_HEADER: Final = Decoder(tuple[bytes, bytes])
#: Names of element types by ONNX's number, and the reverse.
NAME_OF: Final = {n: dtype.name for n, dtype in DTYPES.items() if dtype != np.dtype(object)}
NUMBER_OF: Final = {name: number for number, name in NAME_OF.items()}


class Segment(NamedTuple):
    """Position of a segment in the file, and the XXH3-128 of its contents."""

    offset: int
    nbytes: int
    checksum: bytes


class Inline(bytes):
    """Bytes that stay in their document, whatever their size."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SegmentReference:
    """A value in a segment, as a document shows it before the segment is read."""

    #: Segment number; None for an empty tensor.
    segment: int | None
    nbytes: int
    #: ``bytes``, ``string``, or the tensor's element type.
    dtype: str
    #: Shape of a tensor.
    shape: tuple[int, ...] = ()


def header_checksum(first: bytes, header: bytes) -> bytes:
    """Return the checksum of a blob's prefix and header."""
    state = xxhash.xxh3_128(first)
    state.update(header)
    return state.digest()


def read_header(first: bytes, header: bytes, where: str) -> tuple[Iterator[Segment], bytes]:
    """Return a blob's segment table, not validated yet, and its document.

    `first`: prefix of the blob.
    Raises BlobError: prefix or header are damaged.
    """
    if header_checksum(first[:SUMMED_NBYTES], header) != first[SUMMED_NBYTES:]:
        raise BlobError(f"{where}: header: damaged: the checksum does not match.")
    rows, document = unpack(header, _HEADER, f"{where}: header")
    if len(rows) % SEGMENT_ROW.size:
        raise BlobError(f"{where}: header: segments: not a table.")
    return itertools.starmap(Segment, SEGMENT_ROW.iter_unpack(rows)), document
