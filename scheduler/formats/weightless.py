"""Blobs without weights: all of a blob but the tensors of a model that its reader has as well.

::

    0   8   magic "HETEROW" and a line feed
    8   8   length of the blob's beginning, little-endian
    16  …   the blob's beginning: prefix and header
    …   …   a byte for each segment: 1 where its contents are here
    …   …   the contents that are here

What is left out is found among the model's tensors by its length and checksum. Put together again
the blob is what the whole one is, byte by byte, and is read and verified as that.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import xxhash

from devices.errors import BlobError
from scheduler.formats import blob_format as form
from scheduler.formats.tensor_entries import raw

MAGIC: Final = b"HETEROW\n"
_START: Final = struct.Struct("<8sQ")
#: Tensors of fewer bytes stay in the blob: those that preprocessing adds are in no file.
SMALLEST_NBYTES: Final = 1024

Source = str | Path | bytes | bytearray | memoryview


def write_without(
    file: BinaryIO,
    beginning: bytes,
    segments: Sequence[form.Segment],
    contents: Sequence[memoryview],
    weights: Iterable[np.ndarray],
) -> int:
    """Write a blob without those of its segments that hold one of `weights`; return its length.

    `beginning`: the blob's prefix and header; `contents`: of its `segments`.
    """
    left_out = _by_contents(weights).keys()
    here = [(s.nbytes, s.checksum) not in left_out for s in segments]
    head = _START.pack(MAGIC, len(beginning)) + beginning + bytes(here)
    file.write(head)
    kept = [part for part, is_here in zip(contents, here, strict=True) if is_here]
    for part in kept:
        file.write(part)
    return len(head) + sum(part.nbytes for part in kept)


def is_weightless(source: Source) -> bool:
    """Whether a source begins as a blob without weights; what is no file does not."""
    if not isinstance(source, str | Path):
        return bytes(source[: len(MAGIC)]) == MAGIC
    path = Path(source)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def restore(source: Source, weights: Iterable[np.ndarray]) -> bytearray:
    """Return the whole blob of one without weights.

    Raises BlobError: it is damaged, or `weights` are not all that it was written without.
    """
    where, data = _data(source)
    beginning, rows, here, position = _parts(data, where)
    found = _by_contents(weights)
    absent = [row for row, is_here in zip(rows, here, strict=True) if not is_here]
    if missing := sum(nbytes for _, nbytes, key in absent if (nbytes, key) not in found):
        raise BlobError(
            f"{where}: the model that was given for its weights has not got {missing} bytes of "
            "them; give the one that was compiled."
        )
    nbytes = form.PREFIX.unpack_from(beginning)[4]
    inside = sum(length for (_, length, _), is_here in zip(rows, here, strict=True) if is_here)
    outside = {(length, key): length for _, length, key in absent}
    room = len(data) + len(rows) * form.PAGE + sum(outside.values())
    if (
        inside != len(data) - position
        or len(outside) != len(absent)  # equal segments are written once
        or nbytes > room
        or any(offset + length > nbytes for offset, length, _ in rows)
    ):
        raise BlobError(f"{where}: it is cut or damaged.")
    whole = bytearray(nbytes)
    whole[: len(beginning)] = beginning
    for (offset, length, key), is_here in zip(rows, here, strict=True):
        part = data[position : position + length] if is_here else found[length, key]
        whole[offset : offset + length] = part
        position += length if is_here else 0
    return whole


def outline(source: Source) -> memoryview:
    """Return the whole blob of one without weights, with zeros for all but its header.

    Raises BlobError: it is damaged.
    """
    where, data = _data(source)
    beginning, *_ = _parts(data, where)
    try:
        whole = mmap.mmap(-1, form.PREFIX.unpack_from(beginning)[4])  # zeros take no memory
        whole[: len(beginning)] = bytes(beginning)
    except (OSError, ValueError, OverflowError, IndexError) as error:
        raise BlobError(f"{where}: it is cut or damaged.") from error
    return memoryview(whole)


def _data(source: Source) -> tuple[str, memoryview]:
    """Return what errors call a blob, and its bytes."""
    if isinstance(source, str | Path):
        return f"blob {source}", memoryview(Path(source).read_bytes())
    return "blob", memoryview(source).cast("B")


def _parts(data: memoryview, where: str) -> tuple[memoryview, list[form.Segment], bytes, int]:
    """Return the beginning, its segments' rows, which of them are here, and where those begin."""
    _, length = _START.unpack_from(data) if len(data) >= _START.size else (b"", 0)
    beginning = data[_START.size : _START.size + length]
    if len(beginning) != length or length < form.PREFIX.size:
        raise BlobError(f"{where}: it is cut or damaged.")
    first, header = beginning[: form.PREFIX.size], beginning[form.PREFIX.size :]
    segments, _ = form.read_header(bytes(first), bytes(header), where)
    rows, position = list(segments), _START.size + length
    here = bytes(data[position : position + len(rows)])
    if len(here) != len(rows):
        raise BlobError(f"{where}: it is cut or damaged.")
    return beginning, rows, here, position + len(rows)


def _by_contents(weights: Iterable[np.ndarray]) -> dict[tuple[int, bytes], memoryview]:
    """Return the bytes of large tensors by their length and checksum."""
    numbers = (array for array in weights if array.dtype.kind not in "OUS")
    large = (raw(array) for array in numbers if array.nbytes >= SMALLEST_NBYTES)
    return {(part.nbytes, xxhash.xxh3_128_digest(part)): part for part in large}
