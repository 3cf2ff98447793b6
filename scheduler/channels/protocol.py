"""What direct channels put around messages, and say to each other beside them.

Data: each message starts with the receiver's identity, the link it comes on, its number there and
how many more frames it has. `MARK` in place of frames is no message, but says that those up to the
number were sent before: what has not come by then is missing; then comes the mark's own number.
`GONE` says that the message of that number does not come any more. A datagram may have several
small messages: the number is the first's, that of further ones stands negated in place of frames,
then come their lengths, but for the last's, and the messages.

Control: msgpack of version, the receiver's identity, a kind, the
sender's address, and the kind's fields::

    BEAT     far link, near link, up to which all came on the receiver's far link, clock, the
             receiver's clock at its last beat or None, seconds since then, the sender's
             status as `packed_status` returns it, whether to answer. Parties of one node, and those
             that hear of each other by relays, beat only as they meet, and while they have links to
             say something of
    DROPPED  [requests, each as an envelope]
    LEAVE    [link of the receiver's, messages that came on it, ...]: the channel is closed
    LOST     link, first number, last number, why: they did not come, or came damaged
    MISSED   link, mark's number, [numbers that did not come before that]: send them again
    ASK      [addresses on the receiver's node]: be our relay, for those besides earlier ones
    ROLL     [[identity, seconds since it was heard, round trip, its clock less the sender's,
             status, of how many it asks], ...]: parties that the sender hears
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgpack

from devices.errors import BlobError
from scheduler.formats.msgpack_check import unpack

VERSION: Final = 5
PREFIX: Final = struct.Struct("<8s8sQi")
LENGTH: Final = struct.Struct("<I")
MARK_NUMBER: Final = struct.Struct("<Q")
BEAT, DROPPED, LOST, LEAVE, MISSED, ASK, ROLL = range(7)
MARK: Final = -(2**31)
GONE: Final = MARK + 1
#: No control message is longer.
MOST_CONTROL_NBYTES: Final = 64 * 1024
#: What a party says of how it is has no more bytes, and no more numbers.
_MOST_STATUS_NBYTES: Final = 8 * 1024
_MOST_STATUS: Final = 64

_NUMBER = (int, float)
_FIELDS: Final[dict[int, tuple[Any, ...]]] = {
    BEAT: (bytes, bytes, int, _NUMBER, (*_NUMBER, type(None)), _NUMBER, bytes, bool),
    DROPPED: (list,),
    LOST: (bytes, int, int, str),
    LEAVE: (list,),
    MISSED: (bytes, int, list),
    ASK: (list,),
    ROLL: (list,),
}
#: What the last field of a kind lists: requests, numbers of messages, addresses.
_LISTED: Final[dict[int, type]] = {DROPPED: bytes, MISSED: int, ASK: str}
_ROW: Final[tuple[Any, ...]] = (bytes, _NUMBER, _NUMBER, _NUMBER, bytes, int)


def control_message(data: bytes, identity: bytes) -> tuple[int, str, list[Any]]:
    """Return kind, sender's address and fields of a control message to `identity`.

    Raises BlobError: it is damaged, of another version, or for somebody else.
    """
    if len(data) > MOST_CONTROL_NBYTES:
        raise BlobError(f"control message of {len(data)} bytes.")
    tree = unpack(data, "control message")
    if not isinstance(tree, list) or len(tree) < 4:
        raise BlobError("control message that is cut short.")
    version, receiver, kind, sender, *fields = tree
    if version != VERSION:
        raise BlobError(f"control message of version {version!r}; this program reads {VERSION}.")
    if receiver != identity:
        raise BlobError("control message for another party.")
    kinds = _FIELDS.get(kind) if type(kind) is int else None
    if kinds is None or type(sender) is not str or len(fields) != len(kinds):
        raise BlobError("control message of an unknown kind.")
    if not all(map(isinstance, fields, kinds)):
        raise BlobError("control message with damaged fields.")
    if kind == BEAT:
        unpacked_status(fields[-2])
    if kind in _LISTED and not all(type(it) is _LISTED[kind] for it in fields[-1]):
        raise BlobError(f"control message of kind {kind} with a damaged list.")
    if kind == ROLL and not is_roll(fields[0]):
        raise BlobError("damaged roll.")
    return kind, sender, fields


def is_roll(value: Any) -> bool:
    """Whether something is what a ROLL has."""
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == len(_ROW) and all(map(isinstance, row, _ROW))
        for row in value
    )


def packed_status(num_lost: int, status: Mapping[str, float]) -> bytes:
    """Return how a party is: how many messages it has lost, and its status if that has room."""
    packed: bytes = msgpack.packb((num_lost, status))
    return packed if len(packed) <= _MOST_STATUS_NBYTES else packed_status(num_lost, {})


@functools.lru_cache(1024)
def unpacked_status(packed: bytes) -> tuple[int, Mapping[str, float]]:
    """Return what `packed_status` was given: mostly a party is as it was.

    Raises BlobError: it was given nothing of the kind.
    """
    tree = unpack(packed, "status")
    if not (isinstance(tree, list) and list(map(type, tree)) == [int, dict]):
        raise BlobError("damaged status.")
    num_lost, status = tree
    if not all(type(it) is str and isinstance(status[it], _NUMBER) for it in status):
        raise BlobError("damaged status: no numbers by name.")
    return num_lost, dict(list(status.items())[:_MOST_STATUS])
