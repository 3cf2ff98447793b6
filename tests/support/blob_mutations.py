"""Damaged blobs: seeded mutations, and what reading one may come to.

``python -m tests.support.blob_mutations --count 200000`` tries that many.
"""

from __future__ import annotations

import argparse
import io
import random
import struct
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import onnx
import xxhash

import hetero
from hetero.cache.blob import ModelBlob, describe_blob
from hetero.devices.errors import BlobError
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.stored_payload import read_payload

#: Most that reading a blob may take, as multiples of its length, beside what Python itself needs.
MOST_MEMORY = 2.0
SPARE_NBYTES = 300_000
MOST_SECONDS = 1.0


def model() -> onnx.ModelProto:
    """Return two layers with a weight of 64 kB each, one of them in the source and the export."""
    random_ = np.random.default_rng(3)
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        two (float[N, 128] x) => (float[N, 128] y)
        { [first] a = MatMul(x, w0) [relu] b = Relu(a) [second] y = MatMul(b, w1) }"""
    )
    for name in ("w0", "w1"):
        weight = random_.normal(size=(128, 128)).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return made


def sealed(first: bytes, header: bytes, rest: bytes) -> bytes:
    """Return a blob of these parts with its lengths and its header's checksum right."""
    nbytes = 64 + len(header) + len(rest)
    first = first[:16] + struct.pack("<QQ", len(header), nbytes) + first[32:48]
    return first + xxhash.xxh3_128_digest(first + header) + header + rest


def parts(blob: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a blob's first 48 bytes, header and segments."""
    (nbytes,) = struct.unpack_from("<Q", blob, 16)
    return blob[:48], blob[64 : 64 + nbytes], blob[64 + nbytes :]


def flip(blob: bytes, random_: random.Random) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(blob)
    for _ in range(random_.randint(1, 8)):
        changed[random_.randrange(len(blob))] ^= 1 << random_.randrange(8)
    return bytes(changed)


def cut(blob: bytes, random_: random.Random) -> bytes:
    """Cut the end off, or a piece out."""
    i, j = sorted(random_.randrange(len(blob) + 1) for _ in range(2))
    return blob[:i] if random_.random() < 0.5 else blob[:i] + blob[j:]


def splice(blob: bytes, random_: random.Random) -> bytes:
    """Write a piece of the blob over another."""
    length = random_.randint(1, len(blob) // 4)
    i, j = (random_.randrange(len(blob) - length) for _ in range(2))
    return blob[:i] + blob[j : j + length] + blob[i + length :]


def lengths(blob: bytes, random_: random.Random) -> bytes:
    """Put a number into the prefix."""
    changed = bytearray(blob)
    values = (0, 1, 63, len(blob), len(blob) + 1, 2**31, 2**63, 2**64 - 1, random_.getrandbits(64))
    struct.pack_into("<Q", changed, random_.choice((8, 16, 24, 32)), random_.choice(values))
    return bytes(changed)


def header_bytes(blob: bytes, random_: random.Random) -> bytes:
    """Damage the header's bytes, and make its checksum right."""
    first, header, rest = parts(blob)
    damage = random_.choice((flip, cut, splice))
    return sealed(first, damage(header, random_), rest)


def segment_table(blob: bytes, random_: random.Random) -> bytes:
    """Move, swap, stretch or drop segments, and make the header's checksum right."""
    first, header, rest = parts(blob)
    rows, document = msgpack.unpackb(header)
    table = [list(row) for row in struct.iter_unpack("<QQ16s", rows)]
    i, j = (random_.randrange(len(table)) for _ in range(2))
    kind = random_.randrange(5)
    if kind == 0:
        table[i], table[j] = table[j], table[i]
    elif kind == 1:
        table[i][:2], table[j][:2] = table[j][:2], table[i][:2]
    elif kind == 2:
        table[i][random_.randrange(2)] = random_.choice((0, 64, 2**32, 2**63, len(blob)))
    elif kind == 3:
        del table[i]
    else:
        table += [table[i]] * random_.choice((1, 5000))
    rows = b"".join(struct.pack("<QQ16s", *row) for row in table)
    return sealed(first, msgpack.packb([rows, document]), rest)


def nesting(blob: bytes, random_: random.Random) -> bytes:
    """Put deep, or wide, or endless things in place of the document."""
    first, header, rest = parts(blob)
    table, _ = msgpack.unpackb(header)
    deep = random_.randint(1, 3000)
    document = random_.choice(
        (
            b"\x91" * deep + b"\xc0",
            b"\x81\xa1x" * deep + b"\xc0",
            b"\xdd\xff\xff\xff\xff" * deep,
            b"\xdc\x10\x00" * 20 + b"\xc0" * 4096,
            b"\xdf\x7f\xff\xff\xff",
            b"\xc9\xff\xff\xff\xff\x02",
            b"\xc7\x06\x02" + struct.pack("<iH", -1, 1) + b"",
            msgpack.packb(
                msgpack.ExtType(2, struct.pack("<iH2Q", 0, 1, 2**61, random_.getrandbits(62)))
            ),
            msgpack.packb({"kind": "model", "plan": b"", "devices": {}}),
        )
    )
    return sealed(first, msgpack.packb([table, document]), rest)


def values(blob: bytes, random_: random.Random) -> bytes:
    """Replace a value somewhere in the document by one of another kind or size."""
    first, header, rest = parts(blob)
    table, document = msgpack.unpackb(header)
    tree = msgpack.unpackb(document)
    key = random_.choice(list(tree))
    odd: list[Any] = [None, -1, 2**63, 1.5, "x", b"\x00", [], {}, [[[]]], {"a": 1}, [None] * 1000]
    place: Any = tree
    while isinstance(place, dict | list) and place and random_.random() < 0.8:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = random_.choice(list(keys))
        if not isinstance(place[key], dict | list) or not place[key]:
            break
        place = place[key]
    if isinstance(place, dict) or (isinstance(place, list) and place):
        key = random_.choice(list(place) if isinstance(place, dict) else range(len(place)))
        place[key] = random_.choice(odd)
    return sealed(first, msgpack.packb([table, msgpack.packb(tree)]), rest)


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    cut,
    splice,
    lengths,
    header_bytes,
    segment_table,
    nesting,
    values,
)


def read_whole(blob: bytes) -> None:
    """Read everything that importing a blob reads."""
    file = BlobFile(blob)
    describe_blob(file)
    file.verify()
    read = ModelBlob(file)
    source = read.source()
    made = read.placements(source)
    for cut_ in made:
        read.stage_models(cut_)
    for stage in range(sum(len(plan.stages) for plan in read.plans)):
        read_payload(file, stage, read.contents)
    _ = source.nodes


@dataclass
class Tally:
    """What came of the blobs that were tried."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    #: Most memory over what is allowed; negative where there is room.
    worst_nbytes: float = float("-inf")


def try_all(blobs: Sequence[bytes], count: int, seed: int, *, memory: bool) -> Tally:
    """Read `count` mutations; anything but a typed error or a clean read is raised."""
    random_ = random.Random(seed)
    tally = Tally()
    for _ in range(count):
        mutate = random_.choice(MUTATIONS)
        damaged = mutate(random_.choice(blobs), random_)
        if memory:
            tracemalloc.start()
        began = time.perf_counter()
        try:
            read_whole(damaged)
            outcome = f"{mutate.__name__}: read"
        except BlobError:
            outcome = f"{mutate.__name__}: refused"
        tally.slowest_s = max(tally.slowest_s, time.perf_counter() - began)
        if memory:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            allowed = MOST_MEMORY * len(damaged) + SPARE_NBYTES
            tally.worst_nbytes = max(tally.worst_nbytes, peak - allowed)
        tally.outcomes[outcome] += 1
    return tally


def example() -> bytes:
    """Return a small model's blob."""
    with (
        hetero.Core(executor="inprocess") as core,
        core.compile_model(model(), "HETERO:ORT,CPU", affinity={"relu": "CPU"}) as compiled,
    ):
        stream = io.BytesIO()
        compiled.export_model(stream)
    return stream.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutations and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    tally = try_all([example()], options.count, options.seed, memory=False)
    for outcome, number in sorted(tally.outcomes.items()):
        print(f"{number:8d} {outcome}")
    print(f"slowest: {tally.slowest_s * 1e3:.1f} ms")
    return int(tally.slowest_s > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
