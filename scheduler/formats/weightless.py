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
from typing import Any, BinaryIO, Final

import numpy as np
import xxhash

from hetero.devices.errors import BlobError
from hetero.scheduler.formats import blob_format as form
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.blob_writer import BlobWriter
from hetero.scheduler.formats.tensor_entries import raw

MAGIC: Final = b"HETEROW\n"
_START: Final = struct.Struct("<8sQ")
#: Tensors of fewer bytes stay in the blob: those that preprocessing adds are in no file.
SMALLEST_NBYTES: Final = 1024

Source = str | Path | bytes | bytearray | memoryview


def write_without(
    weights: Iterable[np.ndarray], writer: BlobWriter, file: BinaryIO, value: Any
) -> int:
    """Write what `writer.write` would, without segments that hold `weights`; return its length."""
    beginning, segments, _ = writer.laid_out(value)
    left_out = _by_contents(weights).keys()
    here = [(s.nbytes, s.checksum) not in left_out for s in segments]
    head = _START.pack(MAGIC, len(beginning)) + beginning + bytes(here)
    file.write(head)
    kept = [part for part, is_here in zip(writer.contents, here, strict=True) if is_here]
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


def restore(source: Source, weights: Iterable[np.ndarray]) -> memoryview:
    """Return the whole blob of one without weights.

    Raises BlobError: it is damaged, or `weights` are not all that it was written without.
    """
    where, data = _data(source)
    whole, segments, rest = _opened(where, data)
    here, rest = rest[: len(segments)], rest[len(segments) :]
    found = _by_contents(weights)
    inside = sum(it.nbytes for it, is_here in zip(segments, here, strict=False) if is_here)
    absent = [it[1:] for it, is_here in zip(segments, here, strict=False) if not is_here]
    if (
        len(here) != len(segments)
        or inside != len(rest)
        or len({*absent}) != len(absent)  # equal segments are written once
    ):
        raise BlobError(f"{where}: it is cut or damaged.")
    if missing := sum(key[0] for key in absent if key not in found):
        raise BlobError(
            f"{where}: the model that was given for its weights has not got {missing} bytes of "
            "them; give the one that was compiled."
        )
    for segment, is_here in zip(segments, here, strict=True):
        part = rest[: segment.nbytes] if is_here else found[segment[1:]]
        whole[segment.offset : segment.offset + segment.nbytes] = part
        rest = rest[segment.nbytes :] if is_here else rest
    return whole


def outline(source: Source) -> memoryview:
    """Return the whole blob of one without weights, with zeros for all but its header.

    Raises BlobError: it is damaged.
    """
    return _opened(*_data(source))[0]


def _data(source: Source) -> tuple[str, memoryview]:
    """Return what errors call a blob, and its bytes."""
    if isinstance(source, str | Path):
        return f"blob {source}", memoryview(Path(source).read_bytes())
    return "blob", memoryview(source).cast("B")


def _opened(where: str, data: memoryview) -> tuple[memoryview, Sequence[form.Segment], memoryview]:
    """Return the whole blob with its beginning alone, its segments, and what follows it here."""
    try:
        _, length = _START.unpack_from(data)
        beginning, rest = data[_START.size :][:length], data[_START.size :][length:]
        # Zeros take no memory.
        whole = memoryview(mmap.mmap(-1, form.PREFIX.unpack_from(beginning)[4]))
        whole[:length] = beginning
    except (OSError, ValueError, OverflowError, struct.error) as error:
        raise BlobError(f"{where}: it is cut or damaged.") from error
    return whole, BlobFile(whole).segments, rest


def _by_contents(weights: Iterable[np.ndarray]) -> dict[tuple[int, bytes], memoryview]:
    """Return the bytes of large tensors by their length and checksum."""
    numbers = (array for array in weights if array.dtype.kind not in "OUS")
    large = (raw(array) for array in numbers if array.nbytes >= SMALLEST_NBYTES)
    return {(part.nbytes, xxhash.xxh3_128_digest(part)): part for part in large}
