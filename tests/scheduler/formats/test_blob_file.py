"""Blob files: written values are read back, and damaged files are refused."""

from __future__ import annotations

import io
import os
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from msgspec.msgpack import Decoder

from hetero.devices.errors import BlobError
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.blob_format import FORMAT_VERSION, SegmentReference
from hetero.scheduler.formats.blob_writer import BlobWriter
from hetero.scheduler.formats.unpack import unpack
from tests.support.rows import for_each_row


def written(value: Any) -> bytes:
    file = io.BytesIO()
    assert BlobWriter().write(file, value) == len(file.getvalue())
    return file.getvalue()


def resealed(blob: bytes) -> bytes:
    """Return a blob with a recomputed checksum of its header."""
    (nbytes,) = struct.unpack_from("<Q", blob, 16)
    checksum = xxhash.xxh3_128_digest(blob[:48] + blob[64 : 64 + nbytes])
    return blob[:48] + checksum + blob[64:]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(100_000, dtype=np.int64),
        np.zeros((0, 3), np.uint8),
        np.array(7, np.int8),
        np.ones((2, 2), ml_dtypes.bfloat16),
        np.arange(6, dtype=np.float64).reshape(2, 3).T,
        np.arange(4, dtype=">i4"),
        np.array([["a", "é"], ["", "d"]], object),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
@pytest.mark.parametrize("kind", ["file", "bytes"])
def test_tensors_are_read_equal_and_read_only(array, kind, tmp_path):
    blob = written({"tensors": [array]})
    path = tmp_path / "x.hetero"
    path.write_bytes(blob)
    (back,) = BlobFile(path if kind == "file" else blob).contents()["tensors"]
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    assert not back.flags.writeable
    np.testing.assert_array_equal(back, array)


def test_plain_values_are_read_equal_and_tuples_as_lists():
    value = {"a": [None, True, 2**63, -1.5, "é", b"\0"], "b": {"c": [], 3: b"x" * 5000}}
    assert BlobFile(written({**value, "t": (1, 2)})).contents() == {**value, "t": [1, 2]}


def test_equal_tensors_are_stored_once():
    array = np.random.default_rng(0).normal(size=50_000)
    once, twice = written([array]), written([array, array.copy(), array.reshape(5, -1)])
    assert len(twice) - len(once) < 200
    assert len(BlobFile(twice).segments) == 1


def test_segments_are_aligned_to_pages_or_64_bytes():
    arrays = [np.full(n, n, np.float32) for n in (3, 40_000, 5, 50_000)]
    for segment in BlobFile(written(arrays)).segments:
        assert segment.offset % (4096 if segment.nbytes > 65536 else 64) == 0


def test_outline_reads_no_segment():
    blob = bytearray(written({"w": np.ones(1000, np.float32)}))
    blob[-1] ^= 1
    file = BlobFile(bytes(blob))
    assert file.outline() == {"w": SegmentReference(0, 4000, "float32", (1000,))}
    with pytest.raises(BlobError, match=r"segments\[0\]: damaged"):
        file.contents()
    with pytest.raises(BlobError, match=r"segments\[0\]: damaged"):
        file.verify()


def test_nested_document_is_read_alone():
    writer = BlobWriter()
    inner = writer.document({"w": np.arange(5)})
    file = io.BytesIO()
    writer.write(file, {"inner": inner, "other": np.ones(9)})
    blob = BlobFile(file.getvalue())
    np.testing.assert_array_equal(blob.contents(blob.contents()["inner"])["w"], np.arange(5))


@pytest.mark.parametrize("value", [object(), {1.5: 0}, np.zeros(2, np.complex256)])
def test_unsupported_value_cannot_be_written(value):
    with pytest.raises(TypeError):
        written([value])


def test_every_byte_of_prefix_and_header_is_covered():
    blob = written({"w": np.ones(20, np.float32), "name": "n"})
    (nbytes,) = struct.unpack_from("<Q", blob, 16)
    for position in range(64 + nbytes):
        damaged = bytearray(blob)
        damaged[position] ^= 0x10
        with pytest.raises(BlobError):
            BlobFile(bytes(damaged))


def test_every_truncation_is_refused():
    blob = written({"w": np.ones(20, np.float32)})
    for nbytes in range(len(blob)):
        with pytest.raises(BlobError):
            BlobFile(blob[:nbytes])


def test_another_format_version_is_refused_by_number():
    blob = bytearray(written({}))
    blob[8] = FORMAT_VERSION + 1
    with pytest.raises(BlobError, match=f"format version {FORMAT_VERSION + 1}") as caught:
        BlobFile(resealed(bytes(blob)))
    assert caught.value.data["version"] == FORMAT_VERSION + 1


@for_each_row("offset", [0, 1, 64, 2**62, 2**64 - 64, 2**32])
@for_each_row("field", [0, 8])
def test_segments_outside_the_file_or_over_header_are_refused(offset, field):
    blob = written({"w": np.ones(20, np.float32)})
    (nbytes,) = struct.unpack_from("<Q", blob, 16)
    (start,) = (segment.offset for segment in BlobFile(blob).segments)
    row = blob.index(struct.pack("<QQ", start, 80))
    assert row < 64 + nbytes
    changed = bytearray(blob)
    struct.pack_into("<Q", changed, row + field, offset)
    with pytest.raises(BlobError):
        BlobFile(resealed(bytes(changed))).verify()


def test_other_than_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BlobError, match="regular"):
        BlobFile(tmp_path / "pipe")
    with pytest.raises(BlobError, match="regular"):
        BlobFile(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(OSError, match="symbolic links"):
        BlobFile(tmp_path / "link", of_cache=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="symbolic links"):
        BlobFile(tmp_path / "loop")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x92\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\x00\x00\x00\x05\x01",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 2000 + b"\xc0",
        b"\xc1",
        b"\x01\x02",
        b"\xc9\x00\x00\x01\x00\x01",
        b"\xd8\x01",
    ],
)
def test_msgpack_with_excessive_lengths_is_refused(data):
    with pytest.raises(BlobError, match="here: damaged"):
        unpack(data, Decoder(), "here")
