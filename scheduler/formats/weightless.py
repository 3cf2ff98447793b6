"""Weightless blobs: blobs without the tensors that the original model file contains.

::

    0   8   magic "HETEROW" and a line feed
    8   8   length of the blob's prefix and header, little-endian
    16  …   prefix and header of the blob
    …   …   a byte for each segment: 1 if its contents are included
    …   …   the included contents

Omitted segments are found among the model's tensors by length and checksum. The restored blob is
equal to the complete one, byte by byte, and is read and verified like it.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import xxhash

from hetero.devices.errors import BlobError
from hetero.devices.file_reader import open_regular, read_regular
from hetero.scheduler.formats import blob_format as form
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.blob_writer import BlobWriter
from hetero.scheduler.formats.tensor_entries import raw_bytes

MAGIC: Final = b"HETEROW\n"
_START: Final = struct.Struct("<8sQ")
#: Smaller tensors stay in the blob, because preprocessing adds some that are in no model file.
MIN_OMITTED_NBYTES: Final = 1024

Source = str | Path | bytes | bytearray | memoryview


def write_without(
    weights: Iterable[np.ndarray], writer: BlobWriter, file: BinaryIO, value: Any
) -> int:
    """Write a weightless blob, which omits segments with the contents of `weights`.

    Returns its length in bytes.
    """
    beginning, segments, _ = writer.layout(value)
    omitted = _by_contents(weights).keys()
    is_included = [(s.nbytes, s.checksum) not in omitted for s in segments]
    head = _START.pack(MAGIC, len(beginning)) + beginning + bytes(is_included)
    file.write(head)
    parts = [part for part, included in zip(writer.contents, is_included, strict=True) if included]
    for part in parts:
        file.write(part)
    return len(head) + sum(part.nbytes for part in parts)


def is_weightless(source: Source) -> bool:
    """Whether a source is a weightless blob; False for a missing file."""
    if not isinstance(source, str | Path):
        return bytes(source[: len(MAGIC)]) == MAGIC
    path = Path(source)
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def restore(source: Source, weights: Iterable[np.ndarray]) -> memoryview:
    """Return the complete blob of a weightless one.

    Raises BlobError: it is damaged, or `weights` lack some of the omitted tensors.
    """
    where, data = _data(source)
    blob, segments, rest = _open(where, data)
    is_included, rest = rest[: len(segments)], rest[len(segments) :]
    tensors = _by_contents(weights)
    pairs = list(zip(segments, is_included, strict=False))
    included_nbytes = sum(segment.nbytes for segment, included in pairs if included)
    omitted = [segment[1:] for segment, included in pairs if not included]
    if (
        len(is_included) != len(segments)
        or included_nbytes != len(rest)
        or len({*omitted}) != len(omitted)  # equal segments are written once
    ):
        raise BlobError(f"{where}: truncated or damaged.")
    if missing := sum(key[0] for key in omitted if key not in tensors):
        raise BlobError(
            f"{where}: the model lacks {missing} bytes of the omitted weights; pass the model that "
            "was compiled."
        )
    for segment, included in pairs:
        part = rest[: segment.nbytes] if included else tensors[segment[1:]]
        blob[segment.offset : segment.offset + segment.nbytes] = part
        rest = rest[segment.nbytes :] if included else rest
    return blob


def outline(source: Source) -> memoryview:
    """Return the complete blob of a weightless one, with zeros instead of its segments.

    Raises BlobError: it is damaged.
    """
    return _open(*_data(source))[0]


def _data(source: Source) -> tuple[str, memoryview]:
    """Return the name of a blob for errors, and its bytes."""
    if isinstance(source, str | Path):
        return f"blob {source}", memoryview(read_regular(Path(source), sys.maxsize - 1))
    return "blob", memoryview(source).cast("B")


def _open(where: str, data: memoryview) -> tuple[memoryview, Sequence[form.Segment], memoryview]:
    """Return the blob with empty segments, the segment table, and the rest of the data."""
    try:
        _, length = _START.unpack_from(data)
        beginning, rest = data[_START.size :][:length], data[_START.size :][length:]
        # An anonymous mapping takes memory only for pages that are written.
        blob = memoryview(mmap.mmap(-1, form.PREFIX.unpack_from(beginning)[4]))
        blob[:length] = beginning
    except (OSError, ValueError, OverflowError, struct.error) as error:
        raise BlobError(f"{where}: truncated or damaged.") from error
    return blob, BlobFile(blob).segments, rest


def _by_contents(weights: Iterable[np.ndarray]) -> dict[tuple[int, bytes], memoryview]:
    """Return the bytes of large tensors, by length and checksum."""
    numbers = (array for array in weights if array.dtype.kind not in "OUS")
    large = (raw_bytes(array) for array in numbers if array.nbytes >= MIN_OMITTED_NBYTES)
    return {(part.nbytes, xxhash.xxh3_128_digest(part)): part for part in large}
