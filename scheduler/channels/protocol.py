"""Wire format of a direct channel: prefix of data messages between nodes, and control messages.

A data message between nodes starts with the identities of its receiver and its sender, and the
number of frames after the first one.

A control message consists of a magic number, a version, and msgpack of the receiver's identity, the
sender's identity and one of the classes below.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.msgpack import Decoder

from hetero.devices.errors import BlobError
from hetero.scheduler.formats.unpack import refuse, unpack

#: Padded to a multiple of 16 bytes, which keeps the contents aligned.
PREFIX: Final = struct.Struct("<8s8si12x")
#: Increment it whenever the format of control messages changes; a peer rejects other versions.
VERSION: Final = 7
#: Maximum size of a control message.
MAX_CONTROL_NBYTES: Final = 64 * 1024
_START: Final = b"HTC" + bytes([VERSION])
#: Maximum size of a status, and of its number of values.
_MAX_STATUS_NBYTES: Final = 8 * 1024
_MAX_STATUS_VALUES: Final = 64


class ControlMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A message between the control threads of two channels."""


class StatusRequest(ControlMessage, tag=0):
    """Request for a `Status`.

    `clock_s`: the sender's clock.
    """

    clock_s: float


class Status(ControlMessage, tag=1):
    """Reply to a `StatusRequest`.

    `echo_s`: clock of the request.
    `clock_s`: the sender's clock.
    `num_lost`: peer's identity -> number of messages lost between that peer and the sender.
    `values`: application values by name.
    """

    echo_s: float
    clock_s: float
    num_lost: dict[bytes, int]
    values: dict[str, float]


class Drop(ControlMessage, tag=2):
    """Notice of cancelled attempts.

    `requests`: one encoded `Dropped` message for each of them.
    """

    requests: list[bytes]


class Leave(ControlMessage, tag=3):
    """Notice that the sender has closed its channel."""


_Identity = Annotated[bytes, Meta(min_length=8, max_length=8)]
_DECODER: Final = Decoder(tuple[_Identity, _Identity, StatusRequest | Status | Drop | Leave])


def pack_control(message: ControlMessage, receiver: bytes, sender: bytes) -> bytes:
    """Encode a control message."""
    return _START + msgspec.msgpack.encode((receiver, sender, message))


def read_control(data: bytes) -> tuple[bytes, bytes, ControlMessage]:
    """Decode a control message; return the receiver's identity, the sender's, and the message.

    Raises BlobError: it is damaged, or of another version.
    """
    if len(data) > MAX_CONTROL_NBYTES:
        raise BlobError(
            f"control message of {len(data)} bytes; expected at most {MAX_CONTROL_NBYTES}."
        )
    if not data.startswith(_START):
        refuse(data[: len(_START)], _START, "control message")
    return unpack(memoryview(data)[len(_START) :], _DECODER, "control message")


def bounded_status(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a status; an empty dict if they exceed the size of a control message."""
    bounded = {name: float(value) for name, value in islice(values.items(), _MAX_STATUS_VALUES)}
    return bounded if len(msgspec.msgpack.encode(bounded)) <= _MAX_STATUS_NBYTES else {}
