"""Wire format of a direct channel: the prefix of each message, and the control messages.

A message starts with its receiver's and its sender's identity and the number of frames that follow
the first one, or `TOGETHER`: then a datagram has several small messages, as msgpack.

A control message is three letters, the version's byte, and msgpack of the receiver's identity, the
sender's, and one of the classes below.
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

#: Padded, so that what follows it is aligned.
PREFIX: Final = struct.Struct("<8s8si12x")
TOGETHER: Final = -1
#: Raised whenever the form of control messages changes; other versions are refused by name.
VERSION: Final = 7
#: No control message is longer.
MOST_CONTROL_NBYTES: Final = 64 * 1024
_START: Final = b"HTC" + bytes([VERSION])
#: A status has no more bytes, and no more numbers.
_MOST_STATUS_NBYTES: Final = 8 * 1024
_MOST_STATUS: Final = 64


class ControlMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A control message."""


class StatusRequest(ControlMessage, tag=0):
    """A request for a `Status`, with the sender's clock."""

    clock_s: float


class Status(ControlMessage, tag=1):
    """The reply to a `StatusRequest`.

    `echo_s`: the clock of the request; `clock_s`: the sender's own.
    `lost`: identity -> how many messages the sender has lost so far, from its party and to it.
    `values`: numbers by name.
    """

    echo_s: float
    clock_s: float
    lost: dict[bytes, int]
    values: dict[str, float]


class Drop(ControlMessage, tag=2):
    """Requests that nobody waits for any more, each a message in an envelope."""

    requests: list[bytes]


class Leave(ControlMessage, tag=3):
    """The end of the sender's channel."""


_Identity = Annotated[bytes, Meta(min_length=8, max_length=8)]
_READ: Final = Decoder(tuple[_Identity, _Identity, StatusRequest | Status | Drop | Leave])


def pack_control(message: ControlMessage, receiver: bytes, sender: bytes) -> bytes:
    """Return a control message as bytes."""
    return _START + msgspec.msgpack.encode((receiver, sender, message))


def read_control(data: bytes) -> tuple[bytes, bytes, ControlMessage]:
    """Return the receiver's identity, the sender's, and the message.

    Raises BlobError: it is damaged, or of another version.
    """
    if len(data) > MOST_CONTROL_NBYTES:
        raise BlobError(f"control message of {len(data)} bytes.")
    if not data.startswith(_START):
        refuse(data[: len(_START)], _START, "control message")
    return unpack(memoryview(data)[len(_START) :], _READ, "control message")


def bounded_status(values: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of a status that a control message has room for; else none."""
    values = {name: float(value) for name, value in islice(values.items(), _MOST_STATUS)}
    return values if len(msgspec.msgpack.encode(values)) <= _MOST_STATUS_NBYTES else {}
