"""Damaged and random REST requests, which only ProtocolError may refuse."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("orjson")
from hetero.apps.serve.errors import ProtocolError
from hetero.apps.serve.inference_request import check_document, decode_request
from hetero.apps.serve.rest_messages import RestMessage, decompress
from hetero.apps.serve.shared_memory import SharedMemoryRegions

REGIONS = SharedMemoryRegions(is_allowed=True, max_nbytes=1000)


def read(body: bytes, length: bytes) -> None:
    """Decode a request as the server does."""
    message = RestMessage(body, length, 10**6)
    check_document(message.document)
    decode_request(message, REGIONS)


#: Values of wrong types.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-3, 3), max_size=3),
    st.just({}),
    st.just([[[]]]),
    st.just(2**63),
)
KEYS = st.sampled_from(["name", "shape", "datatype", "data", "parameters"])
PARAMETERS = st.sampled_from(
    [
        "binary_data_size",
        "shared_memory_region",
        "shared_memory_byte_size",
        "timeout",
        "priority",
    ]
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    entry=st.dictionaries(KEYS, ODD, max_size=4),
    parameters=st.dictionaries(PARAMETERS, ODD, max_size=2),
    top=st.dictionaries(st.sampled_from(["id", "parameters", "outputs"]), ODD, max_size=2),
    raw=st.binary(max_size=20),
)
def test_fields_of_any_type(entry, parameters, top, raw):
    good = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}
    document = {"inputs": [{**good, "parameters": parameters, **entry}], **top}
    head = json.dumps(document).encode()
    with suppress(ProtocolError):
        read(head + raw, b"%d" % len(head))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_bytes(data):
    entry = {"name": "x", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 13}}
    head = json.dumps({"inputs": [entry]}).encode()
    body = bytearray(head + b"\x03\0\0\0abc" + b"\x02\0\0\0de")
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(
        st.sampled_from([b"%d" % len(head), b"1", b"x", b"", b"%d" % len(body), b"99999999"])
    )
    with suppress(ProtocolError):
        read(bytes(body), length)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.binary(max_size=40), st.sampled_from(["gzip", "deflate", "br", ""]))
def test_bodies_that_are_not_compressed(body, encoding):
    with suppress(ProtocolError):
        decompress(body, encoding, 1000)


@pytest.mark.parametrize("more", [1, 200_000])
def test_bytes_after_a_compressed_body_are_refused(more):
    packed = zlib.compress(random.Random(1).randbytes(200_000))
    assert len(decompress(packed, "deflate", 200_000)) == 200_000
    for body in (packed + bytes(more), packed[:-more]):
        with pytest.raises(ProtocolError, match="truncated"):
            decompress(body, "deflate", 200_000)


def test_decompressed_body_is_bounded():
    with pytest.raises(ProtocolError) as caught:
        decompress(zlib.compress(b"0" * 10_000_000), "deflate", 1000)
    assert caught.value.status == 413
