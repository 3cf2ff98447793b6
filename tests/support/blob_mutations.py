"""Fuzzing of blobs with seeded mutations: time, memory and errors of reading them.

``python -m tests.support.blob_mutations --count 200000`` reads that many mutations.
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

#: Limit of the memory for reading a blob, as a multiple of its length, and Python's own share.
MAX_MEMORY_FACTOR = 2.0
BASE_MEMORY_NBYTES = 300_000
MAX_SECONDS = 1.0


def model() -> onnx.ModelProto:
    """Return two layers with a weight of 64 kB each, one of them in the source and the export."""
    rng = np.random.default_rng(3)
    network = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        two (float[N, 128] x) => (float[N, 128] y)
        { [first] a = MatMul(x, w0) [relu] b = Relu(a) [second] y = MatMul(b, w1) }"""
    )
    for name in ("w0", "w1"):
        weight = rng.normal(size=(128, 128)).astype(np.float32)
        network.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return network


def join_parts(first: bytes, header: bytes, rest: bytes) -> bytes:
    """Join the parts of a blob, with the right lengths and header checksum in the prefix."""
    nbytes = 64 + len(header) + len(rest)
    first = first[:16] + struct.pack("<QQ", len(header), nbytes) + first[32:48]
    return first + xxhash.xxh3_128_digest(first + header) + header + rest


def split_parts(blob: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a blob into the first 48 bytes of its prefix, its header and its segments."""
    (nbytes,) = struct.unpack_from("<Q", blob, 16)
    return blob[:48], blob[64 : 64 + nbytes], blob[64 + nbytes :]


def flip(blob: bytes, rng: random.Random) -> bytes:
    """Flip one to eight bits."""
    mutated = bytearray(blob)
    for _ in range(rng.randint(1, 8)):
        mutated[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
    return bytes(mutated)


def delete(blob: bytes, rng: random.Random) -> bytes:
    """Delete the end or a part in the middle."""
    i, j = sorted(rng.randrange(len(blob) + 1) for _ in range(2))
    return blob[:i] if rng.random() < 0.5 else blob[:i] + blob[j:]


def splice(blob: bytes, rng: random.Random) -> bytes:
    """Overwrite a part of the blob with another part."""
    length = rng.randint(1, len(blob) // 4)
    i, j = (rng.randrange(len(blob) - length) for _ in range(2))
    return blob[:i] + blob[j : j + length] + blob[i + length :]


def set_prefix_number(blob: bytes, rng: random.Random) -> bytes:
    """Replace a number in the prefix."""
    mutated = bytearray(blob)
    numbers = (0, 1, 63, len(blob), len(blob) + 1, 2**31, 2**63, 2**64 - 1, rng.getrandbits(64))
    struct.pack_into("<Q", mutated, rng.choice((8, 16, 24, 32)), rng.choice(numbers))
    return bytes(mutated)


def damage_header(blob: bytes, rng: random.Random) -> bytes:
    """Damage the bytes of the header, and recompute its checksum."""
    first, header, rest = split_parts(blob)
    damage = rng.choice((flip, delete, splice))
    return join_parts(first, damage(header, rng), rest)


def damage_segment_table(blob: bytes, rng: random.Random) -> bytes:
    """Move, swap, resize or remove segments, and recompute the header's checksum."""
    first, header, rest = split_parts(blob)
    rows, document = msgpack.unpackb(header)
    table = [list(row) for row in struct.iter_unpack("<QQ16s", rows)]
    i, j = (rng.randrange(len(table)) for _ in range(2))
    kind = rng.randrange(5)
    if kind == 0:
        table[i], table[j] = table[j], table[i]
    elif kind == 1:
        table[i][:2], table[j][:2] = table[j][:2], table[i][:2]
    elif kind == 2:
        table[i][rng.randrange(2)] = rng.choice((0, 64, 2**32, 2**63, len(blob)))
    elif kind == 3:
        del table[i]
    else:
        table += [table[i]] * rng.choice((1, 5000))
    rows = b"".join(struct.pack("<QQ16s", *row) for row in table)
    return join_parts(first, msgpack.packb([rows, document]), rest)


def replace_document(blob: bytes, rng: random.Random) -> bytes:
    """Replace the document by a deep, wide, truncated or invalid one."""
    first, header, rest = split_parts(blob)
    table, _ = msgpack.unpackb(header)
    depth = rng.randint(1, 3000)
    document = rng.choice(
        (
            b"\x91" * depth + b"\xc0",
            b"\x81\xa1x" * depth + b"\xc0",
            b"\xdd\xff\xff\xff\xff" * depth,
            b"\xdc\x10\x00" * 20 + b"\xc0" * 4096,
            b"\xdf\x7f\xff\xff\xff",
            b"\xc9\xff\xff\xff\xff\x02",
            b"\xc7\x06\x02" + struct.pack("<iH", -1, 1) + b"",
            msgpack.packb(
                msgpack.ExtType(2, struct.pack("<iH2Q", 0, 1, 2**61, rng.getrandbits(62)))
            ),
            msgpack.packb({"kind": "model", "plan": b"", "devices": {}}),
        )
    )
    return join_parts(first, msgpack.packb([table, document]), rest)


def replace_value(blob: bytes, rng: random.Random) -> bytes:
    """Replace a value in the document by one of another type or size."""
    first, header, rest = split_parts(blob)
    table, document = msgpack.unpackb(header)
    tree = msgpack.unpackb(document)
    key = rng.choice(list(tree))
    replacements: list[Any] = [
        None,
        -1,
        2**63,
        1.5,
        "x",
        b"\x00",
        [],
        {},
        [[[]]],
        {"a": 1},
        [None] * 1000,
    ]
    node: Any = tree
    while isinstance(node, dict | list) and node and rng.random() < 0.8:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = rng.choice(list(keys))
        if not isinstance(node[key], dict | list) or not node[key]:
            break
        node = node[key]
    if isinstance(node, dict) or (isinstance(node, list) and node):
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node[key] = rng.choice(replacements)
    return join_parts(first, msgpack.packb([table, msgpack.packb(tree)]), rest)


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    delete,
    splice,
    set_prefix_number,
    damage_header,
    damage_segment_table,
    replace_document,
    replace_value,
)


def read_whole(blob: bytes) -> None:
    """Read everything that importing a blob reads."""
    file = BlobFile(blob)
    describe_blob(file)
    file.verify()
    model_blob = ModelBlob(file)
    source = model_blob.source()
    for placement in model_blob.placements(source):
        model_blob.stage_models(placement)
    for stage in range(sum(len(plan.stages) for plan in model_blob.plans)):
        read_payload(file, stage, model_blob.contents)
    _ = source.nodes


@dataclass
class Tally:
    """Outcomes of reading mutated blobs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    #: Maximum memory use above the limit; negative if all reads were below it.
    max_excess_nbytes: float = float("-inf")


def try_all(blobs: Sequence[bytes], count: int, seed: int, *, memory: bool) -> Tally:
    """Read `count` mutations, and raise any exception other than BlobError."""
    rng = random.Random(seed)
    tally = Tally()
    for _ in range(count):
        mutate = rng.choice(MUTATIONS)
        mutated = mutate(rng.choice(blobs), rng)
        if memory:
            tracemalloc.start()
        start_s = time.perf_counter()
        try:
            read_whole(mutated)
            outcome = f"{mutate.__name__}: read"
        except BlobError:
            outcome = f"{mutate.__name__}: rejected"
        tally.slowest_s = max(tally.slowest_s, time.perf_counter() - start_s)
        if memory:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            limit_nbytes = MAX_MEMORY_FACTOR * len(mutated) + BASE_MEMORY_NBYTES
            tally.max_excess_nbytes = max(tally.max_excess_nbytes, peak - limit_nbytes)
        tally.outcomes[outcome] += 1
    return tally


def example() -> bytes:
    """Return the blob of a small model."""
    with (
        hetero.Core(executor="inprocess") as core,
        core.compile_model(model(), "HETERO:ORT,CPU", affinity={"relu": "CPU"}) as compiled,
    ):
        stream = io.BytesIO()
        compiled.export_model(stream)
    return stream.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Read mutated blobs and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    tally = try_all([example()], options.count, options.seed, memory=False)
    for outcome, number in sorted(tally.outcomes.items()):
        print(f"{number:8d} {outcome}")
    print(f"slowest: {tally.slowest_s * 1e3:.1f} ms")
    return int(tally.slowest_s > MAX_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
