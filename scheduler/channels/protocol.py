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
             receiver's clock at its last beat or None, seconds since then, messages that the sender
             has lost, {name: number}. Parties of one node beat as they meet, and while they have
             links to say something of; each is answered once, and the rest is in their stamps
    DROPPED  [requests, each as an envelope]
    LEAVE    [link of the receiver's, messages that came on it, ...]: the channel is closed
    LOST     link, first number, last number, why: they did not come, or came damaged
    MISSED   link, mark's number, [numbers that did not come before that]: send them again
"""

from __future__ import annotations

import struct
from typing import Any, Final

from devices.errors import BlobError
from scheduler.formats.msgpack_check import unpack

VERSION: Final = 4
PREFIX: Final = struct.Struct("<8s8sQi")
LENGTH: Final = struct.Struct("<I")
MARK_NUMBER: Final = struct.Struct("<Q")
BEAT, DROPPED, LOST, LEAVE, MISSED = range(5)
MARK: Final = -(2**31)
GONE: Final = MARK + 1
#: No control message is longer.
MOST_CONTROL_NBYTES: Final = 64 * 1024

_NUMBER = (int, float)
_FIELDS: Final[dict[int, tuple[Any, ...]]] = {
    BEAT: (bytes, bytes, int, _NUMBER, (*_NUMBER, type(None)), _NUMBER, int, dict),
    DROPPED: (list,),
    LOST: (bytes, int, int, str),
    LEAVE: (list,),
    MISSED: (bytes, int, list),
}


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
    if kind == BEAT and not is_status(fields[-1]):
        raise BlobError("beat with a damaged status.")
    if kind == DROPPED and not all(type(request) is bytes for request in fields[0]):
        raise BlobError("requests dropped that are none.")
    if kind == MISSED and not all(type(number) is int for number in fields[-1]):
        raise BlobError("messages asked for that have no numbers.")
    return kind, sender, fields


def is_status(value: Any) -> bool:
    """Whether something is numbers by name."""
    return isinstance(value, dict) and all(
        type(name) is str and isinstance(number, _NUMBER) for name, number in value.items()
    )
