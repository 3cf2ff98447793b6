"""What direct channels put around messages, and say to each other beside them.

Data: each message starts with the receiver's identity, the link it comes on, its number there and
how many more frames it has. `MARK` in place of frames is no message, but says that those up to the
number were sent before: what has not come by then is missing; then comes the mark's own number.
`GONE` says that the message of that number does not come any more. `TOGETHER` says that a datagram
has several small messages, as msgpack.

Control: three letters, the version's byte, the receiver's identity, and msgpack of the sender's
address and what it says, which is one of the classes below.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from msgspec.msgpack import Decoder

from hetero.devices.errors import BlobError
from hetero.scheduler.formats.unpack import refuse, unpack

PREFIX: Final = struct.Struct("<8s8sQi")
MARK_NUMBER: Final = struct.Struct("<Q")
MARK: Final = -(2**31)
GONE: Final = MARK + 1
TOGETHER: Final = MARK + 2
#: Raised whenever the form of control messages changes; other versions are refused by name.
VERSION: Final = 6
#: No control message is longer.
MOST_CONTROL_NBYTES: Final = 64 * 1024
_START: Final = b"HTC" + bytes([VERSION])
#: What a party says of how it is has no more bytes, and no more numbers.
_MOST_STATUS_NBYTES: Final = 8 * 1024
_MOST_STATUS: Final = 64


class Said(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a control message says."""


class Beat(Said, tag=0):
    """The sender is there.

    Parties of one node, and those that hear of each other by relays, beat only as they meet, and
    while they have links to say something of.

    `far`, `near`: its links; `came`: up to which all came on the receiver's far link.
    `clock_s`: its clock; `echo_s`, `held_s`: the receiver's at its last beat, and seconds since.
    `status`: as `packed_status` returns it.
    `is_owed`: whether to answer.
    """

    far: bytes
    near: bytes
    came: int
    clock_s: float
    echo_s: float | None
    held_s: float
    status: bytes
    is_owed: bool


class Drop(Said, tag=1):
    """Nobody waits for requests any more, each a message in an envelope."""

    requests: list[bytes]


class Leave(Said, tag=2):
    """The channel is closed; so many messages came on the receiver's links."""

    counts: dict[bytes, int]


class Lost(Said, tag=3):
    """Messages on a link did not come, or came damaged."""

    link: bytes
    first: int
    last: int
    why: str


class Missed(Said, tag=4):
    """Messages did not come before a mark did: send them again."""

    link: bytes
    mark: int
    numbers: list[int]


class Ask(Said, tag=5):
    """Be our relay, for these addresses on the receiver's node besides earlier ones."""

    addresses: list[str]


class Row(NamedTuple):
    """A party that another one hears: how long ago, its clock less that one's, its status.

    `num_asked`: of how many it asks.
    """

    identity: bytes
    age_s: float
    round_s: float
    offset_s: float
    status: bytes
    num_asked: int


class Roll(Said, tag=6):
    """The sender hears these parties."""

    rows: list[Row]


_READ: Final = Decoder(tuple[str, Beat | Drop | Leave | Lost | Missed | Ask | Roll])
_STATUS: Final = Decoder(tuple[int, dict[str, float]])


def control_message(said: Said, receiver: bytes, sender: str) -> bytes:
    """Return a control message."""
    return b"".join((_START, receiver, msgspec.msgpack.encode((sender, said))))


def read_control(data: bytes, identity: bytes) -> tuple[str, Said]:
    """Return the sender's address, and what it says to `identity`.

    Raises BlobError: it is damaged, of another version, or for somebody else.
    """
    if len(data) > MOST_CONTROL_NBYTES:
        raise BlobError(f"control message of {len(data)} bytes.")
    if not data.startswith(_START):
        refuse(data[: len(_START)], _START, "control message")
    if not data.startswith(identity, len(_START)):
        raise BlobError("control message for another party.")
    told = unpack(memoryview(data)[len(_START) + len(identity) :], _READ, "control message")
    if isinstance(told[1], Beat):
        unpacked_status(told[1].status)
    return told


def packed_status(num_lost: int, status: Mapping[str, float]) -> bytes:
    """Return how a party is: how many messages it has lost, and its status if that has room."""
    packed = msgspec.msgpack.encode((num_lost, status))
    return packed if len(packed) <= _MOST_STATUS_NBYTES else packed_status(num_lost, {})


@functools.lru_cache(1024)
def unpacked_status(packed: bytes) -> tuple[int, Mapping[str, float]]:
    """Return what `packed_status` was given: mostly a party is as it was.

    Raises BlobError: it was given nothing of the kind.
    """
    num_lost, status = unpack(packed, _STATUS, "status")
    return num_lost, dict(islice(status.items(), _MOST_STATUS))
